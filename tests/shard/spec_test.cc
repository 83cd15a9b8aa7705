// Specs: the table on the four shapes of mesh, users' own, lists of parameters and files of specs that are wrong.
#include "shard/spec.h"

#include <fmt/format.h>

#include "support/proves.h"
#include "support/seed.h"
#include "tables.h"

namespace tessera {
namespace {

TEST(ShardTable, Decoder_OnDataAndModel) {
  Proves("R79 R81");
  const ShardTable table = MakeTable(kDecoder, "data=2,model=2");
  EXPECT_EQ(SpecOf(table, "wte.weight"), "replicated");
  EXPECT_EQ(SpecOf(table, "layers.0.ln_1.weight"), "replicated");
  for (const char* column : {"attn.c_q", "attn.c_k", "attn.c_v", "mlp.linear_fc1"}) {
    EXPECT_EQ(SpecOf(table, fmt::format("layers.0.{}.weight", column)), "(model, none)") << column;
  }
  EXPECT_EQ(SpecOf(table, "layers.0.attn.c_v.bias"), "(model)");
  for (const char* row : {"attn.c_proj", "mlp.linear_fc2"}) {
    EXPECT_EQ(SpecOf(table, fmt::format("layers.0.{}.weight", row)), "(none, model)") << row;
  }
  EXPECT_EQ(SpecOf(table, "layers.0.attn.c_proj.bias"), "replicated") << "added once, after the sum";
  EXPECT_EQ(SpecOf(table, "rope.cos"), "replicated");
  EXPECT_EQ(SpecOf(table, "attention.q"), "(data, model, none, none)");
  EXPECT_EQ(SpecOf(table, "attention.lse"), "(data, model, none)");
  EXPECT_EQ(SpecOf(table, "hidden"), "(data, none, none)");
  EXPECT_EQ(SpecOf(table, "input_ids"), "(data, none)");
  EXPECT_TRUE(AuditShards(table, {.num_devices = 4})) << ToText(AuditShards(table).error());
  const ShardRow* row = table.Find("layers.0.attn.c_q.weight");
  EXPECT_EQ(LocalDims(*row, table.mesh), (std::vector<int64_t>{32, 64}));
}

// The names of axes decide: without `model` nothing is cut along it, and nothing else changes.
TEST(ShardTable, EveryShapeOfMesh_DecidesByNames) {
  Proves("R81");
  const std::string q = "layers.0.attn.c_q.weight";
  EXPECT_EQ(SpecOf(MakeTable(kDecoder, "data=4"), q), "replicated");
  EXPECT_EQ(SpecOf(MakeTable(kDecoder, "data=4"), "attention.q"), "(data, none, none, none)");
  EXPECT_EQ(SpecOf(MakeTable(kDecoder, "data=2,expert=2"), q), "replicated");
  EXPECT_EQ(SpecOf(MakeTable(kDecoder, "data=2,expert=2,model=2"), q), "(model, none)");
  EXPECT_EQ(SpecOf(MakeTable(kDecoder, "data=1,model=1"), q), "(model, none)") << "of size 1, and there";
  const ShardTable context = MakeTable(kDecoder, "data=2,context=4,model=2");
  EXPECT_EQ(SpecOf(context, "attention.q"), "(data, model, context, none)");
  EXPECT_EQ(SpecOf(context, "input_ids"), "(data, context)");
  EXPECT_EQ(SpecOf(context, "hidden"), "(data, context, none)");
  for (const char* mesh :
       {"data=4", "data=2,model=2", "data=2,expert=2", "data=2,expert=2,model=2", "data=2,context=4"}) {
    const ShardTable table = MakeTable(kDecoder, mesh);
    EXPECT_TRUE(AuditShards(table)) << mesh << ": " << ToText(AuditShards(table).error());
  }
}

TEST(ShardTable, MatricesInOut_AreCutOnTheOtherDimension) {
  const ShardTable table = MakeTable(R"(
[model]
num_heads = 8
weights = "in_out"
[parameters]
"layers.0.qkv" = "f32[64, 192]"
"layers.0.proj" = "f32[64, 48]"
"layers.0.sink_logits" = "f32[8]"
)",
                                     "data=2,model=2");
  EXPECT_EQ(SpecOf(table, "layers.0.qkv"), "(none, model)");
  EXPECT_EQ(SpecOf(table, "layers.0.proj"), "(model, none)");
  EXPECT_EQ(SpecOf(table, "layers.0.sink_logits"), "(model)");
}

TEST(ShardTable, ExpertsMlaLoraAndIndexer_AreDeclaredOnes) {
  Proves("R79 R81 B13");
  const std::string text = R"(
[model]
num_heads = 16
[parameters]
"layers.1.moe.experts.w1" = "bf16[8, 128, 64]"
"layers.1.moe.experts.bias" = "bf16[8, 128]"
"layers.1.moe.router.weight" = "f32[8, 64]"
"layers.1.moe.shared_expert.up_proj.weight" = "bf16[128, 64]"
"layers.1.moe.null_experts.weight" = "bf16[2, 64]"
"layers.1.attn.w_uq" = "bf16[256, 24]"
"layers.1.attn.w_ukv" = "bf16[512, 24]"
"layers.1.attn.w_dq" = "bf16[24, 64]"
"layers.1.attn.w_dkv" = "bf16[24, 64]"
"layers.1.attn.w_dqkv" = "bf16[48, 64]"
"layers.1.indexer.q_proj.weight" = "bf16[64, 64]"
"layers.1.indexer.w" = "bf16[16, 64]"
"layers.1.indexer.k_proj.weight" = "bf16[64, 64]"
"layers.1.attn.q_proj.lora_A" = "bf16[8, 64]"
"layers.1.attn.q_proj.lora_B" = "bf16[64, 8]"
"layers.1.attn.q_proj.lora_scale" = "f32[1]"
"mtp.0.q_proj.weight" = "bf16[64, 64]"
"ngram_hash.table" = "bf16[1024, 64]"
"mhc.weights" = "bf16[4, 4]"
)";
  const ShardTable table = MakeTable(text, "data=2,expert=4,model=4");
  EXPECT_TRUE(AuditShards(table)) << ToText(AuditShards(table).error());
  EXPECT_EQ(SpecOf(table, "layers.1.moe.experts.w1"), "(expert, none, none)");
  EXPECT_EQ(SpecOf(table, "layers.1.moe.experts.bias"), "(expert, none)");
  EXPECT_EQ(SpecOf(table, "layers.1.attn.w_uq"), "(model, none)");
  EXPECT_EQ(SpecOf(table, "layers.1.attn.w_ukv"), "(model, none)");
  EXPECT_EQ(SpecOf(table, "layers.1.indexer.q_proj.weight"), "(model, none)");
  EXPECT_EQ(SpecOf(table, "layers.1.indexer.w"), "(model, none)");
  EXPECT_EQ(SpecOf(table, "layers.1.attn.q_proj.lora_A"), "(model, none)");
  EXPECT_EQ(SpecOf(table, "layers.1.attn.q_proj.lora_B"), "(none, model)");
  for (const char* whole :
       {"layers.1.moe.router.weight", "layers.1.moe.shared_expert.up_proj.weight", "layers.1.moe.null_experts.weight",
        "layers.1.attn.w_dq", "layers.1.attn.w_dkv", "layers.1.attn.w_dqkv", "layers.1.indexer.k_proj.weight",
        "layers.1.attn.q_proj.lora_scale", "mtp.0.q_proj.weight", "ngram_hash.table", "mhc.weights"}) {
    EXPECT_EQ(SpecOf(table, whole), "replicated") << whole;
    EXPECT_TRUE(table.Find(whole)->is_pinned) << whole;
  }
  // A rank that does not divide leaves both halves of LoRA whole, in so many words.
  const ShardTable wide = MakeTable(text, "expert=2,model=16");
  EXPECT_EQ(SpecOf(wide, "layers.1.attn.q_proj.lora_A"), "replicated");
  EXPECT_EQ(SpecOf(wide, "layers.1.attn.q_proj.lora_B"), "replicated");
  EXPECT_TRUE(AuditShards(wide)) << ToText(AuditShards(wide).error());
}

