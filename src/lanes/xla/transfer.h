// Tensors to a device and back. Inputs go as they lie; outputs come as f32 and are rounded once to what the caller
// wants.
#pragma once

#include <cstddef>
#include <span>

#include "lanes/check_args.h"
#include "lanes/xla/pjrt/client.h"
#include "tessera/tensor.h"

namespace tessera::lanes::xla {

// The tensor stays as it is while the buffer lives.
Result<pjrt::LentBuffer> LendTensor(pjrt::Client& client, const TensorRef& tensor, const TensorAxes& axes,
                                    int64_t device);

// Where tiles of a part's rows go: rows are counted over every (batch row, head), `rows_per_head` for each, and a tile
// has `tokens`, those of the last one cut at the tensor's length.
struct TilesAt {
  int64_t first_row = 0;
  int64_t num_rows = 0;
  int64_t rows_per_head = 0;
  int64_t tokens = 0;
};
// Where the tensor has these tiles as they come, `num_rows` whole ones in f32 without a gap; null if it does not.
std::byte* PlaceOf(const TilesAt& at, const TensorRef& into, const TensorAxes& axes);
// Puts them there whatever it has. `tiles` is f32, dense.
void PlaceTiles(const std::byte* tiles, const TilesAt& at, const TensorRef& into, const TensorAxes& axes);

// Sum of o * do per row, in double; 0 for rows without keys, whose o and do are not looked at.
struct DeltaOf {
  const TensorRef& o;
  const TensorRef& dout;
  std::span<const float> lse;
  TensorAxes axes;
};
void FillDelta(const DeltaOf& from, int64_t threads, std::span<float> delta);

}  // namespace tessera::lanes::xla
