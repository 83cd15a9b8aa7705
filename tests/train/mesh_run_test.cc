// Runs over meshes of CPU devices: one device's losses, checkpoints that any mesh goes on from, and what a receipt
// says.
#include <gmock/gmock.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "files.h"
#include "support/engine.h"
#include "support/proves.h"
#include "train/checkpoint.h"

namespace tessera::train {
namespace {

using testing::HasSubstr;

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
  ProgramResult Program(const std::vector<std::string>& more) {
    WriteWhole(folder_.File("run.toml"), WideText());
    std::vector<std::string> arguments = {TESSERA_PROGRAM, "train", "run.toml"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    ProgramOptions options;
    options.folder = folder_.path();
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
}

// A mesh's own run again has its bits.
TEST_F(MeshRuns, TheSameMesh_TheSameBits) {
  Proves("R79 R90");
  const TrainReceipt once = Go("once", "data=2,context=2", 3);
  EXPECT_EQ(Go("twice", "data=2,context=2", 3).state_digest, once.state_digest);
  EXPECT_EQ(Go("whole", "data=2,context=2").state_digest, Go("once", "data=2,context=2", 0, true).state_digest);
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
}

}  // namespace
}  // namespace tessera::train
