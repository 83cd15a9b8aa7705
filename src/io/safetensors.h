// Safetensors files in views, with their metadata, and what can be said of one from its first bytes, before memory is
// taken for the rest.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/dtype.h"
#include "tessera/error.h"

namespace tessera {

// A tensor whose bytes somebody else holds.
struct TensorBytes {
  std::string name;
  ElementType type = ElementType::kF32;
  std::vector<int64_t> shape;
  std::string_view bytes;
};
// What a file says of itself beside its tensors, as texts.
using TensorMetadata = std::map<std::string, std::string>;

struct TensorFileView {
  std::vector<TensorBytes> tensors;  // in the order of their bytes
  TensorMetadata metadata;
};
// A whole file, mapped or read, as views into it.
Result<TensorFileView> ViewSafetensors(std::string_view bytes, const std::string& where);
// Of tensors in this order but for larger elements first, so that each is aligned to its element size.
std::string ToSafetensors(std::vector<TensorBytes> tensors, const TensorMetadata& metadata);

// What is wrong with the first bytes of a file of `size` bytes, or nothing: the header's length is one that is allowed
// and that the file holds, the header begins as one and, where all of it is there, speaks of exactly that many bytes.
std::string CheckSafetensorsHead(std::string_view head, uint64_t size);

}  // namespace tessera
