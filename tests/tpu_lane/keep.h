// Emitted programs for others to read: TESSERA_TPU_MODULES names a folder that tests write them to, for jaxlib's
// dialect (tests/peers/dialect_test.py) and for compilers.
#pragma once

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "tessera/tessera.h"

namespace tessera {

inline bool KeepsPrograms() { return std::getenv("TESSERA_TPU_MODULES") != nullptr; }

// Of a pass each, forward first.
inline void KeepPrograms(const std::string& name, const std::vector<ProgramText>& programs) {
  if (!KeepsPrograms()) return;
  const std::string folder = std::getenv("TESSERA_TPU_MODULES");
  for (size_t i = 0; i < programs.size(); ++i) {
    std::ofstream(folder + "/" + name + (i == 0 ? "_forward" : "_backward") + ".mlir") << programs[i].text;
  }
}

}  // namespace tessera
