// Cuts, placements and exchanges of tokens over shards, against the dense masks they are made from.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <set>

#include "shard/exchange.h"
#include "shard/level.h"
#include "shard/pod_model.h"
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

// By cost, which is bytes, a sparse exchange's counting 1 / 0.6; the reason says what was compared. A ring has other
// roundings, and is never taken unasked.
TEST(Context, Exchange_IsTheCheapest_AndTheReasonSaysOfWhich) {
  const auto bytes = [](int64_t sparse, std::optional<int64_t> heads) {
    return std::vector<ExchangeBytes>{{.exchange = Exchange::kAllGather, .total = 1000, .trips = 1},
                                      {.exchange = Exchange::kHeads,
                                       .is_possible = heads.has_value(),
                                       .total = heads.value_or(0),
                                       .why = heads ? "" : "1 key heads do not divide by 8 shards"},
                                      {.exchange = Exchange::kRing, .total = 10},
                                      {.exchange = Exchange::kSparse, .total = sparse}};
  };
  struct Wanted {
    int64_t sparse;
    std::optional<int64_t> heads;
    Exchange exchange;
  };
  for (const Wanted& c : {Wanted{600, {}, Exchange::kSparse}, Wanted{601, {}, Exchange::kAllGather},
                          Wanted{1000, {}, Exchange::kAllGather}, Wanted{601, 750, Exchange::kHeads},
                          Wanted{440, 750, Exchange::kSparse}, Wanted{460, 750, Exchange::kHeads},
                          Wanted{900, 1250, Exchange::kAllGather}, Wanted{0, 250, Exchange::kSparse}}) {
    const shard::ExchangeChoice choice = shard::ChooseExchange(bytes(c.sparse, c.heads));
    EXPECT_EQ(choice.exchange, c.exchange) << choice.reason;
    EXPECT_THAT(choice.reason, HasSubstr(fmt::format("{}: least cost of sparse ", ToText(c.exchange))));
    EXPECT_THAT(choice.reason, HasSubstr(c.heads ? "heads " : "heads not possible (1 key heads do not divide"));
    EXPECT_THAT(choice.reason, HasSubstr("allgather 1.0000; ring (0.0100 of the bytes) only where asked for"));
  }
  // One key head, and a cut that is level: nothing else is left.
  const ContextPlan one =
      Planned(ContractOf("causal", ShapeOf(2048, 1, 8, 1), 16), {}, OptionsOf(8, 16, CutForm::kZigzag));
  EXPECT_EQ(Share(one, Exchange::kSparse), 0.75);
  EXPECT_EQ(one.exchange, Exchange::kAllGather) << one.reason;
  EXPECT_THAT(one.reason, HasSubstr("sparse 1.2500 (0.7500 of the bytes, tile by tile)"));
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

// Causal in order is as far from level as it gets: 15 to 1 over eight shards.
TEST(Context, ExchangedTiles_MakeShardsLevel) {
  const Contract contract = ContractOf("causal", ShapeOf(1024, 2), 16);
  ContextPlan plan = Planned(contract, {}, OptionsOf(8, 16, CutForm::kContiguous));
  EXPECT_GT(plan.TileBalance(), 1.8);
  shard::LevelShards(plan.plan->view(), {.shards = 8, .tile = 16, .tokens = 1024, .percent = 5}, plan.rows);
  std::vector<int64_t> loads(8, 0);
  for (const RowCut& row : plan.rows) {
    EXPECT_TRUE(VerifyCut(row, 1024, 16, 8));
    for (size_t t = 0; t < row.shard_of.size(); ++t) loads[row.shard_of[t]] += 2 * (static_cast<int64_t>(t) + 1);
  }
  const int64_t mean = 2 * 2 * (64 * 65 / 2) / 8;
  for (const int64_t load : loads) EXPECT_LE(load * 100, mean * 105);
}

// Few tiles for each shard and a document or two with most of the work: what whole documents cannot make level.
TEST(Context, HeavyDocuments_AreLevelInEveryBatch) {
  std::mt19937_64 random(PrintedSeed());
  const Contract contract = ContractOf("causal and documents", ShapeOf(4096), 16);
  for (int trial = 0; trial < 20; ++trial) {
    std::lognormal_distribution<double> draw(4.0, 1.2);
    std::vector<int32_t> lengths;
    for (int64_t left = 4096; left > 0; left -= lengths.back()) {
      lengths.push_back(static_cast<int32_t>(std::clamp<int64_t>(static_cast<int64_t>(draw(random)), 1, left)));
    }
    Batch batch;
    batch.doc_lengths = IntRows{lengths};
    const ContextPlan plan = Planned(contract, batch, OptionsOf(8, 16, CutForm::kReordered));
    EXPECT_LE(plan.TileBalance(), 1.05) << trial;
    EXPECT_TRUE(VerifyCut(plan.rows[0], 4096, 16, 8));
  }
}

// What the model of pods says that the neediest chip receives is what a plan of as many shards does.
TEST(Context, ModelOfPods_IsThePlansWhereAPlanCanBeMade) {
  const Shape shape = ShapeOf(1024, 1, 8, 8);
  for (const int64_t window : {0, 128}) {
    const Contract contract = ContractOf(window > 0 ? "window(128, 0)" : "causal", shape, 16);
    const ContextPlan plan =
        Planned(contract, {}, OptionsOf(8, 16, window > 0 ? CutForm::kContiguous : CutForm::kZigzag));
    Shape own = shape;
    own.q_len = 128;
    const shard::PodCost cost = shard::ModelPods(*ChipFiguresOf("v6e"), {.shape = own, .window = window}, {8})[0];
    EXPECT_EQ(cost.allgather.bytes, static_cast<double>(plan.BytesOf(Exchange::kAllGather).largest));
    EXPECT_EQ(cost.sparse.bytes, static_cast<double>(plan.BytesOf(Exchange::kSparse).largest));
    ASSERT_TRUE(cost.heads);
    EXPECT_EQ(cost.heads->bytes, static_cast<double>(plan.BytesOf(Exchange::kHeads).largest));
    EXPECT_GT(cost.compute_s, 0);
    EXPECT_EQ(cost.slices, 1);
    EXPECT_EQ(cost.sparse.seconds, cost.sparse.bytes / ChipFiguresOf("v6e")->link_bytes);
  }
  EXPECT_FALSE(ChipFiguresOf("cpu"));
  const ChipFigures chip{.flops = 1, .link_bytes = 1, .slice_chips = 8, .network_bytes = 0.5};
  const std::vector<shard::PodCost> pods = shard::ModelPods(chip, {.shape = shape, .window = 128}, {8, 16});
  EXPECT_FALSE(pods[1].heads);
  // Of two slices each chip brings an eighth of the other's, and the first one's window comes from there.
  EXPECT_EQ(pods[1].slices, 2);
  EXPECT_EQ(pods[0].allgather.seconds, pods[0].allgather.bytes);
  EXPECT_EQ(pods[1].allgather.seconds, pods[1].allgather.bytes + 2 * (pods[1].allgather.bytes / 15));
  EXPECT_EQ(pods[1].sparse.seconds, 3 * pods[1].sparse.bytes);
}

// A backward returns dK and dV in f32, or brings the rows that touch a key to who has it: one query head for each key
// head makes those the same elements at half the width, and causal rows touch as many keys as keys rows.
TEST(Context, BackwardsBytes_AreThoseOfTheCheaperWay) {
  Proves("R79");
  const auto planned = [](const std::string& mask, int64_t q_heads, int64_t kv_heads) {
    return Planned(ContractOf(mask, ShapeOf(1024, 1, q_heads, kv_heads), 16), {},
                   OptionsOf(4, 16, CutForm::kContiguous));
  };
  for (const char* mask : {"causal", "causal and window(63, 0)"}) {
    const ContextPlan alike = planned(mask, 2, 2);
    for (const Exchange exchange : {Exchange::kAllGather, Exchange::kSparse}) {
      const ExchangeBytes& bytes = alike.BytesOf(exchange);
      EXPECT_EQ(bytes.backward, 3 * bytes.total);  // f32 beside bf16
      // lse and delta are eight bytes beside the 32 of q and do.
      EXPECT_EQ(bytes.backward_by_rows, bytes.total + bytes.total * (32 + 8) / 32);
      EXPECT_LT(bytes.backward_by_rows, bytes.backward);
    }
    const ContextPlan grouped = planned(mask, 4, 1);
    const ExchangeBytes& bytes = grouped.BytesOf(Exchange::kSparse);
    EXPECT_EQ(bytes.backward_by_rows, bytes.total + 4 * (bytes.total * (32 + 8) / 32));
    EXPECT_GT(bytes.backward_by_rows, bytes.backward);
    EXPECT_EQ(grouped.BytesOf(Exchange::kRing).backward_by_rows, -1);
    EXPECT_EQ(grouped.BytesOf(Exchange::kHeads).backward, 0);  // not possible
    EXPECT_THAT(ToJson(grouped), HasSubstr("\"backward_by_rows_bytes\": " + std::to_string(bytes.backward_by_rows)));
  }
  EXPECT_THAT(Summary(planned("causal and window(63, 0)", 2, 2)), HasSubstr("gradients of keys rows: least bytes"));
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

// Cuts that differ have keys that differ, whatever differs: form, number of shards, tile, or where documents stand.
TEST(Context, Keys_AreOfWhatShardsHave_NotOfNames) {
  Proves("R79");
  const Contract contract = ContractOf("causal and documents", ShapeOf(128), 16);
  Batch batch;
  batch.doc_lengths = {{40, 24, 16, 48}};
  std::set<std::string> keys;
  size_t cuts = 0;
  for (const int64_t shards : {2, 4}) {
    for (const int64_t tile : {8, 16}) {
      for (const CutForm form : kCutForms) {
        const ContextPlan plan = Planned(contract, batch, OptionsOf(shards, tile, form));
        keys.insert(CutKey(plan).value());
        ++cuts;
        const std::vector<std::string> of_shards = ShardKeys(plan).value();
        ASSERT_EQ(of_shards.size(), static_cast<size_t>(shards));
        EXPECT_EQ(std::set<std::string>(of_shards.begin(), of_shards.end()).size(), of_shards.size());
        // Another batch that is cut alike has the same keys; a contract that means something else has others.
        EXPECT_EQ(CutKey(Planned(contract, batch, OptionsOf(shards, tile, form))).value(), CutKey(plan).value());
        const Contract other = ContractOf("causal and documents and window(9, 0)", contract.shape, 16);
        EXPECT_NE(CutKey(Planned(other, batch, OptionsOf(shards, tile, form))).value(), CutKey(plan).value());
      }
    }
  }
  EXPECT_EQ(keys.size(), cuts);
  // The same meaning in other words, and the same tokens under another name.
  const ContextPlan plain = Planned(contract, batch, OptionsOf(2, 16, CutForm::kContiguous));
  const Contract longer = ContractOf("documents and causal and window(127, 0)", contract.shape, 16);
  EXPECT_EQ(CutKey(Planned(longer, batch, OptionsOf(2, 16, CutForm::kContiguous))).value(), CutKey(plain).value());
  ContextPlan renamed = plain;
  renamed.form = CutForm::kReordered;
  renamed.rows[0].order = {{0, 40, 0}, {40, 88, 40}};
  EXPECT_EQ(CutKey(renamed).value(), CutKey(plain).value());
  renamed.rows[0].order = {{88, 40, 0}, {0, 88, 40}};
  EXPECT_NE(CutKey(renamed).value(), CutKey(plain).value());
  EXPECT_THAT(ToJson(plain), HasSubstr("\"key\": \"" + CutKey(plain).value() + "\""));
  EXPECT_THAT(ToJson(plain), HasSubstr(ShardKeys(plain).value()[1]));
}

// Layers of a model share one cut: another mask's facts in the order that the first was given.
TEST(Context, OneCutForTwoMasks_IsWhatTheDenseMasksSay) {
  std::mt19937_64 random(PrintedSeed());
  const Shape shape = ShapeOf(160, 2);
  const Contract leads = ContractOf("causal and documents", shape, 8);
  const Contract follows = ContractOf("causal and documents and window(11, 0)", shape, 8);
  for (int round = 0; round < 10; ++round) {
    const Batch batch = RandomDocuments(random, shape, 60);
    for (const CutForm form : kCutForms) {
      const ContextOptions options = OptionsOf(4, 8, form);
      const ContextPlan cut = Planned(leads, batch, options);
      const ContextPlanner planner = ContextPlanner::Make(follows, FindTarget("cpu").value(), options).value();
      const Result<ContextPlan> plan = planner.PlanAs(batch, cut);
      ASSERT_TRUE(plan) << ToText(plan.error());
      EXPECT_EQ(plan->rows, cut.rows);
      EXPECT_EQ(plan->form, form);
      ExpectFacts(*plan);
      ExpectSameMask(*plan, MakePlan(follows, batch, FindTarget("cpu").value(), options.plan).value().plan);
    }
  }
  const ContextPlan cut = Planned(leads, RandomDocuments(random, shape, 60), OptionsOf(4, 8, CutForm::kReordered));
  const auto refuse = [&](const Contract& contract, int64_t shards, const char* code) {
    const auto planner = ContextPlanner::Make(contract, FindTarget("cpu").value(), OptionsOf(shards, 8));
    const Result<ContextPlan> plan = planner.value().PlanAs({}, cut);
    ASSERT_FALSE(plan);
    EXPECT_EQ(CodeText(plan.error().code), code);
  };
  refuse(ContractOf("causal", shape, 8), 4, "TSR-S020");
  refuse(follows, 2, "TSR-S021");
}

// A program has room for so many tiles: forms that need more are left out, and say so.
TEST(Context, NoRoomForAForm_LeavesItOut) {
  const Contract contract = ContractOf("causal", ShapeOf(96), 16);  // six tiles: zigzag needs eight for two pieces each
  ContextOptions options = OptionsOf(2, 16);
  options.tiles_per_shard = 3;
  const ContextPlan plan = Planned(contract, {}, options);
  EXPECT_EQ(plan.form, CutForm::kContiguous);
  EXPECT_EQ(plan.tiles_per_shard, 3);
  EXPECT_THAT(Summary(plan), HasSubstr("cut zigzag      no: it needs 4 tiles on each shard, and there is room for 3"));
  options.form = CutForm::kZigzag;
  ExpectRefused(contract, options, "there is room for 3");
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
