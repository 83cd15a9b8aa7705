// Rows as operands of a model's programs.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/model.h"

namespace tessera::model {

struct RowOperands {
  std::vector<float> loss_mask;    // [N], 1 or 0
  std::vector<int32_t> positions;  // [N]: of a token in its document
  int64_t tokens = 0;              // trained
};
// TSR-T002 for rows of another shape, and for ids that are none of the vocabulary's.
Result<RowOperands> ToOperands(const ModelSpec& spec, const RowBatch& rows);

// `count` of the rows from `first` on.
RowBatch SomeRows(const RowBatch& rows, int64_t first, int64_t count);

}  // namespace tessera::model
