// Targets are data: the table says what the planner will believe of each machine.
#include "tessera/target.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Target, Names_AreTheDocumentedOnes) {
  std::vector<std::string> names;
  for (const Target& target : Targets()) {
    names.push_back(target.name);
    EXPECT_GE(target.workers, 1);
    EXPECT_GT(target.fast_bytes, 0);
    EXPECT_FALSE(target.description.empty());
    EXPECT_EQ(FindTarget(target.name).value(), target);
  }
  EXPECT_THAT(names, ElementsAre("cpu", "h200", "v6e", "v5e", "v5p"));
}

TEST(Target, Facts_AreTheMachines) {
  const Target cpu = FindTarget("cpu").value();
  EXPECT_EQ(cpu.kind, TargetKind::kCpu);
  EXPECT_EQ(cpu.forward, (TileSize{0, 0}));
  EXPECT_EQ(cpu.scalar_bytes, 0);
  const Target h200 = FindTarget("h200").value();
  EXPECT_EQ(h200.kind, TargetKind::kGpu);
  EXPECT_EQ(h200.workers, 132);
  EXPECT_TRUE(h200.heads_apart);
  ASSERT_EQ(h200.tiles_by_dim.size(), 3U);
  EXPECT_EQ(h200.tiles_by_dim[0].dkv, (TileSize{64, 128}));  // the kernels' own: tests/cuda holds all of them
  EXPECT_EQ(h200.fast_bytes, 232448);
  for (const char* name : {"v6e", "v5e", "v5p"}) {
    const Target tpu = FindTarget(name).value();
    EXPECT_EQ(tpu.kind, TargetKind::kTpu);
    EXPECT_EQ(tpu.scalar_bytes, 1048576);
    EXPECT_EQ(tpu.forward, tpu.dq);
    EXPECT_EQ(tpu.forward, tpu.dkv);
  }
  // What libtpu gives a kernel unless it is told otherwise; tests/tpu holds it.
  EXPECT_EQ(FindTarget("v6e")->vector_bytes, 33554432);
  EXPECT_EQ(FindTarget("v5e")->vector_bytes, 16777216);
  EXPECT_EQ(FindTarget("v5p")->vector_bytes, 16777216);
  EXPECT_EQ(cpu.vector_bytes, 0);
  EXPECT_EQ(h200.vector_bytes, 0);
  EXPECT_EQ(FindTarget("v6e")->forward, (TileSize{256, 256}));
  EXPECT_EQ(FindTarget("v5p")->forward, (TileSize{128, 128}));
}

TEST(Target, UnknownName_IsRefusedWithTheNamesThereAre) {
  const Result<Target> target = FindTarget("tpu9");
  ASSERT_FALSE(target);
  EXPECT_EQ(target.error().code, ErrorCode::kTargetUnknown);
  EXPECT_THAT(target.error().message, HasSubstr("\"tpu9\""));
  EXPECT_THAT(target.error().message, HasSubstr("cpu, h200, v6e, v5e, v5p"));
}

}  // namespace
}  // namespace tessera
