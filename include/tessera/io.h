// Whole files, and tensors in safetensors files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tessera/error.h"
#include "tessera/tensor.h"

#pragma GCC visibility push(default)
namespace tessera {

// Reads regular files and nameless pipes (process substitution) of at most `max_bytes`, and refuses a file that changes
// meanwhile. Writing leaves the old file or the new one; docs/limits.md has the details.
Result<std::string> ReadFile(const std::string& path, int64_t max_bytes = int64_t{1} << 36);
Status WriteFile(const std::string& path, std::string_view bytes);

Result<TensorMap> ParseSafetensors(std::string_view bytes, const std::string& where = {});
// Refuses a larger file before it takes memory for it.
Result<TensorMap> ReadSafetensors(const std::string& path, int64_t max_bytes = int64_t{1} << 36);
// Written to a temporary name and renamed: the old file or the new one, never half of one.
Status WriteSafetensors(const std::string& path, const TensorMap& tensors);
std::string ToSafetensors(const TensorMap& tensors);

}  // namespace tessera
#pragma GCC visibility pop
