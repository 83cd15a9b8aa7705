// Terms of the user's own: specs, text, keys, both forms against each other and against the predicate, and
// functions that misbehave.
#include "tessera/mask_term.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "contract/mask_registry.h"
#include "contract/mask_sets.h"
#include "support/own_terms.h"
#include "support/random_mask.h"
#include "support/seed.h"
#include "tessera/contract.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

Result<MaskExpr> Parse(std::string_view expr) { return ParseMaskExpr(expr, ".", &TestTerms()); }

Contract Make(const std::string& expr, int64_t q_len = 16, int64_t kv_len = 16, int64_t heads = 1) {
  Contract contract;
  contract.shape = {.q_len = q_len, .kv_len = kv_len, .num_q_heads = heads, .dim_qk = 4, .dim_v = 4};
  contract.score.scale = 0.5;
  contract.mask.offset = kv_len - q_len;
  Result<MaskExpr> parsed = Parse(expr);
  EXPECT_TRUE(parsed.has_value()) << ToText(parsed.error());
  if (parsed) contract.mask.heads = {*parsed};
  return contract;
}

std::string Refusal(const std::string& expr) {
  const Result<MaskExpr> parsed = Parse(expr);
  return parsed ? "accepted" : ToText(parsed.error());
}

// Registers under this name, which must be new.
void Add(MaskTermSpec spec) {
  const Status status = TestTerms().Register(std::move(spec));
  ASSERT_TRUE(status.has_value()) << ToText(status.error());
}

std::string Rejection(MaskTermSpec spec) {
  const Status status = TestTerms().Register(std::move(spec));
  return status ? "accepted" : ToText(status.error());
}

MaskTermSpec Everything(const std::string& name) {
  MaskTermSpec spec{.name = name};
  spec.runs = [](const MaskTermInput& input) {
    return std::vector<MaskRun>{{.q_end = input.q_len, .kv_end = input.kv_len}};
  };
  return spec;
}

TEST(MaskTerm, BadSpec_EveryFaultIsReported) {
  for (const char* name : {"causal", "sink", "and", "or", "not", "equal", "document"}) {
    EXPECT_THAT(Rejection(Everything(name)), AllOf(HasSubstr("TSR-C009"), HasSubstr("no word of the mask language")));
  }
  for (const std::string& name : {std::string(), std::string("Big"), std::string("9lives"), std::string("a-b"),
                                  std::string("_a"), std::string("\xC3\xA9"), std::string(65, 'a')}) {
    EXPECT_THAT(Rejection(Everything(name)), HasSubstr("expected a letter a-z")) << name;
  }
  MaskTermSpec spec = Everything("Bad name");
  spec.version = 0;
  spec.min_parameters = 3;
  spec.max_parameters = 2;
  spec.allows = [](const MaskTermInput&, int64_t, int64_t) { return true; };
  EXPECT_THAT(Rejection(spec),
              AllOf(HasSubstr("name: "), HasSubstr("version: expected 1 to"),
                    HasSubstr("min_parameters, max_parameters: "), HasSubstr("runs, cover, allows: ")));
  EXPECT_THAT(Rejection({.name = "nothing_at_all"}), HasSubstr("expected either `runs`, or `cover` and `allows`"));
  EXPECT_EQ(TestTerms().Find("nothing_at_all"), nullptr);
}

TEST(MaskTerm, SecondRegistration_IsRefusedWhateverTheVersion) {
  Add(Everything("once"));
  const auto first = TestTerms().Find("once");
  EXPECT_THAT(Rejection(Everything("once")), HasSubstr("TSR-C009 at once: version 1 is registered already"));
  MaskTermSpec newer = Everything("once");
  newer.version = 2;
  EXPECT_THAT(Rejection(newer), HasSubstr("version 1 is registered already"));
  EXPECT_EQ(TestTerms().Find("once"), first);
  EXPECT_EQ(first->version, 1);
}

TEST(MaskTerm, Text_CarriesTheVersionAndRoundTrips) {
  const MaskExpr expr = *Parse("causal and ( stride(+4,2) or specks ) and islands(8)");
  EXPECT_EQ(ToText(expr), "causal and (stride@3(4, 2) or specks@1) and islands@1(8)");
  EXPECT_EQ(*Parse(ToText(expr)), expr);
  EXPECT_EQ(*Parse("stride @ 3 ( -4 )"), *Parse("stride(-4)"));
  EXPECT_NE(*Parse("stride(4)"), *Parse("stride(4, 0)"));
  EXPECT_NE(*Parse("stride(4)"), *Parse("stride_rects(4)"));
  const Contract contract = Make("stride(4, 2) or documents");
  EXPECT_EQ(*ParseContract(ToToml(contract), ".", &TestTerms()), contract);
  EXPECT_EQ(*ParseContract(ToJson(contract), ".", &TestTerms()), contract);
}

