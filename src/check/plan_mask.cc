// A plan against the plan-free mask test, row by row and in each of its directions.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/math.h"
#include "base/spelling.h"
#include "base/try.h"
#include "check/mask_test.h"
#include "tessera/check.h"

namespace tessera {
namespace check {
namespace {

// Rows of each (batch row, head) that are compared where all would be too many.
constexpr int64_t kSampleRows = 64;

// One row of a worklist of query tiles, decompressed.
void QueryRow(const PlanView& plan, const Worklist& list, uint32_t mask, const TokenFacts& facts, int64_t i,
              std::span<uint8_t> cells) {
  const uint64_t row = uint64_t{mask} * list.rows_per_mask + static_cast<uint64_t>(i / list.tile_q);
  for (const Slot& slot : list.Row(row)) {
    const int64_t begin = int64_t{slot.index} * list.tile_kv;
    const int64_t end = std::min(begin + list.tile_kv, plan.kv_len);
    for (int64_t j = begin; j < end; ++j) {
      cells[static_cast<size_t>(j)] = TileAllows(plan, list, slot.cleanup, facts, i, j) ? 1 : 0;
    }
  }
}

// The same out of a worklist of key tiles: of each, the slot of this query's tile, where there is one.
void QueryRowOfKeys(const PlanView& plan, const Worklist& list, uint32_t mask, const TokenFacts& facts, int64_t i,
                    std::span<uint8_t> cells) {
  const auto query_tile = static_cast<uint32_t>(i / list.tile_q);
  for (int64_t tile = 0; tile < list.rows_per_mask; ++tile) {
    const auto slots = list.Row(uint64_t{mask} * list.rows_per_mask + static_cast<uint64_t>(tile));
    const auto slot = std::lower_bound(slots.begin(), slots.end(), query_tile,
                                       [](const Slot& at, uint32_t index) { return at.index < index; });
    if (slot == slots.end() || slot->index != query_tile) continue;
    const int64_t end = std::min((tile + 1) * list.tile_kv, plan.kv_len);
    for (int64_t j = tile * list.tile_kv; j < end; ++j) {
      cells[static_cast<size_t>(j)] = TileAllows(plan, list, slot->cleanup, facts, i, j) ? 1 : 0;
    }
  }
}

// Whether the answer to a term depends on which of the heads with this expression asks.
bool DependsOnHead(const MaskExpr& expr) {
  if (expr.op != MaskExpr::Op::kTerm) {
    return std::any_of(expr.children.begin(), expr.children.end(), DependsOnHead);
  }
  const MaskTerm& term = expr.term;
  return term.kind == TermKind::kBlocks || (term.kind == TermKind::kBitmap && term.bitmap && term.bitmap->heads != 1) ||
         (term.kind == TermKind::kRegistered && term.registered->per_head);
}

class PlanCheck {
 public:
  PlanCheck(const Contract& contract, const PlanView& plan, int64_t rows, RunMeter* meter)
      : contract_(contract),
        plan_(plan),
        rows_(rows),
        meter_(meter),
        want_(static_cast<size_t>(plan.kv_len)),
        got_(static_cast<size_t>(plan.kv_len)) {}

  Status Run(const Batch& batch) {
    result_.pass = true;
    result_.sampled = rows_ < plan_.q_len;
    if (meter_ != nullptr) meter_->Begin(RunStep::kCheckPlan, plan_.batch * plan_.num_q_heads * rows_);
    for (int64_t b = 0; b < plan_.batch && result_.pass; ++b) {
      const MaskTest test = TESSERA_TRY(MaskTest::Make(contract_, batch, b));
      const TokenFacts facts = SpreadTokenFacts(plan_, b);
      // Heads of one expression that share a mask of the plan are compared once.
      std::set<std::pair<uint32_t, const MaskExpr*>> compared;
      for (int64_t head = 0; head < plan_.num_q_heads && result_.pass; ++head) {
        const uint32_t mask = plan_.mask_of[static_cast<size_t>(b * plan_.num_q_heads + head)];
        const MaskExpr& expr = contract_.mask.ForHead(head);
        const bool is_new = compared.insert({mask, &expr}).second || DependsOnHead(expr);
        CheckHead(test, facts, {b, head, mask}, is_new);
      }
    }
    return {};
  }
  MaskCheck& result() { return result_; }

