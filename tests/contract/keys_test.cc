// Keys are meaning: equal sets give equal keys however they are written, different sets differ.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "contract/mask_sets.h"
#include "support/proves.h"
#include "support/random_batch.h"
#include "tessera/contract.h"

namespace tessera {
namespace {

Contract Make(const std::string& expr, int64_t q_len = 64, int64_t kv_len = 64) {
  Result<Contract> contract =
      ParseContract("version = 1\n[shape]\nq_len = " + std::to_string(q_len) + "\nkv_len = " + std::to_string(kv_len) +
                    "\ndim_qk = 16\n[mask]\nexpr = \"" + expr + "\"\n");
  EXPECT_TRUE(contract.has_value()) << ToText(contract.error());
  return *contract;
}

std::string Key(const std::string& expr, int64_t q_len = 64, int64_t kv_len = 64) {
  return *ContractKey(Make(expr, q_len, kv_len));
}

// A mask as the truth of every pair under every assignment of its run-time terms, ids and all: brute force.
std::string TruthTable(const Contract& contract, const std::vector<MaskCondition>& conditions) {
  std::string truth;
  const auto holds = [&](const auto& self, const MaskExpr& expr, ConditionSet set, int64_t i, int64_t j) -> bool {
    if (expr.op != MaskExpr::Op::kTerm) {
      for (const MaskExpr& child : expr.children) {
        if (self(self, child, set, i, j) == (expr.op == MaskExpr::Op::kOr)) return expr.op == MaskExpr::Op::kOr;
      }
      return expr.op == MaskExpr::Op::kAnd;
    }
    const MaskTerm& term = expr.term;
    const int64_t p = i + contract.mask.offset;
    const auto condition = [&](MaskCondition wanted) {
      for (size_t u = 0; u < conditions.size(); ++u) {
        if (conditions[u] == wanted) return (set >> u & 1U) != 0;
      }
      return false;
    };
    switch (term.kind) {
      case TermKind::kFull:
        return true;
      case TermKind::kCausal:
        return j <= p;
      case TermKind::kWindow:
        return (term.first < 0 || p - term.first <= j) && (term.second < 0 || j <= p + term.second);
      case TermKind::kChunk:
        return p >= 0 && p / term.first == j / term.first;
      case TermKind::kPrefix:
        return p < term.first && j < term.first;
      case TermKind::kSink:
        return j < term.first;
      case TermKind::kDocuments:
      case TermKind::kDocumentsEqual:
        return condition({TermKind::kDocuments, 0});
      case TermKind::kSinkDocument:
        return term.first > 0 && condition({TermKind::kSinkDocument, term.first});
      case TermKind::kBitmap:
        return term.bitmap->cells[i * contract.shape.kv_len + j] != 0;
      default:
        return condition({term.kind, 0});
    }
  };
  for (ConditionSet set = 0; set < (1U << conditions.size()); ++set) {
    if (Closure(conditions, set) != set) continue;
    for (int64_t i = 0; i < contract.shape.q_len; ++i) {
      for (int64_t j = 0; j < contract.shape.kv_len; ++j) {
        truth.push_back(holds(holds, contract.mask.heads[0], set, i, j) ? '1' : '0');
      }
    }
  }
  return truth;
}

TEST(ContractKey, RandomExpressions_EqualSetsAndOnlyThemShareAKey) {
  Proves("R14 R28");
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  const std::vector<MaskCondition> conditions = {{TermKind::kDocuments, 0}, {TermKind::kValid, 0}};
  for (const auto& [q_len, kv_len] : std::vector<std::pair<int64_t, int64_t>>{{3, 3}, {4, 6}, {6, 3}}) {
    std::map<std::string, std::string> key_of;
    std::map<std::string, std::string> truth_of;
    RandomMaskOptions options;
    options.q_len = q_len;
    options.kv_len = kv_len;
    options.max_depth = 2;
    options.sink_document = false;
    for (int i = 0; i < 6000; ++i) {
      Contract contract = Make("full", q_len, kv_len);
      contract.mask.heads[0] = RandomMask(rng, options);
      const std::string truth = TruthTable(contract, conditions);
      const std::string key = *ContractKey(contract);
      const auto [by_truth, new_truth] = key_of.emplace(truth, key);
      ASSERT_EQ(by_truth->second, key) << "equal sets, different keys: " << ToText(contract.mask.heads[0]) << " seed "
                                       << seed;
      const auto [by_key, new_key] = truth_of.emplace(key, truth);
      ASSERT_EQ(by_key->second, truth) << "different sets, equal keys: " << ToText(contract.mask.heads[0]) << " seed "
                                       << seed;
    }
    EXPECT_GT(key_of.size(), 20U);
    EXPECT_LT(key_of.size(), 6000U) << "no two expressions meant the same: the test shows nothing";
  }
}

TEST(ContractKey, SpellingAndDefaults_DoNotMatter) {
  Proves("R33");
  EXPECT_EQ(Key("causal and window(63, 0)"), Key("causal"));
  EXPECT_EQ(Key("window(-1, 0)"), Key("causal"));
  EXPECT_EQ(Key("window(-1, -1)"), Key("full"));
  EXPECT_EQ(Key("causal and documents"), Key("documents and (causal or causal)"));
  EXPECT_EQ(Key("full or documents"), Key("full"));
  EXPECT_EQ(Key("documents or sink(4, document)"), Key("documents"));
  EXPECT_EQ(Key("documents and sink(4, document)"), Key("sink(4, document)"));
  EXPECT_EQ(Key("sink(2, document) or sink(9, document)"), Key("sink(9, document)"));
  Contract spelled = Make("causal");
  spelled.tiles = {64, 64};
  spelled.tiles_reason = "short rows";
  EXPECT_EQ(*ContractKey(spelled), Key("causal"));
  spelled.mask.heads.assign(1, spelled.mask.heads[0]);
  EXPECT_EQ(*ContractKey(spelled), Key("causal"));
}

TEST(ContractKey, DifferentMeaning_Differs) {
  Proves("R14 R29 R45 B31");
  std::map<std::string, std::string> seen;
  for (const std::string expr :
       {"causal", "full", "causal and window(0, 0)", "causal and window(1, 0)", "causal and window(2, 0)",
        "causal and documents", "causal and valid", "causal and documents and valid", "causal and documents(equal)",
        "causal and sink(4, document)", "causal and sink(5, document)", "chunk(8)", "prefix(8)", "sink(8)"}) {
    const auto [at, is_new] = seen.emplace(Key(expr), expr);
    EXPECT_TRUE(is_new) << expr << " and " << at->second;
  }
  Contract contract = Make("causal");
  contract.score.softcap = 30;
  EXPECT_NE(*ContractKey(contract), Key("causal"));
  contract = Make("causal");
  contract.shape.num_kv_heads = contract.shape.num_q_heads = 2;
  EXPECT_NE(*ContractKey(contract), Key("causal"));
}

TEST(ContractKey, HeadsThatMeanTheSame_ShareAClass) {
  Contract contract = Make("causal");
  contract.shape.num_q_heads = 3;
  contract.mask.heads = {*ParseMaskExpr("causal"), *ParseMaskExpr("full"), *ParseMaskExpr("window(-1, 0)")};
  const MaskSets sets = *BuildMaskSets(contract);
  EXPECT_EQ(sets.classes.size(), 2U);
  EXPECT_EQ(sets.class_of_head, (std::vector<uint32_t>{0, 1, 0}));
}

TEST(MaskFacts, DecidedByMeaning) {
  Proves("R29");
  const auto facts = [](const std::string& expr) { return *DescribeMask(Make(expr)); };
  EXPECT_TRUE(facts("causal and window(63, 0)").is_causal);
  EXPECT_FALSE(facts("causal and window(63, 0)").has_window) << "effectively global";
  EXPECT_TRUE(facts("causal and window(62, 0)").has_window);
  EXPECT_FALSE(facts("documents and window(-1, 0)").has_window);
  EXPECT_TRUE(facts("window(-1, 5)").has_window);
  EXPECT_TRUE(facts("causal and window(0, 0)").has_window);
  EXPECT_TRUE(facts("full or causal").is_full);
  EXPECT_FALSE(facts("full or documents").needs_documents);
  EXPECT_TRUE(facts("sink(4, document)").needs_documents);
  EXPECT_FALSE(facts("sink(0, document) or causal").needs_documents);
  EXPECT_TRUE(facts("documents(equal)").documents_may_reappear);
  EXPECT_FALSE(facts("documents(equal) and causal or documents").documents_may_reappear);
  EXPECT_TRUE(facts("causal and valid").needs_valid);
}

TEST(ContractKey, TinyChunksOfAVastRow_AreRefusedBeforeTheyAreBuilt) {
  Contract contract = Make("chunk(8)");
  contract.shape.q_len = contract.shape.kv_len = 1 << 30;
  contract.mask.offset = 0;
  const Result<std::string> key = ContractKey(contract);
  ASSERT_FALSE(key.has_value());
  EXPECT_EQ(key.error().code, ErrorCode::kContractInvalid);
}

// Written down once, held on every architecture: a key is stored in receipts and caches.
TEST(ContractKey, Golden_HoldsOnEveryMachine) {
  EXPECT_EQ(Key("causal"), "dc65f9be9d3a9417df4eead024563679");
  EXPECT_EQ(Key("causal and window(15, 0) and documents or sink(4)"), "8c339ed400cd9190217318e41581b077");
  EXPECT_EQ(Key("chunk(8) and valid or sink(2, document)", 40, 56), "afc0a7843feddf75f2a465ae272d0215");
}

}  // namespace
}  // namespace tessera
