// What the lane adds to the PJRT calls it cannot do without: the same program on the same operands, called through the
// bound lane and in a bare loop of upload, execute and download, in turns. Both hold the plan in the device's memory.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>

#include "engine/state.h"
#include "lanes/xla/operands.h"
#include "lanes/xla/programs.h"
#include "lanes/xla/xla.h"
#include "xla/results.h"

namespace tessera::bench {
namespace {

using Bytes = std::vector<std::byte>;

Bytes ToBytes(std::span<const std::byte> bytes) { return {bytes.begin(), bytes.end()}; }

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(values.size()) / 2, values.end());
  return values[values.size() / 2];
}

std::span<float> FloatsOf(Tensor& tensor) {
  return {reinterpret_cast<float*>(tensor.bytes.data()), static_cast<size_t>(tensor.NumElements())};
}

class Calls {
 public:
  Calls(const lanes::xla::Session& session, Problem& problem, Pass pass, const XlaOptions& xla)
      : session_(session), problem_(problem), pass_(pass), xla_(xla) {}

  // Binds the lane; finds its program, the bytes that a call sends, and in the device's memory what no call changes.
  Status Prepare() {
    if (Result<double> bound = BindLane(); !bound) return tl::unexpected(bound.error());
    const stablehlo::ProgramSpec spec = stablehlo::SpecOf(problem_.contract, problem_.plan.view(), TargetKind::kCpu);
    Result<lanes::xla::FoundProgram> found = FindChunked(session_, spec, pass_, xla_);
    if (!found) return tl::unexpected(found.error());
    program_ = found->program;
    delta_.assign(static_cast<size_t>(problem_.outputs.at("lse").NumElements()), 0.0F);
    sent_["delta"] = ToBytes(std::as_bytes(std::span(delta_)));
    sent_["lse"] = problem_.outputs.at("lse").bytes;
    for (const auto& [name, tensor] : problem_.inputs) sent_[name] = tensor.bytes;
    const auto scale = static_cast<float>(problem_.contract.score.scale);
    if (Status ok = Hold("scale", std::as_bytes(std::span(&scale, 1))); !ok) return ok;
    for (const auto& [name, table] : lanes::xla::MakeTables(spec, problem_.plan.view(), program_->inputs)) {
      if (Status ok = Hold(name, std::as_bytes(std::span(table))); !ok) return ok;
    }
    return {};
  }

  Result<double> Lane() {
    TensorMap& in = problem_.inputs;
    TensorMap& out = problem_.outputs;
    ForwardArgs forward;
    forward.q = DenseView(in.at("q"));
    forward.k = DenseView(in.at("k"));
    forward.v = DenseView(in.at("v"));
    forward.o = DenseView(out.at("o"));
    forward.lse = FloatsOf(out.at("lse"));
    BackwardArgs backward;
    backward.q = forward.q;
    backward.k = forward.k;
    backward.v = forward.v;
    backward.dout = DenseView(in.at("do"));
    backward.lse = FloatsOf(out.at("lse"));
    backward.delta = delta_;  // given, so that what is timed is the client and no sum over the tokens
    backward.dq = DenseView(out.at("dq"));
    backward.dk = DenseView(out.at("dk"));
    backward.dv = DenseView(out.at("dv"));
    const LaneCall call{.workspace = workspace_.bytes()};
    Result<int64_t> done;
    const double seconds = TimeOf(
        [&] { done = pass_ == Pass::kForward ? lane_->Forward(forward, call) : lane_->Backward(backward, call); });
    if (!done) return tl::unexpected(done.error());
    return seconds;
  }

  // What binding a new plan costs when its program is there: finding client and program, and the plan as operands in
  // the device's memory.
  Result<double> BindLane() {
    const Pass passes[] = {pass_};
    const auto lane = MakeXlaLane(kXlaChunked, EngineAccess::Of(OurEngine())->xla, {.xla = xla_});
    Result<std::unique_ptr<BoundLane>> bound;
    const double seconds = TimeOf([&] {
      bound = lane->Bind({problem_.contract, problem_.plan.view(), target_, passes});
    });
    if (!bound) return tl::unexpected(bound.error());
    lane_ = std::move(*bound);
    workspace_ = EngineAccess::Of(OurEngine())->workspaces.Take(lane_->WorkspaceBytes(pass_));
    return seconds;
  }

