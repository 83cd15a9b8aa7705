// Lengths and ends of documents to ids. Documents are numbered 0, 1, ... in order, empty ones too; what is after the
// last of them is padding.
#include "capi/documents.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace tessera::capi {
namespace {

constexpr std::array<std::string_view, kNumSides> kPrefixes = {"", "q_", "kv_"};

class Filler {
 public:
  Filler(const BatchParts& parts, const Shape& shape) : shape_(shape), batch_(parts.batch) {
    for (size_t side = 0; side < kNumSides; ++side) FillSide(parts, side);
  }
  Result<Batch> Finish() {
    if (!violations_.empty()) return Fail(ErrorCode::kBatchInvalid, std::move(violations_), "batch");
    return std::move(batch_);
  }

 private:
  void FillSide(const BatchParts& parts, size_t side) {
    std::optional<IdRows>& ids = *std::array{&batch_.doc_ids, &batch_.q_doc_ids, &batch_.kv_doc_ids}[side];
    const std::optional<DocumentRows>& lengths = parts.lengths[side];
    const std::optional<DocumentRows>& ends = parts.ends[side];
    if (!lengths && !ends) return;
    const std::string name = fmt::format("{}{}", kPrefixes[side], lengths ? "doc_lengths" : "cu_seqlens");
    if (ids || (lengths && ends)) {
      violations_.push_back({name, "must be the only one of doc_ids, doc_lengths and cu_seqlens on its side"});
      return;
    }
    const DocumentRows& rows = lengths ? *lengths : *ends;
    const int64_t len = static_cast<Side>(side) == Side::kKv ? shape_.kv_len : shape_.q_len;
    if (static_cast<int64_t>(rows.size()) != shape_.batch) {
      violations_.push_back({name, fmt::format("must have {} rows, it has {}", shape_.batch, rows.size())});
      return;
    }
    ids = IdRows{.rows = shape_.batch, .len = len, .values = {}};
    ids->values.assign(static_cast<size_t>(shape_.batch * len), -1);
    for (size_t row = 0; row < rows.size(); ++row) {
      int32_t* out = ids->values.data() + static_cast<int64_t>(row) * len;
      const std::string at = fmt::format("{}[{}]", name, row);
      if (lengths) {
        FillLengths(at, rows[row], len, out);
      } else {
        FillEnds(at, rows[row], len, out);
      }
    }
  }

  void FillLengths(const std::string& at, const std::vector<int32_t>& lengths, int64_t len, int32_t* out) {
    int64_t begin = 0;
    for (size_t doc = 0; doc < lengths.size(); ++doc) {
      const int64_t end = begin + lengths[doc];
      if (lengths[doc] < 0 || end > len) {
        violations_.push_back({fmt::format("{}[{}]", at, doc),
                               fmt::format("must be 0 or more, and all lengths {} at most together; it is {} after {} "
                                           "tokens",
                                           len, lengths[doc], begin)});
        return;
      }
      std::fill(out + begin, out + end, static_cast<int32_t>(doc));
      begin = end;
    }
  }

  void FillEnds(const std::string& at, const std::vector<int32_t>& ends, int64_t len, int32_t* out) {
    if (ends.empty() || ends[0] != 0) {
      violations_.push_back({at, "must begin with 0"});
      return;
    }
    for (size_t doc = 1; doc < ends.size(); ++doc) {
      if (ends[doc] < ends[doc - 1] || ends[doc] > len) {
        violations_.push_back({fmt::format("{}[{}]", at, doc),
                               fmt::format("must be from {} to {}, it is {}", ends[doc - 1], len, ends[doc])});
        return;
      }
      std::fill(out + ends[doc - 1], out + ends[doc], static_cast<int32_t>(doc - 1));
    }
  }

  const Shape& shape_;
  Batch batch_;
  std::vector<Violation> violations_;
};

}  // namespace

bool BatchParts::HasDocumentRows() const {
  const auto is_given = [](const std::optional<DocumentRows>& rows) { return rows.has_value(); };
  return std::any_of(lengths.begin(), lengths.end(), is_given) || std::any_of(ends.begin(), ends.end(), is_given);
}

Result<Batch> WithDocumentIds(const BatchParts& parts, const Shape& shape) { return Filler(parts, shape).Finish(); }

}  // namespace tessera::capi
