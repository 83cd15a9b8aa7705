// The sparse exchange as one ragged all-to-all: its tables are played through on the host, since CPUs have no such
// collective, and its programs are looked at as text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "lanes/xla/stablehlo/context_ragged.h"
#include "shard/context_program.h"
#include "support/proves.h"
#include "support/seed.h"
#include "tessera/context.h"

namespace tessera {
namespace {

using stablehlo::RaggedRow;
using testing::HasSubstr;

struct Cut {
  ContextPlan plan;
  stablehlo::ContextSpec spec;
  shard::DeviceTables tables;
};

Cut MakeCut(std::mt19937_64& random, int64_t shards, int64_t batch, CutForm form) {
  Contract contract;
  contract.shape = {.batch = batch,
                    .q_len = 160,
                    .kv_len = 160,
                    .num_q_heads = 2,
                    .num_kv_heads = 1,
                    .dim_qk = 8,
                    .dim_v = 8,
                    .dtype = DType::kBf16};
  contract.mask.heads = {ParseMaskExpr("causal and documents").value()};
  contract.score.scale = 0.125;
  Batch rows;
  rows.doc_lengths.emplace();
  for (int64_t b = 0; b < batch; ++b) {
    std::vector<int32_t>& lengths = rows.doc_lengths->emplace_back();
    for (int64_t left = contract.shape.q_len; left > 0; left -= lengths.back()) {
      lengths.push_back(static_cast<int32_t>(std::min<int64_t>(left, 1 + static_cast<int64_t>(random() % 90))));
    }
  }
  ContextOptions options;
  options.shards = shards;
  options.form = form;
  options.exchange = Exchange::kSparse;
  options.plan.tile = TileSize{8, 8};
  Cut cut{.plan = PlanContext(contract, rows, FindTarget("cpu").value(), options).value(), .spec = {}, .tables = {}};
  cut.spec = shard::ContextSpecOf(cut.plan).value();
  cut.spec.is_ragged = true;
  const std::vector<Direction> all = {Direction::kForward, Direction::kDq, Direction::kDkv};
  cut.tables = shard::MakeDeviceTables(cut.spec, cut.plan, all).value();
  return cut;
}

// The collective: rows of `from` on each device to rows of what the others get, which begin as -1.
struct Trade {
  RaggedRow from, count, at, received;
};
std::vector<std::vector<int32_t>> Play(const Cut& cut, const std::vector<std::vector<int32_t>>& rows, Trade trade) {
  const size_t n = rows.size();
  const auto entry = [&](size_t device, RaggedRow row, size_t other) {
    return static_cast<size_t>(cut.tables[device].at("trades")[static_cast<size_t>(row) * n + other]);
  };
  std::vector<std::vector<int32_t>> out;
  for (const std::vector<int32_t>& device : rows) out.emplace_back(device.size(), -1);
  for (size_t source = 0; source < n; ++source) {
    for (size_t target = 0; target < n; ++target) {
      const size_t count = entry(source, trade.count, target);
      EXPECT_EQ(count, entry(target, trade.received, source));
      for (size_t i = 0; i < count; ++i) {
        int32_t& to = out[target].at(entry(source, trade.at, target) + i);
        EXPECT_EQ(to, -1) << "two rows in one place";
        to = rows[source].at(entry(source, trade.from, target) + i);
      }
    }
  }
  return out;
}

TEST(RaggedExchange, Tables_BringWhatThePlanNeedsAndGiveItBack) {
  Proves("R79");
  std::mt19937_64 random(PrintedSeed());
  for (int round = 0; round < 12; ++round) {
    const int64_t shards = 2 + round % 4;
    const Cut cut = MakeCut(random, shards, 1 + round % 2, kCutForms[static_cast<size_t>(round) % kCutForms.size()]);
    const auto tiles = static_cast<int32_t>(shards * cut.plan.tiles_per_shard);
    const auto batch = static_cast<int32_t>(cut.plan.rows.size());
    // Tiles by number over batch rows, where they are.
    std::vector<std::vector<int32_t>> own(static_cast<size_t>(shards));
    for (int32_t b = 0; b < batch; ++b) {
      const std::vector<uint32_t>& shard_of = cut.plan.rows[static_cast<size_t>(b)].shard_of;
      for (int32_t t = 0; t < tiles; ++t) own[shard_of[static_cast<size_t>(t)]].push_back(b * tiles + t);
    }
    std::vector<std::vector<int32_t>> sent;
    for (size_t d = 0; d < own.size(); ++d) {
      std::vector<int32_t>& rows = sent.emplace_back();
      for (const int32_t from : cut.tables[d].at("sends")) rows.push_back(own[d].at(static_cast<size_t>(from)));
    }
    const std::vector<std::vector<int32_t>> came =
        Play(cut, sent, {RaggedRow::kSendAt, RaggedRow::kSendCount, RaggedRow::kPutAt, RaggedRow::kComeCount});
    std::vector<std::vector<int32_t>> given;
    for (size_t d = 0; d < own.size(); ++d) {
      const std::vector<int32_t>& slots = cut.tables[d].at("slots");
      const auto room = static_cast<size_t>(cut.spec.received + 1);
      for (int32_t b = 0; b < batch; ++b) {
        std::vector<int32_t> needed;
        for (const std::vector<int32_t>& from : cut.plan.needs[d]) {
          std::copy_if(from.begin(), from.end(), std::back_inserter(needed),
                       [&](int32_t id) { return id / tiles == b; });
        }
        std::sort(needed.begin(), needed.end());
        for (size_t i = 0; i < needed.size(); ++i) {
          EXPECT_EQ(came[d].at(static_cast<size_t>(slots[static_cast<size_t>(b) * room + i])), needed[i]);
        }
      }
      // Every row that came takes the place that it was read from.
      std::vector<int32_t>& rows = given.emplace_back(came[d].size(), -1);
      for (size_t row = 0; row < came[d].size(); ++row) {
        if (came[d][row] < 0) continue;
        const auto slot = static_cast<size_t>(cut.tables[d].at("arrivals")[row]);
        rows[row] = came[d].at(static_cast<size_t>(slots[slot]));
      }
    }
    const std::vector<std::vector<int32_t>> back =
        Play(cut, given, {RaggedRow::kComeAt, RaggedRow::kComeCount, RaggedRow::kReturnAt, RaggedRow::kSendCount});
    for (size_t d = 0; d < own.size(); ++d) {
      size_t num_sent = 0;
      for (size_t target = 0; target < own.size(); ++target) num_sent += cut.plan.needs[target][d].size();
      for (size_t row = 0; row < num_sent; ++row) EXPECT_EQ(back[d][row], sent[d][row]);
    }
    // The rest of what devices read is the same as with rounds.
    stablehlo::ContextSpec rounds = cut.spec;
    rounds.is_ragged = false;
    const shard::DeviceTables others =
        shard::MakeDeviceTables(rounds, cut.plan, {Direction::kForward, Direction::kDq, Direction::kDkv}).value();
    for (size_t d = 0; d < own.size(); ++d) {
      for (const auto& [name, values] : cut.tables[d]) {
        if (name == "sends" || name == "slots" || name == "arrivals" || name == "trades") continue;
        EXPECT_EQ(values, others[d].at(name)) << name;
      }
    }
  }
}

size_t CountOf(const std::string& text, const std::string& what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

// A device that counts otherwise would leave the others in a collective for ever, so none is launched.
TEST(SparseExchange, Rounds_AreTheSameOnEveryDevice_OrRefused) {
  Proves("R79");
  std::mt19937_64 random(PrintedSeed());
  for (int trial = 0; trial < 8; ++trial) {
    Cut cut = MakeCut(random, 2 + trial % 3, 1, CutForm::kContiguous);
    cut.spec.is_ragged = false;
    const shard::DeviceTables good = shard::MakeDeviceTables(cut.spec, cut.plan).value();
    EXPECT_TRUE(shard::CheckRounds(cut.spec, good));
    const size_t device = 1 + random() % (good.size() - 1);
    const auto refusal = [&](const shard::DeviceTables& tables) {
      const Status status = shard::CheckRounds(cut.spec, tables);
      return status ? "" : ToText(status.error());
    };
    shard::DeviceTables one_more = good;
    ++one_more[device].at("bounds").back();
    EXPECT_THAT(refusal(one_more), HasSubstr("device " + std::to_string(device) + " has other rounds than device 0"));
    shard::DeviceTables none = good;
    none[device].erase("bounds");
    EXPECT_THAT(refusal(none), HasSubstr("device " + std::to_string(device)));
    shard::DeviceTables no_room = good;
    for (auto& tables : no_room) tables.at("bounds").back() = static_cast<int32_t>(cut.spec.rounds) + 1;
    EXPECT_THAT(refusal(no_room), HasSubstr("TSR-S021"));
  }
}

TEST(RaggedExchange, Programs_HaveOneCollectiveEachWay) {
  std::mt19937_64 random(1);
  const Cut cut = MakeCut(random, 4, 2, CutForm::kContiguous);
  const auto forward = stablehlo::LowerContextForward(cut.spec);
  ASSERT_TRUE(forward) << ToText(forward.error());
  const auto backward = stablehlo::LowerContextBackward(cut.spec);
  ASSERT_TRUE(backward) << ToText(backward.error());
  const std::string call = "stablehlo.custom_call @ragged_all_to_all(";
  EXPECT_EQ(CountOf(forward->program.text, call), 1U);
  EXPECT_EQ(CountOf(backward->program.text, call), 2U);
  EXPECT_THAT(forward->program.text, HasSubstr("replica_groups = dense<[[0, 1, 2, 3]]>"));
  for (const auto* program : {&forward->program, &backward->program}) {
    EXPECT_EQ(CountOf(program->text, "collective_permute"), 0U);
    EXPECT_THAT(program->name, HasSubstr("ragged"));
  }
  // Only what is needed is counted, and for who gets it.
  pjrt::Collective call_of_rows{.kind = "ragged-all-to-all", .name = "ragged", .groups = {}};
  call_of_rows.operands = {pjrt::TensorType{pjrt::ElementType::kBf16, {2 * cut.spec.received, 2, 8 * 8}}};
  const auto carried = shard::CarriedBy({call_of_rows, call_of_rows}, cut.spec, cut.plan);
  ASSERT_TRUE(carried) << ToText(carried.error());
  int64_t tiles = 0;
  for (const ShardLoad& load : cut.plan.loads) tiles += load.received;
  EXPECT_EQ((*carried)[0].bytes_per_trip, tiles * 8 * 16 * 2);
  const std::vector<int64_t> received = shard::ReceivedBytes({(*carried)[0]}, 4);
  for (size_t d = 0; d < received.size(); ++d) EXPECT_EQ(received[d], cut.plan.loads[d].received * 8 * 16 * 2);
  const std::vector<int64_t> returned = shard::ReceivedBytes({(*carried)[1]}, 4);
  EXPECT_EQ(returned[0] + returned[1] + returned[2] + returned[3], tiles * 8 * 16 * 2);
}

}  // namespace
}  // namespace tessera