TEST(MaskTerm, WrongText_SaysWhatIsRegistered) {
  EXPECT_THAT(Refusal("causal and stride@2(4)"),
              AllOf(HasSubstr("TSR-C009 at column 19"), HasSubstr("written for stride@2"),
                    HasSubstr("version 3 of stride is registered")));
  EXPECT_THAT(Refusal("dilation@1(4)"), AllOf(HasSubstr("TSR-C009 at column 1"), HasSubstr("\"dilation\" is not regis"),
                                              HasSubstr("stride@3"), HasSubstr("docs/contract.md")));
  EXPECT_THAT(Refusal("dilation(4)"),
              AllOf(HasSubstr("TSR-C004"), HasSubstr("stride with 1 to 2 parameters"), HasSubstr("docs/contract.md")));
  EXPECT_THAT(Refusal("strid(4)"), AllOf(HasSubstr("TSR-C004"), HasSubstr("did you mean stride?")));
  EXPECT_THAT(Refusal("strid@3(4)"), AllOf(HasSubstr("TSR-C009"), HasSubstr("did you mean stride?")));
  EXPECT_THAT(Refusal("stride"), HasSubstr("column 1: expected 1 to 2 parameters of stride, found 0"));
  EXPECT_THAT(Refusal("full or stride(1, 2, 3)"), HasSubstr("column 9: expected 1 to 2 parameters of stride, found 3"));
  EXPECT_THAT(Refusal("specks(1)"), HasSubstr("expected no parameters of specks, found 1"));
  EXPECT_THAT(Refusal("specks()"), HasSubstr("expected an integer (a parameter of specks with no parameters)"));
  EXPECT_THAT(Refusal("stride(4"), HasSubstr("expected `)`"));
  EXPECT_THAT(Refusal("stride(causal)"), HasSubstr("expected an integer"));
  EXPECT_THAT(Refusal("stride(1073741825)"), HasSubstr("from -1073741824 to 1073741824, found 1073741825"));
  EXPECT_THAT(Refusal("stride@(1)"), HasSubstr("expected an integer (the version of stride)"));
  EXPECT_THAT(Refusal("causal@1"), HasSubstr("column 7: found \"@\""));
  EXPECT_THAT(Refusal("attention"), Not(HasSubstr("did you mean")));
  std::string many = "stride(1";
  for (int i = 0; i < 20; ++i) many += ", 1";
  EXPECT_THAT(Refusal(many + ")"), HasSubstr("expected stride with 1 to 2 parameters"));

  const Result<Contract> contract = ParseContract(
      "version = 1\n[shape]\nq_len = 4\ndim_qk = 4\n[mask]\nexpr = \"unheard_of@7(1)\"\n", ".", &TestTerms());
  ASSERT_FALSE(contract.has_value());
  EXPECT_EQ(contract.error().code, ErrorCode::kMaskTermInvalid);
  EXPECT_THAT(ToText(contract.error()), AllOf(HasSubstr("mask.expr: column 1"), HasSubstr("unheard_of")));
}

TEST(MaskTerm, HandMadeTerms_AreHeldToTheSameRules) {
  const auto with = [](const MaskTerm& term) {
    Contract contract = Make("full");
    contract.mask.heads[0].term = term;
    std::vector<std::string> found;
    for (const Violation& violation : Validate(contract)) found.push_back(violation.expected);
    return found;
  };
  MaskTerm term;
  term.kind = TermKind::kRegistered;
  EXPECT_THAT(with(term), ElementsAre(HasSubstr("one that MaskTerms::Find gives")));
  static_assert(!std::is_copy_constructible_v<RegisteredTerm> && !std::is_constructible_v<RegisteredTerm, MaskTermSpec>,
                "only MaskTerms makes a registered term");
  term.parameters = {4};
  term.registered = TestTerms().Find("stride");
  EXPECT_THAT(with(term), ElementsAre());
  term.parameters = {4, 1, 1};
  EXPECT_THAT(with(term), ElementsAre(HasSubstr("1 to 2 parameters")));
  term.parameters = {int64_t{1} << 40};
  EXPECT_THAT(with(term), ElementsAre(HasSubstr("1099511627776")));
  term.parameters = {4};
  term.first = 1;
  EXPECT_THAT(with(term), ElementsAre(HasSubstr("parameters only")));
  term.first = 0;
  term.kind = TermKind::kCausal;
  EXPECT_THAT(with(term), ElementsAre(HasSubstr("parameters on registered terms only")));
}

