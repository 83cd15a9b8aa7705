// What the conformance tests share: the lanes under test, small contracts, and runs that are checked by the oracle.
// Every test goes through Run() with the lane and its instruction set forced by name, so that a fallback can never
// stand in for either.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "cases/cases.h"
#include "support/engine.h"
#include "support/proves.h"
#include "support/seed.h"
#include "tessera/check.h"
#include "tessera/tessera.h"

namespace tessera::conformance {

// Every lane that accepts a plain contract on this machine, once with each of its instruction sets: "reference:scalar".
// A lane that is not built is not tested here; the dispatch tests hold its refusal. Below, `lane` is such a name;
// without a colon it leaves the choice to the lane.
const std::vector<std::string>& LanesUnderTest();
// Whether the lane's kernels exist for any dtype, dim and tile.
bool HasAnyShape(const std::string& lane);
// Those that have, and read the host's memory: for tests about these.
const std::vector<std::string>& HostLanes();
// Why the CUDA lane cannot run here; empty where it can. Asked by running, and remembered.
const std::string& CudaProblem();
// The contract with dtype and dims that the lane has kernels for; the same for lanes that have all.
Contract ForLane(const std::string& lane, Contract contract);
std::string LaneOf(const std::string& lane);
std::string IsaOf(const std::string& lane);
// For the names of tests: every other character becomes '_'.
std::string Slug(std::string text);
// The lane that is never optimised gets smaller problems and fewer repeats.
bool IsSlow(const std::string& lane);
// Whether the lane runs in an interpreter of its kernels, each run of which takes long: it gets fewer of them.
bool IsInterpreted(const std::string& lane);
// Whether each class that a test makes costs the lane a compilation: such a lane gets fewer of them, and as many masks
// and batches in each.
bool CompilesPerClass(const std::string& lane);
// Of `all` random rounds, how many a lane takes to which each is costly.
int RoundsOf(const std::string& lane, int all);
// Of choices, those this lane takes: all of them, or `most` where each is costly, others at every seed.
template <class T>
std::vector<T> SomeOf(const std::string& lane, uint64_t seed, std::vector<T> all, size_t most = 1) {
  if (!CompilesPerClass(lane) && !IsInterpreted(lane)) return all;
  std::mt19937_64 rng(seed);
  std::shuffle(all.begin(), all.end(), rng);
  all.erase(all.begin() + static_cast<int64_t>(most), all.end());
  return all;
}
// Room for any mask at this tile, so that all of one shape are one class.
void WidenClass(Contract& contract, TileSize tile);
Arithmetic ArithmeticOf(const std::string& lane);
// Whether the lane promises the same bits packed and alone, at every tile size.
bool IsBitwise(const std::string& lane);
// Whether the lane promises that NaN and infinity in a valid token reach only the rows that see it.
bool IsolatesNonFinite(const std::string& lane);

struct Small {
  std::string mask = "causal";
  int64_t q_len = 24;
  int64_t kv_len = 24;
  int64_t batch = 1;
  int64_t num_q_heads = 2;
  int64_t num_kv_heads = 1;
  int64_t dim_qk = 8;
  int64_t dim_v = 8;
  DType dtype = DType::kF32;
  double softcap = 0.0;
  bool sink_logits = false;
};
Contract MakeContract(const Small& small);
// The same documents in every batch row: their lengths in order; what is left of the row is padding.
Batch DocumentBatch(const Contract& contract, const std::vector<int64_t>& lengths);

struct Setting {
  std::string lane;
  Contract contract;
  Batch batch;
  TensorMap inputs;
  RunOptions options;
};
// A setting with inputs from the seed, backward and row maximum on.
Setting MakeSetting(const std::string& lane, Contract contract, Batch batch, uint64_t seed);

Target CpuTarget();
// The setting's options with its lane and instruction set forced.
RunOptions OptionsOf(const Setting& setting);
// What the lane's plans are made for.
Target TargetOf(const std::string& lane);
// Runs the forced lane on its target. A failure to run fails the test and gives no outputs.
RunOutcome RunSetting(const Setting& setting);
// Whether the lane refused a mask that its reason says it has no room for, which a random one may be: no failure.
bool IsRefused(const RunOutcome& outcome);
// Runs, and compares every output with the oracle.
RunOutcome RunAndCheck(const Setting& setting);
// How the lane's outputs are checked.
CheckOptions CheckOptionsOf(const Setting& setting);
// Compares outputs, whoever ran, with the oracle.
void ExpectMatchesOracle(const Setting& setting, const TensorMap& outputs);

// Plans at this tile size, decompresses every direction, batch row and head, and compares with the oracle's mask.
void ExpectDenseMask(const Contract& contract, const Batch& batch, TileSize tile);

// A token of a [B,H,T,D] tensor, all heads.
struct Token {
  int64_t batch_row = 0;
  int64_t token = 0;
};
void FillToken(Tensor& tensor, const Token& at, double value);
// The bytes of one token, all heads; of a [B,H,T] statistic too.
std::vector<std::byte> TokenBytes(const Tensor& tensor, const Token& at);
bool IsZero(const Tensor& tensor, const Token& at);

class EveryLane : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (LaneOf(GetParam()) == "cuda" && !CudaProblem().empty()) GTEST_SKIP() << CudaProblem();
  }
};
inline std::string LaneTestName(const testing::TestParamInfo<std::string>& info) { return Slug(info.param); }

}  // namespace tessera::conformance
