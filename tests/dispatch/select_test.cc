// Selection: every target's table against every kind of mask, and every lane's own decision beside it.
#include "dispatch/select.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "engine/fixtures.h"
#include "oracle/oracle.h"
#include "support/proves.h"
#include "support/random_mask.h"
#include "support/seed.h"

namespace tessera {
namespace {

struct Row {
  const char* mask;
  double softcap;
  bool is_routed;
  const char* tpu_lane;
  const char* when;
};

// 48 tokens, so window(47, 0) reaches everything.
constexpr Row kRows[] = {
    {"causal", 0, false, "splash", "plain causal or full"},
    {"full", 0, false, "splash", "plain causal or full"},
    {"causal and window(47, 0)", 0, false, "splash", "plain causal or full"},
    {"causal and full", 0, false, "splash", "plain causal or full"},
    {"window(-1, 0)", 0, false, "splash", "plain causal or full"},
    {"full or documents", 0, false, "splash", "plain causal or full"},
    {"causal", 30, false, "xla_pallas", "softcap"},
    {"full", 30, false, "xla_pallas", "softcap"},
    {"causal and documents", 30, false, "xla_pallas", "softcap"},
    {"causal and window(7, 0)", 0, false, "xla_pallas", "a window"},
    {"causal and window(0, 0)", 0, false, "xla_pallas", "a window"},
    {"window(7, 7)", 0, false, "xla_pallas", "a window"},
    {"causal and window(7, 0) and documents", 0, false, "xla_pallas", "a window"},
    {"causal and documents", 0, false, "xla_pallas", "documents"},
    {"documents(equal)", 0, false, "xla_pallas", "documents"},
    {"causal and (documents or sink(2, document))", 0, false, "xla_pallas", "documents"},
    {"causal and blocks", 0, false, "xla_pallas", "routing or picks"},
    {"causal and blocks", 30, false, "xla_pallas", "routing or picks"},
    {"causal and blocks", 0, true, "xla_pallas", "routing or picks"},
    {"causal and valid", 0, false, "xla_chunked", "anything else"},
    {"chunk(8)", 0, false, "xla_chunked", "anything else"},
    {"causal or prefix(8)", 0, false, "xla_chunked", "anything else"},
    {"causal and chunk(16) or sink(4)", 0, false, "xla_chunked", "anything else"},
};

Contract ContractOf(const Row& row) {
  if (row.is_routed) return MakeRoutedContract(row.softcap);
  return SmallContract({.mask = row.mask, .softcap = row.softcap});
}

TEST(SelectLane, TpuTargets_FollowTheTable) {
  Proves("R49");
  for (const char* target : {"v6e", "v5e", "v5p"}) {
    for (const Row& row : kRows) {
      SCOPED_TRACE(std::string(target) + " " + row.mask);
      Result<Selection> selection = SelectLane(ContractOf(row), TargetNamed(target));
      ASSERT_TRUE(selection.has_value()) << ToText(selection.error());
      EXPECT_EQ(selection->lane, row.tpu_lane);
      EXPECT_EQ(selection->rule, std::string("tpu: ") + row.when + " -> " + row.tpu_lane);
    }
  }
}

// The stock kernel scales q before it, multiplies f32 in one pass of bf16 and takes grouped heads only by name; what is
// not its own of plain masks is our own kernel's, where that can, and never a matter of falling back.
TEST(SelectLane, PlainMaskThatIsNotTheStockTpuKernels_SelectsOurs) {
  Proves("R44 R49 R54");
  struct Plain {
    DType dtype;
    int64_t dim;
    double scale;
    bool sinks;
    int64_t group;
    const char* lane;
  };
  for (const Plain& plain : {Plain{DType::kBf16, 64, 0.125, false, 1, "splash"},
                             {DType::kBf16, 64, 0.125, false, 2, "xla_pallas"},  // grouped heads: only by name
                             {DType::kBf16, 128, 0.08838834764831845, false, 1, "xla_pallas"},
                             {DType::kF32, 64, 0.125, false, 1, "xla_pallas"},
                             {DType::kBf16, 64, 0.125, true, 1, "xla_pallas"},
                             {DType::kF16, 64, 0.125, false, 1, "splash"},
                             {DType::kBf16, 80, 0.1, false, 2, "splash"}}) {
    for (const char* mask : {"causal", "full"}) {
      Contract contract = SmallContract({.mask = mask, .sink_logits = plain.sinks});
      contract.shape.dtype = plain.dtype;
      contract.shape.dim_qk = contract.shape.dim_v = plain.dim;
      contract.shape.num_q_heads = contract.shape.num_kv_heads * plain.group;
      contract.score.scale = plain.scale;
      SCOPED_TRACE(std::string(mask) + " " + std::string(ToText(plain.dtype)) + " " + std::to_string(plain.dim) +
                   " in groups of " + std::to_string(plain.group));
      const Result<Selection> selection = SelectLane(contract, TargetNamed("v6e"));
      ASSERT_TRUE(selection.has_value()) << ToText(selection.error());
      EXPECT_EQ(selection->lane, plain.lane);
      EXPECT_EQ(selection->rule, selection->lane == "splash" ? "tpu: plain causal or full -> splash"
                                                             : "tpu: plain, and not the stock kernel's -> xla_pallas");
    }
  }
}

TEST(SelectLane, BitmapMask_SelectsPallasOnTpu) {
  Proves("R49");
  std::mt19937_64 rng(7);
  Contract contract = SmallContract();
  MaskExpr bitmap;
  bitmap.term.kind = TermKind::kBitmap;
  bitmap.term.path = "cells.npy";
  bitmap.term.bitmap = RandomBitmap(rng, 1, 48, 48);
  contract.mask.heads = {bitmap};
  Result<Selection> selection = SelectLane(contract, TargetNamed("v6e"));
  ASSERT_TRUE(selection.has_value()) << ToText(selection.error());
  EXPECT_EQ(selection->rule, "tpu: a bitmap -> xla_pallas");
}

TEST(SelectLane, CpuAndGpuTargets_PreferTheirOwnLane) {
  for (const Row& row : kRows) {
    SCOPED_TRACE(row.mask);
    Result<Selection> cpu = SelectLane(ContractOf(row), TargetNamed("cpu"));
    Result<Selection> gpu = SelectLane(ContractOf(row), TargetNamed("h200"));
    ASSERT_TRUE(cpu.has_value() && gpu.has_value());
    EXPECT_EQ(cpu->lane, "cpu");
    EXPECT_EQ(gpu->lane, "cuda");
  }
}

TEST(SelectLane, EveryLane_DecidesWhateverIsSelected) {
  Proves("R50");
  for (const Target& target : Targets()) {
    for (const Row& row : kRows) {
      Result<Selection> selection = SelectLane(ContractOf(row), target);
      ASSERT_TRUE(selection.has_value());
      ASSERT_EQ(selection->decisions.size(), Lanes().size());
      for (size_t i = 0; i < selection->decisions.size(); ++i) {
        const LaneDecision& d = selection->decisions[i];
        EXPECT_EQ(d.lane, Lanes()[i].name);
        EXPECT_EQ(d.step, "contract");
        EXPECT_EQ(d.decision.accepted, d.decision.reason == ReasonCode::kNone) << d.lane;
      }
    }
  }
}

TEST(SelectLane, InvalidContract_IsAnError) {
  Contract contract = SmallContract({.num_q_heads = 3, .num_kv_heads = 2});
  Result<Selection> selection = SelectLane(contract, TargetNamed("cpu"));
  ASSERT_FALSE(selection.has_value());
  EXPECT_EQ(selection.error().code, ErrorCode::kContractInvalid);
}

TEST(SelectionRules, EachTargetKind_EndsWithACatchAllAndNamesRealLanes) {
  for (TargetKind kind : {TargetKind::kCpu, TargetKind::kGpu, TargetKind::kTpu}) {
    const SelectionRule* last = nullptr;
    for (const SelectionRule& rule : SelectionRules()) {
      const LaneRow* row = FindLane(LaneTable(), rule.lane);
      ASSERT_NE(row, nullptr) << rule.lane;
      if (rule.target != kind) continue;
      last = &rule;
      EXPECT_NE(row->targets & KindBit(kind), 0) << ToText(rule) << " names a lane of another target";
      EXPECT_NE(row->runtime_mode, "bridge") << "no table selects a bridge";
    }
    ASSERT_NE(last, nullptr);
    EXPECT_TRUE(last->matches(SmallContract(), MaskFacts{})) << ToText(*last);
  }
}

// Of a contract with this mask and score, at a shape that the stock kernel has.
ReasonCode SplashSays(Contract contract) {
  contract.shape.dim_qk = contract.shape.dim_v = 64;
  contract.shape.dtype = DType::kBf16;
  const Result<MaskFacts> facts = DescribeMask(contract);
  EXPECT_TRUE(facts.has_value());
  return DecideContract({FindLane(LaneTable(), "splash"), nullptr}, contract, *facts, TargetNamed("v6e")).reason;
}

TEST(SplashLane, Capabilities_ComeBeforeNotBuilt) {
  Proves("R54 B33");
  EXPECT_EQ(SplashSays(SmallContract({.mask = "causal", .softcap = 30})), ReasonCode::kSplashSoftcap);
  EXPECT_EQ(SplashSays(SmallContract({.mask = "causal and documents"})), ReasonCode::kSplashSegments);
  EXPECT_EQ(SplashSays(SmallContract({.mask = "causal and valid"})), ReasonCode::kSplashValid);
  EXPECT_EQ(SplashSays(SmallContract({.mask = "causal or sink(4)"})), ReasonCode::kSplashMask);
  EXPECT_EQ(SplashSays(SmallContract({.mask = "chunk(8)"})), ReasonCode::kSplashMask);
  EXPECT_EQ(SplashSays(SmallContract({.mask = "causal and blocks"})), ReasonCode::kSplashMask);
  EXPECT_EQ(SplashSays(SmallContract({.mask = "causal", .sink_logits = true})), ReasonCode::kSplashScore);
  // By name it may run plain local masks and grouped heads: only the lane itself is missing.
  EXPECT_EQ(SplashSays(SmallContract({.mask = "causal and window(7, 0)"})), ReasonCode::kXlaNotBuilt);
  EXPECT_EQ(SplashSays(SmallContract({.mask = "full", .num_q_heads = 4, .num_kv_heads = 2})), ReasonCode::kXlaNotBuilt);
}

// What Splash does not refuse by capability must really be a band around the diagonal, and nothing of the batch.
TEST(SplashLane, RandomMasks_AcceptsBandsOnly) {
  Proves("B10");
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  int bands = 0;
  for (int round = 0; round < 400; ++round) {
    Contract contract = SmallContract({.len = 12, .num_q_heads = 1});
    contract.mask.heads = {RandomMask(rng, {.q_len = 12, .kv_len = 12, .max_depth = 2})};
    if (!Validate(contract).empty()) continue;
    if (SplashSays(contract) != ReasonCode::kXlaNotBuilt) continue;
    ++bands;
    SCOPED_TRACE(ToText(contract.mask.heads[0]));
    Result<MaskFacts> facts = DescribeMask(contract);
    ASSERT_TRUE(facts.has_value());
    EXPECT_FALSE(facts->needs_documents || facts->needs_valid || facts->needs_blocks);
    const OracleFacts oracle_facts{.q_doc = std::vector<int32_t>(12, 0),
                                   .kv_doc = std::vector<int32_t>(12, 0),
                                   .kv_rank = std::vector<int64_t>(12, 0),
                                   .q_valid = 12,
                                   .kv_valid = 12};
    std::vector<int> diagonal(23, -1);
    for (int64_t i = 0; i < 12; ++i) {
      for (int64_t j = 0; j < 12; ++j) {
        const int allowed = Allowed(contract, oracle_facts, 0, i, j) ? 1 : 0;
        int& seen = diagonal[static_cast<size_t>(j - i + 11)];
        EXPECT_TRUE(seen == -1 || seen == allowed) << "(" << i << ", " << j << ") differs along its diagonal";
        seen = allowed;
      }
    }
    int edges = 0;
    for (size_t d = 1; d < diagonal.size(); ++d) edges += diagonal[d] != diagonal[d - 1] ? 1 : 0;
    EXPECT_LE(edges, 2) << "not one band";
  }
  EXPECT_GT(bands, 0);
}

TEST(DecideContract, Lane_NeedsBothItsRuntimeAndItsDevice) {
  Proves("R60 B22");
  const Contract contract = SmallContract();
  const MaskFacts facts = DescribeMask(contract).value();
  TestTable table;
  table.Build("cuda");
  const LaneRow* row = FindLane(LaneTable(), "cuda");
  const MadeLane missing{row, nullptr};
  const MadeLane present{row, FindLane(table.rows(), "cuda")->make({})};
  EXPECT_EQ(DecideContract(missing, contract, facts, TargetNamed("h200")).reason, ReasonCode::kCudaNotBuilt);
  EXPECT_EQ(DecideContract(missing, contract, facts, TargetNamed("cpu")).reason, ReasonCode::kOtherTarget);
  EXPECT_EQ(DecideContract(present, contract, facts, TargetNamed("cpu")).reason, ReasonCode::kOtherTarget);
  EXPECT_TRUE(DecideContract(present, contract, facts, TargetNamed("h200")).accepted);
}

TEST(Lanes, Table_IsOrderedAndNamesOwners) {
  Proves("R51");
  std::vector<std::string> names;
  for (const LaneInfo& info : Lanes()) names.push_back(info.name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"cuda", "cpu", "splash", "xla_pallas", "xla_chunked", "call_jax", "reference"}));
  for (const LaneRow& row : LaneTable()) {
    EXPECT_TRUE(row.make || row.not_built != ReasonCode::kNone) << row.name;
    if (row.make) {
      EXPECT_EQ(row.make({.xla_state = MakeXlaState({})})->name(), row.name);
    }
    EXPECT_EQ(row.runtime_mode == "bridge", row.name == "call_jax") << row.name;
    EXPECT_FALSE(row.description.empty());
  }
  const LaneRow& pallas = *FindLane(LaneTable(), "xla_pallas");
  EXPECT_EQ(pallas.targets, KindBit(TargetKind::kTpu));
  EXPECT_EQ(pallas.runtime_mode, "payload");
}

TEST(Reasons, Texts_AreUniqueAndFoundAgain) {
#define TESSERA_REASON(name, text, meaning)      \
  EXPECT_EQ(FindReason(text), ReasonCode::name); \
  EXPECT_EQ(ReasonText(ReasonCode::name), text); \
  EXPECT_EQ(ReasonMeaning(ReasonCode::name), meaning);
#include "tessera/reasons.def"
#undef TESSERA_REASON
  EXPECT_EQ(FindReason("no.such_reason"), std::nullopt);
}

}  // namespace
}  // namespace tessera
