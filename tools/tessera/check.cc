// See check.h.
#include "check.h"

#include <fmt/format.h>

#include <algorithm>

#include "json_text.h"

namespace tessera::program {
namespace {

// Above this many pairs the mask is compared on spread-out rows only.
constexpr int64_t kMaxPairs = int64_t{1} << 28;
constexpr int64_t kSampleRows = 64;

std::string Place(int64_t batch_row, int64_t head, int64_t i, int64_t j) {
  return fmt::format("batch row {}, head {}, query {}, key {}", batch_row, head, i, j);
}

std::string Disagreement(std::string_view direction, const std::string& place, bool plan_allows) {
  return fmt::format("{}: {}: the plan {} the pair and the oracle {} it", direction, place,
                     plan_allows ? "allows" : "forbids", plan_allows ? "forbids" : "allows");
}

Result<MaskCheck> CompareWhole(const Contract& contract, const Batch& batch, const PlanView& plan) {
  MaskCheck check;
  check.pass = true;
  for (int64_t row = 0; row < plan.batch; ++row) {
    for (int64_t head = 0; head < plan.num_q_heads; ++head) {
      auto want = DenseMask(contract, batch, row, head);
      if (!want) return tl::unexpected(want.error());
      for (size_t d = 0; d < kNumDirections; ++d) {
        const auto direction = static_cast<Direction>(d);
        if (plan.Of(direction).rows_per_mask == 0) continue;  // a forward-only plan
        auto got = ToDense(plan, direction, row, head);
        if (!got) return tl::unexpected(got.error());
        check.pairs += static_cast<int64_t>(want->size());
        const auto [at, other] = std::mismatch(got->begin(), got->end(), want->begin(), want->end());
        if (at == got->end()) continue;
        const int64_t pair = at - got->begin();
        check.pass = false;
        check.text =
            Disagreement(ToText(direction), Place(row, head, pair / plan.kv_len, pair % plan.kv_len), *at != 0);
        return check;
      }
    }
  }
  return check;
}

Result<MaskCheck> CompareRows(const Contract& contract, const Batch& batch, const PlanView& plan) {
  MaskCheck check;
  check.pass = check.sampled = true;
  const Worklist& worklist = plan.Of(Direction::kForward);
  const int64_t rows = std::min(kSampleRows, plan.q_len);
  for (int64_t batch_row = 0; batch_row < plan.batch; ++batch_row) {
    auto facts = MakeOracleFacts(contract, batch, batch_row);
    if (!facts) return tl::unexpected(facts.error());
    const TokenFacts tokens = SpreadTokenFacts(plan, batch_row);
    for (int64_t head = 0; head < plan.num_q_heads; ++head) {
      const uint64_t mask = plan.mask_of[static_cast<size_t>(batch_row * plan.num_q_heads + head)];
      for (int64_t sample = 0; sample < rows; ++sample) {
        const int64_t i = rows == 1 ? 0 : sample * (plan.q_len - 1) / (rows - 1);
        const auto slots = worklist.Row(mask * worklist.rows_per_mask + static_cast<uint64_t>(i / worklist.tile_q));
        auto slot = slots.begin();
        for (int64_t j = 0; j < plan.kv_len; ++j) {
          while (slot != slots.end() && (int64_t{slot->index} + 1) * worklist.tile_kv <= j) ++slot;
          const bool inside = slot != slots.end() && int64_t{slot->index} * worklist.tile_kv <= j;
          const bool got = inside && TileAllows(plan, worklist, slot->cleanup, tokens, i, j);
          if (got == Allowed(contract, *facts, head, i, j)) continue;
          check.pass = false;
          check.text = Disagreement("forward", Place(batch_row, head, i, j), got);
          return check;
        }
        check.pairs += plan.kv_len;
      }
    }
  }
  return check;
}

}  // namespace

Batch WithPicks(Batch batch, const std::optional<Picks>& picks) {
  if (picks) batch.picks = picks;
  return batch;
}

Result<MaskCheck> CheckMask(const Contract& contract, const Batch& batch, const PlanView& plan) {
  const double cells = static_cast<double>(plan.q_len) * static_cast<double>(plan.kv_len);
  const double all = cells * static_cast<double>(plan.batch) * static_cast<double>(plan.num_q_heads);
  const bool whole = all <= static_cast<double>(kMaxPairs) && cells <= static_cast<double>(kOracleMaxPairs);
  auto check = whole ? CompareWhole(contract, batch, plan) : CompareRows(contract, batch, plan);
  if (!check || !check->pass) return check;
  const bool forward_only = plan.Of(Direction::kDkv).rows_per_mask == 0;
  const char* where = check->sampled ? "on sampled rows, forward" : forward_only ? "forward" : "forward, dq and dkv";
  check->text = fmt::format("plan equals the dense mask: {} pairs, {}", Grouped(check->pairs), where);
  return check;
}

Result<CheckReport> CheckRun(const CheckedRun& run) {
  CheckOptions options;
  options.oracle.layout = run.layout == Layout::kBhtd ? OracleLayout::kBhtd : OracleLayout::kBthd;
  const bool is_reference = run.outcome.receipt.executed == "reference";
  options.oracle.arithmetic = is_reference ? Arithmetic::Double() : Arithmetic::Single();
  return CheckOutputs(run.contract, run.batch, run.inputs, run.outcome.outputs, options);
}

std::string ToJson(const CheckReport& report) {
  std::vector<std::string> outputs;
  for (const Comparison& output : report.outputs) {
    JsonObject object;
    object.Text("name", output.name).Bool("pass", output.pass).Real("max_error", output.max_error);
    object.Int("worst", output.worst).Real("got", output.got).Real("want", output.want);
    outputs.push_back(object.Real("tolerance", output.tolerance).Done());
  }
  std::vector<std::string> unchecked;
  for (const std::string& name : report.unchecked) unchecked.push_back(JsonString(name));
  JsonObject object;
  object.Bool("pass", report.pass).Bool("sampled", report.sampled).Raw("unchecked", JsonList(unchecked));
  return object.Raw("outputs", JsonList(outputs)).Done();
}

std::string CheckWord(const CheckReport& report) {
  if (!report.pass) return "failed";
  return report.sampled ? "passed on sampled rows" : "passed";
}

}  // namespace tessera::program