// 1,024 wide at model=4: each of its dimensions divides, and some equal those of tensors that are cut.
TEST(ShardTable, EngramWithCoincidentalDimensions_StaysAsWritten) {
  Proves("R82 B13");
  const std::string text = R"(
[model]
num_heads = 16
[parameters]
"layers.0.attn.c_q.weight" = "bf16[1024, 1024]"
"engram.q_proj.weight" = "bf16[1024, 1024]"
"engram.table" = "bf16[4096, 256]"
)";
  for (const bool zero3 : {false, true}) {
    const ShardTable table = MakeTable(text, "data=2,model=4", {.rules = {}, .zero3 = zero3});
    EXPECT_EQ(SpecOf(table, "engram.q_proj.weight"), "replicated");
    EXPECT_EQ(SpecOf(table, "engram.table"), "replicated");
    EXPECT_EQ(SpecOf(table, "layers.0.attn.c_q.weight"), zero3 ? "(model, data)" : "(model, none)");
    EXPECT_TRUE(AuditShards(table));
  }
}

TEST(ShardSpecs, OwnRules_ComeFirstAndInOrder) {
  const std::vector<SpecRule> rules = MakeRules(R"(
[[spec]]
name = "wte.weight"
axes = ["model", "none"]
[[spec]]
name = "layers.*.attn.c_?"
axes = "replicated"
[[spec]]
name = "layers.*.weight"
axes = ["none", "data+model"]
)");
  ASSERT_EQ(rules.size(), 3u);
  EXPECT_EQ(rules[2].axes, (SpecAxes{{}, {"data", "model"}}));
  const std::vector<SpecRule> two = {rules[0], rules[2]};
  const ShardTable table = MakeTable(kDecoder, "data=2,model=2", {.rules = two});
  EXPECT_EQ(SpecOf(table, "wte.weight"), "(model, none)");
  EXPECT_EQ(SpecOf(table, "layers.0.attn.c_q.weight"), "(none, data+model)");
  EXPECT_EQ(SpecOf(table, "layers.0.attn.c_v.bias"), "(model)") << "the table's";
  EXPECT_EQ(LocalDims(*table.Find("layers.0.attn.c_q.weight"), table.mesh), (std::vector<int64_t>{64, 16}));
}

