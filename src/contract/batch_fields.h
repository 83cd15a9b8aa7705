// The fields of a batch as they come out of a file, JSON or safetensors alike, before they become a Batch: named
// nested arrays of integers.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/batch.h"

namespace tessera {

struct IntArray {
  std::vector<int64_t> shape;  // empty for a single number
  std::vector<int64_t> values;
  std::vector<int64_t> row_counts =
      {};  // values in each row, where rows may differ (MayRowsDiffer) and are a file's lists
};

// By name; the fields of `picks` are "picks.block_tokens" and "picks.blocks".
using BatchFields = std::map<std::string, IntArray>;

bool IsBatchField(std::string_view name);
// Whether the rows of a field may have different counts of values: document lengths and ends.
bool MayRowsDiffer(std::string_view name);
// "base_block_tokens, doc_ids, ...", for messages.
std::string BatchFieldNames();

Result<BatchFields> ParseBatchJson(std::string_view json);

// Either form, told apart by content; `where` names the file in errors.
Result<Batch> ParseBatchBytes(std::string_view bytes, const std::string& where);

}  // namespace tessera
