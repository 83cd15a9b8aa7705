// What stands behind tessera/cpu_guard.h, as functions of texts: the case itself is on few machines.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/cpu_guard.h"

namespace tessera::lanes::xla {

struct SveHidden {
  bool is_hidden = false;
  std::string core;  // "Neoverse V1 (part 0x41 0xd40)"
};

// A core that has SVE is listed, and neither AT_HWCAP nor the features of that text have it.
SveHidden DetectHiddenSve(uint64_t hwcap, std::string_view cpuinfo);
// Of this machine, guarded or not; never on another architecture than Arm.
SveHidden DetectHiddenSve();

struct GuardFacts {
  SveHidden sve;
  bool is_loaded = false;  // the library is in this process
  int num_changed = 0;     // parts it changes here; -1 where it cannot
  bool is_off = false;     // TESSERA_XLA_GUARD=off
};
CpuGuard GuardOf(const GuardFacts& facts);

// Where the library may lie, for a program in one folder and our code in another (the same unless that is
// libtessera.so).
std::vector<std::string> GuardPaths(const std::string& program_folder, const std::string& code_folder);

}  // namespace tessera::lanes::xla
