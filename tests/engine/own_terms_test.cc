// Mask terms belong to an engine: two engines may mean two things by one name, and what an engine keeps is never given
// to a request that only looks like an earlier one.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "support/seed.h"
#include "tessera/tessera.h"

namespace tessera {
namespace {

constexpr int64_t kLen = 24;

// near: the `reach` keys up to the query's own.
MaskTermSpec Near(int64_t reach) {
  MaskTermSpec spec{.name = "near"};
  spec.runs = [reach](const MaskTermInput& input) {
    return std::vector<MaskRun>{{.q_end = input.q_len,
                                 .kv_end = input.kv_len,
                                 .diag_begin = input.offset - reach + 1,
                                 .diag_end = input.offset + 1}};
  };
  return spec;
}

std::string Text(const std::string& mask) {
  return "version = 1\n[shape]\nq_len = " + std::to_string(kLen) + "\ndim_qk = 8\n[mask]\nexpr = \"" + mask +
         "\"\n[tiles]\nq = 8\nkv = 8\nreason = \"a small test\"\n";
}

// A contract with "near" of this reach, from a MaskTerms that is gone when it is returned.
Contract WithNear(int64_t reach) {
  MaskTerms terms;
  EXPECT_TRUE(terms.Register(Near(reach)).has_value());
  Result<Contract> contract = ParseContract(Text("near"), ".", &terms);
  EXPECT_TRUE(contract.has_value()) << ToText(contract.error());
  return contract.value_or(Contract());
}

EngineOptions Plain() {
  EngineOptions options = OptionsFromEnvironment();
  options.lane = "cpu";
  return options;
}

// How many keys the last query sees in what the engine prepared for the contract.
int64_t KeysSeen(const Engine& engine, const Contract& contract) {
  const Result<Attention> attention = engine.Prepare(contract, FindTarget("cpu").value());
  EXPECT_TRUE(attention.has_value()) << ToText(attention.error());
  if (!attention) return -1;
  EXPECT_EQ(attention->key().contract_key, ContractKey(contract).value());
  const Result<PlanResult> planned = attention->Plan(Batch());
  EXPECT_TRUE(planned.has_value()) << ToText(planned.error());
  if (!planned) return -1;
  const std::vector<uint8_t> dense = ToDense(planned->plan.view(), Direction::kForward, 0, 0).value();
  int64_t seen = 0;
  for (int64_t k = 0; k < kLen; ++k) seen += dense.at(static_cast<size_t>((kLen - 1) * kLen + k)) != 0 ? 1 : 0;
  return seen;
}

TEST(EngineTerms, TwoEngines_MeanTwoThingsByOneName) {
  const Engine three(Plain());
  const Engine five(Plain());
  ASSERT_TRUE(three.mask_terms().Register(Near(3)).has_value());
  EXPECT_FALSE(five.Parse(Text("near")).has_value()) << "no engine knows another's terms";
  EXPECT_FALSE(ParseContract(Text("near")).has_value());
  ASSERT_TRUE(five.mask_terms().Register(Near(5)).has_value());
  EXPECT_FALSE(Engine(three).mask_terms().Register(Near(4)).has_value()) << "a copy is the same engine";

  const Contract of_three = three.Parse(Text("near")).value();
  const Contract of_five = five.Parse(Text("near")).value();
  EXPECT_EQ(ToToml(of_three), ToToml(of_five));
  EXPECT_NE(of_three, of_five);
  EXPECT_NE(ContractKey(of_three).value(), ContractKey(of_five).value());
  EXPECT_EQ(three.Parse(ToToml(of_three)).value(), of_three);
  EXPECT_EQ(KeysSeen(three, of_three), 3);
  EXPECT_EQ(KeysSeen(five, of_five), 5);
  EXPECT_EQ(KeysSeen(three, of_five), 5) << "a contract has its terms with it";
  EXPECT_EQ(KeysSeen(three, of_three), 3);
}

TEST(EngineTerms, Receipt_IsHeldAgainstTheTermsItIsCheckedWith) {
  const Engine three(Plain());
  ASSERT_TRUE(three.mask_terms().Register(Near(3)).has_value());
  const Contract contract = three.Parse(Text("near")).value();
  const TensorMap inputs = MakeInputs(contract, PrintedSeed(), false);
  const RunOutcome outcome = tessera::Run(three, contract, Batch(), inputs, FindTarget("cpu").value());
  ASSERT_FALSE(outcome.error.has_value()) << ToText(*outcome.error);
  const Receipt& receipt = outcome.receipt;
  EXPECT_TRUE(CheckReceipt(receipt, &three.mask_terms()).empty());
  EXPECT_TRUE(ParseReceipt(ToJson(receipt), &three.mask_terms()).has_value());
  EXPECT_TRUE(CheckReceipt(receipt).empty()) << "a term that is not here says nothing against a receipt";

  MaskTerms others;
  ASSERT_TRUE(others.Register(Near(5)).has_value());
  const std::vector<Violation> violations = CheckReceipt(receipt, &others);
  ASSERT_FALSE(violations.empty()) << "the text means something else with these terms";
  EXPECT_EQ(violations[0].field, "contract_key");
  EXPECT_FALSE(ParseReceipt(ToJson(receipt), &others).has_value());
}

// The second contract of a round means the same as the first, so that the engine knows it by its spelling and keeps
// only the first. Its term is gone with it, and the memory is free for the third's.
TEST(EngineTerms, TermsThatAreGone_AreNotTakenForThoseInTheirPlace) {
  for (int64_t reach = 2; reach < 12; ++reach) {
    const Engine engine(Plain());
    EXPECT_EQ(KeysSeen(engine, WithNear(reach)), reach);
    EXPECT_EQ(KeysSeen(engine, WithNear(reach)), reach);
    EXPECT_EQ(engine.cache_stats().builds, 1);
    EXPECT_EQ(KeysSeen(engine, WithNear(reach + 1)), reach + 1);
    EXPECT_EQ(engine.cache_stats().builds, 2);
  }
}

TEST(EngineTerms, Attention_OutlivesEngineAndTerms) {
  std::optional<Attention> attention;
  {
    const Engine engine(Plain());
    ASSERT_TRUE(engine.mask_terms().Register(Near(3)).has_value());
    attention = engine.Prepare(engine.Parse(Text("near")).value(), FindTarget("cpu").value()).value();
  }
  EXPECT_TRUE(Validate(attention->contract()).empty());
  EXPECT_TRUE(attention->Plan(Batch()).has_value());
}

TEST(EngineTerms, ThreadsWithAnEngineEach_SeeTheirOwn) {
  std::vector<std::thread> threads;
  for (int64_t reach = 1; reach <= 6; ++reach) {
    threads.emplace_back([reach] {
      const Engine engine(Plain());
      EXPECT_TRUE(engine.mask_terms().Register(Near(reach)).has_value());
      for (int round = 0; round < 8; ++round) {
        const Result<Contract> contract = engine.Parse(Text("near"));
        ASSERT_TRUE(contract.has_value());
        EXPECT_EQ(KeysSeen(engine, *contract), reach);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace tessera
