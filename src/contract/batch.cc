// Reading a batch from a file's fields: which fields there are, their ranks and their ranges. Whether they fit a
// contract is ResolveBatch's business.
#include "tessera/batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "contract/batch_fields.h"
#include "contract/limits.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "tessera/tensor.h"

namespace tessera {
namespace {

constexpr auto kFieldNames = std::to_array<std::string_view>(
    {"base_block_tokens", "cu_seqlens", "doc_ids", "doc_lengths", "kv_cu_seqlens", "kv_doc_ids", "kv_doc_lengths",
     "kv_valid_tokens", "picks.block_tokens", "picks.blocks", "q_cu_seqlens", "q_doc_ids", "q_doc_lengths",
     "q_valid_tokens", "valid_slots", "valid_tokens"});

// Turns fields into a Batch, collecting every violation on the way.
class Builder {
 public:
  explicit Builder(BatchFields fields) : fields_(std::move(fields)) {}

  Result<Batch> Build(const std::string& where) {
    Batch batch;
    ReadIds("doc_ids", &batch.doc_ids);
    ReadIds("q_doc_ids", &batch.q_doc_ids);
    ReadIds("kv_doc_ids", &batch.kv_doc_ids);
    ReadRows("doc_lengths", &batch.doc_lengths);
    ReadRows("q_doc_lengths", &batch.q_doc_lengths);
    ReadRows("kv_doc_lengths", &batch.kv_doc_lengths);
    ReadRows("cu_seqlens", &batch.cu_seqlens);
    ReadRows("q_cu_seqlens", &batch.q_cu_seqlens);
    ReadRows("kv_cu_seqlens", &batch.kv_cu_seqlens);
    ReadCounts("valid_tokens", &batch.valid_tokens);
    ReadCounts("valid_slots", &batch.valid_slots);
    ReadCounts("q_valid_tokens", &batch.q_valid_tokens);
    ReadCounts("kv_valid_tokens", &batch.kv_valid_tokens);
    ReadNumber("base_block_tokens", &batch.base_block_tokens);
    ReadPicks(&batch.picks);
    if (!violations_.empty()) return Fail(ErrorCode::kBatchSyntax, std::move(violations_), where);
    return batch;
  }

 private:
  const IntArray* Find(const std::string& name) const {
    const auto it = fields_.find(name);
    return it == fields_.end() ? nullptr : &it->second;
  }

  void Violate(const std::string& name, std::string expected) { violations_.push_back({name, std::move(expected)}); }

  bool ToInt32(const std::string& name, const IntArray& array, std::vector<int32_t>* out) {
    constexpr int64_t kLow = std::numeric_limits<int32_t>::min();
    constexpr int64_t kHigh = std::numeric_limits<int32_t>::max();
    const auto bad = std::find_if(array.values.begin(), array.values.end(),
                                  [](int64_t value) { return value < kLow || value > kHigh; });
    if (bad != array.values.end()) {
      Violate(name, fmt::format("every value must fit in int32; element {} is {}", bad - array.values.begin(), *bad));
      return false;
    }
    out->reserve(array.values.size());
    for (const int64_t value : array.values) out->push_back(static_cast<int32_t>(value));
    return true;
  }

  void ReadIds(const std::string& name, std::optional<IdRows>* out) {
    const IntArray* array = Find(name);
    if (array == nullptr) return;
    if (array->shape.size() != 2)
      return Violate(name, fmt::format("must be [batch][length], it has {} dimensions", array->shape.size()));
    IdRows ids{array->shape[0], array->shape[1], {}};
    if (ToInt32(name, *array, &ids.values)) *out = std::move(ids);
  }

  // A flat list is the one row of a batch of 1. Rows of a tensor file all have the same count.
  void ReadRows(const std::string& name, std::optional<IntRows>* out) {
    const IntArray* array = Find(name);
    if (array == nullptr) return;
    const size_t rank = array->shape.size();
    if (rank < 1 || rank > 2)
      return Violate(name, fmt::format("must be [batch][documents], it has {} dimensions", rank));
    if (rank == 1 && array->values.empty()) return Violate(name, "must have one list per batch row, it is empty");
    std::vector<int32_t> values;
    if (!ToInt32(name, *array, &values)) return;
    std::vector<int64_t> counts = array->row_counts;
    if (rank == 1) counts = {array->shape[0]};
    if (rank == 2 && counts.empty()) counts.assign(static_cast<size_t>(array->shape[0]), array->shape[1]);
    IntRows rows;
    rows.reserve(counts.size());
    auto begin = values.begin();
    for (const int64_t count : counts) {
      rows.emplace_back(begin, begin + count);
      begin += count;
    }
    *out = std::move(rows);
  }

  // One number stands for every row and becomes a list of one.
  void ReadCounts(const std::string& name, std::optional<std::vector<int64_t>>* out) {
    const IntArray* array = Find(name);
    if (array == nullptr) return;
    if (array->shape.size() > 1)
      return Violate(name, fmt::format("must be [batch] or one number, it has {} dimensions", array->shape.size()));
    *out = array->values;
  }

