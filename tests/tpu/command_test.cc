// `tessera compile --topology` with Google's compiler: what it prints, and that the memory a target is said to give a
// kernel is what libtpu gives. Native on x86-64 alone; elsewhere these skip.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lanes/xla/pjrt/elf.h"
#include "lanes/xla/pjrt/find_plugins.h"
#include "support/engine.h"
#include "support/run_program.h"
#include "tessera/tessera.h"

namespace tessera {
namespace {

class TpuCommandTest : public testing::Test {
 protected:
  void SetUp() override {
#ifndef TESSERA_PROGRAM
    GTEST_SKIP() << "the program is of another architecture: TPU programs are compiled in its own process";
#endif
    for (const pjrt::FoundPlugin& found : pjrt::FindPlugins(OptionsFromEnvironment().xla_folder)) {
      if (found.name.rfind("libtpu-", 0) == 0) plugin_ = found.path;
    }
    if (plugin_.empty()) {
      GTEST_SKIP() << "no libtpu in " << OptionsFromEnvironment().xla_folder << ": script/setup --tpu installs it";
    }
    if (const Status ok = pjrt::CheckSharedObject(plugin_); !ok) GTEST_SKIP() << plugin_ << ": " << ok.error().message;
  }

  static ProgramResult Compile(const std::string& contract, std::vector<std::string> more) {
#ifdef TESSERA_PROGRAM
    more.insert(more.begin(), {TESSERA_PROGRAM, "compile", contract, "--lane", "xla_pallas"});
#endif
    return RunProgram(more);
  }

