// The batch: what changes under one contract. Run-time payload only; nothing here ever enters a key.
//
// Validity has three states and keeps them: absent (nullopt), present and zero (the row is intentionally
// empty), present. Absent is never turned into zero.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/contract.h"

#pragma GCC visibility push(default)
namespace tessera {

// Document ids, one row per batch row. Equal ids mean one document; a negative id is padding: it belongs to no
// document, not even to one made of other padding.
struct IdRows {
  int64_t rows = 0;
  int64_t len = 0;
  std::vector<int32_t> values;  // [rows, len]
  bool operator==(const IdRows&) const = default;
};

// Numbers of each batch row; rows may have different counts of them.
using IntRows = std::vector<std::vector<int32_t>>;

// Caller-made picks for the `blocks` term: [batch, q_len or query tiles, num_kv_heads, top_n], negative = no pick.
struct Picks {
  int64_t block_tokens = 0;
  std::vector<int64_t> shape;
  std::vector<int32_t> blocks;
  bool operator==(const Picks&) const = default;
};

// Documents come in one of three forms: the id of every token, the length of every document, or the token at which
// each document ends. Lengths and ends number documents 0, 1, ... in order, empty ones too; tokens after the last
// document are padding. Queries and keys may come in different forms.
// Lists of counts have one entry per batch row, or a single entry that stands for every row.
struct Batch {
  std::optional<IdRows> doc_ids;  // both sides; q_len must equal kv_len
  std::optional<IdRows> q_doc_ids;
  std::optional<IdRows> kv_doc_ids;
  std::optional<IntRows> doc_lengths;  // both sides, as doc_ids
  std::optional<IntRows> q_doc_lengths;
  std::optional<IntRows> kv_doc_lengths;
  std::optional<IntRows> cu_seqlens;  // 0, then the end of each document; both sides
  std::optional<IntRows> q_cu_seqlens;
  std::optional<IntRows> kv_cu_seqlens;
  std::optional<std::vector<int64_t>> valid_tokens;  // [batch], both sides
  std::optional<std::vector<int64_t>> valid_slots;   // [batch], in units of base_block_tokens
  std::optional<int64_t> base_block_tokens;
  std::optional<std::vector<int64_t>> q_valid_tokens;
  std::optional<std::vector<int64_t>> kv_valid_tokens;
  std::optional<Picks> picks;
  bool operator==(const Batch&) const = default;
};

Result<Batch> ParseBatch(std::string_view json);
// A .json file, or a safetensors file with the same names (i32).
Result<Batch> ReadBatch(const std::string& path);
std::string ToJson(const Batch& batch);

// A stretch of tokens with one document id. `rank` is how many tokens of that id came before `begin`.
struct Segment {
  int32_t begin = 0;
  int32_t end = 0;
  int32_t doc = -1;
  int32_t rank = 0;
  bool operator==(const Segment&) const = default;
};

// One batch row, checked against the contract and reduced to what the planner needs.
struct BatchRow {
  std::vector<Segment> q_segments;  // empty when the mask needs no documents
  std::vector<Segment> kv_segments;
  std::optional<int64_t> q_valid;  // absent stays absent
  std::optional<int64_t> kv_valid;
  bool operator==(const BatchRow&) const = default;
};

// Checks presence in both directions, forms, ranks, lengths, counts and reappearing ids; reports every violation.
// One entry per batch row.
Result<std::vector<BatchRow>> ResolveBatch(const Contract& contract, const Batch& batch);

// Segment ids as TPU kernels want them: 0 at the first token, one more at every change of id.
std::vector<int32_t> SegmentIds(const std::vector<int32_t>& doc_ids);

}  // namespace tessera
#pragma GCC visibility pop
