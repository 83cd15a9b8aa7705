// The planner: contract + batch + target -> plan. A pure function in integer arithmetic; equal inputs give equal
// bytes on every machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/batch.h"
#include "tessera/contract.h"
#include "tessera/plan.h"
#include "tessera/target.h"

#pragma GCC visibility push(default)
namespace tessera {

struct PlanOptions {
  std::optional<TileSize> tile;  // overrides the target's and the contract's, in every direction
  // A batch that does not fit the class: false = TSR-P003, true = a wider class (and so another class key).
  bool widen_class = false;
  bool verify_stages = false;        // run each stage's invariant check
  bool dump_stages = false;          // keep each stage's text dump in its report
  std::vector<std::string> disable;  // stages by name; only those whose absence keeps the plan exact
};

// What one stage did, why, and how long it took.
struct StageReport {
  std::string name;
  int64_t ns = 0;
  bool disabled = false;
  std::string summary;
  std::string dump;
};

struct PlanResult {
  Plan plan;
  ClassShape shape;
  std::vector<StageReport> stages;
};

Result<PlanResult> MakePlan(const Contract& contract, const Batch& batch, const Target& target,
                            const PlanOptions& options = {});

// The stages, in order, with what each does.
struct StageInfo {
  std::string name;
  std::string does;
  bool can_disable = false;
};
const std::vector<StageInfo>& Stages();

// The class a contract compiles to on a target: shapes, dtype, capacities and operands present, no batch datum.
Result<ClassShape> MakeClassShape(const Contract& contract, const Target& target, const PlanOptions& options = {});
Result<std::string> ClassKey(const Contract& contract, const ClassShape& shape);

}  // namespace tessera
#pragma GCC visibility pop
