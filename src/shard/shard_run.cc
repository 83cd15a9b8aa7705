// See tessera/shard_run.h. What is run; shard_compile.cc has what is only compiled.
#include "tessera/shard_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "base/clock.h"
#include "base/try.h"
#include "engine/state.h"
#include "engine/tensors.h"
#include "lanes/xla/place.h"
#include "shard/context_program.h"
#include "shard/cut_program.h"
#include "shard/difference.h"
#include "shard/gradient_bounds.h"
#include "shard/one_device.h"
#include "shard/shard_pass.h"

namespace tessera {
namespace {

using shard::ContextPass;

class Runner {
 public:
  Runner(const ContextPlan& plan, const TensorMap& inputs, pjrt::Client& client, const ShardRunOptions& options)
      : plan_(plan), client_(client), options_(options) {
    if (options.xla.optimization) flags_["xla_backend_optimization_level"] = *options.xla.optimization;
    whole_ = {inputs.at("q").bytes, inputs.at("k").bytes, inputs.at("v").bytes};
    if (plan.contract.score.sink_logits) sinks_ = shard::ToFloats(inputs.at("sink_logits").bytes, DType::kF32);
    if (options.backward) whole_.dout = inputs.at("do").bytes;
  }

  Status Forward(ShardReceipt& receipt) {
    const shard::ContextRunner runner = TESSERA_TRY(Make(ContextPass::kForward, receipt));
    const std::vector<shard::ShardTensors> shards = TESSERA_TRY(Cut({}));
    Begin(RunStep::kForward);
    const shard::ContextOutputs got = TESSERA_TRY(runner.Forward(plan_, shards, sinks_));
    Begin(RunStep::kCheckOutputs);
    const shard::ContextOutputs want = TESSERA_TRY(shard::ForwardOnOne(client_, plan_, whole_, sinks_, flags_));
    receipt.passes.back().run_ns = got.run_ns;
    receipt.passes.back().one_device_ns = want.run_ns;
    const DType dtype = plan_.contract.shape.dtype;
    const std::vector<float> o = shard::ToFloats(got.o, dtype);
    const std::vector<float> one = shard::ToFloats(want.o, dtype);
    if (plan_.exchange == Exchange::kRing) {
      CompareRing({.o = o, .lse = got.lse}, {.o = one, .lse = want.lse}, receipt);
    } else {
      receipt.differences.push_back(shard::SameBits("o", o, one));
      receipt.differences.push_back(shard::SameBits("lse", got.lse, want.lse));
    }
    lse_ = want.lse;
    SetDelta(one);
    return {};
  }

  Status Backward(ShardReceipt& receipt) {
    whole_.lse = lse_;
    whole_.delta = delta_;
    const shard::ContextRunner runner = TESSERA_TRY(Make(ContextPass::kBackward, receipt));
    const std::vector<shard::ShardTensors> shards = TESSERA_TRY(Cut(whole_.dout));
    Begin(RunStep::kBackward);
    const shard::ContextGradients got = TESSERA_TRY(runner.Backward(plan_, shards, sinks_));
    Begin(RunStep::kCheckOutputs);
    const shard::BackwardOfOne one = TESSERA_TRY(shard::BackwardOfOne::Make(client_, plan_, flags_));
    const shard::ContextGradients want = TESSERA_TRY(one.Run(whole_, sinks_));
    receipt.passes.back().run_ns = got.run_ns;
    receipt.passes.back().one_device_ns = want.run_ns;
    const shard::GradientBounds bounds = TESSERA_TRY(shard::BoundGradients(one, plan_, whole_, sinks_));
    const auto compare = [&](const char* name, const std::vector<float>& a, const std::vector<float>& b,
                             const std::vector<double>* within) {
      receipt.differences.push_back(within == nullptr ? shard::SameBits(name, a, b)
                                                      : shard::WithinBounds(name, a, b, *within));
    };
    const bool is_exact = plan_.exchange == Exchange::kHeads || plan_.gradients == GradientWay::kRows;
    compare("dq", got.dq, want.dq, plan_.exchange == Exchange::kRing ? &bounds.dq : nullptr);
    compare("dk", got.dk, want.dk, is_exact ? nullptr : &bounds.dk);
    compare("dv", got.dv, want.dv, is_exact ? nullptr : &bounds.dv);
    if (!want.dsink_logits.empty()) compare("dsink_logits", got.dsink_logits, want.dsink_logits, &bounds.dsink_logits);
    return {};
  }

 private:
  void Begin(RunStep step) {
    if (options_.meter != nullptr) options_.meter->Begin(step, 0);
  }

  struct Outputs {
    const std::vector<float>& o;
    const std::vector<float>& lse;
  };
  void CompareRing(const Outputs& got, const Outputs& want, ShardReceipt& receipt) const {
    const Shape& s = plan_.contract.shape;
    const auto dim = static_cast<size_t>(s.dim_v);
    const std::vector<float> v = shard::ToFloats(whole_.v, s.dtype);
    std::vector<double> most(static_cast<size_t>(s.batch * s.num_kv_heads) * dim, 0.0);
    for (size_t i = 0; i < v.size(); ++i) {
      double& here = most[i / (static_cast<size_t>(s.kv_len) * dim) * dim + i % dim];
      if (std::isfinite(v[i])) here = std::max(here, std::abs(static_cast<double>(v[i])));
    }
    const shard::RingSums sums{.additions = plan_.shards * (plan_.tiles_per_shard + 1), .dtype = s.dtype};
    std::vector<double> of_lse;
    std::vector<double> of_o;
    for (size_t row = 0; row < want.lse.size(); ++row) {
      of_lse.push_back(shard::RingLseBound(sums, want.lse[row]));
      const size_t head = row / static_cast<size_t>(s.q_len) / static_cast<size_t>(s.num_q_heads / s.num_kv_heads);
      for (size_t d = 0; d < dim; ++d) {
        of_o.push_back(shard::RingOutputBound(
            sums, {.lse = want.lse[row], .value = want.o[row * dim + d], .most = most[head * dim + d]}));
      }
    }
    receipt.differences.push_back(shard::WithinBounds("o", got.o, want.o, of_o));
    receipt.differences.push_back(shard::WithinBounds("lse", got.lse, want.lse, of_lse));
  }

