// unite alone: the compact form says exactly what the picks said, both ways of making it agree, and bad picks are told
// apart.
#include <algorithm>
#include <set>

#include "routing/cases.h"
#include "support/proves.h"

namespace tessera::routing {
namespace {

PickRows RandomPicks(std::mt19937_64& rng, const UniteConfig& config) {
  PickRows out;
  out.batch = RandomInt(rng, 1, 2);
  out.q_len = config.query_tile * RandomInt(rng, 1, 4);
  out.num_kv_heads = config.num_kv_heads;
  out.top_n = config.top_n;
  out.block_tokens = 4;
  for (int64_t row = 0; row < out.batch * out.q_len * out.num_kv_heads; ++row) {
    std::set<int32_t> blocks;
    for (int64_t n = RandomInt(rng, 0, out.top_n); n > 0; --n) {
      blocks.insert(static_cast<int32_t>(RandomInt(rng, 0, config.num_blocks - 1)));
    }
    std::vector<int32_t> entries(blocks.begin(), blocks.end());
    // No pick is any negative number, wherever it stands.
    while (static_cast<int64_t>(entries.size()) < out.top_n) {
      entries.insert(entries.begin() + RandomInt(rng, 0, static_cast<int64_t>(entries.size())),
                     static_cast<int32_t>(RandomInt(rng, -5, -1)));
    }
    out.blocks.insert(out.blocks.end(), entries.begin(), entries.end());
  }
  return out;
}

UniteConfig RandomConfig(std::mt19937_64& rng) {
  UniteConfig out;
  out.query_tile = RandomInt(rng, 1, 9);
  out.num_kv_heads = RandomInt(rng, 1, 3);
  out.top_n = RandomInt(rng, 1, 5);
  out.num_blocks = RandomInt(rng, out.top_n, 150);
  return out;
}

TEST(RoutingUnite, BothModes_GiveTheSameUnions) {
  Proves("R24");
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  for (int round = 0; round < 200; ++round) {
    UniteConfig config = RandomConfig(rng);
    const PickRows picks = RandomPicks(rng, config);
    config.mode = UniteMode::kBitmap;
    const Result<UnionMaps> bitmap = Unite(config, picks);
    config.mode = UniteMode::kSort;
    const Result<UnionMaps> sorted = Unite(config, picks);
    ASSERT_TRUE(bitmap.has_value() && sorted.has_value()) << "seed " << seed << " round " << round;
    ASSERT_EQ(*bitmap, *sorted) << "seed " << seed << " round " << round;
    ASSERT_EQ(bitmap->capacity, config.num_blocks);
    // Sizes are exact, unions ascend, and every pick finds its block again.
    for (int64_t b = 0; b < picks.batch; ++b) {
      for (int64_t tile = 0; tile < bitmap->num_query_tiles; ++tile) {
        for (int64_t head = 0; head < picks.num_kv_heads; ++head) {
          const int64_t row = (b * bitmap->num_query_tiles + tile) * picks.num_kv_heads + head;
          const int32_t* listed = bitmap->union_block_indices.data() + row * bitmap->capacity;
          std::set<int32_t> used;
          for (int64_t q = tile * config.query_tile; q < (tile + 1) * config.query_tile; ++q) {
            for (int64_t n = 0; n < picks.top_n; ++n) {
              const auto at =
                  static_cast<size_t>(((b * picks.q_len + q) * picks.num_kv_heads + head) * picks.top_n + n);
              const int32_t block = picks.blocks[at];
              ASSERT_EQ(bitmap->query_union_valid[at], block >= 0 ? 1 : 0);
              if (block < 0) {
                ASSERT_EQ(bitmap->query_union_indices[at], -1);
                continue;
              }
              ASSERT_EQ(listed[bitmap->query_union_indices[at]], block);
              used.insert(block);
            }
          }
          std::vector<int32_t> expected(used.begin(), used.end());
          ASSERT_EQ(bitmap->union_sizes[static_cast<size_t>(row)], static_cast<int32_t>(expected.size()));
          expected.resize(static_cast<size_t>(bitmap->capacity), -1);
          ASSERT_TRUE(std::equal(expected.begin(), expected.end(), listed));
        }
      }
    }
  }
}

TEST(RoutingUnite, TheCompactForm_ExpandsToTheDenseMaskOfThePicks) {
  Proves("R25");
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  for (int round = 0; round < 100; ++round) {
    const UniteConfig config = RandomConfig(rng);
    const PickRows picks = RandomPicks(rng, config);
    const Result<UnionMaps> maps = Unite(config, picks);
    ASSERT_TRUE(maps.has_value());
    for (int64_t b = 0; b < picks.batch; ++b) {
      for (int64_t head = 0; head < picks.num_kv_heads; ++head) {
        std::vector<uint8_t> dense(static_cast<size_t>(picks.q_len * config.num_blocks), 0);
        for (int64_t q = 0; q < picks.q_len; ++q) {
          for (const int32_t block : picks.Of(b, q, head)) {
            if (block >= 0) dense[static_cast<size_t>(q * config.num_blocks + block)] = 1;
          }
        }
        ASSERT_EQ(ToDenseLegality(*maps, b, head), dense) << "seed " << seed << " round " << round;
      }
    }
  }
}

TEST(RoutingUnite, ShapesDependOnTheConfigurationAlone) {
  Proves("B12");
  std::mt19937_64 rng(PrintedSeed());
  const UniteConfig config{.query_tile = 4, .num_kv_heads = 2, .top_n = 3, .num_blocks = 40, .capacity = 12};
  PickRows picks = RandomPicks(rng, config);
  const Result<UnionMaps> some = Unite(config, picks);
  std::fill(picks.blocks.begin(), picks.blocks.end(), -1);
  const Result<UnionMaps> none = Unite(config, picks);
  ASSERT_TRUE(some.has_value() && none.has_value());
  EXPECT_EQ(some->capacity, none->capacity);
  EXPECT_EQ(some->union_block_indices.size(), none->union_block_indices.size());
  EXPECT_EQ(some->union_sizes.size(), none->union_sizes.size());
  EXPECT_EQ(some->query_union_indices.size(), none->query_union_indices.size());
  EXPECT_EQ(std::count(none->union_sizes.begin(), none->union_sizes.end(), 0),
            static_cast<int64_t>(none->union_sizes.size()));
}

Error ErrorOf(const UniteConfig& config, const PickRows& picks) {
  const Result<UnionMaps> maps = Unite(config, picks);
  EXPECT_FALSE(maps.has_value());
  return maps ? Error{} : maps.error();
}

TEST(RoutingUnite, TheThreeShapeFaults_AreToldApart) {
  Proves("R23 R26");
  std::mt19937_64 rng(PrintedSeed());
  const UniteConfig config{.query_tile = 4, .num_kv_heads = 2, .top_n = 3, .num_blocks = 40};
  const PickRows picks = RandomPicks(rng, config);
  std::set<std::string> messages;
  UniteConfig wrong = config;
  wrong.num_kv_heads = 3;
  Error error = ErrorOf(wrong, picks);
  EXPECT_NE(error.message.find("2 KV heads; expected 3"), std::string::npos) << error.message;
  messages.insert(error.message);
  wrong = config;
  wrong.top_n = 4;
  error = ErrorOf(wrong, picks);
  EXPECT_NE(error.message.find("3 entries per query; expected top_n, 4"), std::string::npos) << error.message;
  messages.insert(error.message);
  wrong = config;
  wrong.query_tile = 7;
  error = ErrorOf(wrong, PadToTile(picks, 4));
  EXPECT_NE(error.message.find("multiple of query_tile, 7"), std::string::npos) << error.message;
  messages.insert(error.message);
  EXPECT_EQ(messages.size(), 3U);
  EXPECT_EQ(error.code, ErrorCode::kPicksShape);
  EXPECT_EQ(error.where, "unite");
  PickRows flat = picks;
  flat.blocks.pop_back();
  error = ErrorOf(config, flat);
  EXPECT_EQ(error.code, ErrorCode::kPicksShape);
  EXPECT_NE(error.message.find("expected rank 4"), std::string::npos) << error.message;
  wrong = config;
  wrong.num_blocks = 0;
  EXPECT_EQ(ErrorOf(wrong, picks).code, ErrorCode::kPicksShape);
}

TEST(RoutingUnite, BadPicks_AreNamed) {
  Proves("R26");
  const UniteConfig config{.query_tile = 2, .num_kv_heads = 1, .top_n = 3, .num_blocks = 10};
  PickRows picks{.batch = 1, .q_len = 2, .num_kv_heads = 1, .top_n = 3, .block_tokens = 4};
  const auto message = [&](std::vector<int32_t> second) {
    picks.blocks = {0, 4, 9};
    picks.blocks.insert(picks.blocks.end(), second.begin(), second.end());
    const Error error = ErrorOf(config, picks);
    EXPECT_EQ(error.code, ErrorCode::kPicksInvalid);
    EXPECT_EQ(error.where, "unite");
    return error.message;
  };
  EXPECT_EQ(message({1, 2, 10}),
            "picks[0, 1, 0, 2] is block 10; expected a block below 10, or a negative number for no pick");
  EXPECT_EQ(message({1, -1, 1}), "picks[0, 1, 0, 2] is block 1 again; a query picks a block once");
  EXPECT_EQ(message({5, 3, -1}), "picks[0, 1, 0, 1] is block 3 after block 5; the picks of a query must ascend");
}

TEST(RoutingUnite, AUnionThatDoesNotFit_IsAnErrorOrAWiderUnion) {
  UniteConfig config{.query_tile = 2, .num_kv_heads = 1, .top_n = 2, .num_blocks = 10, .capacity = 3};
  PickRows picks{.batch = 1, .q_len = 4, .num_kv_heads = 1, .top_n = 2, .block_tokens = 4};
  picks.blocks = {0, 1, 1, 2, 3, 4, 5, 6};
  const Error error = ErrorOf(config, picks);
  EXPECT_EQ(error.code, ErrorCode::kCapacityExceeded);
  EXPECT_EQ(error.message, "query tile 1 of batch row 0, KV head 0, needs 4 blocks; union_capacity is 3");
  config.widen = true;
  Result<UnionMaps> maps = Unite(config, picks);
  ASSERT_TRUE(maps.has_value());
  EXPECT_EQ(maps->capacity, 4);
  EXPECT_EQ(maps->union_block_indices, (std::vector<int32_t>{0, 1, 2, -1, 3, 4, 5, 6}));
  config.capacity = 0;
  EXPECT_EQ(Unite(config, picks)->capacity, 4);
  config.widen = false;
  EXPECT_EQ(Unite(config, picks)->capacity, 10);
}

TEST(RoutingUnite, Padding_AddsQueriesThatPickNothing) {
  PickRows picks{.batch = 2, .q_len = 3, .num_kv_heads = 1, .top_n = 1, .block_tokens = 4};
  picks.blocks = {1, 2, 3, 4, 5, 6};
  const PickRows padded = PadToTile(picks, 2);
  EXPECT_EQ(padded.q_len, 4);
  EXPECT_EQ(padded.blocks, (std::vector<int32_t>{1, 2, 3, -1, 4, 5, 6, -1}));
  EXPECT_EQ(PadToTile(padded, 2), padded);
}

}  // namespace
}  // namespace tessera::routing
