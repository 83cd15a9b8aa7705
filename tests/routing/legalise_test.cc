// legalise alone: what stays has a legal key, what goes is counted once under the rule that forbade it; and how good
// picks are is measured against plain softmax.
#include <algorithm>
#include <array>
#include <set>

#include "routing/brute.h"
#include "routing/cases.h"
#include "routing_inputs.h"
#include "support/proves.h"

namespace tessera::routing {
namespace {

// Every query of every head picks these blocks.
UnionMaps MapsOf(const RoutingCase& at, const std::vector<int32_t>& blocks, int64_t query_tile) {
  PickRows picks;
  picks.batch = at.contract.shape.batch;
  picks.q_len = at.contract.shape.q_len;
  picks.num_kv_heads = at.contract.shape.num_kv_heads;
  picks.top_n = static_cast<int64_t>(blocks.size());
  picks.block_tokens = at.contract.routing->selected_block;
  for (int64_t row = 0; row < picks.batch * picks.q_len * picks.num_kv_heads; ++row) {
    picks.blocks.insert(picks.blocks.end(), blocks.begin(), blocks.end());
  }
  const UniteConfig config{
      .query_tile = query_tile, .num_kv_heads = picks.num_kv_heads, .top_n = picks.top_n, .num_blocks = at.NumBlocks()};
  Result<UnionMaps> maps = Unite(config, PadToTile(picks, query_tile));
  EXPECT_TRUE(maps.has_value()) << ToText(maps.error());
  return *maps;
}

RoutingCase SmallCase(int64_t len) {
  RoutingCase out;
  out.contract.shape.q_len = out.contract.shape.kv_len = len;
  out.contract.mask.heads.resize(1);
  out.contract.routing = Routing{.selected_block = 4, .block_stride = 2, .compression_block = 4, .top_n = 2};
  out.rows.resize(1);
  return out;
}

TEST(RoutingLegalise, EachReason_IsCounted) {
  Proves("R26");
  RoutingCase at = SmallCase(16);
  // Documents of 8, 6 and 2 tokens of padding; 12 queries are valid.
  at.q_docs = at.kv_docs = {{0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, -1, -1}};
  at.rows[0].q_segments = at.rows[0].kv_segments = ToSegments(at.q_docs[0]);
  at.rows[0].q_valid = 12;
  SetMask(at, [](int64_t, int64_t p, int64_t j) { return j <= p; });
  const Result<Legalised> causal = Legalise(at.Input(), MapsOf(at, {0, 1, 2}, 4));
  ASSERT_TRUE(causal.has_value()) << ToText(causal.error());
  // Queries 0-3 see block 0, 4-7 blocks 0 and 1, 8-11 block 2, 12-15 are padding.
  EXPECT_EQ(causal->report,
            (LegaliseReport{.picks = 48, .kept = 4 + 8 + 4, .padding = 12, .documents = 4 + 4 + 8, .causality = 4}));
  EXPECT_EQ(causal->maps.union_sizes, (std::vector<int32_t>{1, 2, 1, 0}));
  EXPECT_EQ(causal->maps.union_block_indices[static_cast<size_t>(2 * causal->maps.capacity)], 2);

  MaskExpr& window = at.contract.mask.heads[0];
  window.term.kind = TermKind::kWindow;
  SetMask(at, [](int64_t, int64_t p, int64_t j) { return j <= p && j >= p - 1; });
  Result<Legalised> narrow = Legalise(at.Input(), MapsOf(at, {0, 1, 2}, 4));
  EXPECT_EQ(narrow->report.window, 3) << "queries 5, 6 and 7 no longer see block 0";
  EXPECT_EQ(narrow->report.other, 0);
  window.term.kind = TermKind::kBitmap;
  narrow = Legalise(at.Input(), MapsOf(at, {0, 1, 2}, 4));
  EXPECT_EQ(narrow->report.window, 0);
  EXPECT_EQ(narrow->report.other, 3);
  at.rows[0].kv_valid = 8;
  SetMask(at, [](int64_t, int64_t p, int64_t j) { return j <= p; });
  EXPECT_EQ(Legalise(at.Input(), MapsOf(at, {2}, 4))->report.padding, 16) << "no key of block 2 is valid";
}

TEST(RoutingLegalise, WhatStays_HasALegalKey) {
  Proves("R19 R26");
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  for (int round = 0; round < 60; ++round) {
    RoutingCase at = RandomRoutingCase(rng, {.max_len = 60});
    const int64_t tile = RandomInt(rng, 1, 16);
    std::set<int32_t> blocks;
    for (int n = 0; n < 4; ++n) blocks.insert(static_cast<int32_t>(RandomInt(rng, 0, at.NumBlocks() - 1)));
    const UnionMaps maps = MapsOf(at, {blocks.begin(), blocks.end()}, tile);
    const Result<Legalised> legal = Legalise(at.Input(), maps);
    ASSERT_TRUE(legal.has_value());
    const LegaliseReport& report = legal->report;
    ASSERT_EQ(report.picks,
              report.kept + report.padding + report.documents + report.causality + report.window + report.other);
    int64_t kept = 0;
    for (int64_t b = 0; b < maps.batch; ++b) {
      for (int64_t head = 0; head < maps.num_kv_heads; ++head) {
        const std::vector<uint8_t> before = ToDenseLegality(maps, b, head);
        const std::vector<uint8_t> after = ToDenseLegality(legal->maps, b, head);
        for (int64_t q = 0; q < at.contract.shape.q_len; ++q) {
          const BruteQuery query = BruteQueryOf(at, b, head, q);
          for (int64_t block = 0; block < maps.num_blocks; ++block) {
            const auto cell = static_cast<size_t>(q * maps.num_blocks + block);
            const bool expected = before[cell] != 0 && query.legal[static_cast<size_t>(block)];
            ASSERT_EQ(after[cell] != 0, expected) << "seed " << seed << " round " << round;
            kept += expected ? 1 : 0;
          }
        }
        // A union holds exactly what some query of its tile still uses.
        for (int64_t t = 0; t < maps.num_query_tiles; ++t) {
          std::set<int64_t> used;
          for (int64_t q = t * tile; q < (t + 1) * tile; ++q) {
            for (int64_t block = 0; block < maps.num_blocks; ++block) {
              if (after[static_cast<size_t>(q * maps.num_blocks + block)] != 0) used.insert(block);
            }
          }
          const int64_t row = (b * maps.num_query_tiles + t) * maps.num_kv_heads + head;
          ASSERT_EQ(legal->maps.union_sizes[static_cast<size_t>(row)], static_cast<int32_t>(used.size()));
        }
      }
    }
    ASSERT_EQ(report.kept, kept);
    ASSERT_EQ(legal->maps.capacity, maps.capacity);
    const Result<Legalised> again = Legalise(at.Input(), legal->maps);
    ASSERT_EQ(again->maps, legal->maps) << "nothing is left to take away";
    ASSERT_EQ(again->report.kept, again->report.picks);
  }
}

TEST(RoutingLegalise, PicksOfScore_AllStay) {
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  for (int round = 0; round < 20; ++round) {
    RoutingCase at = RandomRoutingCase(rng, {.hierarchical = round % 2 == 0});
    const Routing& routing = *at.contract.routing;
    const UniteConfig config{.query_tile = 8,
                             .num_kv_heads = at.contract.shape.num_kv_heads,
                             .top_n = routing.top_n,
                             .num_blocks = at.NumBlocks()};
    const Result<UnionMaps> maps = Unite(config, PadToTile(PicksOf(at.Input()), 8));
    ASSERT_TRUE(maps.has_value()) << ToText(maps.error());
    const Result<Legalised> legal = Legalise(at.Input(), *maps);
    ASSERT_TRUE(legal.has_value());
    EXPECT_EQ(legal->maps, *maps) << "seed " << seed << " round " << round;
    EXPECT_EQ(legal->report.kept, legal->report.picks);
  }
}

TEST(RoutingLegalise, DamagedUnions_AreRefused) {
  Proves("R26");
  RoutingCase at = SmallCase(16);
  SetMask(at, [](int64_t, int64_t p, int64_t j) { return j <= p; });
  const UnionMaps good = MapsOf(at, {0, 2}, 4);
  const auto code = [&](const UnionMaps& maps) {
    const Result<Legalised> legal = Legalise(at.Input(), maps);
    EXPECT_TRUE(legal || legal.error().where == "legalise");
    return legal ? ErrorCode::kBadArgument : legal.error().code;
  };
  UnionMaps bad = good;
  bad.query_union_indices[3] = 2;
  EXPECT_EQ(code(bad), ErrorCode::kPicksInvalid) << "past the union";
  bad = good;
  bad.union_block_indices[1] = 4;
  EXPECT_EQ(code(bad), ErrorCode::kPicksInvalid) << "no such block";
  bad = good;
  bad.union_block_indices[0] = 3;
  EXPECT_EQ(code(bad), ErrorCode::kPicksInvalid) << "not ascending";
  bad = good;
  bad.union_sizes[0] = 99;
  EXPECT_EQ(code(bad), ErrorCode::kPicksInvalid);
  bad = good;
  bad.query_union_valid.pop_back();
  EXPECT_EQ(code(bad), ErrorCode::kPicksShape);
  bad = good;
  bad.batch = 2;
  EXPECT_EQ(code(bad), ErrorCode::kPicksShape);
}

TEST(RoutingMeasure, Recall_CountsWhatIsFoundAgain) {
  PickRows all{.batch = 1, .q_len = 2, .num_kv_heads = 1, .top_n = 2, .block_tokens = 4};
  all.blocks = {0, 3, 1, -1};
  PickRows some = all;
  EXPECT_DOUBLE_EQ(Recall(some, all), 1.0);
  some.blocks = {0, 2, 0, 2};
  EXPECT_DOUBLE_EQ(Recall(some, all), 1.0 / 3.0);
  all.blocks = {-1, -1, -1, -1};
  EXPECT_DOUBLE_EQ(Recall(some, all), 1.0) << "nothing to find";
}

TEST(RoutingMeasure, MassKept_IsTheShareOfPlainSoftmax) {
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  for (int round = 0; round < 20; ++round) {
    RoutingCase at = RandomRoutingCase(rng);
    const Shape& shape = at.contract.shape;
    at.contract.score.softcap = round % 2 == 0 ? 0.0 : 3.0;
    const PickRows picks = PicksOf(at.Input());
    std::vector<int64_t> queries;
    for (int64_t i = 0; i < shape.q_len; i += 5) queries.push_back(i);
    double total = 0.0;
    int64_t count = 0;
    for (int64_t b = 0; b < shape.batch; ++b) {
      for (int64_t head = 0; head < shape.num_q_heads; ++head) {
        const int64_t kv_head = head / (shape.num_q_heads / shape.num_kv_heads);
        for (const int64_t i : queries) {
          double all = 0.0;
          double kept = 0.0;
          for (int64_t j = 0; j < shape.kv_len; ++j) {
            if (!at.Allowed(b, kv_head, i, j)) continue;
            double score = 0.0;
            for (int64_t d = 0; d < shape.dim_qk; ++d) {
              score += static_cast<double>(at.Q(b, head, i, d)) * static_cast<double>(at.K(b, kv_head, j, d));
            }
            score *= at.contract.score.scale;
            if (round % 2 == 1) score = 3.0 * std::tanh(score / 3.0);
            all += std::exp(score);
            const auto picked = picks.Of(b, i, kv_head);
            const auto block = static_cast<int32_t>(j / at.contract.routing->selected_block);
            if (std::count(picked.begin(), picked.end(), block) > 0) kept += std::exp(score);
          }
          if (all == 0.0) continue;
          total += kept / all;
          ++count;
        }
      }
    }
    const Result<double> mass = MassKept(at.Input(), picks, queries);
    ASSERT_TRUE(mass.has_value());
    ASSERT_NEAR(*mass, count == 0 ? 1.0 : total / static_cast<double>(count), 1e-4) << "seed " << seed;
  }
  RoutingCase at = RandomRoutingCase(rng);
  const PickRows picks = PicksOf(at.Input());
  const int64_t beyond = at.contract.shape.q_len;
  EXPECT_FALSE(MassKept(at.Input(), picks, {&beyond, 1}).has_value());
}

TEST(RoutingMeasure, PlantedStructure_IsFoundByBothWays) {
  const bench::RoutingInputs spec{.len = 8192, .num_q_heads = 2, .num_kv_heads = 1, .dim = 64, .seed = PrintedSeed()};
  bench::RoutingTensors tensors = bench::MakeRoutingTensors(spec);
  EXPECT_EQ(bench::MakeRoutingTensors(spec).q, tensors.q) << "deterministic";
  RoutingCase at;
  Shape& shape = at.contract.shape;
  shape.q_len = shape.kv_len = spec.len;
  shape.num_q_heads = 2;
  shape.dim_qk = shape.dim_v = 64;
  at.contract.score.scale = 0.125;
  at.contract.routing.emplace();
  at.contract.routing->meta_keep = 8;
  at.rows.resize(1);
  at.legal.push_back(RowSet::FromRun({.q_begin = 0, .q_end = 8192, .kv_begin = 0, .kv_end = 8192, .diag_end = 1}));
  RoutingInput input = at.Input();
  input.q = {ElementType::kF32, reinterpret_cast<std::byte*>(tensors.q.data()), 0, 8192 * 64, 64};
  input.k = {ElementType::kF32, reinterpret_cast<std::byte*>(tensors.k.data()), 0, 8192 * 64, 64};
  std::vector<int64_t> queries;
  for (int64_t i = 5000; i < 8192; i += 97) queries.push_back(i);
  const PickRows exhaustive = PicksOf(input);
  at.contract.routing->hierarchical = true;
  const PickRows expanded = PicksOf(input);
  const double best = *MassKept(input, exhaustive, queries);
  const double mass = *MassKept(input, expanded, queries);
  EXPECT_GT(best, 0.8) << "seed " << spec.seed;
  EXPECT_GT(mass, 0.8 * best) << "seed " << spec.seed << ", recall " << Recall(expanded, exhaustive);
}

}  // namespace
}  // namespace tessera::routing
