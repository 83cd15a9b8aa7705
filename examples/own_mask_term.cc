// A mask term of one's own, end to end: register it, name it in a contract, plan, run, read the receipt, and hold the
// result against the mask written out pair by pair.
//
// The term is dilated(reach, step): a query sees every `step`-th key before it, itself included, `reach` of them.
#include <cstdio>
#include <string>
#include <vector>

#include "tessera/tessera.h"

namespace {

// As runs: the keys at one distance are one diagonal, so the whole term is `reach` diagonals whatever the lengths.
std::vector<tessera::MaskRun> Dilated(const tessera::MaskTermInput& input) {
  const int64_t reach = input.parameters[0];
  const int64_t step = input.parameters[1];
  std::vector<tessera::MaskRun> runs;
  for (int64_t n = 0; n < reach; ++n) {
    // Query row i stands at key position i + offset, and sees the key n * step before it.
    const int64_t diagonal = input.offset - n * step;
    runs.push_back({.q_begin = 0,
                    .q_end = input.q_len,
                    .kv_begin = 0,
                    .kv_end = input.kv_len,
                    .diag_begin = diagonal,
                    .diag_end = diagonal + 1});
  }
  return runs;
}

constexpr char kContract[] = R"(
version = 1
[shape]
q_len = 96
dim_qk = 16
[mask]
expr = "dilated(12, 4) or sink(2) and causal"
[tiles]
q = 16
kv = 16
reason = "an example of 96 tokens"
)";

// What the expression in kContract says of one pair.
bool IsAllowed(int64_t q, int64_t k) {
  const int64_t distance = q - k;
  const bool dilated = distance >= 0 && distance % 4 == 0 && distance / 4 < 12;
  return dilated || (k < 2 && k <= q);
}

int Fail(const tessera::Error& error) {
  std::fprintf(stderr, "%s\n", tessera::ToText(error).c_str());
  return 1;
}

}  // namespace

int main() {
  tessera::MaskTermSpec spec{.name = "dilated", .version = 1, .min_parameters = 2, .max_parameters = 2};
  spec.runs = Dilated;
  const tessera::Engine engine;
  if (const tessera::Status status = engine.mask_terms().Register(spec); !status) return Fail(status.error());

  const tessera::Result<tessera::Contract> contract = engine.Parse(kContract);
  if (!contract) return Fail(contract.error());
  std::printf("mask     %s\n", tessera::ToText(contract->mask.heads[0]).c_str());

  const tessera::Result<tessera::Target> target = tessera::FindTarget("cpu");
  if (!target) return Fail(target.error());
  tessera::RunOptions options;
  options.plan.tile = contract->tiles;
  const tessera::Result<tessera::PlanResult> planned =
      tessera::MakePlan(*contract, tessera::Batch(), *target, options.plan);
  if (!planned) return Fail(planned.error());
  const tessera::PlanView& plan = planned->plan.view();
  const tessera::Result<std::vector<uint8_t>> dense = tessera::ToDense(plan, tessera::Direction::kForward, 0, 0);
  if (!dense) return Fail(dense.error());
  for (int64_t q = 0; q < plan.q_len; ++q) {
    for (int64_t k = 0; k < plan.kv_len; ++k) {
      if ((dense->at(static_cast<size_t>(q * plan.kv_len + k)) != 0) == IsAllowed(q, k)) continue;
      std::fprintf(stderr, "the plan is wrong at query %lld, key %lld\n", static_cast<long long>(q),
                   static_cast<long long>(k));
      return 1;
    }
  }
  const tessera::TileCounts tiles = tessera::CountTiles(plan, tessera::Direction::kForward);
  std::printf("plan     %lld empty, %lld partial and %lld full tiles; every pair as the term says\n",
              static_cast<long long>(tiles.empty), static_cast<long long>(tiles.partial),
              static_cast<long long>(tiles.full));

  const tessera::TensorMap inputs = tessera::MakeInputs(*contract, 1, false);
  const tessera::RunOutcome outcome = tessera::Run(engine, *contract, tessera::Batch(), inputs, *target, options);
  if (outcome.error) return Fail(*outcome.error);
  std::printf("receipt  %s\n", tessera::ToLine(outcome.receipt).c_str());

  // The receipt carries the contract as text. The engine that has the term can read it back and run it again.
  const tessera::Result<tessera::Contract> again = engine.Parse(outcome.receipt.contract_text);
  if (!again) return Fail(again.error());
  const tessera::RunOutcome repeated = tessera::Run(engine, *again, tessera::Batch(), inputs, *target, options);
  if (repeated.error) return Fail(*repeated.error);
  if (repeated.receipt.plan_fingerprint != outcome.receipt.plan_fingerprint ||
      repeated.outputs.at("o").bytes != outcome.outputs.at("o").bytes) {
    std::fprintf(stderr, "the run read back from the receipt differs\n");
    return 1;
  }
  std::printf("repeated the same plan and the same bytes\n");
  return 0;
}
