// Asks a Python program what can be loaded of it, in a child process: nothing of Python runs here for it.
#pragma once

#include <string>
#include <vector>

#include "tessera/error.h"

namespace tessera::lanes::bridge {

struct PythonFacts {
  std::string python;                  // "3.11.7"
  std::string jax;                     // "0.10.2"; empty: it has none
  bool is_free_threaded = false;       // without the lock that the bridge holds
  std::vector<std::string> libraries;  // where its library may be, likeliest first
};
// The error's text says why it cannot be asked.
tl::expected<PythonFacts, std::string> AskPython(const std::string& program);

// Whether a version such as "0.10.2" is at least major.minor.
bool IsAtLeast(const std::string& version, int major, int minor);

}  // namespace tessera::lanes::bridge
