// main() for test programs that let XLA compile for this machine's CPU: guarded first (tessera/cpu_guard.h), then
// GoogleTest's own. Put in a program's sources it takes the place of gtest_main.
#include <gtest/gtest.h>

#include "tessera/cpu_guard.h"

int main(int argc, char** argv) {
  tessera::ReexecWithCpuGuard(argv);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
