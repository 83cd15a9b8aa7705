// Meets a plugin in a child process before this one loads it. A plugin is code: whatever its constructors and its
// GetPjrtApi do happens to the process that loads it, and a crash, an exit or a wait without end cannot be caught
// there. The child is a program of its own (lanes/xla/probe), run from memory, so that nothing of this process is in
// it.
#pragma once

#include <cstdint>
#include <string>

#include "tessera/error.h"

namespace tessera::pjrt {

// How unknown plugins are met.
struct ProbeSettings {
  // Seconds that a plugin may take to load; 0: no plugin is probed. libtpu takes some under emulation.
  int64_t seconds = 60;
  // Where it is kept that a file was met and came back, by device, inode, size and time of change; empty: nowhere.
  std::string folder = {};
};

// TSR-L008 with what the child died of. Good where there is nothing to object: also when the file was met before, when
// the loader refuses it, which it will say itself, and when no child can be run here.
Status ProbePlugin(const std::string& path, const ProbeSettings& settings);

}  // namespace tessera::pjrt