  void ReadNumber(const std::string& name, std::optional<int64_t>* out) {
    const IntArray* array = Find(name);
    if (array == nullptr) return;
    // Writers of tensor files often have no rank 0, so one element in one dimension is one number too.
    if (array->values.size() != 1 || array->shape.size() > 1) return Violate(name, "must be one number");
    *out = array->values[0];
  }

  void ReadPicks(std::optional<Picks>* out) {
    const IntArray* blocks = Find("picks.blocks");
    std::optional<int64_t> block_tokens;
    ReadNumber("picks.block_tokens", &block_tokens);
    if (blocks == nullptr && Find("picks.block_tokens") == nullptr) return;
    if (blocks == nullptr) return Violate("picks.blocks", "must be given with picks.block_tokens");
    if (Find("picks.block_tokens") == nullptr) return Violate("picks.block_tokens", "must be given with picks.blocks");
    if (blocks->shape.size() != 4) {
      return Violate("picks.blocks", fmt::format("must be [batch][q_len or query tiles][num_kv_heads][top_n], it has "
                                                 "{} dimensions",
                                                 blocks->shape.size()));
    }
    Picks picks{block_tokens.value_or(0), blocks->shape, {}};
    if (ToInt32("picks.blocks", *blocks, &picks.blocks)) *out = std::move(picks);
  }

  BatchFields fields_;
  std::vector<Violation> violations_;
};

template <class T>
std::vector<int64_t> Widen(const std::vector<std::byte>& bytes) {
  std::vector<int64_t> values(bytes.size() / sizeof(T));
  for (size_t i = 0; i < values.size(); ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    values[i] = value;
  }
  return values;
}

Result<BatchFields> ParseBatchTensors(std::string_view bytes, const std::string& where) {
  Result<TensorMap> tensors = ParseSafetensors(bytes, where);
  if (!tensors) return Fail(ErrorCode::kBatchSyntax, tensors.error().message, where);
  BatchFields fields;
  std::vector<Violation> violations;
  for (auto& [name, tensor] : *tensors) {
    if (!IsBatchField(name)) {
      violations.push_back({name, "unknown field; a batch may have " + BatchFieldNames()});
    } else if (tensor.type == ElementType::kI32) {
      fields[name] = {.shape = tensor.shape, .values = Widen<int32_t>(tensor.bytes)};
    } else if (tensor.type == ElementType::kI64) {
      fields[name] = {.shape = tensor.shape, .values = Widen<int64_t>(tensor.bytes)};
    } else {
      violations.push_back({name, fmt::format("must be I32 or I64, it is {}", ToText(tensor.type))});
    }
  }
  if (!violations.empty()) return Fail(ErrorCode::kBatchSyntax, std::move(violations), where);
  return fields;
}

// Text holds no zero byte, and the length a safetensors file begins with always has one in its high bytes.
bool IsSafetensors(std::string_view bytes) { return bytes.substr(0, 8).find('\0') != std::string_view::npos; }

}  // namespace

bool IsBatchField(std::string_view name) {
  return std::find(kFieldNames.begin(), kFieldNames.end(), name) != kFieldNames.end();
}

bool MayRowsDiffer(std::string_view name) { return name.ends_with("doc_lengths") || name.ends_with("cu_seqlens"); }

std::string BatchFieldNames() { return fmt::format("{}", fmt::join(kFieldNames, ", ")); }

Result<Batch> ParseBatchBytes(std::string_view bytes, const std::string& where) {
  Result<BatchFields> fields = IsSafetensors(bytes) ? ParseBatchTensors(bytes, where) : ParseBatchJson(bytes);
  if (!fields) {
    fields.error().where = where;
    return tl::unexpected(fields.error());
  }
  return Builder(std::move(*fields)).Build(where);
}

Result<Batch> ParseBatch(std::string_view json) {
  Result<BatchFields> fields = ParseBatchJson(json);
  if (!fields) return tl::unexpected(fields.error());
  return Builder(std::move(*fields)).Build("");
}

Result<Batch> ReadBatch(const std::string& path) {
  const HeadCheck check = [&](std::string_view head, int64_t size) -> Status {
    if (IsSafetensors(head)) {
      const std::string problem = CheckSafetensorsHead(head, static_cast<uint64_t>(size));
      if (problem.empty()) return {};
      return Fail(ErrorCode::kBatchSyntax, "the batch is not a usable safetensors file: " + problem, path);
    }
    if (size <= kMaxBatchJsonBytes) return {};
    return Fail(ErrorCode::kFileRead,
                fmt::format("cannot read the file: it has {} bytes, and a batch as JSON has at most {}", size,
                            kMaxBatchJsonBytes),
                path);
  };
  const Result<std::string> bytes = ReadFile(path, kMaxBatchTensorBytes, check);
  if (!bytes) return tl::unexpected(bytes.error());
  return ParseBatchBytes(*bytes, path);
}

std::vector<int32_t> SegmentIds(const std::vector<int32_t>& doc_ids) {
  std::vector<int32_t> segments;
  segments.reserve(doc_ids.size());
  int32_t segment = 0;
  for (size_t i = 0; i < doc_ids.size(); ++i) {
    if (i > 0 && doc_ids[i] != doc_ids[i - 1]) ++segment;
    segments.push_back(segment);
  }
  return segments;
}

}  // namespace tessera
