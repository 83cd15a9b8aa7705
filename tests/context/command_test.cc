// `tessera shard run` on devices of the CPU plugin.
#include <filesystem>

#include "pjrt/plugin_test.h"
#include "program/program_test.h"

namespace tessera {
namespace {

const std::string kPacked = "causal,documents:256:h4/2:d16:f32";

bool Has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

class ShardRunCommand : public pjrt::PluginTest {};

// Attention over four devices against one, and what the compiled collectives carried against what was planned.
TEST_F(ShardRunCommand, Run_IsOneDevicesAndCarriesWhatWasPlanned) {
  Proves("R79 R83");
  const TemporaryFolder folder;
  const ProgramOptions here = {.folder = folder.path()};
  const std::vector<std::string> run = {"shard",     "run",         kPacked,  "--documents", "90,100,66",
                                        "--tile",    "16x16",       "--mesh", "context=4",   "--exchange",
                                        "sparse",    "--xla-level", "0",      "--plugin",    plugin().info().path,
                                        "--receipt", "r.json"};
  std::vector<std::string> json = run;
  json.emplace_back("--json");
  const ProgramResult done = Tessera(json, here);
  ASSERT_EQ(done.exit_code, 0) << done.err;
  const nlohmann::json document = OnlyDocument(done);
  EXPECT_EQ(document, nlohmann::json::parse(ReadWhole(folder.path() + "/r.json")));
  EXPECT_EQ(document["good"], true);
  EXPECT_EQ(document["mesh"], "context=4");
  ASSERT_EQ(document["against_one_device"].size(), 2u);
  for (const auto& one : document["against_one_device"]) EXPECT_EQ(one["different"], 0) << one;
  const auto& pass = document["passes"][0];
  EXPECT_EQ(pass["key"].get<std::string>().rfind(document["fingerprint"].get<std::string>(), 0), 0u);
  EXPECT_EQ(document["cut"]["key"].get<std::string>().size(), 32U);
  EXPECT_EQ(document["cut"]["shard_keys"].size(), 4U);
  int64_t planned = -1;
  for (const auto& exchange : document["cut"]["exchanges"]) {
    if (exchange["exchange"] == "sparse") planned = exchange["bytes"].get<int64_t>();
  }
  EXPECT_EQ(pass["carried_bytes"], planned);
  EXPECT_GT(planned, 0);

  EXPECT_GT(pass["largest_received_bytes"], 0);

  // Less than a device needs: refused before anything is compiled, and nothing is written.
  std::vector<std::string> narrow = run;
  narrow.back() = "narrow.json";
  narrow.insert(narrow.end(), {"--max-device-bytes", "4096"});
  const ProgramResult too_much = Tessera(narrow, here);
  EXPECT_EQ(too_much.exit_code, 1);
  EXPECT_TRUE(Has(too_much.err, "TSR-S005") && Has(too_much.err, "bytes of a device: at most 4096")) << too_much.err;
  EXPECT_TRUE(too_much.out.empty()) << too_much.out;
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/narrow.json"));

  // A shard that is lost: a numbered refusal before anything runs, and no receipt.
  std::vector<std::string> lost = run;
  lost.back() = "lost.json";
  lost.insert(lost.end(), {"--lose", "2"});
  const ProgramResult refused = Tessera(lost, here);
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_TRUE(Has(refused.err, "TSR-S022")) << refused.err;
  EXPECT_TRUE(Has(refused.err, "shard 2")) << refused.err;
  EXPECT_TRUE(refused.out.empty()) << refused.out;
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/lost.json"));
  // More shards than there can be.
  const ProgramResult many = Tessera({"shard", "run", kPacked, "--documents", "256", "--tile", "16x16", "--mesh",
                                      "context=512", "--plugin", plugin().info().path});
  EXPECT_NE(many.exit_code, 0);
  EXPECT_TRUE(Has(many.err, "TSR-S020")) << many.err;
}

// Around a ring and of gradients that come back, every element has a bound of its own.
TEST_F(ShardRunCommand, Ring_BothPasses_WithinBounds) {
  Proves("R79");
  const ProgramResult done =
      Tessera({"shard", "run", "causal:128:h4/2:d16:f32", "--tile", "16x16", "--mesh", "context=4", "--exchange",
               "ring", "--backward", "--xla-level", "0", "--plugin", plugin().info().path, "--json"});
  ASSERT_EQ(done.exit_code, 0) << done.err;
  const nlohmann::json document = OnlyDocument(done);
  EXPECT_EQ(document["good"], true);
  ASSERT_EQ(document["against_one_device"].size(), 5u);
  for (const nlohmann::json& one : document["against_one_device"]) {
    EXPECT_EQ(one["exact"], false);
    EXPECT_GT(one["bound"], 0) << one;
    EXPECT_LT(one["bound"], 1e-3) << one;
    EXPECT_LE(one["largest"], one["bound"]) << one;
  }
}

}  // namespace
}  // namespace tessera
