// Fits a batch to a contract: presence in both directions, shapes, ranges and reappearing ids, every violation
// reported. Documents become segments (batch_documents.cc); everything after that costs per segment.
#include "contract/batch_resolve.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/checked.h"
#include "contract/batch_documents.h"

namespace tessera {
namespace {

// Of any two numbers a file can hold: base's CeilDiv adds them up first.
int64_t CeilDiv(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

class Resolver {
 public:
  Resolver(const Contract& contract, const MaskFacts& facts, const Batch& batch)
      : contract_(contract),
        shape_(contract.shape),
        facts_(facts),
        batch_(batch),
        same_length_(contract.shape.q_len == contract.shape.kv_len) {}

  Result<std::vector<BatchRow>> Resolve() {
    if (shape_.batch < 1) Violate("shape.batch", fmt::format("must be at least 1, it is {}", shape_.batch));
    CheckDocuments();
    CheckValid();
    CheckPicks();
    if (!violations_.empty()) return Fail(ErrorCode::kBatchInvalid, std::move(violations_));
    std::vector<BatchRow> rows(static_cast<size_t>(shape_.batch));
    if (facts_.needs_documents) FillDocuments(&rows);
    if (facts_.needs_valid) FillValid(&rows);
    if (!violations_.empty()) return Fail(ErrorCode::kBatchInvalid, std::move(violations_));
    return rows;
  }

 private:
  void Violate(std::string field, std::string expected) {
    violations_.push_back({std::move(field), std::move(expected)});
  }

  // A field that must not be here, because the mask does not look at it.
  template <class T>
  void Refuse(const std::string& field, const std::optional<T>& value, const std::string& why) {
    if (value) Violate(field, why);
  }

  template <class T>
  void Require(const std::string& field, const std::optional<T>& value, const std::string& why) {
    if (!value) Violate(field, why);
  }

  // One field for both sides where the lengths are equal, or one for each side; never both forms.
  void CheckSides(bool is_complete_without) {
    const bool has_both = batch_.valid_tokens.has_value();
    const bool has_sides = batch_.q_valid_tokens || batch_.kv_valid_tokens;
    if (!same_length_ && has_both) {
      Violate("valid_tokens", "must be absent: q_len and kv_len differ, so give q_valid_tokens and kv_valid_tokens");
    }
    if (same_length_ && has_both && has_sides) {
      Violate("valid_tokens", "must not be given together with q_valid_tokens or kv_valid_tokens");
    }
    if (has_both) return;
    // Half a pair is wrong even where the pair is not needed.
    if (has_sides || !same_length_) {
      Require("q_valid_tokens", batch_.q_valid_tokens, "is missing: the mask needs it for both sides");
      Require("kv_valid_tokens", batch_.kv_valid_tokens, "is missing: the mask needs it for both sides");
    } else if (!is_complete_without) {
      Violate("valid_tokens", "is missing: the mask needs it");
    }
  }

  void CheckDocuments() {
    if (!facts_.needs_documents && !facts_.names_documents) {
      for (const DocumentField& field : DocumentFields(batch_)) {
        if (field.IsGiven()) Violate(std::string(field.name), "must be absent: the mask names no documents");
      }
      return;
    }
    // Named, but without effect at these lengths: it may stay away, and is checked when it comes.
    if (!facts_.needs_documents && !HasDocuments(batch_)) return;
    for (Violation& violation : tessera::CheckDocuments(shape_, batch_)) violations_.push_back(std::move(violation));
  }

  void CheckValid() {
    if (!facts_.needs_valid && facts_.names_valid) {
      if (!batch_.valid_tokens && !batch_.valid_slots && !batch_.base_block_tokens && !batch_.q_valid_tokens &&
          !batch_.kv_valid_tokens) {
        return;
      }
    } else if (!facts_.needs_valid) {
      const std::string unneeded = "must be absent: the mask does not name `valid`";
      Refuse("valid_tokens", batch_.valid_tokens, unneeded);
      Refuse("valid_slots", batch_.valid_slots, unneeded);
      Refuse("base_block_tokens", batch_.base_block_tokens, unneeded);
      Refuse("q_valid_tokens", batch_.q_valid_tokens, unneeded);
      Refuse("kv_valid_tokens", batch_.kv_valid_tokens, unneeded);
      return;
    }
    CheckSides(same_length_ && batch_.valid_slots.has_value());
    if (!same_length_ && batch_.valid_slots) {
      Violate("valid_slots", "must be absent: q_len and kv_len differ, so give q_valid_tokens and kv_valid_tokens");
    }
    if (batch_.valid_slots)
      Require("base_block_tokens", batch_.base_block_tokens, "is missing: valid_slots are counted in it");
    if (!batch_.valid_slots) Refuse("base_block_tokens", batch_.base_block_tokens, "must come with valid_slots");
    if (batch_.base_block_tokens && *batch_.base_block_tokens < 1)
      Violate("base_block_tokens", fmt::format("must be at least 1, it is {}", *batch_.base_block_tokens));
    CheckCounts("valid_tokens", batch_.valid_tokens, std::min(shape_.q_len, shape_.kv_len));
    CheckCounts("q_valid_tokens", batch_.q_valid_tokens, shape_.q_len);
    CheckCounts("kv_valid_tokens", batch_.kv_valid_tokens, shape_.kv_len);
    // The last slot may be only partly inside the row; one that begins after it is as wrong as a token there.
    const int64_t base = batch_.base_block_tokens.value_or(1);
    CheckCounts("valid_slots", batch_.valid_slots, base < 1 ? kNoLimit : CeilDiv(shape_.q_len, base));
  }

  void CheckCounts(const std::string& field, const std::optional<std::vector<int64_t>>& counts, int64_t limit) {
    if (!counts) return;
    const auto size = static_cast<int64_t>(counts->size());
    if (size != 1 && size != shape_.batch) {
      return Violate(field,
                     fmt::format("must be one number or {} of them, one per batch row; it has {}", shape_.batch, size));
    }
    for (size_t i = 0; i < counts->size(); ++i) {
      const int64_t count = (*counts)[i];
      if (count < 0) Violate(fmt::format("{}[{}]", field, i), fmt::format("must not be negative, it is {}", count));
      if (count > limit)
        Violate(fmt::format("{}[{}]", field, i), fmt::format("must be at most {}, it is {}", limit, count));
    }
  }

  void CheckPicks() {
    if (!facts_.needs_blocks && facts_.names_blocks && !batch_.picks) return;
    if (!facts_.needs_blocks && !facts_.names_blocks) {
      return Refuse("picks", batch_.picks, "must be absent: the mask does not name `blocks`");
    }
    if (contract_.routing)
      return Refuse("picks", batch_.picks, "must be absent: the contract's routing makes the picks");
    if (!batch_.picks) return Violate("picks", "is missing: the mask needs it");
    const Picks& picks = *batch_.picks;
    if (picks.block_tokens < 1)
      return Violate("picks.block_tokens", fmt::format("must be at least 1, it is {}", picks.block_tokens));
    const int64_t tiles = contract_.tiles.q > 0 ? CeilDiv(shape_.q_len, contract_.tiles.q) : shape_.q_len;
    const std::optional<int64_t> count = CheckedProduct(picks.shape);
    const bool fits = picks.shape.size() == 4 && picks.shape[0] == shape_.batch &&
                      (picks.shape[1] == shape_.q_len || picks.shape[1] == tiles) &&
                      picks.shape[2] == shape_.num_kv_heads && count &&
                      *count == static_cast<int64_t>(picks.blocks.size());
    if (!fits) {
      return Violate("picks.blocks", fmt::format("must be [{}][{} or {}][{}][top_n], it is [{}] with {} values",
                                                 shape_.batch, shape_.q_len, tiles, shape_.num_kv_heads,
                                                 fmt::join(picks.shape, "]["), picks.blocks.size()));
    }
    const int64_t num_blocks = CeilDiv(shape_.kv_len, picks.block_tokens);
    const auto bad =
        std::find_if(picks.blocks.begin(), picks.blocks.end(), [&](int32_t block) { return block >= num_blocks; });
    if (bad != picks.blocks.end()) {
      Violate("picks.blocks", fmt::format("every pick must be below {}, the number of blocks; element {} is {}",
                                          num_blocks, bad - picks.blocks.begin(), *bad));
    }
  }

  std::vector<Segment> Segments(Side side, size_t row) {
    SideSegments found = SegmentsOf(shape_, batch_, side, row);
    if (found.again != nullptr && !facts_.documents_may_reappear) {
      Violate(fmt::format("{}[{}]", found.field, row),
              fmt::format("id {} reappears at token {}: number documents apart, or use documents(equal)",
                          found.again->doc, found.again->begin));
    }
    return std::move(found.segments);
  }

  void FillDocuments(std::vector<BatchRow>* rows) {
    const bool is_shared = batch_.doc_ids || batch_.doc_lengths || batch_.cu_seqlens;
    for (size_t row = 0; row < rows->size(); ++row) {
      BatchRow& out = (*rows)[row];
      out.q_segments = Segments(Side::kQ, row);
      out.kv_segments = is_shared ? out.q_segments : Segments(Side::kKv, row);
    }
  }

  static int64_t CountAt(const std::vector<int64_t>& counts, size_t row) {
    return counts[counts.size() == 1 ? 0 : row];
  }

  int64_t ValidLength(const std::optional<std::vector<int64_t>>& side_tokens, int64_t len, size_t row) const {
    int64_t valid = len;
    if (batch_.valid_tokens) valid = std::min(valid, CountAt(*batch_.valid_tokens, row));
    if (side_tokens) valid = std::min(valid, CountAt(*side_tokens, row));
    if (batch_.valid_slots) {
      // A product too large for int64 is certainly longer than the row.
      const std::optional<int64_t> tokens = CheckedMul(CountAt(*batch_.valid_slots, row), *batch_.base_block_tokens);
      if (tokens) valid = std::min(valid, *tokens);
    }
    return valid;
  }

  void FillValid(std::vector<BatchRow>* rows) const {
    for (size_t row = 0; row < rows->size(); ++row) {
      (*rows)[row].q_valid = ValidLength(batch_.q_valid_tokens, shape_.q_len, row);
      (*rows)[row].kv_valid = ValidLength(batch_.kv_valid_tokens, shape_.kv_len, row);
    }
  }

  const Contract& contract_;
  const Shape& shape_;
  const MaskFacts& facts_;
  const Batch& batch_;
  const bool same_length_;
  std::vector<Violation> violations_;
};

}  // namespace

Result<std::vector<BatchRow>> ResolveBatchWith(const Contract& contract, const MaskFacts& facts, const Batch& batch) {
  return Resolver(contract, facts, batch).Resolve();
}

Result<std::vector<BatchRow>> ResolveBatch(const Contract& contract, const Batch& batch) {
  const Result<MaskFacts> facts = DescribeMask(contract);
  if (!facts) return tl::unexpected(facts.error());
  return ResolveBatchWith(contract, *facts, batch);
}

}  // namespace tessera
