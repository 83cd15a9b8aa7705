// Threads of the reader and the packer. Who does what never changes what is made.
#pragma once

#include <cstdint>
#include <functional>

namespace tessera::rows {

// Calls work(i) for i in 0 .. count - 1, on at most that many threads. What one of them throws is thrown here.
void ForEach(int64_t threads, int64_t count, const std::function<void(int64_t)>& work);

}  // namespace tessera::rows
