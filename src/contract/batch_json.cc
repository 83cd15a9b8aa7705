// The batch's JSON: read as a stream straight into flat integer arrays, because a row can have a million tokens, and
// written back in one canonical form.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "base/spelling.h"
#include "contract/batch_fields.h"
#include "contract/limits.h"
#include "io/json_events.h"

namespace tessera {
namespace {

constexpr int kMaxDepth =
    3 + kMaxBatchRank;  // the batch, picks, the deepest array, and one more to name what is too deep
constexpr int64_t kUnknown = -1;

class BatchHandler : public JsonHandler {
 public:
  BatchFields Take() { return std::move(fields_); }

  bool OnInteger(int64_t value) override {
    if (current_ == nullptr) return Refuse(Where() + " must not be a number");
    // Deeper arrays may have come before the first number, all of them empty.
    if (leaf_depth_ == kUnknown) leaf_depth_ = static_cast<int64_t>(current_->shape.size());
    if (leaf_depth_ != static_cast<int64_t>(counts_.size())) return RefuseRagged();
    if (!counts_.empty()) ++counts_.back();
    current_->values.push_back(value);
    if (counts_.empty()) current_ = nullptr;
    return true;
  }
  bool OnText(std::string_view) override { return OnOther("a text"); }
  bool OnOther(std::string_view what) override {
    return Refuse(fmt::format("{} must hold integers, not {}", Where(), what));
  }
  bool OnKey(std::string_view key) override {
    name_ = in_picks_ ? "picks." : "";
    name_ += key;
    if (!in_picks_ && key == "picks") return true;
    // A dot in a key of the file itself is not the path to a field of picks.
    if (!IsBatchField(name_) || key.find('.') != std::string_view::npos)
      return Refuse(fmt::format("unknown field \"{}\"; a batch may have {}", Shorten(name_, 80), BatchFieldNames()));
    current_ = &fields_[name_];
    leaf_depth_ = kUnknown;
    return true;
  }
  bool OnObjectBegin() override {
    if (in_root_ && (in_picks_ || name_ != "picks")) return Refuse(Where() + " must not be an object");
    (in_root_ ? in_picks_ : in_root_) = true;
    return true;
  }
  bool OnObjectEnd() override {
    // Without this an empty `picks` would read as an absent one.
    if (in_picks_ && !fields_.contains("picks.blocks") && !fields_.contains("picks.block_tokens"))
      return Refuse("picks must have block_tokens and blocks");
    (in_picks_ ? in_picks_ : in_root_) = false;
    name_.clear();
    return true;
  }
  bool OnArrayBegin() override {
    if (current_ == nullptr) return Refuse(Where() + " must be an object");
    if (counts_.size() == kMaxBatchRank)
      return Refuse(fmt::format("{} has more than {} dimensions", Where(), kMaxBatchRank));
    const auto depth = static_cast<int64_t>(counts_.size()) + 1;
    if (leaf_depth_ != kUnknown && depth > leaf_depth_) return RefuseRagged();
    if (!counts_.empty()) ++counts_.back();
    counts_.push_back(0);
    if (current_->shape.size() < counts_.size()) current_->shape.push_back(kUnknown);
    return true;
  }
  bool OnArrayEnd() override {
    int64_t& size = current_->shape[counts_.size() - 1];
    const bool may_differ = counts_.size() == 2 && MayRowsDiffer(name_);
    if (may_differ) current_->row_counts.push_back(counts_.back());
    if (size == kUnknown || may_differ) size = std::max(size, counts_.back());
    if (size != counts_.back() && !may_differ) return RefuseRagged();
    counts_.pop_back();
    if (counts_.empty()) current_ = nullptr;
    return true;
  }

 private:
  std::string Where() const { return name_.empty() ? "the batch" : name_; }
  bool RefuseRagged() { return Refuse(Where() + " is ragged: every row must have the same length"); }