TEST(ShardSpecs, RulesForTensorsThatDoNotExist_AreAllListed) {
  const DeclaredModel model = MakeModel(kDecoder);
  const auto fault = [&](const std::string& text) {
    return TextOfError(MakeShardTable(model, MakeMesh("data=2"), {.rules = MakeRules(text)}), ErrorCode::kSpecsInvalid);
  };
  const std::string text = fault(R"(
[[spec]]
name = "wte.weigth"
axes = "replicated"
[[spec]]
name = "layers.7.*"
axes = "replicated"
[[spec]]
name = "rope.*"
axes = "replicated"
[[spec]]
name = "rope.cos"
axes = "replicated"
)");
  EXPECT_TRUE(Has(text, "did you mean wte.weight?")) << text;
  EXPECT_TRUE(Has(text, "layers.7.*")) << text;
  EXPECT_FALSE(Has(text, "spec[2]")) << text;
  EXPECT_TRUE(Has(text, "spec[3]") && Has(text, "no spec before it has taken")) << text;
}

TEST(ShardSpecs, BadFiles_AreRefusedWithEveryFault) {
  const auto fault = [](const std::string& text) { return TextOfError(ParseSpecs(text), ErrorCode::kSpecsInvalid); };
  EXPECT_TRUE(Has(fault("version = "), "line 1"));
  EXPECT_TRUE(Has(fault("version = 2\n"), "1 expected, got 2"));
  EXPECT_TRUE(Has(fault("version = 1\n"), "spec: missing"));
  EXPECT_TRUE(Has(fault("version = 1\nspec = 3\n"), "an array expected"));
  const std::string both = fault(R"({"version": 1, "spec": [{"axes": 3}, {"name": "", "axes": ["a+", 4], "as": 1}]})");
  for (const char* part : {"spec[0].name: missing", "spec[0].axes", "spec[1].as: no such field", "spec[1].name",
                           "spec[1].axes[0]", "spec[1].axes[1]"}) {
    EXPECT_TRUE(Has(both, part)) << part << " in\n" << both;
  }
  EXPECT_FALSE(ReadSpecs("/nowhere/specs.toml"));
}

