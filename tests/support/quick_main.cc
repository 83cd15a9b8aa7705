// main() as guarded_main.cc's, for tests that leave to the engine how XLA compiles: quickly (support/quick_xla.h), and
// so in the programs that they start.
#include <gtest/gtest.h>

#include <cstdlib>

#include "support/quick_xla.h"
#include "tessera/cpu_guard.h"

int main(int argc, char** argv) {
  setenv("XLA_FLAGS", tessera::kQuickXlaFlags, 0);
  tessera::ReexecWithCpuGuard(argv);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
