// score alone: the picks that plain loops make, nothing from where a query may not look, and the same bits always.
#include <algorithm>
#include <atomic>
#include <thread>

#include "routing/brute.h"
#include "routing/cases.h"
#include "routing/dots.h"
#include "support/proves.h"

namespace tessera::routing {
namespace {

RoutingCase CausalCase(std::mt19937_64& rng, int64_t len, int64_t top_n) {
  RoutingCase out;
  Shape& shape = out.contract.shape;
  shape.q_len = shape.kv_len = len;
  shape.num_kv_heads = 2;
  shape.num_q_heads = 4;
  shape.dim_qk = shape.dim_v = 24;
  out.contract.score.scale = 0.25;
  out.contract.mask.heads.resize(1);
  out.contract.routing = Routing{.selected_block = 16, .block_stride = 4, .compression_block = 8, .top_n = top_n};
  out.rows.resize(1);
  SetMask(out, [](int64_t, int64_t p, int64_t j) { return j <= p; });
  out.q = RandomTensor(rng, ElementType::kF32, {1, 4, len, 24});
  out.k = RandomTensor(rng, ElementType::kF32, {1, 2, len, 24});
  return out;
}

TEST(RoutingScore, RandomRequests_PickWhatPlainLoopsPick) {
  Proves("R19");
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  for (int round = 0; round < 60; ++round) {
    RoutingCase at = RandomRoutingCase(rng);
    const PickRows picks = PicksOf(at.Input());
    ASSERT_EQ(picks.blocks, BrutePicks(at).blocks) << "seed " << seed << " round " << round;
    ASSERT_EQ(picks.nan_scores, 0);
  }
}

TEST(RoutingScore, KeptScores_AreThoseOfPlainLoopsAndChangeNoPick) {
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  for (int round = 0; round < 20; ++round) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << " round " << round);
    RoutingCase at = RandomRoutingCase(rng);
    RoutingInput input = at.Input();
    EXPECT_TRUE(PicksOf(input).scores.empty()) << "nobody asked";
    input.keep_scores = true;
    const PickRows picks = PicksOf(input);
    const PickRows want = BrutePicks(at);
    ASSERT_EQ(picks.blocks, want.blocks);
    ASSERT_EQ(picks.scores.size(), want.scores.size());
    for (size_t n = 0; n < want.scores.size(); ++n) {
      const bool is_same =
          picks.scores[n] == want.scores[n] || (picks.scores[n] != picks.scores[n] && want.scores[n] != want.scores[n]);
      ASSERT_TRUE(is_same) << n << ": " << picks.scores[n] << " and " << want.scores[n];
    }
  }
}

TEST(RoutingScore, Defaults_AreTheOnesOfTheContract) {
  Proves("R27");
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  RoutingCase at = CausalCase(rng, 2304, 8);
  at.contract.shape.num_kv_heads = 1;
  at.contract.shape.num_q_heads = 2;
  at.contract.routing = Routing{};
  const Routing& routing = *at.contract.routing;
  EXPECT_EQ(routing.query_tile, 256);
  EXPECT_EQ(routing.kv_tile, 1024);
  EXPECT_EQ(routing.selected_block, 256);
  EXPECT_EQ(routing.block_stride, 64);
  EXPECT_EQ(routing.compression_block, 128);
  EXPECT_EQ(routing.top_n, 8);
  // Ask for the last queries only: the second opinion is slow, and these see every block.
  at.contract.shape.q_len = 20;
  at.contract.mask.offset = 2304 - 20;
  SetMask(at, [](int64_t, int64_t p, int64_t j) { return j <= p; });
  EXPECT_EQ(PicksOf(at.Input()).blocks, BrutePicks(at).blocks) << "seed " << seed;
}

TEST(RoutingScore, KeysPerStep_ChangeNoPick) {
  Proves("R27");
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  for (int round = 0; round < 40; ++round) {
    RoutingCase at = RandomRoutingCase(rng, {.hierarchical = round % 4 == 3});
    Routing& routing = *at.contract.routing;
    routing.kv_tile = routing.selected_block;
    const PickRows expected = PicksOf(at.Input());
    for (const int64_t blocks : {2, 3, 64, 1 << 20}) {
      routing.kv_tile = blocks * routing.selected_block;
      ASSERT_EQ(PicksOf(at.Input()), expected)
          << "seed " << seed << " round " << round << " kv_tile " << routing.kv_tile;
    }
  }
}

