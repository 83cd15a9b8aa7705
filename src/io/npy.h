// NumPy's .npy files, as far as masks need them: bool or uint8, two or three dimensions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/error.h"

namespace tessera {

struct NpyArray {
  std::vector<int64_t> shape;  // two or three dimensions
  std::vector<uint8_t> cells;  // row-major, each 0 or 1, whatever the order in the file
};

// Format versions 1 to 3, either memory order. The bytes may be hostile: nothing is allocated beyond their size.
Result<NpyArray> ParseNpy(std::string_view bytes, const std::string& where = {});

// The same judgement of the header alone, from the first kHeadBytes of a file of `size` bytes.
Status CheckNpyHead(std::string_view head, int64_t size, const std::string& where);

}  // namespace tessera
