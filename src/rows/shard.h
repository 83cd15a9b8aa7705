// What a shard of rows is made of, for the files of this folder that look into it.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/mapped_file.h"
#include "io/safetensors.h"
#include "tessera/rows.h"

namespace tessera {

struct RowShard::State {
  MappedFile file;
  TensorFileView view;
  int64_t rows = 0;
  int64_t row_tokens = 0;
  int64_t first_pack_id = 0;
  std::string digest;
  std::optional<int64_t> vocab;
  std::string tokenizer;
  std::string packer;
  std::span<const int32_t> input_ids;
  std::span<const int32_t> target_ids;
  std::span<const int8_t> loss_mask;
  std::span<const int32_t> doc_ids;
  std::span<const int32_t> valid_token_count;
  std::span<const int32_t> num_docs;
  std::span<const int64_t> pack_id;
  std::array<std::span<const int32_t>, kNumTokenColumns> columns;
  std::array<std::span<const int32_t>, 4> chunks;  // starts, ends, kinds, dep_levels
  std::span<const int64_t> call_begins;
  std::span<const int32_t> call_edges;
  std::span<const int64_t> type_begins;
  std::span<const int32_t> type_edges;
  std::span<const int32_t> platform_ids;
};

// XXH3-128 over names, types, shapes and bytes, by name.
std::string DigestOf(const std::vector<TensorBytes>& tensors);

}  // namespace tessera