TEST(RoutingScore, StridedTensors_AreReadWhereTheyLie) {
  std::mt19937_64 rng(PrintedSeed());
  RoutingCase at = CausalCase(rng, 70, 3);
  const PickRows expected = PicksOf(at.Input());
  // The same values as [batch, token, head, dim].
  const auto turn = [](const Tensor& from, int64_t heads, int64_t len, int64_t dim) {
    Tensor out = Tensor::Zeros(from.type, {1, len, heads, dim});
    for (int64_t n = 0; n < from.NumElements(); ++n) {
      const int64_t head = n / dim / len;
      out.Set((n / dim % len * heads + head) * dim + n % dim, from.At(n));
    }
    return out;
  };
  Tensor q = turn(at.q, 4, 70, 24);
  Tensor k = turn(at.k, 2, 70, 24);
  RoutingInput input = at.Input();
  input.q = {q.type, q.bytes.data(), 4 * 70 * 24, 24, 4 * 24};
  input.k = {k.type, k.bytes.data(), 2 * 70 * 24, 24, 2 * 24};
  EXPECT_EQ(PicksOf(input), expected);
}

TEST(RoutingScore, FutureOtherDocumentsAndPadding_LeaveNoTrace) {
  Proves("R19");
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  for (int round = 0; round < 60; ++round) {
    RoutingCase at = RandomRoutingCase(rng, {.causal = true, .hierarchical = round % 2 == 1});
    const Shape& shape = at.contract.shape;
    const PickRows before = PicksOf(at.Input());
    const int64_t b = RandomInt(rng, 0, shape.batch - 1);
    const int64_t i = RandomInt(rng, 0, shape.q_len - 1);
    const int64_t position = i + at.contract.mask.offset;
    // Every key that lies after the query, is of another document or is padding; other rows and heads; later queries.
    const double garbage = round % 3 == 0 ? std::nan("") : round % 3 == 1 ? 1e30 : -1e4;
    for (int64_t j = 0; j < shape.kv_len; ++j) {
      const bool mine = j <= position && at.KeyDoc(b, j) == at.QueryDoc(b, i) && at.KeyDoc(b, j) >= 0;
      for (int64_t other = 0; other < shape.batch; ++other) {
        for (int64_t head = 0; head < shape.num_kv_heads; ++head) {
          if (!mine || other != b) at.SetK(other, head, j, garbage);
        }
      }
    }
    for (int64_t later = i + 1; later < shape.q_len; ++later) {
      for (int64_t head = 0; head < shape.num_q_heads; ++head) at.SetQ(b, head, later, garbage);
    }
    const PickRows after = PicksOf(at.Input());
    for (int64_t head = 0; head < shape.num_kv_heads; ++head) {
      const auto was = before.Of(b, i, head);
      const auto is = after.Of(b, i, head);
      ASSERT_TRUE(std::equal(was.begin(), was.end(), is.begin())) << "seed " << seed << " round " << round;
    }
  }
}

TEST(RoutingScore, AVisibleKey_DoesChangePicks) {
  std::mt19937_64 rng(PrintedSeed());
  RoutingCase at = CausalCase(rng, 128, 2);
  for (int64_t head = 0; head < 4; ++head) at.SetQ(0, head, 127, 1.0);
  const auto second = [&] { return PicksOf(at.Input()).Of(0, 127, 0)[0]; };
  for (int64_t j = 0; j < 128; ++j) at.SetK(0, 0, j, j / 16 == 3 ? 1.0 : 0.5);
  EXPECT_EQ(second(), 3);
  for (int64_t j = 80; j < 96; ++j) at.SetK(0, 0, j, 2.0);
  EXPECT_EQ(second(), 5);
}

