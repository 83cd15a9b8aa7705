// A batch row by row, for whoever puts one together: its arrays made, a row of a shard copied into it.
#pragma once

#include "tessera/row_batch.h"

namespace tessera::rows {

// Arrays for so many rows; memory that is there is used again.
void ShapeBatch(int64_t rows, int64_t row_tokens, RowBatch& batch);
// Row `from` of the shard becomes row `to` of the batch.
void CopyRow(const RowShard& shard, int64_t from, int64_t to, RowBatch& batch);

int64_t RelationBytes(int64_t row_tokens);  // of one row
void FillRelations(const RowShard& shard, int64_t row, int8_t* masks);

}  // namespace tessera::rows
