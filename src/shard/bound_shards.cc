// BoundShards of tessera/shard_run.h.
#include <fmt/format.h>

#include "base/try.h"
#include "engine/tensors.h"
#include "shard/cut_call.h"
#include "shard/one_device.h"
#include "shard/shard_pass.h"
#include "tessera/dtype.h"
#include "tessera/shard_run.h"

namespace tessera {

struct BoundShards::State {
  Engine engine;  // whose client the devices are
  Contract contract;
  shard::CutCall call;
};

Result<BoundShards> BoundShards::Bind(const Engine& engine, const Contract& contract, const Batch& batch,
                                      const Target& target, const ShardRunOptions& options) {
  if (options.backward || options.lost) {
    return Fail(ErrorCode::kBadArgument, "what is bound runs forwards of all shards",
                options.backward ? "backward" : "lost");
  }
  if (target.kind != TargetKind::kCpu) {
    return Fail(ErrorCode::kBadArgument,
                fmt::format("shards are bound on devices of a CPU, and {} is none", target.name), "target");
  }
  auto plan = std::make_shared<const ContextPlan>(TESSERA_TRY(PlanContext(contract, batch, target, options.context)));
  const lanes::xla::Place place =
      TESSERA_TRY(shard::OpenDevices(engine, options.xla, target, options.context.shards, false));
  // As many devices as the lane of one device has, which are as many as cores.
  const lanes::xla::Place walker = TESSERA_TRY(shard::OpenDevices(engine, options.xla, target, 1, false));
  std::map<std::string, pjrt::OptionValue> flags;
  if (options.xla.optimization) flags["xla_backend_optimization_level"] = *options.xla.optimization;
  shard::CutCall call =
      TESSERA_TRY(shard::CutCall::Make(*place.session.client, plan, target.workers, flags, walker.session.client));
  return BoundShards(std::make_shared<const State>(State{engine, contract, std::move(call)}));
}

Status BoundShards::Forward(const TensorMap& inputs, ShardOutputs& into) const {
  const Contract& contract = state_->contract;
  if (std::vector<Violation> bad = CheckInputs(inputs, InputSpecs(contract, false, Layout::kBhtd)); !bad.empty()) {
    return Fail(ErrorCode::kTensorMismatch, std::move(bad), "inputs");
  }
  const Shape& s = contract.shape;
  into.lse.resize(static_cast<size_t>(s.batch * s.num_q_heads * s.q_len));
  into.o.resize(into.lse.size() * static_cast<size_t>(s.dim_v * BytesOf(s.dtype)));
  const shard::WholeTensors whole{inputs.at("q").bytes, inputs.at("k").bytes, inputs.at("v").bytes};
  std::vector<float> sinks;
  if (contract.score.sink_logits) sinks = shard::ToFloats(inputs.at("sink_logits").bytes, DType::kF32);
  return state_->call.Forward(whole, sinks, {into.o, into.lse});
}

const ContextPlan& BoundShards::plan() const { return state_->call.plan(); }

}  // namespace tessera
