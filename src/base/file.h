// Whole files in and out. tessera/tensor.h makes the same two functions public; base knows no tensors.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tessera/error.h"

#pragma GCC visibility push(default)  // public, as in tessera/tensor.h
namespace tessera {

Result<std::string> ReadFile(const std::string& path, int64_t max_bytes);
Status WriteFile(const std::string& path, std::string_view bytes);

}  // namespace tessera
#pragma GCC visibility pop
