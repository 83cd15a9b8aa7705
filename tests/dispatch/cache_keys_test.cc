// The keys of prepared runs: meaning decides, nothing of a batch enters, and no two masks share one.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "dispatch/prepare.h"
#include "engine/fixtures.h"
#include "support/proves.h"
#include "support/random_batch.h"

namespace tessera {
namespace {

ExactMaskKey MaskKey(const Contract& contract) {
  Result<ExactMaskKey> key = MakeExactMaskKey(contract);
  EXPECT_TRUE(key.has_value()) << ToText(key.error());
  return key.value_or(ExactMaskKey{});
}
ExactMaskKey MaskKey(const std::string& mask, int64_t len = 48) {
  return MaskKey(SmallContract({.mask = mask, .len = len}));
}

std::shared_ptr<const Prepared> Made(const Contract& contract, const RunOptions& options = {},
                                     const Target& target = TargetNamed("cpu")) {
  const std::vector<MadeLane> lanes =
      MakeLanes(LaneTable(), {.xla_state = MakeXlaState({.folder = OptionsFromEnvironment().xla_folder})});
  const Result<std::shared_ptr<const Prepared>> made =
      Prepare({.table = LaneTable(), .lanes = lanes, .contract = contract, .target = target, .options = options});
  EXPECT_TRUE(made.has_value()) << ToText(made.error());
  return made.value_or(nullptr);
}

TEST(ExactMaskKey, Fields_AreReadOffTheMeaning) {
  Proves("R28 R29");
  const struct {
    const char* mask;
    ExactMaskKey key;
  } cases[] = {
      {"causal", {}},
      {"causal and window(47, 0)", {}},  // at 48 tokens this is causal
      {"causal and window(100, 3)", {}},
      {"window(-1, 0) or causal", {}},
      {"causal or window(3, 0)", {}},
      {"full", {.window_size = {-1, -1}}},
      {"full or documents", {.window_size = {-1, -1}}},
      {"window(7, 0)", {.window_size = {7, 0}, .local_window = 8}},
      {"causal and window(7, 5)", {.window_size = {7, 0}, .local_window = 8}},
      // Self only is a window, and not "no window".
      {"window(0, 0)", {.window_size = {0, 0}, .local_window = 1}},
      {"window(3, 2)", {.window_size = {3, 2}}},
      {"window(-1, 2)", {.window_size = {-1, 2}}},
      {"window(4, -1)", {.window_size = {4, -1}}},
      {"causal and documents", {.has_doc_ids = true}},
      {"documents and valid and window(9, 0)",
       {.window_size = {9, 0}, .local_window = 10, .has_doc_ids = true, .has_valid_token_counts = true}},
      {"causal and valid", {.has_valid_token_counts = true}},
  };
  for (const auto& c : cases) EXPECT_EQ(MaskKey(c.mask), c.key) << c.mask << ": " << ToText(MaskKey(c.mask));
  EXPECT_EQ(ToText(MaskKey("documents and window(9, 0)")), "window (9, 0), local window 10, documents");
  // Beyond that form the static sets themselves are in the key.
  for (const char* mask : {"causal and window(7, 0) or sink(2)", "chunk(16)", "causal or documents", "prefix(5)",
                           "causal and documents(equal)", "causal and (documents or valid)"}) {
    EXPECT_EQ(MaskKey(mask).mask_digest.size(), 32u) << mask;
  }
}

TEST(ExactMaskKey, OffsetsAndUnequalLengths_KeepTheirMeaning) {
  Contract contract = SmallContract({.mask = "window(3, 0)"});
  contract.mask.offset = 2;  // keys i - 1 .. i + 2
  EXPECT_EQ(MaskKey(contract).window_size, (std::array<int64_t, 2>{1, 2}));
  contract = SmallContract({.mask = "causal"});
  contract.shape.q_len = 12;
  contract.mask.offset = 36;  // the default: the last row sees the last key
  EXPECT_EQ(MaskKey(contract), ExactMaskKey{});
  contract.mask.offset = 0;
  EXPECT_NE(MaskKey(contract), ExactMaskKey{});
}

// Over random masks of one length: equal keys exactly where contract keys, which hash every pair, are equal.
TEST(ExactMaskKey, RandomMasks_CollideOnlyWhenEqual) {
  Proves("R29 B31");
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  std::map<std::string, std::string> contract_of;  // exact-mask text -> contract key
  std::map<std::string, std::string> mask_of;
  int64_t with_window = 0;
  for (int i = 0; i < 3000; ++i) {
    MaskSample sample = RandomMaskSample(rng, 12);
    Contract& contract = sample.contract;
    contract.shape = SmallContract({.len = 6, .num_q_heads = 1}).shape;
    contract.mask.heads = {sample.contract.mask.heads[0]};
    contract.mask.offset = RandomInt(rng, -1, 1);
    if (i % 2 == 0) {
      const std::string window = fmt::format("window({}, {})", RandomInt(rng, -1, 6), RandomInt(rng, -1, 6));
      contract.mask.heads = {*ParseMaskExpr(i % 4 == 0 ? window : window + " and documents")};
    }
    if (!Validate(contract).empty()) continue;  // a bitmap of other lengths
    const std::string mask = ToText(MaskKey(contract));
    const std::string key = ContractKey(contract).value();
    with_window += MaskKey(contract).mask_digest.empty() ? 1 : 0;
    EXPECT_EQ(contract_of.emplace(mask, key).first->second, key) << mask << " is two masks";
    EXPECT_EQ(mask_of.emplace(key, mask).first->second, mask) << "one mask has two keys";
  }
  EXPECT_GT(with_window, 500);
  EXPECT_GT(contract_of.size(), 20u);
}

TEST(ForwardCacheKey, EveryPart_TellsRunsApart) {
  Proves("R30 B31");
  std::vector<ForwardCacheKey> keys;
  const auto add = [&](const Contract& contract, const RunOptions& options = {}, const char* target = "cpu") {
    const std::shared_ptr<const Prepared> made = Made(contract, options, TargetNamed(target));
    if (made != nullptr) keys.push_back(made->key);
  };
  const Contract base = SmallContract({.mask = "causal and window(7, 0)"});
  add(base);
  add(SmallContract({.mask = "causal and window(8, 0)"}));
  add(SmallContract({.mask = "causal"}));
  add(SmallContract({.mask = "causal and window(7, 0) and documents"}));
  add(SmallContract({.mask = "causal and window(7, 0) and valid"}));
  add(SmallContract({.mask = "causal and window(7, 0)", .len = 64}));
  add(SmallContract({.mask = "causal and window(7, 0)", .softcap = 2}));
  Contract other = base;
  other.tiles = {32, 16};
  add(other);
  other = base;
  other.capacity.width = {Limit::Kind::kPow2, 0};
  add(other);
  add(MakeRoutedContract());
  other = MakeRoutedContract();
  other.routing->first_blocks = 1;
  add(other);
  RunOptions options;
  options.lane = "reference";
  add(base, options);
  options = {};
  options.exclude = {"cpu"};
  add(base, options);
  options = {};
  options.plan.tile = TileSize{16, 32};
  add(base, options);
  options = {};
  options.plan.disable = {"balance"};
  add(base, options);
  add(base, {}, "h200");
  add(base, {}, "v6e");
  add(base, {}, "v5e");
  std::unordered_map<ForwardCacheKey, size_t> seen;
  std::map<std::string, size_t> digests;
  for (size_t i = 0; i < keys.size(); ++i) {
    EXPECT_TRUE(seen.emplace(keys[i], i).second) << i << " equals " << seen[keys[i]] << ": " << ToText(keys[i]);
    EXPECT_TRUE(digests.emplace(Digest(keys[i]), i).second) << i << ": " << ToText(keys[i]);
  }
  EXPECT_EQ(keys.size(), 18u);
  EXPECT_FALSE(keys[0].use_fused_scoring);
  EXPECT_FALSE(keys[0].use_pallas);
  EXPECT_TRUE(keys[9].use_fused_scoring);
  EXPECT_TRUE(keys[16].use_pallas);  // a window on a TPU
  EXPECT_NE(ToText(keys[0]).find("window (7, 0), local window 8"), std::string::npos) << ToText(keys[0]);
}

TEST(ForwardCacheKey, SpellingReasonsAndPerRunOptions_DoNotEnter) {
  Proves("R30 B9");
  const Contract base = SmallContract({.mask = "causal and window(7, 0)"});
  const std::shared_ptr<const Prepared> made = Made(base);
  ASSERT_NE(made, nullptr);
  Contract other = SmallContract({.mask = "window(7, 40) and (causal and full)"});
  other.tiles_reason = "another reason";
  RunOptions options;
  options.backward = true;
  options.threads = 3;
  options.strict = true;
  options.plan.widen_class = true;
  options.plan.verify_stages = true;
  options.batch_source = "file a";
  const std::shared_ptr<const Prepared> again = Made(other, options);
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(made->key, again->key) << ToText(made->key) << "\n" << ToText(again->key);
  EXPECT_EQ(made->key_digest, again->key_digest);
  EXPECT_NE(made->spelling, again->spelling);
}

// What a batch may bring without need, and where stored tiles come from, spelling decides: such runs are not shared.
TEST(ForwardCacheKey, WhatSpellingDecides_Enters) {
  const std::shared_ptr<const Prepared> plain = Made(SmallContract({.mask = "full"}));
  const std::shared_ptr<const Prepared> naming = Made(SmallContract({.mask = "full or documents"}));
  ASSERT_NE(plain, nullptr);
  ASSERT_NE(naming, nullptr);
  EXPECT_EQ(plain->key.contract_key, naming->key.contract_key);
  EXPECT_NE(plain->key, naming->key);
}

TEST(Prepared, HoldsWhatNoBatchChanges) {
  const Contract contract = SmallContract({.mask = "causal and window(7, 0) and documents"});
  const Target target = TargetNamed("v6e");
  const std::shared_ptr<const Prepared> made = Made(contract, {}, target);
  ASSERT_NE(made, nullptr);
  EXPECT_EQ(made->contract, contract);
  EXPECT_EQ(made->contract_text, ToToml(contract));
  EXPECT_EQ(made->key.contract_key, ContractKey(contract).value());
  EXPECT_TRUE(made->facts.needs_documents);
  EXPECT_TRUE(made->facts.has_window);
  const Result<ClassShape> shape = MakeClassShape(contract, target);
  ASSERT_TRUE(shape.has_value());
  ASSERT_TRUE(made->shape.has_value());
  EXPECT_EQ(*made->shape, *shape);
  EXPECT_EQ(made->key.class_key, ClassKey(contract, *shape).value());
  const Result<Selection> selection = SelectLane(contract, target);
  ASSERT_TRUE(selection.has_value());
  EXPECT_EQ(made->selection.lane, selection->lane);
  EXPECT_EQ(made->selection.rule, selection->rule);
  EXPECT_EQ(made->selection.decisions, selection->decisions);
  EXPECT_GT(made->bytes, 0);
}

}  // namespace
}  // namespace tessera
