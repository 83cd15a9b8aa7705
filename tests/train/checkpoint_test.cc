// Checkpoints: what is read is what was written, and nothing else is taken for one.
#include "train/checkpoint.h"

#include <gmock/gmock.h>

#include <cstring>
#include <limits>
#include <random>

#include "io/safetensors.h"
#include "support/proves.h"
#include "support/run_program.h"
#include "support/seed.h"
#include "tessera/io.h"

namespace tessera::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Checkpoint Any(std::mt19937_64& random) {
  Checkpoint checkpoint{{"m", "d", "s"}, 100, 3200, 51000, {}};
  for (const char* name : {"wte", "m.wte", "v.wte"}) {
    Tensor tensor = Tensor::Zeros(ElementType::kF32, {3, 5});
    for (int64_t i = 0; i < tensor.NumElements(); ++i) tensor.Set(i, static_cast<double>(random() % 1000) / 7.0);
    checkpoint.state[name] = tensor;
  }
  return checkpoint;
}

std::string ErrorOf(const std::string& path) {
  const auto checkpoint = ReadCheckpoint(path);
  return checkpoint ? "" : ToText(checkpoint.error());
}

TEST(Checkpoints, RoundTrip_AndTheNewestAreKept) {
  std::mt19937_64 random(PrintedSeed());
  const TemporaryFolder folder;
  Checkpoint written = Any(random);
  for (const int64_t step : {100, 9, 25}) {
    written.step = step;
    ASSERT_TRUE(WriteCheckpoint(folder.path(), written));
  }
  WriteWhole(folder.File("checkpoint-7.safetensors"), "not ours");
  EXPECT_THAT(ListCheckpoints(folder.path()), ElementsAre(9, 25, 100));
  WriteWhole(folder.File(".tessera-left.tmp"), "half");
  RemoveOldCheckpoints(folder.path(), 2);
  EXPECT_THAT(ListCheckpoints(folder.path()), ElementsAre(25, 100));
  EXPECT_FALSE(std::filesystem::exists(folder.File(".tessera-left.tmp")));
  const auto read = ReadCheckpoint(folder.File(CheckpointName(25)));
  ASSERT_TRUE(read) << ToText(read.error());
  EXPECT_EQ(read->state, written.state);
  EXPECT_EQ(read->step, 25);
  EXPECT_EQ(read->place, 3200);
  EXPECT_EQ(read->tokens, 51000);
  EXPECT_EQ(read->identity, written.identity);
}

TEST(Checkpoints, Damaged_AreRefused) {
  std::mt19937_64 random(PrintedSeed());
  const TemporaryFolder folder;
  Checkpoint checkpoint = Any(random);
  const std::string path = folder.File(CheckpointName(checkpoint.step));
  ASSERT_TRUE(WriteCheckpoint(folder.path(), checkpoint));
  const std::string good = ReadWhole(path);
  ASSERT_EQ(ErrorOf(path), "");
  for (int round = 0; round < 40; ++round) {  // cut anywhere, or one bit changed
    WriteWhole(path, good.substr(0, random() % good.size()));
    EXPECT_THAT(ErrorOf(path), HasSubstr("TSR-T103"));
    std::string other = good;
    const size_t at = good.size() - 1 - random() % (3 * 15 * sizeof(float));
    other[at] = static_cast<char>(other[at] ^ (1 << random() % 8));
    WriteWhole(path, other);
    EXPECT_THAT(ErrorOf(path), HasSubstr("TSR-T103"));
  }
  WriteWhole(path, ToSafetensors(checkpoint.state));
  EXPECT_THAT(ErrorOf(path), HasSubstr("tessera_checkpoint")) << "tensors of somebody else";
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    checkpoint.state["m.wte"].Set(4, bad);
    ASSERT_TRUE(WriteCheckpoint(folder.path(), checkpoint));
    EXPECT_THAT(ErrorOf(path), HasSubstr("element 4 of m.wte"));
  }
}

// Nothing of the header is taken on trust: step, place and tokens are as much a run's state as its numbers.
TEST(Checkpoints, EveryBitOfTheHeader_Counts) {
  Proves("R90");
  std::mt19937_64 random(PrintedSeed());
  const TemporaryFolder folder;
  const Checkpoint checkpoint = Any(random);
  ASSERT_TRUE(WriteCheckpoint(folder.path(), checkpoint));
  const std::string good = ReadWhole(folder.File(CheckpointName(checkpoint.step)));
  ASSERT_TRUE(ParseCheckpoint(good, "c"));
  const size_t data = checkpoint.state.size() * 15 * sizeof(float);
  for (size_t at = 0; at + data < good.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string other = good;
      other[at] = static_cast<char>(other[at] ^ (1 << bit));
      const auto read = ParseCheckpoint(other, "c");
      ASSERT_FALSE(read) << "bit " << bit << " of byte " << at;
      EXPECT_EQ(read.error().code, ErrorCode::kCheckpointInvalid);
    }
  }
  // A whole one under the name of another step.
  WriteWhole(folder.File(CheckpointName(7)), good);
  EXPECT_THAT(ErrorOf(folder.File(CheckpointName(7))), HasSubstr("it is of step 100, which its name does not say"));
}

TEST(Checkpoints, OfAnotherRun_AreRefusedByName) {
  const RunIdentity one{"a", "b", "c"};
  EXPECT_TRUE(CheckIdentity(one, one, ""));
  const Status other = CheckIdentity(one, {"a", "x", "y"}, "there");
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, ErrorCode::kCheckpointMismatch);
  ASSERT_EQ(other.error().violations.size(), 2U);
  EXPECT_EQ(other.error().violations[0].field, "data");
  EXPECT_EQ(other.error().violations[1].field, "schedule");
  TrainSpec spec;
  spec.steps = 10;
  const std::string digest = ScheduleDigest(spec);
  spec.log_every = 3;  // what is told of a run changes none of its numbers
  spec.keep = 7;
  EXPECT_EQ(ScheduleDigest(spec), digest);
  spec.learning_rate *= 2;
  EXPECT_NE(ScheduleDigest(spec), digest);
}

}  // namespace
}  // namespace tessera::train
