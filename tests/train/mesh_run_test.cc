// Runs over meshes of CPU devices: one device's losses, checkpoints that any mesh goes on from, and what a receipt
// says.
#include <gmock/gmock.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "files.h"
#include "support/engine.h"
#include "support/proves.h"
#include "train/checkpoint.h"

namespace tessera::train {
namespace {

using testing::HasSubstr;
using testing::Not;

// Four rows and two key heads, which the meshes below divide.
std::string WideText() {
  std::string text = RunText("checkpoint_every = 2\n");
  text.replace(text.find("num_kv_heads = 1"), 16, "num_kv_heads = 2");
  return text.replace(text.find("rows = 2"), 8, "rows = 4");
}

class MeshRuns : public testing::Test {
 protected:
  void SetUp() override {
    WriteTexts(folder_.File("texts"));
    const auto trainer = Trainer::Create(TestEngine(), ParsedRun(WideText(), folder_.path()).model, *FindTarget("cpu"));
    if (!trainer) GTEST_SKIP() << ToText(trainer.error()) << "; script/setup --xla installs a plugin";
  }
  TrainReceipt Go(const std::string& out, const std::string& mesh, int64_t steps = 0, bool resume = false) {
    TrainOptions options;
    options.folder = folder_.File(out);
    options.target = *FindTarget("cpu");
    options.max_steps = steps;
    options.resume = resume;
    if (!mesh.empty()) options.trainer.mesh = ParseMesh(mesh).value();
    auto receipt = Train(TestEngine(), ParsedRun(WideText(), folder_.path()), options);
    EXPECT_TRUE(receipt) << (receipt ? "" : ToText(receipt.error()));
    return receipt ? *receipt : TrainReceipt{};
  }
  ProgramResult Program(const std::vector<std::string>& more,
                        const std::map<std::string, std::string>& variables = {}) {
    WriteWhole(folder_.File("run.toml"), WideText());
    std::vector<std::string> arguments = {TESSERA_PROGRAM, "train", "run.toml"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    ProgramOptions options;
    options.folder = folder_.path();
    options.env = variables;
    return RunProgram(arguments, options);
  }
  TemporaryFolder folder_;
};

// Begun on one mesh, gone on with on another and ended on one device: a checkpoint knows of no mesh.
TEST_F(MeshRuns, Checkpoints_GoFromMeshToMesh) {
  Proves("R79 R83");
  const TrainReceipt whole = Go("whole", "");
  ASSERT_TRUE(whole.last_loss && whole.held_out_loss);
  EXPECT_FALSE(whole.sharding.has_value());
  const TrainReceipt first = Go("parts", "data=2,model=2", 2);
  const TrainReceipt second = Go("parts", "data=2,context=4", 2, true);
  const TrainReceipt last = Go("parts", "", 0, true);
  ASSERT_TRUE(first.first_loss && second.last_loss && last.last_loss && last.held_out_loss);
  EXPECT_EQ(last.last_step, 6);
  EXPECT_EQ(last.tokens + first.tokens + second.tokens, whole.tokens);
  // The first step begins with the same numbers; later ones differ by what Adam makes of roundings in six steps.
  EXPECT_NEAR(*first.first_loss, *whole.first_loss, 1e-5);
  EXPECT_NEAR(*last.last_loss, *whole.last_loss, 1e-3);
  EXPECT_NEAR(*last.held_out_loss, *whole.held_out_loss, 1e-3);
  for (const TrainReceipt& receipt : {first, second}) {
    ASSERT_TRUE(receipt.sharding.has_value());
    EXPECT_EQ(receipt.compiles, 2);
    EXPECT_EQ(receipt.sharding->programs.size(), 2U);
    EXPECT_TRUE(CheckTrainReceipt(ToJson(receipt)));
  }
  EXPECT_NE(first.sharding->fingerprint, second.sharding->fingerprint);
  // A device of a mesh needs other memory than one alone, and each mesh other than the next.
  EXPECT_EQ((std::set<std::string>{whole.calibration, first.calibration, second.calibration, last.calibration}).size(),
            3U);
  EXPECT_EQ(whole.calibration, last.calibration);
  // How tokens were shared: each of two steps' batches on two places along data, and what that carried.
  EXPECT_FALSE(first.sharding->context.has_value());
  ASSERT_TRUE(second.sharding->context.has_value());
  const nlohmann::json context = nlohmann::json::parse(ToJson(second))["sharding"]["context"];
  EXPECT_EQ(context["exchange"], "sparse");
  EXPECT_THAT(context["reason"].get<std::string>(), HasSubstr("by batch"));
  EXPECT_GE(context["cuts"]["contiguous"].get<int>() + context["cuts"]["reordered"].get<int>() +
                context["cuts"]["zigzag"].get<int>(),
            4);
  EXPECT_LE(context["bytes"].get<int64_t>(), context["allgather_bytes"].get<int64_t>());
  EXPECT_GE(context["worst_balance"].get<double>(), 1.0);
}

// A mesh's own run again has its bits.
TEST_F(MeshRuns, TheSameMesh_TheSameBits) {
  Proves("R79 R90");
  const TrainReceipt once = Go("once", "data=2,context=2", 3);
  EXPECT_EQ(Go("twice", "data=2,context=2", 3).state_digest, once.state_digest);
  EXPECT_EQ(Go("whole", "data=2,context=2").state_digest, Go("once", "data=2,context=2", 0, true).state_digest);
}

// A program on disk that was compiled for another layout: told, not used, and replaced. What is on disk is made so by
// writing another fingerprint over the one that was recorded.
TEST_F(MeshRuns, AProgramKeptForAnotherLayout_IsNotUsed) {
  Proves("R83");
  const std::string own = folder_.File("xla");
  std::filesystem::create_directory(own);
  std::filesystem::create_directory_symlink(OptionsFromEnvironment().xla_folder + "/plugins", own + "/plugins");
  const auto run = [&](const char* out) {
    const ProgramResult result =
        Program({"--mesh", "data=2", "--attention", "xla_chunked", "--steps", "1", "--json", "--out", out},
                {{"TESSERA_XLA", own}});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    nlohmann::json receipt = nlohmann::json::parse(result.out, nullptr, false);
    if (!receipt.is_object()) receipt = nlohmann::json::object();
    for (const char* key : {"programs", "notes", "sharding"}) EXPECT_TRUE(receipt.contains(key)) << key;
    receipt.emplace("notes", nlohmann::json::array());
    return receipt;
  };
  const nlohmann::json first = run("first");
  ASSERT_TRUE(first.contains("programs") && !first["programs"].empty());
  ASSERT_EQ(first["programs"][0]["source"], "compiled");
  const nlohmann::json again = run("again");
  ASSERT_EQ(again["programs"][0]["source"], "disk") << again["notes"];
  EXPECT_THAT(again["notes"].dump(), Not(HasSubstr("TSR-S007")));
  const std::string fingerprint = first["sharding"]["fingerprint"];
  for (const auto& entry : std::filesystem::directory_iterator(own + "/programs")) {
    std::string bytes = ReadWhole(entry.path().string());
    const size_t at = bytes.find(fingerprint + "-data=2-");
    ASSERT_NE(at, std::string::npos);
    WriteWhole(entry.path().string(), bytes.replace(at, fingerprint.size(), std::string(fingerprint.size(), '0')));
  }
  const nlohmann::json stale = run("stale");
  for (const nlohmann::json& program : stale["programs"]) EXPECT_EQ(program["source"], "compiled");
  EXPECT_THAT(stale["notes"].dump(), HasSubstr("TSR-S007"));
  EXPECT_EQ(run("after")["programs"][0]["source"], "disk");
}

TEST_F(MeshRuns, TheProgram_TellsAndRefuses) {
  Proves("R80 R83 B15");
  const ProgramResult good = Program({"--mesh", "data=2,model=2", "--out", "run", "--steps", "2", "--json"});
  ASSERT_EQ(good.exit_code, 0) << good.err;
  EXPECT_THAT(good.err, HasSubstr("over data=2,model=2: 4 devices"));
  const nlohmann::json receipt = nlohmann::json::parse(good.out, nullptr, false);
  ASSERT_FALSE(receipt.is_discarded()) << good.out;
  EXPECT_EQ(receipt["sharding"]["mesh"], "data=2,model=2");
  EXPECT_EQ(receipt["sharding"]["devices"], 4);
  EXPECT_EQ(receipt["sharding"]["metrics"], "global");
  EXPECT_EQ(receipt["sharding"]["programs"].size(), 2U);
  nlohmann::json changed = receipt;
  changed["sharding"]["devices"] = 8;
  EXPECT_FALSE(CheckTrainReceipt(changed.dump()));
  // More than a device may have: known when the program is compiled, and nothing is trained.
  const ProgramResult narrow = Program({"--mesh", "data=2,model=2", "--max-device-bytes", "4096", "--out", "bad"});
  EXPECT_NE(narrow.exit_code, 0);
  EXPECT_THAT(narrow.err, HasSubstr("TSR-S006"));
  EXPECT_THAT(narrow.err, HasSubstr("bytes of a device: at most 4096"));
  EXPECT_FALSE(std::filesystem::exists(folder_.File("bad/train.json")));
  EXPECT_THAT(Program({"--max-device-bytes", "4096", "--out", "bad"}).err, HasSubstr("TSR-R007"));
  struct Case {
    const char* mesh;
    const char* code;
  };
  for (const Case& c : {Case{"data=0", "TSR-S001"}, Case{"data=2,data=2", "TSR-S001"}, Case{"rows=2", "TSR-S001"},
                        Case{"data=2,", "TSR-S001"}, Case{"context=64", "TSR-S002"}, Case{"data=3", "TSR-S005"},
                        Case{"model=4", "TSR-S005"}}) {
    const ProgramResult bad = Program({"--mesh", c.mesh, "--out", "bad"});
    EXPECT_NE(bad.exit_code, 0) << c.mesh;
    EXPECT_THAT(bad.err, HasSubstr(c.code)) << c.mesh;
    EXPECT_FALSE(std::filesystem::exists(folder_.File("bad/train.json"))) << c.mesh;
  }
  using Option = std::pair<const char*, const char*>;
  for (const auto& [option, value] :
       {Option("--exchange", "ring"), Option("--exchange", "pigeon"), Option("--cut", "spiral")}) {
    const ProgramResult bad = Program({"--mesh", "context=2", "--out", "bad", option, value});
    EXPECT_NE(bad.exit_code, 0) << value;
    EXPECT_THAT(bad.err, HasSubstr("TSR-S020")) << value;
  }
}

}  // namespace
}  // namespace tessera::train