  std::string plugin_;
};

TEST_F(TpuCommandTest, CompileForATopology_PrintsWhatTheCompilerMadeOfTheKernel) {
  const ProgramResult result = Compile("causal:300:h2/1:d64:bf16", {"--topology", "v6e:1x1"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* part : {"target v6e: topology v6e:1x1, ", "tessera_xla_pallas_forward_", "  compiled in ",
                           "  arguments ", ", code ", "  custom calls: tpu_custom_call 1\n", "  fingerprint ",
                           " bytes of 33,554,432 bytes\n", " bundles in the kernels' schedules, which is no time\n",
                           "xla_pallas compiled for v6e:1x1 (asked xla_pallas), 1 programs, "}) {
    EXPECT_NE(result.out.find(part), std::string::npos) << part << " is not in\n" << result.out;
  }
  const ProgramResult json = Compile("causal:300:h2/1:d64:bf16", {"--topology", "v6e:1x1", "--json"});
  const nlohmann::json told = nlohmann::json::parse(json.out, nullptr, false);
  ASSERT_FALSE(told.is_discarded()) << json.out;
  EXPECT_EQ(told["compiled"], true);
  ASSERT_EQ(told["reports"].size(), 1u);
  const nlohmann::json& report = told["reports"][0];
  EXPECT_EQ(report["fingerprint"].get<std::string>().size(), 64u);
  EXPECT_GT(report["vector_bytes"], 0);
  EXPECT_EQ(report["vector_limit"], 33554432);
  EXPECT_GT(report["bundles"], 0);
  const Result<Receipt> receipt = ParseReceipt(told["receipt"].dump());
  ASSERT_TRUE(receipt.has_value()) << ToText(receipt.error());
  EXPECT_EQ(receipt->runtime_mode, "compile-only");
  EXPECT_EQ(receipt->device.topology, "v6e:1x1");
  EXPECT_EQ(receipt->owner, "trace_pallas");
}

// What a tile takes, of every kernel there is, and the whole plan: masks cost, ranges spare, and nothing beats the
// floor.
TEST_F(TpuCommandTest, Cost_CountsWhatATileTakes) {
#ifdef TESSERA_PROGRAM
  const auto cost = [](std::vector<std::string> more) {
    more.insert(more.begin(), {TESSERA_PROGRAM, "tpu-cost", "--json"});
    const ProgramResult result = RunProgram(more);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return nlohmann::json::parse(result.out, nullptr, false);
  };
  const nlohmann::json fused = cost({"causal:2048:h2/1:d128:bf16", "--tile", "512x512"});
  ASSERT_FALSE(fused.is_discarded());
  EXPECT_NE(fused["what"].get<std::string>().find("not a measured time"), std::string::npos);
  const nlohmann::json& kernels = fused["tiles"][0]["kernels"];
  ASSERT_EQ(kernels.size(), 2u);
  EXPECT_EQ(kernels[0]["kernel"], "tessera_forward");
  EXPECT_EQ(kernels[1]["kernel"], "tessera_backward");
  for (const nlohmann::json& kernel : kernels) {
    EXPECT_EQ(kernel["tiles"], 2 * 10) << "of two heads, four rows of one to four tiles";
    EXPECT_GT(kernel["full"], kernel["floor"]);
    EXPECT_GT(kernel["masked"], kernel["full"]);
    const nlohmann::json& bundles = kernel["bundles"];
    EXPECT_GT(kernel["plan"], 20 * bundles["full"].get<double>() / 2);
    if (kernel["pass"] == "backward") {
      // One chunk of keys, eight rows of tiles, and in each a masked tile last.
      EXPECT_EQ(kernel["plan"], bundles["chunk"].get<double>() + 8 * bundles["row"].get<double>() +
                                    12 * bundles["full"].get<double>() + 8 * bundles["span"].get<double>());
      continue;
    }
    EXPECT_LT(kernel["in_range"], kernel["masked"]);
    // A masked tile by itself is masked, and one beside a full one alone.
    EXPECT_GT(bundles["full and span"], bundles["two full"]);
    EXPECT_LT(bundles["full and span"], bundles["two span"]);
  }
  const nlohmann::json small = cost({"causal:512:h2/1:d128:bf16", "--tile", "128x128", "--tpu-backward", "apart"});
  ASSERT_FALSE(small.is_discarded());
  const nlohmann::json& apart = small["tiles"][0]["kernels"];
  ASSERT_EQ(apart.size(), 3u);
  EXPECT_EQ(apart[1]["kernel"], "tessera_dq");
  EXPECT_EQ(apart[2]["kernel"], "tessera_dkv");
  for (const size_t i : {1u, 2u}) {
    EXPECT_LT(apart[i]["floor"], kernels[1]["floor"]);
    EXPECT_GT(apart[i]["full"], apart[i]["floor"]);
    EXPECT_EQ(apart[i]["tiles"], 20);
  }
#endif
}

// The lane itself with the real libtpu, as far as it goes on a machine without a TPU: it says that only compiling is
// left, and never runs something else under the lane's name.
TEST_F(TpuCommandTest, RunWithTheCompilerAlone_IsRefusedByReason) {
#ifdef TESSERA_PROGRAM
  const ProgramResult result = RunProgram(
      {TESSERA_PROGRAM, "run", "causal:256:d128:bf16", "--target", "v6e", "--lane", "xla_pallas", "--plugin", plugin_});
  if (result.exit_code == 0) GTEST_SKIP() << "this machine has a TPU";
  EXPECT_EQ(result.exit_code, 3) << result.out;
  EXPECT_NE(result.err.find("xla.compile_only"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("tessera compile"), std::string::npos) << result.err;
  EXPECT_EQ(result.out, "");
#endif
}

// Chunks of keys that fill the vector memory: where the table of targets said more than libtpu gives, it refused these.
TEST_F(TpuCommandTest, LongSequences_FitTheVectorMemoryOfEachTarget) {
  const ProgramResult v5p = Compile("causal:16384:h2/1:d128:bf16", {"--topology", "v5p:2x2x1", "--backward"});
  ASSERT_EQ(v5p.exit_code, 0) << v5p.err;
  EXPECT_NE(v5p.out.find(" bytes of 16,777,216 bytes\n"), std::string::npos) << v5p.out;
  const ProgramResult v5e = Compile("causal:65536:h2/1:d128:bf16", {"--topology", "v5e:2x2", "--backward"});
  ASSERT_EQ(v5e.exit_code, 0) << v5e.err;
  EXPECT_NE(v5e.out.find(" bytes of 16,777,216 bytes\n"), std::string::npos) << v5e.out;
}

}  // namespace
}  // namespace tessera
