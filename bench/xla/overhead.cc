// What the lane adds to the PJRT calls it cannot do without: the same program on the same operands, called through the
// lane and in a bare loop of upload, execute and download, in turns.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>

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

TensorRef RefOf(Tensor& tensor) {
  const std::vector<int64_t>& s = tensor.shape;
  return {.type = tensor.type,
          .data = tensor.bytes.data(),
          .batch_stride = s[1] * s[2] * s[3],
          .head_stride = s[2] * s[3],
          .token_stride = s[3]};
}

std::span<float> FloatsOf(Tensor& tensor) {
  return {reinterpret_cast<float*>(tensor.bytes.data()), static_cast<size_t>(tensor.NumElements())};
}

class Calls {
 public:
  Calls(const lanes::xla::Session& session, Problem& problem, Pass pass, const XlaOptions& xla)
      : session_(session), problem_(problem), pass_(pass), xla_(xla) {}

  // Finds the program that the lane runs, and the bytes it uploads.
  Status Prepare() {
    const stablehlo::ProgramSpec spec = stablehlo::SpecOf(problem_.contract, problem_.plan.view(), TargetKind::kCpu);
    Result<lanes::xla::FoundProgram> found = lanes::xla::FindProgram(session_, spec, pass_, xla_);
    if (!found) return tl::unexpected(found.error());
    program_ = found->program;
    delta_.assign(static_cast<size_t>(problem_.outputs.at("lse").NumElements()), 0.0F);
    const auto scale = static_cast<float>(problem_.contract.score.scale);
    operands_["scale"] = ToBytes(std::as_bytes(std::span(&scale, 1)));
    operands_["delta"] = ToBytes(std::as_bytes(std::span(delta_)));
    operands_["lse"] = problem_.outputs.at("lse").bytes;
    for (const auto& [name, tensor] : problem_.inputs) operands_[name] = tensor.bytes;
    for (const auto& [name, table] : lanes::xla::MakeTables(spec, problem_.plan.view(), program_->inputs)) {
      operands_[name] = ToBytes(std::as_bytes(std::span(table)));
    }
    return {};
  }

  Result<double> Lane() {
    TensorMap& in = problem_.inputs;
    TensorMap& out = problem_.outputs;
    LaneRequest request;
    request.contract = &problem_.contract;
    request.plan = &problem_.plan.view();
    request.xla = xla_;
    workspace_.resize(static_cast<size_t>(XlaLane().WorkspaceBytes(request, pass_)) + kWorkspaceAlignment);
    void* aligned = workspace_.data();
    size_t space = workspace_.size();
    std::align(kWorkspaceAlignment, space - kWorkspaceAlignment, aligned, space);
    request.workspace = {static_cast<std::byte*>(aligned), workspace_.size() - kWorkspaceAlignment};
    ForwardArgs forward;
    forward.q = RefOf(in.at("q"));
    forward.k = RefOf(in.at("k"));
    forward.v = RefOf(in.at("v"));
    forward.o = RefOf(out.at("o"));
    forward.lse = FloatsOf(out.at("lse"));
    BackwardArgs backward;
    backward.q = forward.q;
    backward.k = forward.k;
    backward.v = forward.v;
    backward.dout = RefOf(in.at("do"));
    backward.lse = FloatsOf(out.at("lse"));
    backward.delta = delta_;  // given, so that what is timed is the client and no sum over the tokens
    backward.dq = RefOf(out.at("dq"));
    backward.dk = RefOf(out.at("dk"));
    backward.dv = RefOf(out.at("dv"));
    const auto begin = std::chrono::steady_clock::now();
    const Result<RunStats> done =
        pass_ == Pass::kForward ? XlaLane().Forward(request, forward) : XlaLane().Backward(request, backward);
    if (!done) return tl::unexpected(done.error());
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  // Everything that Lane does before the first upload.
  Result<double> OwnWork() {
    const auto begin = std::chrono::steady_clock::now();
    lanes::xla::Session session;
    const stablehlo::ProgramSpec spec = stablehlo::SpecOf(problem_.contract, problem_.plan.view(), TargetKind::kCpu);
    lanes::xla::OpenSession(xla_, TargetKind::kCpu, &session);
    const Result<lanes::xla::FoundProgram> found = lanes::xla::FindProgram(session, spec, pass_, xla_);
    if (!found) return tl::unexpected(found.error());
    const lanes::xla::PlanTables tables = lanes::xla::MakeTables(spec, problem_.plan.view(), found->program->inputs);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  Result<double> Bare() {
    const auto begin = std::chrono::steady_clock::now();
    std::vector<pjrt::Buffer> buffers;
    for (size_t i = 0; i < program_->inputs.size(); ++i) {
      const Bytes& bytes = operands_.at(program_->inputs[i].name);
      Result<pjrt::Buffer> buffer = session_.client->Upload(program_->executable.inputs()[i], bytes, session_.device);
      if (!buffer) return tl::unexpected(buffer.error());
      buffers.push_back(std::move(*buffer));
    }
    std::vector<const pjrt::Buffer*> args;
    for (const pjrt::Buffer& buffer : buffers) args.push_back(&buffer);
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
  const lanes::xla::Session& session_;
  Problem& problem_;
  Pass pass_;
  XlaOptions xla_;
  Bytes workspace_;
  std::shared_ptr<const lanes::xla::CompiledPass> program_;
  std::vector<float> delta_;
  std::map<std::string, Bytes> operands_;
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
  Settings settings{.tokens = 256, .lane = "xla_chunked", .seed = results.settings.seed};
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
  // Of longer runs no difference of 100 us can be seen, so what the lane does beside PJRT is timed by itself.
  settings.tokens = kLongTokens;
  shape = {.name = fmt::format("documents, {} tokens", kLongTokens), .mask = MaskKind::kDocuments};
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
      const Result<double> took = calls.OwnWork();
      if (!took) return tl::unexpected(took.error());
      own.push_back(*took);
    }
    AddRow({shape.name, pass, 0, 0, Median(own)}, people, results);
  }
  return {};
}

}  // namespace tessera::bench
