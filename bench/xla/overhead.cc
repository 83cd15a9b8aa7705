// What the lane adds to the PJRT calls it cannot do without: the same program on the same operands, called through
// RunPlan and in a bare loop of upload, execute and download, in turns.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "lanes/xla/operands.h"
#include "lanes/xla/programs.h"
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
      : session_(session), problem_(problem), pass_(pass) {
    options_.lane = "xla_chunked";
    options_.forward = pass == Pass::kForward;
    options_.backward = pass == Pass::kBackward;
    options_.xla = xla;
  }

  // Finds the program that the lane runs, and the bytes it uploads.
  Status Prepare() {
    const stablehlo::ProgramSpec spec = stablehlo::SpecOf(problem_.contract, problem_.plan.view());
    Result<lanes::xla::FoundProgram> found = lanes::xla::FindProgram(session_, spec, pass_, options_.xla);
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
    RunTensors tensors;
    tensors.q = RefOf(in.at("q"));
    tensors.k = RefOf(in.at("k"));
    tensors.v = RefOf(in.at("v"));
    tensors.lse = FloatsOf(out.at("lse"));
    if (pass_ == Pass::kForward) {
      tensors.o = RefOf(out.at("o"));
    } else {
      tensors.dout = RefOf(in.at("do"));
      tensors.delta = delta_;  // given, so that what is timed is the client and no sum over the tokens
      tensors.dq = RefOf(out.at("dq"));
      tensors.dk = RefOf(out.at("dk"));
      tensors.dv = RefOf(out.at("dv"));
    }
    const RunOutcome outcome =
        RunPlan(problem_.contract, {&problem_.plan, &problem_.batch}, tensors, problem_.target, options_);
    if (outcome.error) return tl::unexpected(*outcome.error);
    for (const Timing& timing : outcome.receipt.timings) {
      if (timing.name == (pass_ == Pass::kForward ? "forward" : "backward")) {
        return static_cast<double>(timing.ns) * 1e-9;
      }
    }
    return Fail(ErrorCode::kBadArgument, "the receipt has no time of the pass");
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
  RunOptions options_;
  std::shared_ptr<const lanes::xla::CompiledPass> program_;
  std::vector<float> delta_;
  std::map<std::string, Bytes> operands_;
  std::map<std::string, Bytes> downloads_;
};

}  // namespace

Status MeasureOverhead(const lanes::xla::Session& session, FILE* people, XlaResults& results) {
  fmt::print(people,
             "\nA call through the lane and the same PJRT calls in a bare loop, medians of {}, microseconds\n"
             "{:<28} {:<9} {:>9} {:>9} {:>11} {:>5}\n",
             results.settings.calls, "case", "pass", "lane", "bare", "difference", "goal");
  for (const int64_t tokens : {256, 2048}) {
    Settings settings{.tokens = tokens, .lane = "xla_chunked", .seed = results.settings.seed};
    Case shape{.name = fmt::format("documents, {} tokens", tokens), .mask = MaskKind::kDocuments};
    shape.dim = 64;
    shape.heads = shape.kv_heads = 1;
    Result<Problem> problem = MakeProblem(shape, settings);
    if (!problem) return tl::unexpected(problem.error());
    for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
      Say(fmt::format("overhead: {}", shape.name));
      Calls calls(session, *problem, pass, results.settings.xla);
      if (Status ready = calls.Prepare(); !ready) return ready;
      std::vector<double> lane;
      std::vector<double> bare;
      for (int64_t i = 0; i < results.settings.calls + 10; ++i) {
        const Result<double> through_lane = calls.Lane();
        if (!through_lane) return tl::unexpected(through_lane.error());
        const Result<double> alone = calls.Bare();
        if (!alone) return tl::unexpected(alone.error());
        if (i < 10) continue;
        lane.push_back(*through_lane);
        bare.push_back(*alone);
      }
      const XlaOverheadRow row{shape.name, pass, Median(lane), Median(bare)};
      const double more = row.lane_s - row.bare_s;
      fmt::print(people, "{:<28} {:<9} {:>9.1f} {:>9.1f} {:>11.1f} {:>5}\n", row.name,
                 pass == Pass::kForward ? "forward" : "backward", row.lane_s * 1e6, row.bare_s * 1e6, more * 1e6,
                 more <= kOverheadGoal_s ? "yes" : "NO");
      std::fflush(people);
      results.overhead.push_back(row);
    }
  }
  return {};
}

}  // namespace tessera::bench
