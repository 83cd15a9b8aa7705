// `tessera shard compile` with Google's compiler, where it is native: programs of four and of sixteen chips.
#include <cstdio>
#include <cstdlib>

#include "lanes/xla/pjrt/elf.h"
#include "lanes/xla/pjrt/find_plugins.h"
#include "program/program_test.h"
#include "tessera/engine.h"

namespace tessera {
namespace {

bool Has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

class ShardTpu : public testing::Test {
 protected:
  void SetUp() override {
    const std::string folder = OptionsFromEnvironment().xla_folder;
    for (const pjrt::FoundPlugin& found : pjrt::FindPlugins(folder)) {
      if (found.name.rfind("libtpu-", 0) == 0) plugin_ = found.path;
    }
    if (plugin_.empty()) GTEST_SKIP() << "no libtpu in " << folder << ": script/setup --tpu installs it";
    if (const Status ok = pjrt::CheckSharedObject(plugin_); !ok) GTEST_SKIP() << plugin_ << ": " << ok.error().message;
#ifdef TESSERA_EMULATED
    if (std::getenv("TESSERA_TPU") == nullptr) GTEST_SKIP() << "minutes under emulation; TESSERA_TPU=all runs it";
#endif
  }

  struct Case {
    const char* problem;
    std::vector<std::string> options;
    const char* collective;  // of which the compiled forward has one; empty: none at all
  };
  void ExpectCompiles(const std::string& topology, int64_t chips, const Case& c) const {
    std::vector<std::string> arguments = {"shard",   "compile", c.problem,    "--topology", topology, "--tile",
                                          "128x128", "--json",  "--backward", "--plugin",   plugin_};
    arguments.insert(arguments.end(), c.options.begin(), c.options.end());
    SCOPED_TRACE(testing::PrintToString(arguments));
    const ProgramResult result = Tessera(arguments);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const nlohmann::json receipt = OnlyDocument(result);
    EXPECT_TRUE(receipt["good"].is_null()) << "nothing was compared";
    EXPECT_EQ(receipt["device"]["topology"], topology);
    const std::string fingerprint = receipt["fingerprint"];
    EXPECT_EQ(fingerprint.size(), 32u);
    ASSERT_EQ(receipt["passes"].size(), 2u);
    for (const nlohmann::json& pass : receipt["passes"]) {
      const std::string key = pass["key"];
      if (pass["pass"] == "forward") {
        EXPECT_EQ(key.rfind(fingerprint, 0), 0u) << key;
      }
      EXPECT_NE(key.find("=" + std::to_string(chips) + "-"), std::string::npos) << key;
      EXPECT_GT(pass["compile_ns"], 0);
      EXPECT_GT(pass["device_bytes"]["arguments"], 0);
      EXPECT_GT(pass["device_bytes"]["outputs"], 0);
      EXPECT_NE(pass["plugin_fingerprint"], "");
      const std::string collectives = pass["collectives"].dump();
      if (*c.collective == '\0') {
        EXPECT_TRUE(pass["collectives"].empty()) << collectives;
      } else {
        EXPECT_TRUE(Has(collectives, c.collective)) << collectives;
        EXPECT_GT(pass["carried_bytes"], 0);
        EXPECT_GT(pass["largest_received_bytes"], 0);
      }
      std::printf(
          "%s %s, %s: compiled in %.1f s, a device has %lld bytes of arguments, %lld of results, %lld temporary\n",
          topology.c_str(), testing::PrintToString(c.options).c_str(), pass["pass"].get<std::string>().c_str(),
          static_cast<double>(pass["compile_ns"].get<int64_t>()) * 1e-9,
          static_cast<long long>(pass["device_bytes"]["arguments"].get<int64_t>()),
          static_cast<long long>(pass["device_bytes"]["outputs"].get<int64_t>()),
          static_cast<long long>(pass["device_bytes"]["temporary"].get<int64_t>()));
    }
  }

