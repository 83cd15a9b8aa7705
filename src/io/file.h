// Reading a whole file with a look at its head first. tessera/io.h has the plain functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "tessera/io.h"

namespace tessera {

// Looks at the first bytes of a file, all of them or at least kHeadBytes, and at its size, before memory is taken for
// the rest: a format that begins with a magic number or a length refuses a wrong file for the price of one page.
using HeadCheck = std::function<Status(std::string_view head, int64_t size)>;
inline constexpr size_t kHeadBytes = size_t{1} << 17;

// A pipe has no size to check, so it is read without the check.
Result<std::string> ReadFile(const std::string& path, int64_t max_bytes, const HeadCheck& check);

// Where the bytes really go: a chain of symbolic links is followed to its end, which need not exist yet.
Result<std::string> FollowLinks(const std::string& path);

}  // namespace tessera