TEST(MaskTerm, Key_HoldsNameVersionParametersAndSets) {
  const auto key = [](const std::string& expr) { return *ContractKey(Make(expr)); };
  EXPECT_EQ(key("causal and stride(4)"), key("stride@3(4) and (causal or stride(4))"));
  EXPECT_NE(key("stride(4)"), key("stride_rects(4)"));
  EXPECT_NE(key("stride(4)"), key("stride(4, 0)"));
  EXPECT_NE(key("stride(1)"), key("causal")) << "the same pairs, but not the same term";
  EXPECT_NE(key("stride(4)"), key("stride(5)"));

  const Contract contract = Make("causal and stride(4)");
  MaskSets sets = *BuildMaskSets(contract);
  ASSERT_THAT(sets.registered, ElementsAre("stride@3(4)"));
  const std::string before = KeyOf(contract, sets);
  sets.registered[0] = "stride@4(4)";
  EXPECT_NE(KeyOf(contract, sets), before) << "a new version is a new key though no pair changed";

  EXPECT_TRUE(DescribeMask(Make("stride(1)"))->is_causal) << "facts speak of pairs, not of names";
  EXPECT_FALSE(DescribeMask(Make("stride(2)"))->is_causal);
}

TEST(MaskTerm, BothForms_GiveTheSameSet) {
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  for (int trial = 0; trial < 300; ++trial) {
    const std::string parameters =
        std::to_string(RandomInt(rng, 1, 9)) + ", " + std::to_string(RandomInt(rng, 0, 40)) + ")";
    const std::string around[] = {"", "causal and ", "valid and ", "documents and window(9, 3) and "};
    const std::string& before = around[trial % 4];
    const int64_t q_len = RandomInt(rng, 1, 200);
    const int64_t kv_len = RandomInt(rng, 1, 200);
    const MaskSets runs = *BuildMaskSets(Make(before + "stride(" + parameters, q_len, kv_len));
    const MaskSets rects = *BuildMaskSets(Make(before + "stride_rects(" + parameters, q_len, kv_len));
    ASSERT_EQ(runs.classes, rects.classes) << before << parameters << " " << q_len << " x " << kv_len;
  }
}

// Runs from a seed: ordered by their first row, and otherwise as they come.
std::vector<MaskRun> RandomRuns(const MaskTermInput& input) {
  std::mt19937_64 rng(static_cast<uint64_t>(input.parameters[0]));
  std::vector<MaskRun> runs(rng() % 12);
  const auto diagonal = [&] { return RandomInt(rng, -input.q_len - 2, input.kv_len + 2); };
  for (MaskRun& run : runs) {
    run.q_begin = RandomInt(rng, 0, input.q_len);
    run.q_end = RandomInt(rng, run.q_begin, input.q_len);
    run.kv_begin = RandomInt(rng, 0, input.kv_len);
    run.kv_end = RandomInt(rng, run.kv_begin, input.kv_len);
    if (rng() % 2 == 0) run.diag_begin = rng() % 9 == 0 ? INT64_MIN : diagonal();
    if (rng() % 2 == 0) run.diag_end = rng() % 9 == 0 ? INT64_MAX : diagonal();
  }
  std::stable_sort(runs.begin(), runs.end(), [](const MaskRun& a, const MaskRun& b) { return a.q_begin < b.q_begin; });
  return runs;
}

TEST(MaskTerm, RandomRuns_OverlappingAndTouching_MeanTheirUnion) {
  MaskTermSpec spec{.name = "scattered", .min_parameters = 1, .max_parameters = 1};
  spec.runs = RandomRuns;
  Add(spec);
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  for (int trial = 0; trial < 400; ++trial) {
    const Contract contract =
        Make("scattered(" + std::to_string(rng() % 1000000000) + ")", RandomInt(rng, 1, 24), RandomInt(rng, 1, 24));
    const MaskTerm& term = contract.mask.heads[0].term;
    const auto set = RegisteredSet(contract, term, 0);
    ASSERT_TRUE(set.has_value()) << ToText(set.error());
    const std::vector<MaskRun> runs =
        RandomRuns({.q_len = contract.shape.q_len, .kv_len = contract.shape.kv_len, .parameters = term.parameters});
    for (int64_t q = 0; q < contract.shape.q_len; ++q) {
      for (int64_t k = 0; k < contract.shape.kv_len; ++k) {
        bool expected = false;
        for (const MaskRun& run : runs) {
          expected |= q >= run.q_begin && q < run.q_end && k >= run.kv_begin && k < run.kv_end &&
                      k - q >= run.diag_begin && k - q < run.diag_end;
        }
        ASSERT_EQ((*set)->Contains(q, k), expected) << ToText(contract.mask.heads[0]) << " at " << q << ", " << k;
      }
    }
  }
}

