// What a model makes of a row's chunks, inside a program: the mean of each chunk's tokens, and the neighbours that a
// chunk listens to. Products, sums and comparisons of fixed size: nothing is sorted, gathered or of a size that the
// data decides, so that a program serves every batch. The same as the functions of tessera/row_batch.h, which define
// it.
#pragma once

#include <cstdint>

#include "lanes/xla/stablehlo/program.h"
#include "tessera/row_batch.h"

namespace tessera::model {

// values f32 [B, T, D], chunk_ids i32 [B, T] with -1 for none -> f32 [B, num_chunks, D]: zero for an empty chunk. A
// value that is not finite makes its own chunk's mean NaN, in that column, and no other's.
stablehlo::Value PoolChunks(stablehlo::Builder& b, const stablehlo::Value& values, const stablehlo::Value& chunk_ids,
                            int64_t num_chunks);
// adjacent i8 [B, C, C] -> i8 of the same shape: of each chunk's neighbours the first `most`.
stablehlo::Value ChooseNeighbours(stablehlo::Builder& b, const stablehlo::Value& adjacent,
                                  int64_t most = kMostNeighbours);

// Both as a program of their own: values, chunk_ids, adjacent -> pooled, chosen.
struct ChunkShape {
  int64_t rows = 1;
  int64_t row_tokens = 0;
  int64_t dim = 0;
  int64_t num_chunks = 0;
  int64_t most = kMostNeighbours;
};
Result<stablehlo::Program> LowerChunks(const ChunkShape& shape);

}  // namespace tessera::model
