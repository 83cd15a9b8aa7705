// SHA-256, for digests that others take in the same way; our own are XXH3's (hash.h), which is faster.
#pragma once

#include <string>
#include <string_view>

namespace tessera {

std::string Sha256(std::string_view bytes);  // 64 hex digits

}  // namespace tessera
