// What every fuzz target shares: its shape, and a check that stops the program in any build type. A target is a plain
// function, so that a libFuzzer program and an ordinary test can both call it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace tessera {

// Each takes any bytes and says whether its reader accepted them; what it accepts must also keep its promises.
#define TESSERA_FUZZ(name, Function) bool Function(const uint8_t* data, size_t size);
#include "targets.def"
#undef TESSERA_FUZZ

inline std::string_view AsText(const uint8_t* data, size_t size) { return {reinterpret_cast<const char*>(data), size}; }

// The file that a replay is at, for the message of a failed check.
inline const char* current_input = nullptr;

inline void Require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "broken: %s%s%s\n", what, current_input == nullptr ? "" : ", with ",
               current_input == nullptr ? "" : current_input);
  std::abort();
}

}  // namespace tessera