TEST(RoutingScore, AMaskThatIsNotCausal_ScoresAsFarAsItSees) {
  std::mt19937_64 rng(PrintedSeed());
  RoutingCase at = CausalCase(rng, 128, 2);
  SetMask(at, [](int64_t, int64_t p, int64_t j) { return j <= p || p < 64; });
  for (int64_t i = 0; i < 128; ++i) {
    for (int64_t head = 0; head < 4; ++head) at.SetQ(0, head, i, 1.0);
  }
  for (int64_t j = 0; j < 128; ++j) at.SetK(0, 0, j, j / 16 == 7 ? 1.0 : 0.5);
  const PickRows picks = PicksOf(at.Input());
  EXPECT_EQ(picks.Of(0, 10, 0)[1], 7) << "sees everything";
  EXPECT_EQ(picks.Of(0, 70, 0)[1], 4) << "sees its own block and what is before it";
}

TEST(RoutingScore, EqualScores_GoToTheLowerBlock) {
  std::mt19937_64 rng(PrintedSeed());
  RoutingCase at = CausalCase(rng, 160, 4);
  for (int64_t j = 0; j < 160; ++j) {
    for (int64_t head = 0; head < 2; ++head) at.SetK(0, head, j, 1.0);
  }
  const PickRows picks = PicksOf(at.Input());
  for (const int64_t head : {0, 1}) {
    EXPECT_EQ(std::vector<int32_t>(picks.Of(0, 159, head).begin(), picks.Of(0, 159, head).end()),
              (std::vector<int32_t>{0, 1, 2, 9}));
    EXPECT_EQ(std::vector<int32_t>(picks.Of(0, 20, head).begin(), picks.Of(0, 20, head).end()),
              (std::vector<int32_t>{0, 1, -1, -1}));
  }
}

TEST(RoutingScore, NanAndInfinity_HaveAPlaceAndACount) {
  std::mt19937_64 rng(PrintedSeed());
  RoutingCase at = CausalCase(rng, 96, 3);
  for (int64_t i = 0; i < 96; ++i) {
    for (int64_t head = 0; head < 4; ++head) at.SetQ(0, head, i, 1.0);
  }
  for (int64_t j = 0; j < 96; ++j) at.SetK(0, 0, j, 0.5 + static_cast<double>(j) / 1000.0);
  // All of block 4, and the last key before it, whose mean reaches into it, are NaN: the best scores are lost.
  for (int64_t j = 60; j < 80; ++j) at.SetK(0, 0, j, std::nan(""));
  PickRows picks = PicksOf(at.Input());
  EXPECT_EQ(picks.Of(0, 95, 0)[0], 2);
  EXPECT_EQ(picks.Of(0, 95, 0)[1], 3) << "its first means are numbers";
  EXPECT_EQ(picks.Of(0, 95, 0)[2], 5);
  EXPECT_GT(picks.nan_scores, 0);
  EXPECT_EQ(picks.blocks, BrutePicks(at).blocks);
  for (int64_t j = 60; j < 80; ++j) at.SetK(0, 0, j, std::numeric_limits<double>::infinity());
  picks = PicksOf(at.Input());
  EXPECT_EQ(picks.Of(0, 95, 0)[1], 4);
  EXPECT_EQ(picks.nan_scores, 0);
  // A query of NaN has no scores at all: its own block, then the lowest legal ones.
  at.SetQ(0, 1, 95, std::nan(""));
  picks = PicksOf(at.Input());
  EXPECT_EQ(std::vector<int32_t>(picks.Of(0, 95, 0).begin(), picks.Of(0, 95, 0).end()),
            (std::vector<int32_t>{0, 1, 5}));
  EXPECT_EQ(picks.nan_scores, 24) << "every mean that the query may score, in legal blocks";
}

TEST(RoutingScore, ThreadsAndOrder_ChangeNoBit) {
  std::mt19937_64 rng(PrintedSeed());
  for (const bool hierarchical : {false, true}) {
    RoutingCase at = CausalCase(rng, 700, 6);
    at.contract.routing->hierarchical = hierarchical;
    at.contract.routing->meta_keep = 5;
    at.SetK(0, 1, 300, std::nan(""));
    const PickRows expected = PicksOf(at.Input());
    for (const int threads : {2, 5}) {
      RoutingInput input = at.Input();
      input.parallel = [threads](int64_t count, const std::function<void(int64_t)>& work) {
        std::atomic<int64_t> next{count};
        std::vector<std::thread> all;
        for (int t = 0; t < threads; ++t) {
          all.emplace_back([&] {
            for (int64_t n = --next; n >= 0; n = --next) work(n);
          });
        }
        for (std::thread& thread : all) thread.join();
      };
      EXPECT_EQ(PicksOf(input), expected) << threads;
    }
  }
}