TEST(MaskTerm, PerHead_HeadsAreToldApartOnlyWhenTheSpecSaysSo) {
  EXPECT_EQ(BuildMaskSets(Make("specks", 16, 16, 3))->classes.size(), 3U);
  EXPECT_EQ(BuildMaskSets(Make("stride(3)", 16, 16, 3))->classes.size(), 1U);
  static std::atomic<int> highest = 0;  // the registered function outlives the test
  MaskTermSpec spec = Everything("headless");
  spec.runs = [](const MaskTermInput& input) {
    highest = std::max<int>(highest, static_cast<int>(input.head));
    return std::vector<MaskRun>{{.q_end = input.q_len, .kv_end = input.kv_len}};
  };
  Add(spec);
  Contract contract = Make("headless", 16, 16, 4);
  contract.mask.heads.assign(4, contract.mask.heads[0]);
  EXPECT_TRUE(Validate(contract).empty());
  EXPECT_EQ(BuildMaskSets(contract)->classes.size(), 1U);
  EXPECT_EQ(highest, 0);
}

TEST(MaskTerm, Answers_AreAskedForTwiceAndThenKept) {
  static std::atomic<int> calls = 0;
  MaskTermSpec spec = Everything("counted");
  spec.runs = [](const MaskTermInput& input) {
    ++calls;
    return std::vector<MaskRun>{{.q_end = input.q_len, .kv_end = input.kv_len}};
  };
  Add(spec);
  const Contract contract = Make("counted");
  EXPECT_TRUE(Validate(contract).empty());
  EXPECT_TRUE(ContractKey(contract).has_value());
  EXPECT_TRUE(DescribeMask(contract)->is_full);
  EXPECT_EQ(calls, 2);
  EXPECT_TRUE(Validate(Make("counted", 17)).empty());
  EXPECT_EQ(calls, 4) << "other lengths are another question";
}

// What Validate says of a contract whose only term has this function.
std::string Complaint(const std::string& name, std::function<std::vector<MaskRun>(const MaskTermInput&)> runs) {
  MaskTermSpec spec{.name = name};
  spec.runs = std::move(runs);
  Add(spec);
  const Contract contract = Make("causal and " + name);
  const std::vector<Violation> violations = Validate(contract);
  if (violations.size() != 1) return "found " + std::to_string(violations.size()) + " violations";
  EXPECT_FALSE(ContractKey(contract).has_value());
  EXPECT_FALSE(DescribeMask(contract).has_value());
  const Result<Contract> read = ParseContract(
      "version = 1\n[shape]\nq_len = 16\ndim_qk = 4\n[mask]\nexpr = \"causal and " + name + "\"\n", ".", &TestTerms());
  EXPECT_FALSE(read.has_value());
  return violations[0].field + ": " + violations[0].expected;
}

