// What of a machine a compiled program depends on: texts of /proc/cpuinfo that differ in it, and those that do not.
#include "lanes/xla/store/host_features.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lanes/xla/store/cpuinfo.h"
#include "support/run_program.h"

namespace tessera::lanes::xla {
namespace {

std::string ArmCore(int number, const std::string& part, const std::string& features) {
  return "processor\t: " + std::to_string(number) + "\nBogoMIPS\t: 243.75\nFeatures\t: " + features +
         "\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x3\nCPU part\t: " + part +
         "\nCPU revision\t: 1\n\n";
}

TEST(HostFeatures, Arm_NamesCoresAndSortedFeatures) {
  const std::string one = ArmCore(0, "0xd0c", "fp asimd aes") + ArmCore(1, "0xd0c", "fp asimd aes");
  EXPECT_EQ(HostFeaturesOf("aarch64", one), "aarch64; cores: 0x41 0x3 0xd0c; features: aes asimd fp");
  EXPECT_EQ(HostFeaturesOf("aarch64", one), HostFeaturesOf("aarch64", ArmCore(0, "0xd0c", "aes fp asimd fp")));
  const std::string mixed = ArmCore(0, "0xd0b", "fp asimd aes") + ArmCore(1, "0xd05", "fp asimd aes");
  EXPECT_EQ(HostFeaturesOf("aarch64", mixed),
            "aarch64; cores: 0x41 0x3 0xd05 | 0x41 0x3 0xd0b; features: aes asimd fp");
  EXPECT_NE(HostFeaturesOf("aarch64", one), HostFeaturesOf("aarch64", ArmCore(0, "0xd0c", "fp asimd")));
}

TEST(HostFeatures, X86_NamesModelAndFlags_NotSpeed) {
  const auto core = [](const std::string& model, const std::string& mhz) {
    return "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: " + model +
           "\nmodel name\t: Some Name\nstepping\t: 8\ncpu MHz\t\t: " + mhz +
           "\nflags\t\t: fpu sse avx2\nbugs\t\t: spectre\n\n";
  };
  EXPECT_EQ(HostFeaturesOf("x86_64", core("143", "2000")),
            "x86_64; cores: GenuineIntel 6 143 8; features: avx2 fpu sse");
  EXPECT_EQ(HostFeaturesOf("x86_64", core("143", "2000")), HostFeaturesOf("x86_64", core("143", "3100")));
  EXPECT_NE(HostFeaturesOf("x86_64", core("143", "2000")), HostFeaturesOf("x86_64", core("106", "2000")));
}

TEST(HostFeatures, OddTexts_AreNoTrouble) {
  EXPECT_EQ(HostFeaturesOf("riscv64", ""), "riscv64; cores: unknown; features: unknown");
  EXPECT_EQ(HostFeaturesOf("m", "no colon\n:\n : \nFeatures:\nflags"), "m; cores: unknown; features: unknown");
}

TEST(HostFeatures, ThisMachine_IsNamedTheSameTwice) {
  EXPECT_EQ(HostFeatures(), HostFeatures());
  EXPECT_EQ(HostFeatures().find("unknown"), std::string::npos) << HostFeatures();
  EXPECT_EQ(HostFeatures().substr(HostFeatures().find(';')), HostFeaturesOf("", ReadWhole(kCpuinfoPath)).substr(0));
}

}  // namespace
}  // namespace tessera::lanes::xla