TEST(RoutingScore, PruningTheScan_ChangesNoPick) {
  Proves("R21");
  EXPECT_TRUE(IsScoreable(3, 64, 192));
  EXPECT_FALSE(IsScoreable(3, 64, 191));
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  for (int round = 0; round < 60; ++round) {
    RoutingCase at = RandomRoutingCase(rng, {.hierarchical = round % 2 == 1});
    RoutingInput input = at.Input();
    const PickRows pruned = PicksOf(input);
    input.prune = false;
    ASSERT_EQ(PicksOf(input), pruned) << "seed " << seed << " round " << round;
  }
}

TEST(RoutingScore, Dots_AreTheDocumentedOrder) {
  std::mt19937_64 rng(PrintedSeed());
  for (const int64_t dim : {16, 48, 128}) {
    for (const int64_t num_queries : {1, 2, 5}) {
      for (const int64_t num_rows : {1, 2, 7}) {
        const Tensor queries = RandomTensor(rng, ElementType::kF32, {num_queries, dim});
        const Tensor rows = RandomTensor(rng, ElementType::kF32, {num_rows, dim});
        const auto* query_values = reinterpret_cast<const float*>(queries.bytes.data());
        const auto* row_values = reinterpret_cast<const float*>(rows.bytes.data());
        std::vector<const float*> pointers;
        for (int64_t i = 0; i < num_queries; ++i) pointers.push_back(query_values + i * dim);
        std::vector<float> out(static_cast<size_t>(num_queries * 9), 7.0F);
        Dots({pointers, row_values, num_rows, dim, out.data(), 9});
        for (int64_t i = 0; i < num_queries; ++i) {
          for (int64_t m = 0; m < 9; ++m) {
            const std::vector<float> a(pointers[static_cast<size_t>(i)], pointers[static_cast<size_t>(i)] + dim);
            const float expected = m < num_rows ? LaneDot(a, {row_values + m * dim, row_values + (m + 1) * dim}) : 7.0F;
            EXPECT_EQ(out[static_cast<size_t>(i * 9 + m)], expected) << dim << " " << i << " " << m;
          }
        }
      }
    }
  }
}

TEST(RoutingScore, SixteenBitRows_ConvertExactly) {
  for (const ElementType type : {ElementType::kBf16, ElementType::kF16}) {
    std::vector<uint16_t> all(65536);
    for (size_t bits = 0; bits < all.size(); ++bits) all[bits] = static_cast<uint16_t>(bits);
    std::vector<float> out(all.size());
    CopyRow(type, reinterpret_cast<const std::byte*>(all.data()), 65536, out.data());
    for (size_t bits = 0; bits < all.size(); ++bits) {
      const float expected = type == ElementType::kBf16 ? Bf16ToF32(all[bits]) : F16ToF32(all[bits]);
      ASSERT_EQ(std::memcmp(&out[bits], &expected, sizeof(float)), 0) << bits;
    }
  }
}

TEST(RoutingScore, BadInput_IsAnErrorAtScore) {
  Proves("R26");
  std::mt19937_64 rng(PrintedSeed());
  RoutingCase at = CausalCase(rng, 40, 2);
  RoutingInput input = at.Input();
  input.k.data = nullptr;
  Result<Scored> scored = Score(input);
  ASSERT_FALSE(scored.has_value());
  EXPECT_EQ(scored.error().code, ErrorCode::kTensorMismatch);
  EXPECT_EQ(scored.error().where, "score");
  input = at.Input();
  at.legal.pop_back();
  scored = Score(input);
  ASSERT_FALSE(scored.has_value());
  EXPECT_EQ(scored.error().code, ErrorCode::kStageInvariant);
}

}  // namespace
}  // namespace tessera::routing