  BatchFields fields_;
  bool in_root_ = false;
  bool in_picks_ = false;
  std::string name_;
  IntArray* current_ = nullptr;  // the field being read
  int64_t leaf_depth_ = kUnknown;
  std::vector<int64_t> counts_;  // elements so far in each open array
};

template <class T>
std::string ListText(const T* values, int64_t count) {
  return fmt::format("[{}]", fmt::join(values, values + count, ","));
}

std::string CountsText(const std::vector<int64_t>& counts) {
  return ListText(counts.data(), static_cast<int64_t>(counts.size()));
}

// Nested brackets over row-major values; `at` walks through them. A shape that promises more values than there are
// prints those there are.
std::string NestedText(const std::vector<int32_t>& values, std::span<const int64_t> shape, int64_t* at) {
  const int64_t left = static_cast<int64_t>(values.size()) - *at;
  if (shape.size() < 2) {
    const int64_t count = std::min(left, shape.empty() ? left : shape[0]);
    *at += count;
    return ListText(values.data() + *at - count, count);
  }
  std::string text = "[";
  for (int64_t i = 0; i < shape[0]; ++i) {
    if (i > 0) text += ',';
    text += NestedText(values, shape.subspan(1), at);
  }
  text += ']';
  return text;
}

}  // namespace

Result<BatchFields> ParseBatchJson(std::string_view json) {
  BatchHandler handler;
  if (const std::string problem = WalkJson(json, kMaxDepth, handler); !problem.empty())
    return Fail(ErrorCode::kBatchSyntax, "the batch is not well-formed: " + problem);
  return handler.Take();
}

std::string ToJson(const Batch& batch) {
  std::vector<std::string> fields;
  const auto add = [&](std::string_view name, const std::string& value) {
    fields.push_back(fmt::format("\"{}\":{}", name, value));
  };
  const auto add_ids = [&](std::string_view name, const std::optional<IdRows>& ids) {
    if (!ids) return;
    int64_t at = 0;
    add(name, NestedText(ids->values, std::array{ids->rows, ids->len}, &at));
  };
  const auto add_rows = [&](std::string_view name, const std::optional<IntRows>& rows) {
    if (!rows) return;
    std::vector<std::string> lists;
    for (const std::vector<int32_t>& row : *rows)
      lists.push_back(ListText(row.data(), static_cast<int64_t>(row.size())));
    add(name, fmt::format("[{}]", fmt::join(lists, ",")));
  };
  const auto add_counts = [&](std::string_view name, const std::optional<std::vector<int64_t>>& counts) {
    if (counts) add(name, CountsText(*counts));
  };
  add_ids("doc_ids", batch.doc_ids);
  add_ids("q_doc_ids", batch.q_doc_ids);
  add_ids("kv_doc_ids", batch.kv_doc_ids);
  add_rows("doc_lengths", batch.doc_lengths);
  add_rows("q_doc_lengths", batch.q_doc_lengths);
  add_rows("kv_doc_lengths", batch.kv_doc_lengths);
  add_rows("cu_seqlens", batch.cu_seqlens);
  add_rows("q_cu_seqlens", batch.q_cu_seqlens);
  add_rows("kv_cu_seqlens", batch.kv_cu_seqlens);
  add_counts("valid_tokens", batch.valid_tokens);
  add_counts("valid_slots", batch.valid_slots);
  if (batch.base_block_tokens) add("base_block_tokens", fmt::format("{}", *batch.base_block_tokens));
  add_counts("q_valid_tokens", batch.q_valid_tokens);
  add_counts("kv_valid_tokens", batch.kv_valid_tokens);
  if (batch.picks) {
    int64_t at = 0;
    add("picks", fmt::format("{{\"block_tokens\":{},\"blocks\":{}}}", batch.picks->block_tokens,
                             NestedText(batch.picks->blocks, batch.picks->shape, &at)));
  }
  return fmt::format("{{{}}}\n", fmt::join(fields, ","));
}

}  // namespace tessera
