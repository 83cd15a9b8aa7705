// See interpreted_arrays.h.
#include "lanes/xla/interpreted_arrays.h"

#include <algorithm>
#include <cstring>

#include "lanes/xla/kernels/splash_parts.h"

namespace tessera::lanes::xla {

Array Narrowed(const std::vector<int32_t>& values, mosaic::Element element, std::vector<int64_t> dims) {
  Array array(element, std::move(dims));
  const size_t size = array.bytes.size() / values.size();
  for (size_t i = 0; i < values.size(); ++i) std::memcpy(array.bytes.data() + i * size, &values[i], size);
  return array;
}

Array Turned(const Array& from) {
  const std::vector<int64_t>& dims = from.type.dims;
  Array to(from.type.element, {dims[0], dims[2], dims[1]});
  const size_t size = from.bytes.size() / static_cast<size_t>(dims[0] * dims[1] * dims[2]);
  for (int64_t n = 0; n < dims[0]; ++n) {
    for (int64_t r = 0; r < dims[1]; ++r) {
      for (int64_t c = 0; c < dims[2]; ++c) {
        std::memcpy(to.bytes.data() + static_cast<size_t>((n * dims[2] + c) * dims[1] + r) * size,
                    from.bytes.data() + static_cast<size_t>((n * dims[1] + r) * dims[2] + c) * size, size);
      }
    }
  }
  return to;
}

Array Spread(const std::vector<int32_t>& values, int64_t rows, int64_t tokens, bool in_lanes) {
  Array array(mosaic::Element::kI32, in_lanes ? std::vector<int64_t>{rows, tokens, kernels::kLanes}
                                              : std::vector<int64_t>{rows, kernels::kSublanes, tokens});
  int32_t* out = array.ints();
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t t = 0; t < tokens; ++t) {
      const int32_t value = values[static_cast<size_t>(r * tokens + t)];
      if (in_lanes) {
        std::fill_n(out + (r * tokens + t) * kernels::kLanes, kernels::kLanes, value);
      } else {
        for (int64_t s = 0; s < kernels::kSublanes; ++s) out[(r * kernels::kSublanes + s) * tokens + t] = value;
      }
    }
  }
  return array;
}

}  // namespace tessera::lanes::xla