  std::string plugin_;
};

TEST_F(ShardTpu, FourChips_EveryExchange) {
  Proves("R79 R83");
  const char* causal = "causal:512:h4:d128:bf16";
  for (const Case& c :
       {Case{causal, {"--exchange", "allgather"}, "all-gather"}, Case{causal, {"--exchange", "heads"}, "all-to-all"},
        Case{causal, {"--exchange", "sparse"}, "ragged-all-to-all"},
        Case{causal, {"--exchange", "ring", "--lane", "xla_chunked"}, "collective-permute"},
        Case{causal, {"--exchange", "ring"}, "collective-permute"}, Case{causal, {"--axis", "model"}, ""}}) {
    ExpectCompiles("v6e:2x2", 4, c);
  }
  // Of another axis there is nothing to bring, and who asks how is told.
  const ProgramResult other = Tessera({"shard", "compile", causal, "--topology", "v6e:2x2", "--tile", "128x128",
                                       "--axis", "model", "--exchange", "ring", "--plugin", plugin_});
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_TRUE(Has(other.err, "TSR-R007 at exchange")) << other.err;
  // What the compiled program needs is known when it is compiled.
  const ProgramResult result = Tessera({"shard", "compile", causal, "--topology", "v6e:2x2", "--tile", "128x128",
                                        "--exchange", "heads", "--plugin", plugin_, "--max-device-bytes", "600000"});
  EXPECT_NE(result.exit_code, 0);
  EXPECT_TRUE(Has(result.err, "TSR-S006") && Has(result.err, "bytes of a device")) << result.err;
  EXPECT_TRUE(result.out.empty()) << result.out;
}

// A model over chips that are not here: what was compiled is audited as on devices that are.
TEST_F(ShardTpu, AModelForATopology_IsAuditedAsCompiled) {
  Proves("R79 R83");
  const TemporaryFolder folder;
  const std::string run = folder.File("run.toml");
  WriteWhole(folder.File("text.txt"), std::string(4000, 'a'));
  WriteWhole(run, R"(version = 1
[model]
vocab = 256
layers = 1
width = 32
num_q_heads = 2
num_kv_heads = 2
head_dim = 16
mlp_width = 32
rows = 2
row_tokens = 32
masks = ["causal and documents"]
[data]
folder = "."
files = ["*.txt"]
held_out = 16
packer = "best_fit"
[train]
steps = 1
learning_rate = 1e-3
)");
  const auto train = [&](const std::string& out, const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {
        "train",          run,        "--target", "v6e",   "--topology",     "v6e:2x2", "--compile-only", "--mesh",
        "data=2,model=2", "--plugin", plugin_,    "--out", folder.File(out), "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Tessera(arguments);
  };
  const ProgramResult result = train("four", {});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json receipt = OnlyDocument(result);
  int64_t most = 0;
  ASSERT_EQ(receipt["sharding"]["programs"].size(), 3U) << receipt["sharding"].dump();
  for (const nlohmann::json& program : receipt["sharding"]["programs"]) {
    most = std::max(most, program["device_bytes"].get<int64_t>());
  }
  EXPECT_FALSE(receipt["sharding"]["programs"][0]["collectives"].empty());
  // Arguments and results fit, and what the compiled program needs beside them does not.
  const ProgramResult tight = train("tight", {"--max-device-bytes", std::to_string(most + 1)});
  EXPECT_NE(tight.exit_code, 0);
  EXPECT_TRUE(Has(tight.err + tight.out, "TSR-S006")) << tight.err;
}

TEST_F(ShardTpu, SixteenChips_EveryExchangeWithKernels) {
  ExpectCompiles("v6e:4x4", 16, {"causal:2048:h4:d128:bf16", {"--exchange", "allgather"}, "all-gather"});
  ExpectCompiles("v6e:4x4", 16, {"causal:2048:h4:d128:bf16", {"--exchange", "sparse"}, "ragged-all-to-all"});
  ExpectCompiles("v6e:4x4", 16, {"causal:2048:h16:d128:bf16", {"--exchange", "heads"}, "all-to-all"});
  ExpectCompiles("v6e:4x4", 16, {"window=300:2048:h2:d128:bf16", {"--exchange", "ring"}, "collective-permute"});
  ExpectCompiles("v6e:4x4", 16, {"causal:512:h16:d128:bf16", {"--axis", "model"}, ""});
}

}  // namespace
}  // namespace tessera
