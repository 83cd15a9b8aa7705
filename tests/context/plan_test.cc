// Cuts, placements and exchanges of tokens over shards, against the dense masks they are made from.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "support/proves.h"
#include "support/seed.h"
#include "tessera/context.h"

namespace tessera {
namespace {

using testing::HasSubstr;

Contract ContractOf(const std::string& mask, const Shape& shape, int64_t tile) {
  Contract contract;
  contract.shape = shape;
  contract.mask.heads = {ParseMaskExpr(mask).value()};
  contract.score.scale = 0.125;
  contract.tiles = {tile, tile};
  contract.tiles_reason = "short lengths";
  return contract;
}

Shape ShapeOf(int64_t tokens, int64_t batch = 1, int64_t q_heads = 2, int64_t kv_heads = 1) {
  return {.batch = batch,
          .q_len = tokens,
          .kv_len = tokens,
          .num_q_heads = q_heads,
          .num_kv_heads = kv_heads,
          .dim_qk = 8,
          .dim_v = 8,
          .dtype = DType::kBf16};
}

Batch RandomDocuments(std::mt19937_64& random, const Shape& shape, int64_t longest) {
  Batch batch;
  batch.doc_lengths.emplace();
  for (int64_t b = 0; b < shape.batch; ++b) {
    std::vector<int32_t> lengths;
    // The last few tokens belong to no document now and then.
    for (int64_t left = shape.q_len - static_cast<int64_t>(random() % 2 * (random() % 20)); left > 0;) {
      const auto length = std::min<int64_t>(left, 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(longest)));
      lengths.push_back(static_cast<int32_t>(length));
      left -= length;
    }
    batch.doc_lengths->push_back(lengths);
  }
  return batch;
}

ContextPlan Planned(const Contract& contract, const Batch& batch, const ContextOptions& options) {
  Result<ContextPlan> plan = PlanContext(contract, batch, FindTarget("cpu").value(), options);
  EXPECT_TRUE(plan.has_value()) << (plan ? "" : ToText(plan.error()));
  return std::move(plan.value());
}

ContextOptions OptionsOf(int64_t shards, int64_t tile, std::optional<CutForm> form = {}) {
  ContextOptions options;
  options.shards = shards;
  options.form = form;
  options.plan.tile = TileSize{tile, tile};
  return options;
}

// Where each token of the plan's order stands in the batch as given.
std::vector<int64_t> GivenPlaces(const RowCut& row, int64_t tokens) {
  std::vector<int64_t> places(static_cast<size_t>(tokens), -1);
  for (const Piece& piece : row.order) {
    for (int64_t i = 0; i < piece.count; ++i) places[static_cast<size_t>(piece.offset + i)] = piece.start + i;
  }
  return places;
}

// Loads and needs as the dense masks have them.
void ExpectFacts(const ContextPlan& plan) {
  const PlanView& view = plan.plan->view();
  const int64_t len = view.q_len;
  std::vector<ShardLoad> loads(static_cast<size_t>(plan.shards));
  std::vector<std::vector<std::set<int32_t>>> needs(loads.size(), std::vector<std::set<int32_t>>(loads.size()));
  const int64_t tiles = plan.tiles_per_shard * plan.shards;
  for (int64_t b = 0; b < view.batch; ++b) {
    const std::vector<uint32_t>& shard_of = plan.rows[static_cast<size_t>(b)].shard_of;
    for (int64_t h = 0; h < view.num_q_heads; ++h) {
      const std::vector<uint8_t> dense = ToDense(view, Direction::kForward, b, h).value();
      std::set<std::pair<int64_t, int64_t>> executed;
      for (int64_t q = 0; q < len; ++q) {
        for (int64_t k = 0; k < len; ++k) {
          if (dense[static_cast<size_t>(q * len + k)] == 0) continue;
          ++loads[shard_of[static_cast<size_t>(q / plan.tile)]].pairs;
          executed.insert({q / plan.tile, k / plan.tile});
        }
      }
      for (const auto& [q, k] : executed) {
        const uint32_t target = shard_of[static_cast<size_t>(q)];
        const uint32_t source = shard_of[static_cast<size_t>(k)];
        ++loads[target].tiles;
        if (source != target) needs[target][source].insert(static_cast<int32_t>(b * tiles + k));
      }
    }
  }
  for (size_t target = 0; target < loads.size(); ++target) {
    EXPECT_EQ(plan.loads[target].tiles, loads[target].tiles);
    EXPECT_EQ(plan.loads[target].pairs, loads[target].pairs);
    int64_t received = 0;
    for (size_t source = 0; source < loads.size(); ++source) {
      const std::set<int32_t>& want = needs[target][source];
      EXPECT_EQ(plan.needs[target][source], std::vector<int32_t>(want.begin(), want.end()));
      received += static_cast<int64_t>(want.size());
    }
    EXPECT_EQ(plan.loads[target].received, received);
  }
}

// The mask of the new order is that of the given one with its tokens in other places.
void ExpectSameMask(const ContextPlan& plan, const Plan& given) {
  const PlanView& view = plan.plan->view();
  const int64_t len = view.q_len;
  for (int64_t b = 0; b < view.batch; ++b) {
    const std::vector<int64_t> places = GivenPlaces(plan.rows[static_cast<size_t>(b)], len);
    const std::vector<uint8_t> now = ToDense(view, Direction::kForward, b, 0).value();
    const std::vector<uint8_t> before = ToDense(given.view(), Direction::kForward, b, 0).value();
    for (int64_t q = 0; q < len; ++q) {
      for (int64_t k = 0; k < len; ++k) {
        const int64_t at = places[static_cast<size_t>(q)] * len + places[static_cast<size_t>(k)];
        ASSERT_EQ(now[static_cast<size_t>(q * len + k)], before[static_cast<size_t>(at)]) << q << " " << k;
      }
    }
  }
}

// Every device has what it needs after the rounds, once, from somebody who has it.
void ExpectRoundsBring(const ContextPlan& plan) {
  const SparseSteps steps = MakeSparseSteps(plan.needs);
  ASSERT_EQ(steps.pairs.size(), steps.trips.size());
  ASSERT_EQ(steps.pairs, SparsePairs(plan.shards));
  std::vector<std::vector<int32_t>> got(plan.needs.size());
  size_t round = 0;
  for (size_t step = 0; step < steps.pairs.size(); ++step) {
    for (int32_t trip = 0; trip < steps.trips[step]; ++trip, ++round) {
      std::set<int32_t> named;
      for (const auto& [source, target] : steps.pairs[step]) {
        const Round& sends = steps.rounds[static_cast<size_t>(source)][round];
        const Round& takes = steps.rounds[static_cast<size_t>(target)][round];
        EXPECT_EQ(sends.send, takes.receive);
        named.insert(target);
        if (takes.receive >= 0) got[static_cast<size_t>(target)].push_back(takes.receive);
      }
      for (size_t device = 0; device < got.size(); ++device) {
        const bool is_named = named.count(static_cast<int32_t>(device)) != 0;
        EXPECT_TRUE(is_named || steps.rounds[device][round].receive == -1);
      }
    }
  }
  for (size_t target = 0; target < got.size(); ++target) {
    EXPECT_EQ(steps.rounds[target].size(), round);
    std::vector<int32_t> want;
    for (const std::vector<int32_t>& tiles : plan.needs[target]) want.insert(want.end(), tiles.begin(), tiles.end());
    std::sort(want.begin(), want.end());
    std::sort(got[target].begin(), got[target].end());
    EXPECT_EQ(got[target], want);
  }
}

constexpr const char* kMasks[] = {"causal",
                                  "full",
                                  "window(30, 5)",
                                  "causal and documents",
                                  "documents",
                                  "causal and documents and (window(20, 0) or sink(3, document))",
                                  "causal and chunk(40)",
                                  "causal or prefix(25)"};

TEST(Context, AnyCut_IsWhatTheDenseMaskSays) {
  std::mt19937_64 random(PrintedSeed());
  for (int i = 0; i < 40; ++i) {
    const std::string mask = kMasks[random() % std::size(kMasks)];
    const Shape shape = ShapeOf(1 + static_cast<int64_t>(random() % 160), 1 + static_cast<int64_t>(random() % 2));
    const int64_t tile = int64_t{4} << random() % 3;
    const Contract contract = ContractOf(mask, shape, tile);
    const bool has_documents = mask.find("documents") != std::string::npos;
    const Batch batch = has_documents ? RandomDocuments(random, shape, 60) : Batch();
    const auto form = kCutForms[random() % (has_documents ? 3 : 2)];
    SCOPED_TRACE(mask + " " + std::to_string(shape.q_len) + " tile " + std::to_string(tile) + " " +
                 std::string(ToText(form)));
    const ContextPlan plan = Planned(contract, batch, OptionsOf(1 + static_cast<int64_t>(random() % 6), tile, form));
    ASSERT_EQ(plan.form, form);
    for (const RowCut& row : plan.rows) {
      const Status good = VerifyCut(row, shape.q_len, plan.tile, plan.shards);
      ASSERT_TRUE(good.has_value()) << ToText(good.error());
    }
    ExpectFacts(plan);
    ExpectRoundsBring(plan);
    PlanOptions options;
    options.tile = TileSize{tile, tile};
    const PlanResult given = MakePlan(contract, batch, FindTarget("cpu").value(), options).value();
    ExpectSameMask(plan, given.plan);
  }
}

TEST(Context, InverseOrder_PutsEveryTokenBack) {
  std::mt19937_64 random(PrintedSeed());
  const Shape shape = ShapeOf(300);
  const ContextPlan plan = Planned(ContractOf("causal and documents", shape, 16), RandomDocuments(random, shape, 70),
                                   OptionsOf(4, 16, CutForm::kReordered));
  const std::vector<int64_t> places = GivenPlaces(plan.rows[0], shape.q_len);
  for (const Piece& piece : InverseOrder(plan.rows[0].order)) {
    for (int64_t i = 0; i < piece.count; ++i) EXPECT_EQ(places[static_cast<size_t>(piece.start + i)], piece.offset + i);
  }
  EXPECT_EQ(InverseOrder(InverseOrder(plan.rows[0].order)), plan.rows[0].order);
}

double Share(const ContextPlan& plan, Exchange exchange) {
  return static_cast<double>(plan.BytesOf(exchange).total) /
         static_cast<double>(plan.BytesOf(Exchange::kAllGather).total);
}

TEST(Context, KnownMasks_CarryTheirFloors) {
  const Shape long_row = {.batch = 1,
                          .q_len = 131072,
                          .kv_len = 131072,
                          .num_q_heads = 8,
                          .num_kv_heads = 8,
                          .dim_qk = 128,
                          .dim_v = 128,
                          .dtype = DType::kBf16};
  Shape half = long_row;
  half.q_len = half.kv_len = 65536;
  const ContextPlan window = Planned(ContractOf("window(4095, 0)", long_row, 256), {}, OptionsOf(8, 256));
  EXPECT_EQ(window.form, CutForm::kContiguous);
  EXPECT_EQ(window.exchange, Exchange::kSparse);
  EXPECT_EQ(Share(window, Exchange::kSparse), 1.0 / 32);  // 7 edges of 16 tiles
  EXPECT_EQ(window.BytesOf(Exchange::kAllGather).total, int64_t{7} * 131072 * 2 * 8 * 128 * 2);
  EXPECT_LE(window.TileBalance(), 1.02);
  const Contract causal = ContractOf("causal", half, 256);
  const ContextPlan in_order = Planned(causal, {}, OptionsOf(8, 256, CutForm::kContiguous));
  EXPECT_EQ(Share(in_order, Exchange::kSparse), 0.5);
  EXPECT_EQ(Share(in_order, Exchange::kRing), 0.5);
  EXPECT_EQ(Share(in_order, Exchange::kHeads), 0.25);
  EXPECT_EQ(in_order.exchange, Exchange::kHeads);
  // The last device gets all there is.
  EXPECT_EQ(in_order.BytesOf(Exchange::kSparse).largest, in_order.BytesOf(Exchange::kAllGather).largest);
  const ContextPlan zigzag = Planned(causal, {}, OptionsOf(8, 256, CutForm::kZigzag));
  EXPECT_EQ(Share(zigzag, Exchange::kSparse), 0.75);
  EXPECT_EQ(zigzag.TileBalance(), 1.0);
}

TEST(Context, EvenDocuments_NeedNothingOfOthersWhenReordered) {
  std::mt19937_64 random(20261118);  // one order: what is found depends on it
  Shape shape = ShapeOf(131072);
  std::vector<int32_t> lengths;
  for (int32_t i = 0; i < 64; ++i) lengths.push_back(32 + 64 * i);
  for (size_t i = lengths.size(); i > 1; --i) std::swap(lengths[i - 1], lengths[random() % i]);
  Batch batch;
  batch.doc_lengths = IntRows{lengths};
  const ContextPlan plan = Planned(ContractOf("causal and documents", shape, 256), batch, OptionsOf(8, 256));
  EXPECT_EQ(plan.form, CutForm::kReordered);
  EXPECT_EQ(plan.BytesOf(Exchange::kSparse).total, 0);
  EXPECT_LE(plan.TileBalance(), 1.05);
  EXPECT_THAT(plan.reason, HasSubstr("least cost"));
  EXPECT_THAT(Summary(plan), HasSubstr("8 shards, 64 tiles of 256 tokens each"));
  EXPECT_THAT(ToJson(plan), HasSubstr("\"cut\": \"reordered\""));
}

TEST(Context, OneLongDocument_IsCut) {
  Shape shape = ShapeOf(16384);
  Batch batch;
  batch.doc_lengths = IntRows{{12000, 1000, 900, 800, 700, 500, 300, 184}};
  const ContextPlan plan =
      Planned(ContractOf("causal and documents", shape, 64), batch, OptionsOf(4, 64, CutForm::kReordered));
  EXPECT_LE(plan.TileBalance(), 1.05);
  // The same bytes of a plan from the same documents, whoever asks.
  const ContextPlan again =
      Planned(ContractOf("causal and documents", shape, 64), batch, OptionsOf(4, 64, CutForm::kReordered));
  EXPECT_EQ(plan.rows, again.rows);
}

TEST(Context, EmptyShards_AreLegal) {
  const ContextPlan plan = Planned(ContractOf("causal", ShapeOf(20), 16), {}, OptionsOf(6, 16, CutForm::kContiguous));
  EXPECT_EQ(plan.tiles_per_shard, 1);
  for (size_t s = 2; s < 6; ++s) {
    EXPECT_EQ(plan.loads[s].tiles, 0);
    EXPECT_TRUE(plan.rows[0].rows[s].empty());
  }
}

void ExpectRefused(const Contract& contract, const ContextOptions& options, const std::string& part) {
  const Result<ContextPlan> plan = PlanContext(contract, {}, FindTarget("cpu").value(), options);
  ASSERT_FALSE(plan.has_value());
  EXPECT_EQ(CodeText(plan.error().code), "TSR-S020");
  EXPECT_THAT(ToText(plan.error()), HasSubstr(part));
}

TEST(Context, WhatCannotBeCut_IsRefused) {
  const Contract causal = ContractOf("causal", ShapeOf(64), 16);
  ExpectRefused(causal, OptionsOf(0, 16), "expected 1 to 256 shards, found 0");
  ExpectRefused(causal, OptionsOf(257, 16), "found 257");
  ExpectRefused(causal, OptionsOf(2, 16, CutForm::kReordered), "the mask has no documents");
  Contract longer = causal;
  longer.shape.kv_len = 128;
  longer.mask.offset = 64;
  ExpectRefused(longer, OptionsOf(2, 16), "q_len 64 and kv_len 128");
  ContextOptions odd = OptionsOf(2, 16);
  odd.plan.tile = TileSize{24, 16};
  ExpectRefused(causal, odd, "found 24 x 16");
  ContextOptions heads = OptionsOf(2, 16);
  heads.exchange = Exchange::kHeads;
  ExpectRefused(causal, heads, "1 key heads do not divide by 2 shards");
  ExpectRefused(ContractOf("causal and (documents or sink(4))", ShapeOf(64), 16), OptionsOf(2, 16, CutForm::kReordered),
                "names places");
  EXPECT_FALSE(ParseCutForm("spiral"));
  EXPECT_FALSE(ParseExchange("pigeon"));
  EXPECT_EQ(ParseExchange("sparse").value(), Exchange::kSparse);
}

TEST(Context, ACutThatBreaksARule_IsFound) {
  const RowCut good = Planned(ContractOf("causal", ShapeOf(64), 16), {}, OptionsOf(2, 16, CutForm::kZigzag)).rows[0];
  ASSERT_TRUE(VerifyCut(good, 64, 16, 2));
  EXPECT_FALSE(VerifyCut(good, 64, 16, 4));  // of another mesh
  EXPECT_FALSE(VerifyCut(good, 80, 16, 2));
  RowCut bad = good;
  bad.shard_of[0] = 7;
  EXPECT_FALSE(VerifyCut(bad, 64, 16, 2));
  bad = good;
  std::swap(bad.shard_of[0], bad.shard_of[1]);
  EXPECT_FALSE(VerifyCut(bad, 64, 16, 2));
  bad = good;
  bad.order = {{0, 32, 0}, {16, 32, 32}};
  EXPECT_FALSE(VerifyCut(bad, 64, 16, 2));
  bad.order = {{0, 63, 0}};
  EXPECT_FALSE(VerifyCut(bad, 64, 16, 2));
}

}  // namespace
}  // namespace tessera
