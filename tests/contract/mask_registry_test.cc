// Registries of terms: names are unique in one and mean what they like in another, and a contract keeps the terms it
// names.
#include "contract/mask_registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/own_terms.h"
#include "tessera/contract.h"
#include "tessera/mask_term.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

Contract Make(const std::string& expr, const MaskTerms& terms, int64_t len = 16) {
  Contract contract;
  contract.shape = {.q_len = len, .kv_len = len, .dim_qk = 4, .dim_v = 4};
  contract.score.scale = 0.5;
  Result<MaskExpr> parsed = ParseMaskExpr(expr, ".", &terms);
  EXPECT_TRUE(parsed.has_value()) << ToText(parsed.error());
  if (parsed) contract.mask.heads = {*parsed};
  return contract;
}

TEST(MaskTerms, WithoutTerms_OnlyTheBuiltInOnesAreKnown) {
  const auto refusal = [](const std::string& expr) {
    const Result<MaskExpr> parsed = ParseMaskExpr(expr);
    return parsed ? "accepted" : ToText(parsed.error());
  };
  EXPECT_THAT(refusal("stride@3(4)"), AllOf(HasSubstr("TSR-C009"), HasSubstr("\"stride\" is not registered"),
                                            HasSubstr("none is registered here")));
  EXPECT_THAT(refusal("stride(4)"), AllOf(HasSubstr("TSR-C004"), Not(HasSubstr("stride with"))));
  EXPECT_FALSE(ParseContract(ToToml(Make("stride(4)", TestTerms()))).has_value());
}

TEST(MaskTerms, OneNameInTwoMaskTerms_IsTwoTerms) {
  MaskTerms some;
  MaskTerms others;
  MaskTermSpec spec{.name = "patch"};
  spec.runs = [](const MaskTermInput& input) {
    return std::vector<MaskRun>{{.q_end = input.q_len, .kv_end = input.kv_len}};
  };
  ASSERT_TRUE(some.Register(spec).has_value());
  spec.runs = [](const MaskTermInput& input) {
    return std::vector<MaskRun>{{.q_end = input.q_len, .kv_end = input.kv_len / 2}};
  };
  ASSERT_TRUE(others.Register(spec).has_value());
  EXPECT_NE(some.Find("patch")->id(), others.Find("patch")->id());
  EXPECT_EQ(some.All().size(), 1U);
  EXPECT_EQ(TestTerms().Find("patch"), nullptr);

  const Contract one = Make("causal and patch", some);
  const Contract other = Make("causal and patch", others);
  EXPECT_EQ(ToToml(one), ToToml(other));
  EXPECT_NE(one, other) << "functions cannot be compared";
  EXPECT_EQ(one, ParseContract(ToToml(one), ".", &some).value());
  EXPECT_NE(ContractKey(one).value(), ContractKey(other).value());
  EXPECT_TRUE(DescribeMask(one)->is_causal);
  EXPECT_FALSE(DescribeMask(other)->is_causal);
}

TEST(MaskTerms, Contract_KeepsItsTermsWhateverBecomesOfTheMaskTerms) {
  const auto captured = std::make_shared<int64_t>(3);
  const std::weak_ptr<const RegisteredTerm> term = [&] {
    std::weak_ptr<const RegisteredTerm> held;
    Contract contract;
    {
      MaskTerms terms;
      MaskTermSpec spec{.name = "brief"};
      spec.runs = [captured](const MaskTermInput& input) {
        return std::vector<MaskRun>{{.q_end = input.q_len, .kv_end = *captured}};
      };
      EXPECT_TRUE(terms.Register(std::move(spec)).has_value());
      contract = Make("brief", terms);
      held = terms.Find("brief");
    }
    EXPECT_TRUE(Validate(contract).empty()) << "asked for the first time when its MaskTerms is gone";
    const auto set = RegisteredSet(contract, contract.mask.heads[0].term, 0).value();
    EXPECT_TRUE(set->Contains(0, 2));
    EXPECT_FALSE(set->Contains(0, 3));
    return held;
  }();
  EXPECT_TRUE(term.expired()) << "and nothing else keeps them";
  EXPECT_EQ(captured.use_count(), 1);
}

TEST(MaskTerms, ThreadsAtOnce_OneRegistrationWinsAndAllSeeOneSet) {
  constexpr int kThreads = 8;
  MaskTerms terms;
  std::atomic<int> won = 0;
  std::vector<std::string> keys(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      MaskTermSpec spec{.name = "contested", .min_parameters = 1, .max_parameters = 2};
      spec.runs = StrideRuns;
      won += terms.Register(spec).has_value() ? 1 : 0;
      spec.name = "own_" + std::to_string(t);
      EXPECT_TRUE(terms.Register(spec).has_value());
      for (int round = 0; round < 20; ++round) {
        const Result<MaskExpr> expr =
            ParseMaskExpr("contested(3) and own_" + std::to_string(t) + "(2, 1)", ".", &terms);
        ASSERT_TRUE(expr.has_value());
        keys[t] += *ContractKey(Make("causal and contested(3)", terms, 20 + round));
        EXPECT_FALSE(terms.All().empty());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(won, 1);
  EXPECT_EQ(terms.All().size(), kThreads + 1U);
  for (const std::string& key : keys) EXPECT_EQ(key, keys[0]);
}

}  // namespace
}  // namespace tessera
