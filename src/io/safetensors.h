// What can be said of a safetensors file from its first bytes, before memory is taken for the rest.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

// What is wrong with the first bytes of a file of `size` bytes, or nothing: the header's length is one that is allowed
// and that the file holds, the header begins as one and, where all of it is there, speaks of exactly that many bytes.
std::string CheckSafetensorsHead(std::string_view head, uint64_t size);

}  // namespace tessera
