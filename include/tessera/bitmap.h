// The content of a bitmap("file.npy") mask term.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#pragma GCC visibility push(default)
namespace tessera {

// 1 = may attend. `heads` is 1 for a [q,kv] file.
struct Bitmap {
  int64_t heads = 1;
  int64_t q_len = 0;
  int64_t kv_len = 0;
  std::vector<uint8_t> cells;  // [heads, q_len, kv_len], each 0 or 1
  std::string digest;          // XXH3-128 of shape and cells, 32 hex digits
};

}  // namespace tessera
#pragma GCC visibility pop