TEST(MaskTerm, BadRuns_AreViolationsThatNameTermAndRow) {
  const auto give = [](const std::vector<MaskRun>& runs) { return [runs](const MaskTermInput&) { return runs; }; };
  const MaskRun good{.q_begin = 0, .q_end = 4, .kv_begin = 0, .kv_end = 4};
  EXPECT_THAT(Complaint("bad_a", give({good, {.q_begin = 12, .q_end = 17, .kv_end = 4}})),
              AllOf(HasSubstr("mask.expr: bad_a@1: row 12: run 1 has rows [12, 17)"), HasSubstr("inside 0..16")));
  EXPECT_THAT(Complaint("bad_b", give({{.q_begin = -1, .q_end = 2, .kv_end = 4}})),
              HasSubstr("row -1: run 0 has rows"));
  EXPECT_THAT(Complaint("bad_c", give({{.q_begin = 5, .q_end = 3, .kv_end = 4}})), HasSubstr("rows [5, 3)"));
  EXPECT_THAT(Complaint("bad_d", give({good, {.q_begin = 2, .q_end = 3, .kv_end = 20}})),
              HasSubstr("row 2: run 1 has keys [0, 20)"));
  EXPECT_THAT(Complaint("bad_e", give({{.q_begin = 7, .q_end = 9, .kv_begin = INT64_MIN, .kv_end = INT64_MAX}})),
              HasSubstr("row 7: run 0 has keys"));
  EXPECT_THAT(Complaint("bad_f", give({{.q_begin = 8, .q_end = 9, .kv_end = 4}, good})),
              HasSubstr("row 0: run 1 has rows [0, 4), expected runs with q_begin ascending"));
  EXPECT_THAT(
      Complaint("bad_g",
                [](const MaskTermInput&) -> std::vector<MaskRun> { throw std::runtime_error("no such pattern\n"); }),
      HasSubstr("its function threw: \"no such pattern\\n\""));
  EXPECT_THAT(Complaint("bad_h", [](const MaskTermInput&) -> std::vector<MaskRun> { throw 7; }),
              HasSubstr("threw something that is no std::exception"));
  EXPECT_THAT(Complaint("bad_i",
                        [calls = std::make_shared<std::atomic<int>>(0)](const MaskTermInput&) {
                          return std::vector<MaskRun>{{.q_end = 8 + ++*calls, .kv_end = 4}};
                        }),
              HasSubstr("gave two answers to one question"));
}

TEST(MaskTerm, BadRectangles_AreViolations) {
  const auto complaint = [](const std::string& name, auto cover, auto allows) {
    MaskTermSpec spec{.name = name};
    spec.cover = cover;
    spec.allows = allows;
    Add(spec);
    const std::vector<Violation> violations = Validate(Make(name, 64, 64));
    return violations.size() == 1 ? violations[0].expected : "found " + std::to_string(violations.size());
  };
  const auto causal = [](const MaskTermInput&, int64_t q, int64_t k) { return k <= q; };
  const auto full = [](const MaskTermInput&, const MaskRect&) { return MaskCover::kFull; };
  const auto mixed = [](const MaskTermInput&, const MaskRect&) { return MaskCover::kMixed; };
  EXPECT_EQ(complaint("rect_a", mixed, causal), "found 0");
  EXPECT_THAT(complaint("rect_b", full, causal), AllOf(HasSubstr("row 0: `cover` says rows [0, 64)"),
                                                       HasSubstr("are full, `allows` says otherwise of key 63")));
  EXPECT_THAT(complaint(
                  "rect_c", [](const MaskTermInput&, const MaskRect&) { return MaskCover::kEmpty; }, causal),
              HasSubstr("are empty"));
  EXPECT_THAT(complaint(
                  "rect_d", [](const MaskTermInput&, const MaskRect&) { return static_cast<MaskCover>(9); }, causal),
              HasSubstr("gave no value of MaskCover"));
  EXPECT_THAT(complaint("rect_e", mixed,
                        [](const MaskTermInput&, int64_t, int64_t) -> bool { throw std::logic_error("pair"); }),
              HasSubstr("its function threw: \"pair\""));
}

TEST(MaskTerm, EdgesWithoutEnd_AreGivenUp) {
  MaskTermSpec spec{.name = "endless"};
  spec.cover = [](const MaskTermInput&, const MaskRect&) { return MaskCover::kMixed; };
  spec.allows = [](const MaskTermInput&, int64_t q, int64_t k) { return k <= q; };
  Add(spec);
  const std::vector<Violation> violations = Validate(Make("endless", int64_t{1} << 30, int64_t{1} << 30));
  ASSERT_EQ(violations.size(), 1U);
  EXPECT_THAT(violations[0].expected, HasSubstr("more than 16777216 rectangles"));
}

TEST(MaskTerm, AbsurdLengths_NeverReachTheFunction) {
  static std::atomic<int> calls = 0;
  MaskTermSpec spec = Everything("shy");
  spec.runs = [](const MaskTermInput& input) {
    ++calls;
    return std::vector<MaskRun>{{.q_end = input.q_len, .kv_end = input.kv_len}};
  };
  Add(spec);
  for (const auto& [q_len, offset, heads] :
       {std::array<int64_t, 3>{0, 0, 1}, {int64_t{1} << 40, 0, 1}, {16, INT64_MIN, 1}, {16, 0, 0}}) {
    Contract contract = Make("shy");
    contract.shape.q_len = q_len;
    contract.mask.offset = offset;
    contract.shape.num_q_heads = heads;
    EXPECT_FALSE(Validate(contract).empty());
  }
  EXPECT_EQ(calls, 0);
}

}  // namespace
}  // namespace tessera
