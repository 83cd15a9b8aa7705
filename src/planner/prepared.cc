// A contract prepared for planning.
#include "planner/prepared.h"

namespace tessera {

Result<PreparedContract> PrepareContract(const Contract& contract) {
  if (std::vector<Violation> violations = Validate(contract); !violations.empty()) {
    return Fail(ErrorCode::kContractInvalid, std::move(violations), "contract");
  }
  Result<MaskSets> sets = BuildMaskSets(contract);
  if (!sets) return tl::unexpected(std::move(sets.error()));
  std::string key = KeyOf(contract, *sets);
  return PreparedContract{contract, std::move(*sets), std::move(key)};
}

Result<ClassShape> MakeClassShape(const Contract& contract, const Target& target, const PlanOptions& options) {
  const Result<PreparedContract> prepared = PrepareContract(contract);
  if (!prepared) return tl::unexpected(prepared.error());
  return MakeClassShape(*prepared, target, options);
}

}  // namespace tessera