TEST(DeclaredModel, TomlAndJson_AreTheSame) {
  const Result<DeclaredModel> json = ParseDeclaredModel(
      R"({"version": 1, "model": {"num_heads": 4}, "parameters": {"a": "f32[2, 3]"}, "buffers": {"b": "i32[]"}})");
  ASSERT_TRUE(json) << ToText(json.error());
  const DeclaredModel toml =
      MakeModel("[model]\nnum_heads = 4\n[parameters]\na = \"f32[2,3]\"\n[buffers]\nb = \"i32[]\"\n");
  EXPECT_EQ(*json, toml);
  EXPECT_EQ(toml.tensors[1].role, TensorRole::kBuffer);
  EXPECT_EQ(toml.num_q_heads, 4);
}

TEST(DeclaredModel, BadLists_AreRefusedWithEveryFault) {
  const auto fault = [](const std::string& text) {
    return TextOfError(ParseDeclaredModel(text), ErrorCode::kParametersInvalid);
  };
  EXPECT_TRUE(Has(fault("{"), "line"));
  EXPECT_TRUE(Has(fault(""), "version: missing"));
  EXPECT_TRUE(Has(fault("version = 1"), "at least one"));
  EXPECT_TRUE(Has(fault("version = 1\nweights = 3\n"), "no such field"));
  for (const char* type :
       {"", "f32", "f64[2]", "f32[2", "f32[2]x", "f32[0]", "f32[-1]", "f32[2,]", "f32[,2]", "f32[a]",
        "f32[1,1,1,1,1,1,1,1,1]", "f32[4294967296, 4294967296]", "F32[2]", "f32[99999999999999999999]"}) {
    EXPECT_TRUE(Has(fault("version = 1\n[parameters]\nw = \"" + std::string(type) + "\"\n"), "a type like")) << type;
  }
  const std::string all = fault(R"({"version": 1, "model": {"num_heads": 0, "weights": "up", "x": 1},
      "parameters": {"w": "f32[2]", "v": 3}, "buffers": {"w": "f32[2]"}})");
  for (const char* part : {"model.num_heads", "model.weights", "model.x", "parameters", "each name once"}) {
    EXPECT_TRUE(Has(all, part)) << part << " in\n" << all;
  }
}

TEST(ShardSpecs, Stars_StandForAnything) {
  for (const char* pattern : {"*", "a.b.c", "a*", "*c", "a.*.c", "*.*", "**", "a*b*c", "*a.b.c*"}) {
    EXPECT_TRUE(shard::Matches(pattern, "a.b.c")) << pattern;
  }
  for (const char* pattern : {"", "a", "b*", "*b", "a.b.c.", "a*d*c", "a.b.c*d", "A.b.c"}) {
    EXPECT_FALSE(shard::Matches(pattern, "a.b.c")) << pattern;
  }
  EXPECT_TRUE(shard::Matches("*ab", "aaab"));
  EXPECT_TRUE(shard::Matches("", ""));
}

}  // namespace
}  // namespace tessera