  // Audited, compiled, and audited again.
  Result<shard::ContextRunner> Make(ContextPass pass, ShardReceipt& receipt) {
    const Clock clock;
    const int64_t programs = options_.backward ? 2 : 1;
    if (options_.meter != nullptr) options_.meter->Begin(RunStep::kCompile, programs);
    if (options_.meter != nullptr && pass == ContextPass::kBackward) options_.meter->done = 1;
    shard::ContextRunner runner =
        TESSERA_TRY(shard::ContextRunner::Make(client_, plan_, flags_, pass, options_.max_device_bytes));
    const ShardTable& table = runner.table();
    ShardPass& out = receipt.passes.emplace_back();
    out.compile_ns = clock.Ns();
    if (receipt.fingerprint.empty()) receipt.fingerprint = ShardFingerprint(table);
    TESSERA_TRY(shard::ReadFigures(runner.executable().program(), out));
    const pjrt::OptimizedProgram inside = TESSERA_TRY(runner.executable().Optimized());
    TESSERA_TRY(shard::AuditProgram(table, shard::TensorsOf(runner.lowered()), inside, shard::LimitsOf(options_, out)));
    shard::DescribePass(pass, runner.lowered().program.name, runner.lowered().program.text, table, out);
    const std::vector<shard::CarriedCollective> carried = TESSERA_TRY(runner.Carried(plan_));
    TESSERA_TRY(shard::CountBytes(plan_, pass, carried, out));
    return runner;
  }

  Result<std::vector<shard::ShardTensors>> Cut(std::span<const std::byte> dout) const {
    shard::WholeTensors whole = whole_;
    whole.dout = dout;
    std::vector<shard::ShardTensors> shards = TESSERA_TRY(shard::CutTensors(plan_, whole));
    if (options_.lost) shards[static_cast<size_t>(*options_.lost)] = {};
    return shards;
  }

  void SetDelta(const std::vector<float>& o) {
    if (whole_.dout.empty()) return;
    const std::vector<float> dout = shard::ToFloats(whole_.dout, plan_.contract.shape.dtype);
    const auto dim = static_cast<size_t>(plan_.contract.shape.dim_v);
    delta_.assign(o.size() / dim, 0.0F);
    for (size_t i = 0; i < o.size(); ++i) delta_[i / dim] += o[i] * dout[i];
  }

  const ContextPlan& plan_;
  pjrt::Client& client_;
  const ShardRunOptions& options_;
  std::map<std::string, pjrt::OptionValue> flags_;
  shard::WholeTensors whole_;
  std::vector<float> sinks_;
  std::vector<float> lse_;
  std::vector<float> delta_;
};

Status CheckLost(const ShardRunOptions& options) {
  if (!options.lost || (*options.lost >= 0 && *options.lost < options.context.shards)) return {};
  return Fail(ErrorCode::kBadArgument,
              fmt::format("expected a shard of 0 to {}, found {}", options.context.shards - 1, *options.lost), "lost");
}

}  // namespace

Result<ShardReceipt> RunShards(const Engine& engine, const Contract& contract, const Batch& batch,
                               const TensorMap& inputs, const Target& target, const ShardRunOptions& options) {
  if (options.context.shards < 2) {
    return Fail(ErrorCode::kMeshDevices, fmt::format("expected two shards or more, found {}", options.context.shards),
                "shards");
  }
  TESSERA_TRY(CheckLost(options));
  if (std::vector<Violation> bad = CheckInputs(inputs, InputSpecs(contract, options.backward, Layout::kBhtd));
      !bad.empty()) {
    return Fail(ErrorCode::kTensorMismatch, std::move(bad), "inputs");
  }
  ShardReceipt receipt{.mode = "native",
                       .lane = std::string(kXlaChunked),
                       .mesh = Mesh{{{std::string(kContextAxis), options.context.shards}}}};
  receipt.cores = static_cast<int64_t>(std::thread::hardware_concurrency());
  receipt.contract_key = TESSERA_TRY(ContractKey(contract));
  const Clock clock;
  receipt.plan = TESSERA_TRY(PlanContext(contract, batch, target, options.context));
  receipt.plan_ns = clock.Ns();
  const lanes::xla::Place place =
      TESSERA_TRY(shard::OpenDevices(engine, options.xla, target, options.context.shards, false));
  receipt.device = lanes::xla::UseOf(place, options.xla.device);
  Runner runner(*receipt.plan, inputs, *place.session.client, options);
  TESSERA_TRY(runner.Forward(receipt));
  if (options.backward) TESSERA_TRY(runner.Backward(receipt));
  return receipt;
}

}  // namespace tessera
