// Wall time since construction.
#pragma once

#include <chrono>
#include <cstdint>

namespace tessera {

class Clock {
 public:
  int64_t Ns() const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace tessera
