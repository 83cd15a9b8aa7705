// Arrays of an interpreted kernel, made from tensors and tables as the program around a kernel makes them on a TPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lanes/xla/mosaic/interpret.h"
#include "lanes/xla/mosaic/verify.h"

namespace tessera::lanes::xla {

// An operand of a kernel, whole.
struct Array {
  mosaic::ArrayType type;
  std::vector<std::byte> bytes;
  Array() = default;
  Array(mosaic::Element element, std::vector<int64_t> dims) : type{element, std::move(dims)} {
    bytes.resize(static_cast<size_t>(mosaic::BytesOf(type)));
  }
  mosaic::ArrayView view() const { return {type.element, type.dims, bytes}; }
  float* floats() { return reinterpret_cast<float*>(bytes.data()); }
  int32_t* ints() { return reinterpret_cast<int32_t*>(bytes.data()); }
};
using Arrays = std::map<std::string, Array, std::less<>>;

// Of as many values, each at the element's width.
Array Narrowed(const std::vector<int32_t>& values, mosaic::Element element, std::vector<int64_t> dims);
// [n, tokens, dim] as [n, dim, tokens], and back.
Array Turned(const Array& from);
// [rows, tokens] with each number in every one of 128 lanes, or in every one of 8 sublanes.
Array Spread(const std::vector<int32_t>& values, int64_t rows, int64_t tokens, bool in_lanes);

}  // namespace tessera::lanes::xla
