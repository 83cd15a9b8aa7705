// The shapes of XLA's programs (ShapeProto), as far as they are arrays of our types.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lanes/xla/pjrt/tensor_type.h"

namespace tessera::pjrt {

// The arrays of a shape in order, tuples opened; nothing in place of one that is not of our types.
using HloArrays = std::vector<std::optional<TensorType>>;

// Adds to `arrays`; what is wrong with the bytes, or nothing.
std::string ReadShape(std::string_view bytes, HloArrays& arrays);

}  // namespace tessera::pjrt