 private:
  struct HeadPlace {
    int64_t batch_row = 0;
    int64_t head = 0;
    uint32_t mask = 0;
  };

  void CheckHead(const MaskTest& test, const TokenFacts& facts, const HeadPlace& at, bool is_new) {
    for (int64_t n = 0; n < rows_ && result_.pass; ++n) {
      const int64_t i = rows_ <= 1 ? 0 : n * (plan_.q_len - 1) / (rows_ - 1);
      if (is_new) test.Row(at.head, i, want_);
      for (size_t d = 0; d < kNumDirections && result_.pass; ++d) {
        const auto direction = static_cast<Direction>(d);
        if (plan_.Of(direction).rows_per_mask == 0) continue;  // a forward-only plan
        result_.pairs += plan_.kv_len;
        if (is_new) CheckRow(direction, facts, at, i);
      }
      if (meter_ != nullptr) ++meter_->done;
    }
  }

  void CheckRow(Direction direction, const TokenFacts& facts, const HeadPlace& at, int64_t i) {
    std::fill(got_.begin(), got_.end(), uint8_t{0});
    const Worklist& list = plan_.Of(direction);
    (direction == Direction::kDkv ? QueryRowOfKeys : QueryRow)(plan_, list, at.mask, facts, i, got_);
    const auto [got, want] = std::mismatch(got_.begin(), got_.end(), want_.begin());
    if (got == got_.end()) return;
    result_.pass = false;
    result_.text = fmt::format("{}: batch row {}, head {}, query {}, key {}: the plan {} the pair and the mask {} it",
                               ToText(direction), at.batch_row, at.head, i, got - got_.begin(),
                               *got != 0 ? "allows" : "forbids", *want != 0 ? "allows" : "forbids");
  }

  const Contract& contract_;
  const PlanView& plan_;
  const int64_t rows_;
  RunMeter* meter_;
  std::vector<uint8_t> want_;
  std::vector<uint8_t> got_;
  MaskCheck result_;
};

Status CheckSameShape(const Contract& contract, const PlanView& plan) {
  const Shape& shape = contract.shape;
  if (shape.batch == plan.batch && shape.q_len == plan.q_len && shape.kv_len == plan.kv_len &&
      shape.num_q_heads == plan.num_q_heads) {
    return {};
  }
  return Fail(ErrorCode::kBadArgument, "the plan is of another contract", "check");
}

}  // namespace
}  // namespace check

// A mask term of the caller's own may throw, and memory may run out.
Result<MaskCheck> CheckMask(const Contract& contract, const Batch& batch, const PlanView& plan, int64_t max_pairs,
                            RunMeter* meter) try {
  TESSERA_TRY(check::CheckSameShape(contract, plan));
  // In floating point: the product of valid extents can exceed 64 bits.
  const double pairs_of_row = static_cast<double>(plan.kv_len) * static_cast<double>(plan.batch * plan.num_q_heads);
  const double fitting = static_cast<double>(max_pairs) / std::max(pairs_of_row, 1.0);
  const bool is_whole = static_cast<double>(plan.q_len) <= fitting;
  check::PlanCheck checked(contract, plan, is_whole ? plan.q_len : std::min(check::kSampleRows, plan.q_len), meter);
  TESSERA_TRY(checked.Run(batch));
  MaskCheck result = std::move(checked.result());
  if (!result.pass) return result;
  const bool is_forward = plan.Of(Direction::kDkv).rows_per_mask == 0;
  result.text = fmt::format("plan equals the dense mask: {} pairs, {}{}", Grouped(result.pairs),
                            result.sampled ? "on sampled rows, " : "", is_forward ? "forward" : "forward, dq and dkv");
  return result;
} catch (const std::exception& error) {
  return Fail(ErrorCode::kTooLarge, fmt::format("the check could not be made: {}", error.what()), "check");
}

}  // namespace tessera
