// What a build without XLA says of programs over several devices.
#include "tessera/shard_run.h"

namespace tessera {
namespace {

tl::unexpected<Error> NoXla() {
  return Fail(ErrorCode::kPluginUnusable, "this build has no XLA lane, and programs of several devices go through it",
              "xla");
}

}  // namespace

Result<ShardReceipt> RunShards(const Engine& /*engine*/, const Contract& /*contract*/, const Batch& /*batch*/,
                               const TensorMap& /*inputs*/, const Target& /*target*/,
                               const ShardRunOptions& /*options*/) {
  return NoXla();
}

struct BoundShards::State {
  ContextPlan plan;
};
Result<BoundShards> BoundShards::Bind(const Engine& /*engine*/, const Contract& /*contract*/, const Batch& /*batch*/,
                                      const Target& /*target*/, const ShardRunOptions& /*options*/) {
  return NoXla();
}
Status BoundShards::Forward(const TensorMap& /*inputs*/, ShardOutputs& /*into*/) const { return NoXla(); }
const ContextPlan& BoundShards::plan() const { return state_->plan; }

Result<std::vector<ShardText>> LowerShards(const Engine& /*engine*/, const Contract& /*contract*/,
                                           const Batch& /*batch*/, const Target& /*target*/,
                                           const ShardCompileOptions& /*options*/) {
  return NoXla();
}

Result<ShardReceipt> CompileShards(const Engine& /*engine*/, const Contract& /*contract*/, const Batch& /*batch*/,
                                   const Target& /*target*/, const ShardCompileOptions& /*options*/) {
  return NoXla();
}

Result<int64_t> ChipsOf(std::string_view /*topology*/) { return NoXla(); }

}  // namespace tessera
