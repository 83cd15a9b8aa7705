// The processor's name out of texts that systems really give.
#include "base/host.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(Host, Name_IsTheOnePeopleUse) {
  EXPECT_EQ(ProcessorIn("processor\t: 0\nvendor_id\t: GenuineIntel\nmodel\t\t: 143\n"
                        "model name\t: Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz\nstepping\t: 8\n",
                        "x86_64"),
            "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz");
  const auto arm = [](const char* implementer, const char* part) {
    return ProcessorIn(std::string("processor\t: 0\nBogoMIPS\t: 50.00\nCPU implementer\t: ") + implementer +
                           "\nCPU architecture: 8\nCPU variant\t: 0x1\nCPU part\t: " + part + "\nCPU revision\t: 1\n",
                       "aarch64");
  };
  EXPECT_EQ(arm("0x41", "0xd0c"), "Neoverse-N1");
  EXPECT_EQ(arm("0x41", "0xd40"), "Neoverse-V1");
  EXPECT_EQ(arm("0x41", "0xd4f"), "Neoverse-V2");
  EXPECT_EQ(arm("0x61", "0x032"), "Apple M2");
  EXPECT_EQ(arm("0x41", "0xfff"), "aarch64 processor 0x41 0xfff") << "a part nobody has named is said as it is";
}

TEST(Host, TextThatSaysNothing_StillHasAName) {
  EXPECT_EQ(ProcessorIn("", "aarch64"), "aarch64 processor");
  EXPECT_EQ(ProcessorIn("model name\t:\nno colon here", "x86_64"), "x86_64 processor");
  EXPECT_EQ(ProcessorIn("a model name of something: else\n", "x86_64"), "x86_64 processor");
}

TEST(Host, ThisMachine_HasOneNameAndKeepsIt) {
  EXPECT_FALSE(HostProcessor().empty());
  EXPECT_EQ(HostProcessor().find('\n'), std::string::npos);
  EXPECT_EQ(&HostProcessor(), &HostProcessor());
}

}  // namespace
}  // namespace tessera
