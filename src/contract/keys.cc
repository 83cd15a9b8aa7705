// The contract key: a hash of meaning. Spelling, defaults, tiles, capacities and reasons do not enter. A registered
// term enters by name, version and parameters too: its pairs are known only for these lengths, and a new version of it
// is another term even where the pairs agree.
#include "base/hash.h"
#include "contract/mask_sets.h"
#include "tessera/contract.h"

namespace tessera {

void AddMask(Hasher& hasher, const MaskSets& sets) {
  hasher.Int(static_cast<int64_t>(sets.conditions.size()));
  for (const MaskCondition& condition : sets.conditions) {
    hasher.Int(static_cast<int64_t>(condition.kind));
    hasher.Int(condition.count);
  }
  hasher.Int(sets.documents_may_reappear ? 1 : 0);
  for (const uint32_t head_class : sets.class_of_head) hasher.Int(head_class);
  for (const HeadClass& head_class : sets.classes) {
    for (const ConditionSet set : sets.consistent) head_class.holding[set].AddTo(hasher);
  }
  for (const std::string& term : sets.registered) hasher.Text(term);
}

std::string KeyOf(const Contract& contract, const MaskSets& sets) {
  Hasher hasher;
  hasher.Text("tessera contract 1");
  const Shape& shape = contract.shape;
  for (const int64_t value : {shape.batch, shape.q_len, shape.kv_len, shape.num_q_heads, shape.num_kv_heads,
                              shape.dim_qk, shape.dim_v, static_cast<int64_t>(shape.dtype)}) {
    hasher.Int(value);
  }
  hasher.Real(contract.score.scale);
  hasher.Real(contract.score.softcap == 0.0 ? 0.0 : contract.score.softcap);  // -0 is 0
  hasher.Int(contract.score.sink_logits ? 1 : 0);
  AddMask(hasher, sets);
  hasher.Int(contract.routing.has_value() ? 1 : 0);
  if (contract.routing.has_value()) {
    const Routing& routing = *contract.routing;
    for (const int64_t value :
         {routing.query_tile, routing.kv_tile, routing.selected_block, routing.block_stride, routing.compression_block,
          routing.top_n, routing.first_blocks, static_cast<int64_t>(routing.hierarchical), routing.meta_ratio,
          routing.meta_keep, routing.union_capacity}) {
      hasher.Int(value);
    }
  }
  return Hex(hasher.Finish());
}

Result<std::string> ContractKey(const Contract& contract) {
  if (std::vector<Violation> violations = Validate(contract); !violations.empty()) {
    return Fail(ErrorCode::kContractInvalid, std::move(violations));
  }
  return BuildMaskSets(contract).map([&](const MaskSets& sets) { return KeyOf(contract, sets); });
}

}  // namespace tessera
