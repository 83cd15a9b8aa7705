// expand alone: meta-blocks first, and the picks that plain loops make of them; and the memory that scoring may take.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

#include "routing/brute.h"
#include "routing/cases.h"
#include "support/proves.h"

namespace {

// The largest request for memory while a test watches. It stands here because only a program can replace `new`.
std::atomic<bool> is_watching{false};
std::atomic<size_t> largest{0};

void* Allocate(size_t bytes) {
  if (is_watching) {
    size_t seen = largest;
    while (bytes > seen && !largest.compare_exchange_weak(seen, bytes)) {
    }
  }
  void* out = std::malloc(bytes == 0 ? 1 : bytes);
  if (out == nullptr) throw std::bad_alloc();
  return out;
}

}  // namespace

void* operator new(size_t bytes) { return Allocate(bytes); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return std::malloc(bytes == 0 ? 1 : bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace tessera::routing {
namespace {

TEST(RoutingExpand, RandomRequests_PickWhatPlainLoopsPick) {
  Proves("R22 B38");
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  for (int round = 0; round < 60; ++round) {
    RoutingCase at = RandomRoutingCase(rng, {.hierarchical = true});
    ASSERT_EQ(PicksOf(at.Input()).blocks, BrutePicks(at).blocks) << "seed " << seed << " round " << round;
  }
}

TEST(RoutingExpand, WithEveryMetaBlockKept_IsExhaustive) {
  Proves("R22");
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  for (int round = 0; round < 40; ++round) {
    RoutingCase at = RandomRoutingCase(rng);
    Routing& routing = *at.contract.routing;
    if (round % 2 == 0) at.SetK(0, 0, RandomInt(rng, 0, at.contract.shape.kv_len - 1), std::nan(""));
    const std::vector<int32_t> exhaustive = PicksOf(at.Input()).blocks;
    routing.hierarchical = true;
    const int64_t compression_blocks = (at.contract.shape.kv_len + routing.block_stride - 1) / routing.block_stride;
    for (const int64_t more : {0, 1, 1000000}) {
      routing.meta_keep = (compression_blocks + routing.meta_ratio - 1) / routing.meta_ratio + more;
      ASSERT_EQ(PicksOf(at.Input()).blocks, exhaustive) << "seed " << seed << " round " << round << " + " << more;
    }
  }
}

TEST(RoutingExpand, RaggedTails_AreWholeBlocksOfTheirOwn) {
  Proves("R22 B38");
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  // One key more and one fewer than whole strides, blocks and meta-blocks.
  for (const int64_t len : {1, 2, 31, 32, 33, 63, 64, 65, 127, 129}) {
    RoutingCase at = RandomRoutingCase(rng, {.documents = false});
    Shape& shape = at.contract.shape;
    shape.q_len = shape.kv_len = len;
    at.contract.mask.offset = 0;
    at.contract.routing = Routing{.selected_block = 8,
                                  .block_stride = 4,
                                  .compression_block = 8,
                                  .top_n = std::min<int64_t>(3, (len + 7) / 8),
                                  .hierarchical = true,
                                  .meta_ratio = 8,
                                  .meta_keep = 2};
    SetMask(at, [](int64_t, int64_t p, int64_t j) { return j <= p; });
    at.q = RandomTensor(rng, at.q.type, {shape.batch, shape.num_q_heads, len, shape.dim_qk});
    at.k = RandomTensor(rng, at.k.type, {shape.batch, shape.num_kv_heads, len, shape.dim_qk});
    const Result<Scored> scored = Score(at.Input());
    ASSERT_TRUE(scored.has_value());
    EXPECT_LE(scored->meta_keep, (len + 31) / 32) << "no room for meta-blocks that do not exist";
    ASSERT_EQ(Expand(at.Input(), *scored)->blocks, BrutePicks(at).blocks) << "seed " << seed << " len " << len;
  }
}

TEST(RoutingExpand, ExhaustiveScores_PassThrough) {
  std::mt19937_64 rng(PrintedSeed());
  RoutingCase at = RandomRoutingCase(rng);
  const Result<Scored> scored = Score(at.Input());
  ASSERT_TRUE(scored.has_value());
  EXPECT_TRUE(scored->is_final);
  EXPECT_EQ(*Expand(at.Input(), *scored), scored->picks);
}

TEST(RoutingExpand, ScoresOfAnotherContract_AreRefused) {
  Proves("R26");
  std::mt19937_64 rng(PrintedSeed());
  RoutingCase at = RandomRoutingCase(rng, {.hierarchical = true});
  Result<Scored> scored = Score(at.Input());
  ASSERT_TRUE(scored.has_value());
  scored->metas.pop_back();
  const Result<PickRows> picks = Expand(at.Input(), *scored);
  ASSERT_FALSE(picks.has_value());
  EXPECT_EQ(picks.error().code, ErrorCode::kStageInvariant);
  EXPECT_EQ(picks.error().where, "expand");
}

TEST(RoutingExpand, Scratch_DoesNotGrowWithQueries) {
  Contract contract;
  contract.shape.kv_len = 1 << 17;
  contract.shape.dim_qk = 128;
  contract.routing.emplace();
  for (const bool hierarchical : {false, true}) {
    contract.routing->hierarchical = hierarchical;
    contract.shape.q_len = 64;
    const int64_t few = ScoreScratchBytes(contract);
    contract.shape.q_len = 1 << 20;
    EXPECT_EQ(ScoreScratchBytes(contract), few);
    EXPECT_LT(few, 100 * 1024);
  }
}

TEST(RoutingExpand, NoAllocation_HasAnEntryPerQueryAndBlock) {
  std::mt19937_64 rng(PrintedSeed());
  RoutingCase at;
  Shape& shape = at.contract.shape;
  shape.q_len = shape.kv_len = 8192;
  shape.dim_qk = shape.dim_v = 4;
  at.contract.score.scale = 0.5;
  at.contract.routing = Routing{.selected_block = 16, .block_stride = 16, .compression_block = 16, .top_n = 2};
  at.contract.routing->meta_keep = 4;
  at.rows.resize(1);
  at.legal.push_back(RowSet::FromRun({.q_begin = 0, .q_end = 8192, .kv_begin = 0, .kv_end = 8192, .diag_end = 1}));
  at.q = RandomTensor(rng, ElementType::kF32, {1, 1, 8192, 4});
  at.k = RandomTensor(rng, ElementType::kF32, {1, 1, 8192, 4});
  const size_t pairs = size_t{8192} * 512;
  for (const bool hierarchical : {false, true}) {
    at.contract.routing->hierarchical = hierarchical;
    const RoutingInput input = at.Input();
    largest = 0;
    is_watching = true;
    const Result<Scored> scored = Score(input);
    const Result<PickRows> picks = Expand(input, *scored);
    is_watching = false;
    EXPECT_EQ(picks->blocks.size(), size_t{8192} * 2);
    // Not even a bit for each pair: the picks and the kept meta-blocks are the largest.
    EXPECT_LT(largest, pairs / 8);
    EXPECT_GE(largest, size_t{8192} * 2 * sizeof(int32_t)) << "the watch works";
  }
}

}  // namespace
}  // namespace tessera::routing