  Result<double> Bare() {
    const auto begin = std::chrono::steady_clock::now();
    std::vector<pjrt::Buffer> buffers;
    buffers.reserve(program_->inputs.size());
    std::vector<const pjrt::Buffer*> args;
    for (size_t i = 0; i < program_->inputs.size(); ++i) {
      const std::string& name = program_->inputs[i].name;
      if (const auto held = held_.find(name); held != held_.end()) {
        args.push_back(&held->second);
        continue;
      }
      Result<pjrt::Buffer> buffer =
          session_.client->Upload(program_->executable.inputs()[i], sent_.at(name), session_.device);
      if (!buffer) return tl::unexpected(buffer.error());
      buffers.push_back(std::move(*buffer));
      args.push_back(&buffers.back());
    }
    const Result<std::vector<pjrt::Buffer>> results = program_->executable.Execute(args, {.device = session_.device});
    if (!results) return tl::unexpected(results.error());
    for (size_t i = 0; i < results->size(); ++i) {
      const std::string& name = program_->outputs[i].name;
      if (name == "max") continue;  // the lane was not asked for it either
      Bytes& into = downloads_[name];
      into.resize(static_cast<size_t>((*results)[i].type().bytes()));
      if (Status ok = (*results)[i].Download(into); !ok) return tl::unexpected(ok.error());
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

 private:
  Status Hold(const std::string& name, std::span<const std::byte> bytes) {
    for (size_t i = 0; i < program_->inputs.size(); ++i) {
      if (program_->inputs[i].name != name) continue;
      Result<pjrt::Buffer> buffer = session_.client->Upload(program_->executable.inputs()[i], bytes, session_.device);
      if (!buffer) return tl::unexpected(buffer.error());
      held_.emplace(name, std::move(*buffer));
    }
    return {};
  }

  const lanes::xla::Session& session_;
  Problem& problem_;
  Pass pass_;
  XlaOptions xla_;
  Target target_ = TargetOf({});
  std::unique_ptr<BoundLane> lane_;
  Workspace workspace_;
  std::shared_ptr<const lanes::xla::CompiledPass> program_;
  std::vector<float> delta_;
  std::map<std::string, Bytes> sent_;         // at every call
  std::map<std::string, pjrt::Buffer> held_;  // operands that no call changes
  std::map<std::string, Bytes> downloads_;
};

constexpr int64_t kLongTokens = 8192;

void AddRow(const XlaOverheadRow& row, FILE* people, XlaResults& results) {
  const auto micros = [](double seconds) { return seconds > 0 ? fmt::format("{:.1f}", seconds * 1e6) : "-"; };
  fmt::print(people, "{:<28} {:<9} {:>9} {:>9} {:>11.1f} {:>5}\n", row.name,
             row.pass == Pass::kForward ? "forward" : "backward", micros(row.lane_s), micros(row.bare_s),
             row.more_s * 1e6, row.more_s <= kOverheadGoal_s ? "yes" : "NO");
  std::fflush(people);
  results.overhead.push_back(row);
}

}  // namespace

Status MeasureOverhead(const lanes::xla::Session& session, FILE* people, XlaResults& results) {
  constexpr int64_t kWarmUp = 10;
  fmt::print(people,
             "\nA call through the lane and the same PJRT calls in a bare loop, medians of {}, microseconds\n"
             "{:<28} {:<9} {:>9} {:>9} {:>11} {:>5}\n",
             results.settings.calls, "case", "pass", "lane", "bare", "difference", "goal");
  Settings settings{.tokens = 256, .lane = std::string(kXlaChunked), .seed = results.settings.seed};
  Case shape{.name = "documents, 256 tokens", .mask = MaskKind::kDocuments, .dim = 64, .heads = 1, .kv_heads = 1};
  Result<Problem> problem = MakeProblem(shape, settings);
  if (!problem) return tl::unexpected(problem.error());
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    Say(fmt::format("overhead: {}", shape.name));
    Calls calls(session, *problem, pass, results.settings.xla);
    if (Status ready = calls.Prepare(); !ready) return ready;
    std::vector<double> lane;
    std::vector<double> bare;
    std::vector<double> more;
    for (int64_t i = 0; i < results.settings.calls + kWarmUp; ++i) {
      // Whoever comes second finds warmer caches, so that they take turns in that too.
      const Result<double> first = i % 2 == 0 ? calls.Lane() : calls.Bare();
      if (!first) return tl::unexpected(first.error());
      const Result<double> second = i % 2 == 0 ? calls.Bare() : calls.Lane();
      if (!second) return tl::unexpected(second.error());
      if (i < kWarmUp) continue;
      lane.push_back(i % 2 == 0 ? *first : *second);
      bare.push_back(i % 2 == 0 ? *second : *first);
      more.push_back(lane.back() - bare.back());
    }
    AddRow({shape.name, pass, Median(lane), Median(bare), Median(more)}, people, results);
  }
  // Of longer runs no difference of 100 us can be seen. What grows with the length beside PJRT's own work is binding a
  // plan, which is timed by itself: once for each batch, not for each call.
  settings.tokens = kLongTokens;
  shape = {.name = fmt::format("bind, documents, {} tokens", kLongTokens), .mask = MaskKind::kDocuments};
  shape.dim = 64;
  shape.heads = shape.kv_heads = 4;
  shape.documents = kLongTokens / 512;
  problem = MakeProblem(shape, settings);
  if (!problem) return tl::unexpected(problem.error());
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    Say(fmt::format("overhead: {}", shape.name));
    Calls calls(session, *problem, pass, results.settings.xla);
    if (Status ready = calls.Prepare(); !ready) return ready;
    std::vector<double> own;
    for (int64_t i = 0; i < results.settings.calls; ++i) {
      const Result<double> took = calls.BindLane();
      if (!took) return tl::unexpected(took.error());
      own.push_back(*took);
    }
    AddRow({shape.name, pass, 0, 0, Median(own)}, people, results);
  }
  return {};
}

}  // namespace tessera::bench
