// A contract made in C++ is the contract that its fields make in a file.
#include "tessera/make_contract.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tessera/mask_term.h"

namespace tessera {
namespace {

TEST(MakeContract, FewestFields_HaveTheReadersDefaults) {
  const Result<Contract> made = MakeContract({.q_len = 96, .dim_qk = 24, .mask = "causal"});
  const Result<Contract> parsed = ParseContract(R"toml(
version = 1
shape.q_len = 96
shape.dim_qk = 24
mask.expr = "causal"
)toml");
  ASSERT_TRUE(made) << ToText(made.error());
  ASSERT_TRUE(parsed) << ToText(parsed.error());
  EXPECT_EQ(*made, *parsed);
  EXPECT_EQ(made->shape.kv_len, 96);
  EXPECT_EQ(made->shape.dim_v, 24);
}

TEST(MakeContract, EveryField_IsTheReadersToo) {
  Capacity capacity;
  capacity.width.kind = Limit::Kind::kPow2;
  const Result<Contract> made = MakeContract({.batch = 3,
                                              .q_len = 64,
                                              .kv_len = 128,
                                              .num_q_heads = 4,
                                              .num_kv_heads = 2,
                                              .dim_qk = 16,
                                              .dim_v = 8,
                                              .dtype = DType::kBf16,
                                              .head_masks = {"causal", "full", "causal", "window(3, 0)"},
                                              .offset = 7,
                                              .scale = 0.25,
                                              .softcap = 30.0,
                                              .sink_logits = true,
                                              .tiles = {16, 32},
                                              .tiles_reason = "a test",
                                              .capacity = capacity});
  const Result<Contract> parsed = ParseContract(R"toml(
version = 1
[shape]
batch = 3
q_len = 64
kv_len = 128
num_q_heads = 4
num_kv_heads = 2
dim_qk = 16
dim_v = 8
dtype = "bf16"
[mask]
heads = ["causal", "full", "causal", "window(3, 0)"]
offset = 7
[score]
scale = 0.25
softcap = 30.0
sink_logits = true
[tiles]
q = 16
kv = 32
reason = "a test"
[capacity]
width = "pow2"
)toml");
  ASSERT_TRUE(made) << ToText(made.error());
  ASSERT_TRUE(parsed) << ToText(parsed.error());
  EXPECT_EQ(*made, *parsed);
}

TEST(MakeContract, Defaults_FollowWhatIsSaid) {
  const Contract made =
      MakeContract({.q_len = 64, .kv_len = 100, .num_q_heads = 6, .dim_qk = 64, .mask = "causal"}).value();
  EXPECT_EQ(made.mask.offset, 36);
  EXPECT_EQ(made.shape.num_kv_heads, 6);
  EXPECT_EQ(made.score.scale, 0.125);
}

TEST(MakeContract, Routing_IsKept) {
  const Result<Contract> made =
      MakeContract({.q_len = 4096, .dim_qk = 64, .mask = "causal and blocks", .routing = Routing{.top_n = 3}});
  ASSERT_TRUE(made) << ToText(made.error());
  EXPECT_EQ(made->routing->top_n, 3);
}

TEST(MakeContract, BrokenRules_AreAllReported) {
  const Result<Contract> made = MakeContract({.num_q_heads = 3, .num_kv_heads = 2, .mask = "causal", .softcap = -1.0});
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, ErrorCode::kContractInvalid);
  EXPECT_GE(made.error().violations.size(), 4u) << ToText(made.error());
}

TEST(MakeContract, AbsurdLengths_AreRefusedWithoutOverflow) {
  EXPECT_FALSE(MakeContract({.q_len = INT64_MIN, .kv_len = INT64_MAX, .dim_qk = 8, .mask = "causal"}));
  EXPECT_FALSE(MakeContract({.q_len = INT64_MAX, .kv_len = INT64_MIN, .dim_qk = -8, .mask = "causal"}));
}

TEST(MakeContract, Masks_AreReadAsTheReaderDoes) {
  const Result<Contract> bad = MakeContract({.q_len = 8, .dim_qk = 8, .mask = "casual"});
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code, ParseMaskExpr("casual").error().code);
  EXPECT_NE(ToText(bad.error()).find("casual"), std::string::npos);
  const Result<Contract> two =
      MakeContract({.q_len = 8, .num_q_heads = 3, .dim_qk = 8, .head_masks = {"no", "causal", "nor"}});
  ASSERT_FALSE(two);
  ASSERT_EQ(two.error().violations.size(), 2u);
  EXPECT_EQ(two.error().violations[1].field, "head_masks[2]");
  EXPECT_FALSE(MakeContract({.q_len = 8, .num_q_heads = 3, .dim_qk = 8, .head_masks = {"causal", "full"}}));
}

TEST(MakeContract, RegisteredTerms_AreFoundWhereTheyAreGiven) {
  MaskTerms terms;
  MaskTermSpec spec{.name = "all", .version = 1, .min_parameters = 0, .max_parameters = 0};
  spec.runs = [](const MaskTermInput& in) { return std::vector<MaskRun>{{.q_end = in.q_len, .kv_end = in.kv_len}}; };
  ASSERT_TRUE(terms.Register(spec));
  const ContractSpec fields{.q_len = 8, .dim_qk = 8, .mask = "causal and all", .tiles = {256, 256}};
  const Result<Contract> made = MakeContract(fields, &terms);
  ASSERT_TRUE(made) << ToText(made.error());
  EXPECT_FALSE(MakeContract(fields));
}

TEST(MakeContract, MaskSaidTwiceOrNotAtAll_IsAnError) {
  EXPECT_EQ(MakeContract({.q_len = 8, .dim_qk = 8}).error().code, ErrorCode::kContractField);
  EXPECT_EQ(MakeContract({.q_len = 8, .dim_qk = 8, .mask = "full", .head_masks = {"full"}}).error().code,
            ErrorCode::kContractField);
}

}  // namespace
}  // namespace tessera
