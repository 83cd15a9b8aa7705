// Fits a batch to a contract: presence in both directions, shapes, ranges and reappearing ids, every violation
// reported. Rows are reduced to segments in one pass over their ids; everything after that costs per segment.
#include "contract/batch_resolve.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "base/checked.h"

namespace tessera {
namespace {

// The first index after `begin` whose id differs from ids[begin].
size_t FindChange(std::span<const int32_t> ids, size_t begin) {
  // Short stretches are cheapest one by one; long ones in blocks without an early exit, which compilers vectorise.
  constexpr size_t kShort = 16;
  constexpr size_t kBlock = 128;
  const int32_t id = ids[begin];
  size_t i = begin + 1;
  const size_t short_end = std::min(ids.size(), begin + kShort);
  while (i < short_end && ids[i] == id) ++i;
  if (i < short_end) return i;
  while (i + kBlock <= ids.size()) {
    const int32_t* block = ids.data() + i;
    uint32_t difference = 0;
    for (size_t k = 0; k < kBlock; ++k) difference |= static_cast<uint32_t>(block[k] ^ id);
    if (difference != 0) break;
    i += kBlock;
  }
  while (i < ids.size() && ids[i] == id) ++i;
  return i;
}

bool IsAscending(const std::vector<Segment>& segments) {
  int32_t last = -1;
  for (const Segment& segment : segments) {
    if (segment.doc < 0) continue;
    if (segment.doc <= last) return false;
    last = segment.doc;
  }
  return true;
}

// Fills in the ranks and returns the earliest segment whose id appeared before, or nothing.
const Segment* SetRanks(std::vector<Segment>* segments) {
  // Packers number documents upwards, so the common row needs no sort.
  if (IsAscending(*segments)) return nullptr;
  std::vector<uint32_t> order(segments->size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    const Segment& x = (*segments)[a];
    const Segment& y = (*segments)[b];
    return x.doc != y.doc ? x.doc < y.doc : x.begin < y.begin;
  });
  const Segment* first = nullptr;
  for (size_t i = 1; i < order.size(); ++i) {
    const Segment& before = (*segments)[order[i - 1]];
    Segment& segment = (*segments)[order[i]];
    if (segment.doc < 0 || segment.doc != before.doc) continue;
    segment.rank = before.rank + before.end - before.begin;
    if (first == nullptr || segment.begin < first->begin) first = &segment;
  }
  return first;
}

int64_t CeilDiv(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

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

  // The rule that documents and valid lengths share: one field for both sides where the lengths are equal, or one
  // for each side; never both forms.
  template <class T>
  struct Sides {
    const std::string name;
    const std::optional<T>& both;
    const std::optional<T>& q;
    const std::optional<T>& kv;
    bool HasSides() const { return q.has_value() || kv.has_value(); }
  };

  template <class T>
  void CheckSides(const Sides<T>& sides, bool is_complete_without) {
    const std::string both = sides.name;
    const std::string q = "q_" + sides.name;
    const std::string kv = "kv_" + sides.name;
    if (!same_length_ && sides.both)
      Violate(both, fmt::format("must be absent: q_len and kv_len differ, so give {} and {}", q, kv));
    if (same_length_ && sides.both && sides.HasSides())
      Violate(both, fmt::format("must not be given together with {} or {}", q, kv));
    if (sides.both) return;
    // Half a pair is wrong even where the pair is not needed.
    if (sides.HasSides() || !same_length_) return RequirePair(sides);
    if (!is_complete_without) Violate(both, "is missing: the mask needs it");
  }

  template <class T>
  void RequirePair(const Sides<T>& sides) {
    Require("q_" + sides.name, sides.q, "is missing: the mask needs it for both sides");
    Require("kv_" + sides.name, sides.kv, "is missing: the mask needs it for both sides");
  }

  void CheckDocuments() {
    const std::string unneeded = "must be absent: the mask names no documents";
    if (!facts_.needs_documents && facts_.names_documents) {
      // Named, but without effect at these lengths: it may stay away, and is checked when it comes.
      if (!batch_.doc_ids && !batch_.q_doc_ids && !batch_.kv_doc_ids) return;
    } else if (!facts_.needs_documents) {
      Refuse("doc_ids", batch_.doc_ids, unneeded);
      Refuse("q_doc_ids", batch_.q_doc_ids, unneeded);
      Refuse("kv_doc_ids", batch_.kv_doc_ids, unneeded);
      return;
    }
    CheckSides(Sides<IdRows>{"doc_ids", batch_.doc_ids, batch_.q_doc_ids, batch_.kv_doc_ids}, false);
    CheckIds("doc_ids", batch_.doc_ids, shape_.q_len);
    CheckIds("q_doc_ids", batch_.q_doc_ids, shape_.q_len);
    CheckIds("kv_doc_ids", batch_.kv_doc_ids, shape_.kv_len);
  }

  void CheckIds(const std::string& field, const std::optional<IdRows>& ids, int64_t len) {
    if (!ids) return;
    const std::optional<int64_t> count = CheckedMul(shape_.batch, len);
    const bool fits =
        ids->rows == shape_.batch && ids->len == len && count && *count == static_cast<int64_t>(ids->values.size());
    if (!fits) {
      Violate(field, fmt::format("must be [{}][{}], it is [{}][{}] with {} values", shape_.batch, len, ids->rows,
                                 ids->len, ids->values.size()));
    } else if (len > std::numeric_limits<int32_t>::max()) {
      Violate(field, "must have rows shorter than 2^31 tokens");
    }
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
    const Sides<std::vector<int64_t>> sides{"valid_tokens", batch_.valid_tokens, batch_.q_valid_tokens,
                                            batch_.kv_valid_tokens};
    CheckSides(sides, same_length_ && batch_.valid_slots.has_value());
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
    // The last slot may be only partly inside the row, so slots have no upper bound of their own.
    CheckCounts("valid_slots", batch_.valid_slots, std::numeric_limits<int64_t>::max());
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

  std::vector<Segment> Segments(const std::string& field, const IdRows& ids, size_t row) {
    const auto len = static_cast<size_t>(ids.len);
    std::vector<Segment> segments = FindSegments(std::span(ids.values).subspan(row * len, len));
    const Segment* again = SetRanks(&segments);
    if (again != nullptr && !facts_.documents_may_reappear) {
      Violate(fmt::format("{}[{}]", field, row),
              fmt::format("id {} reappears at token {}: number documents apart, or use documents(equal)", again->doc,
                          again->begin));
    }
    return segments;
  }

  void FillDocuments(std::vector<BatchRow>* rows) {
    for (size_t row = 0; row < rows->size(); ++row) {
      BatchRow& out = (*rows)[row];
      if (batch_.doc_ids) {
        out.q_segments = Segments("doc_ids", *batch_.doc_ids, row);
        out.kv_segments = out.q_segments;
      } else {
        out.q_segments = Segments("q_doc_ids", *batch_.q_doc_ids, row);
        out.kv_segments = Segments("kv_doc_ids", *batch_.kv_doc_ids, row);
      }
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

std::vector<Segment> FindSegments(std::span<const int32_t> ids) {
  std::vector<Segment> segments;
  for (size_t begin = 0; begin < ids.size();) {
    const size_t end = FindChange(ids, begin);
    const int32_t doc = std::max(ids[begin], -1);
    if (doc < 0 && !segments.empty() && segments.back().doc < 0) {
      segments.back().end = static_cast<int32_t>(end);
    } else {
      segments.push_back({static_cast<int32_t>(begin), static_cast<int32_t>(end), doc, 0});
    }
    begin = end;
  }
  return segments;
}

Result<std::vector<BatchRow>> ResolveBatchWith(const Contract& contract, const MaskFacts& facts, const Batch& batch) {
  return Resolver(contract, facts, batch).Resolve();
}

Result<std::vector<BatchRow>> ResolveBatch(const Contract& contract, const Batch& batch) {
  const Result<MaskFacts> facts = DescribeMask(contract);
  if (!facts) return tl::unexpected(facts.error());
  return ResolveBatchWith(contract, *facts, batch);
}

}  // namespace tessera
