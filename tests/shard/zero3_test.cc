// ZeRO-3: the largest free dimension that divides, never rounded, never a second time.
#include "support/proves.h"
#include "support/seed.h"
#include "tables.h"

namespace tessera {
namespace {

const ShardOptions kZero3 = {.rules = {}, .zero3 = true};

TEST(Zero3, LargestFreeDimensionThatDivides_IsCut) {
  Proves("R81");
  const ShardTable table = MakeTable(kDecoder, "data=4,model=2", kZero3);
  EXPECT_EQ(SpecOf(table, "wte.weight"), "(data, none)");
  EXPECT_EQ(SpecOf(table, "layers.0.attn.c_q.weight"), "(model, data)") << "what model has is taken";
  EXPECT_EQ(SpecOf(table, "layers.0.mlp.linear_fc2.weight"), "(data, model)");
  EXPECT_EQ(SpecOf(table, "layers.0.attn.c_v.bias"), "(model)") << "nothing is left";
  EXPECT_EQ(SpecOf(table, "rope.cos"), "replicated") << "buffers are not parameters";
  EXPECT_EQ(SpecOf(table, "attention.q"), "(data, model, none, none)");
  EXPECT_EQ(table.Find("wte.weight")->zero_dim, 0u);
  EXPECT_TRUE(AuditShards(table, {.num_devices = 8})) << ToText(AuditShards(table).error());
  EXPECT_EQ(SpecOf(MakeTable(kDecoder, "data=1", kZero3), "wte.weight"), "replicated");
  EXPECT_EQ(SpecOf(MakeTable(kDecoder, "model=2", kZero3), "wte.weight"), "replicated");
}

TEST(Zero3, WhatDoesNotDivide_IsNeverRounded) {
  Proves("R81 B14");
  const std::string text = R"(
[model]
num_heads = 6
[parameters]
"embedding" = "f32[1000, 96]"
"mlp.fc1.weight" = "f32[100, 44]"
"final_norm" = "f32[90]"
"a_norm" = "f32[3]"
"b_norm" = "f32[3, 6]"
)";
  // 1000 is the largest and does not divide by 3; 96 does.
  const ShardTable three = MakeTable(text, "data=3", kZero3);
  EXPECT_EQ(SpecOf(three, "embedding"), "(none, data)");
  EXPECT_EQ(SpecOf(three, "mlp.fc1.weight"), "replicated") << "neither divides";
  EXPECT_EQ(SpecOf(three, "final_norm"), "(data)");
  EXPECT_EQ(SpecOf(three, "a_norm"), "replicated") << "below 4";
  EXPECT_EQ(SpecOf(three, "b_norm"), "(none, data)");
  EXPECT_TRUE(AuditShards(three));
}

// MLA's ranks divide by 8, and still are not cut where the table says whole.
TEST(Zero3, ReplicationThatIsWrittenOut_Stays) {
  Proves("B14");
  const std::string text = R"(
[parameters]
"attn.w_dq" = "bf16[512, 1024]"
"attn.w_dkv" = "bf16[576, 1024]"
"router.weight" = "f32[64, 1024]"
"own" = "f32[64, 64]"
"free" = "f32[64, 64]"
)";
  const std::vector<SpecRule> rules = {{.name = "own", .is_replicated = true},
                                       {.name = "free", .is_replicated = false, .axes = {{}, {}}}};
  const ShardTable table = MakeTable(text, "data=8", {.rules = rules, .zero3 = true});
  for (const char* name : {"attn.w_dq", "attn.w_dkv", "router.weight", "own"}) {
    EXPECT_EQ(SpecOf(table, name), "replicated") << name;
  }
  EXPECT_EQ(SpecOf(table, "free"), "(data, none)");
}

TEST(Zero3, DataThatIsUsedAlready_IsNotUsedAgain) {
  Proves("B14");
  const std::vector<SpecRule> rules = {{.name = "w", .is_replicated = false, .axes = {{"data"}, {}}}};
  const ShardTable table =
      MakeTable("[parameters]\nw = \"f32[8, 64]\"\n", "data=2,model=2", {.rules = rules, .zero3 = true});
  EXPECT_EQ(SpecOf(table, "w"), "(data, none)");
  EXPECT_FALSE(table.Find("w")->zero_dim.has_value());
}

// Whatever the sizes: what ZeRO-3 adds divides, is the largest that does, and leaves every other dimension as it was.
TEST(Zero3, AnySizes_KeepTheRule) {
  Proves("R81 B14");
  std::mt19937_64 random(PrintedSeed());
  const auto draw = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  for (int i = 0; i < 500; ++i) {
    const int64_t data = draw(1, 9);
    const int64_t model = draw(1, 5);
    const Mesh mesh = {.axes = {{"data", data}, {"model", model}}};
    DeclaredModel declared = {
        .tensors = {{"x.fc1", TensorRole::kParameter, ElementType::kF32, {draw(1, 40), draw(1, 40)}}}};
    const Result<ShardTable> before = MakeShardTable(declared, mesh);
    const Result<ShardTable> after = MakeShardTable(declared, mesh, kZero3);
    ASSERT_TRUE(before && after);
    const std::vector<int64_t>& dims = declared.tensors[0].dims;
    const ShardRow& row = after->rows[0];
    ASSERT_EQ((*before->rows[0].spec)[0], std::vector<std::string>{"model"});
    ASSERT_EQ((*row.spec)[0], std::vector<std::string>{"model"}) << "taken already";
    const bool is_cut = data > 1 && dims[1] >= 4 && dims[1] % data == 0;
    ASSERT_EQ((*row.spec)[1].empty(), !is_cut) << dims[1] << " over " << data;
    ASSERT_EQ(row.zero_dim.has_value(), is_cut);
    // The audit refuses by what model does, and never because of ZeRO-3.
    ASSERT_EQ(AuditShards(*after).has_value(), dims[0] % model == 0);
  }
}

}  // namespace
}  // namespace tessera
