// Put in a test program's sources: no PJRT plugin and no Python is found, whatever is installed, so that
// what the lanes say is the same on every machine.
#include <cstdlib>

namespace {
[[maybe_unused]] const int kNoPlugins = setenv("TESSERA_XLA", "/no/plugins/in/this/test", 1);
[[maybe_unused]] const int kNoPython = setenv("TESSERA_PYTHON", "/no/python/in/this/test", 1);
}  // namespace
