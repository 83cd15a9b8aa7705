// The audit before launch: one refusal with everything that is wrong; what devices hold; fingerprints and stale keys.
#include "support/proves.h"
#include "support/seed.h"
#include "tables.h"

namespace tessera {
namespace {

std::string Refusal(const ShardTable& table, const AuditLimits& limits = {}) {
  return TextOfError(AuditShards(table, limits), ErrorCode::kShardAudit);
}

TEST(ShardAudit, EveryFault_IsInOneList) {
  Proves("R79 R80 B13");
  const std::string text = R"(
[model]
num_heads = 6
num_kv_heads = 3
[parameters]
"mystery.weight" = "f32[8, 8]"
"attn.c_q.weight" = "f32[60, 64]"
"twice" = "f32[64, 64]"
"missing_axis" = "f32[64, 64]"
"other_rank" = "f32[64, 64]"
"fc1.weight" = "f32[2, 3, 4]"
[buffers]
"inv_freq" = "f32[32]"
[activations]
"q" = "f32[8, 8]"
"scores" = "f32[8, 8]"
)";
  const std::vector<SpecRule> rules = {{"twice", false, {{"model"}, {"model"}}},
                                       {"missing_axis", false, {{"expert"}, {}}},
                                       {"other_rank", false, {{"model"}}}};
  const ShardTable table = MakeTable(text, "data=2,model=8", {.rules = rules});
  const std::string refusal = Refusal(table, {.num_devices = 8});
  for (const char* part :
       {"mystery.weight: a spec of its own", "inv_freq: a spec of its own, as for every buffer",
        "scores: a spec of its own", "data=2,model=8 needs 16, there are 8", "a dimension 0 that divides by 8",
        "60 does not", "twice: each axis once", "missing_axis: axes of the mesh", "other_rank: a spec of 2 dimensions",
        "fc1.weight: a spec of its own", "with 1 or 2 dimensions, not 3", "q: a spec of its own",
        "model.num_heads: a number that divides by model=8", "model.num_kv_heads"}) {
    EXPECT_TRUE(Has(refusal, part)) << part << " is missing in\n" << refusal;
  }
}

TEST(ShardAudit, Heads_DivideByModelOrAreRefused) {
  Proves("R81");
  const std::string matrix = "[parameters]\n\"attn.c_q.weight\" = \"f32[60, 64]\"\n";
  EXPECT_TRUE(Has(Refusal(MakeTable(matrix, "model=2")), "model.num_heads: given, to cut attn.c_q.weight"));
  EXPECT_TRUE(AuditShards(MakeTable(matrix, "data=2")));
  EXPECT_TRUE(AuditShards(MakeTable("[model]\nnum_heads = 6\n" + matrix, "model=2")));
  // The dimension divides by 4, and the heads do not.
  const std::string refusal = Refusal(MakeTable("[model]\nnum_heads = 6\n" + matrix, "model=4"));
  EXPECT_TRUE(Has(refusal, "divides by model=4: 6 does not")) << refusal;
  EXPECT_FALSE(Has(refusal, "dimension")) << refusal;
}

TEST(ShardAudit, FiguresAndCeilings) {
  Proves("R80");
  const std::string text = R"(
[parameters]
"embedding" = "bf16[100, 64]"
"fc1.weight" = "f32[64, 8]"
[buffers]
"rope.cos" = "f32[10]"
[activations]
"hidden" = "f32[8, 8, 8]"
)";
  const ShardTable table = MakeTable(text, "data=2,model=4");
  const ShardFigures figures = FiguresOf(table);
  EXPECT_EQ(figures.total_bytes, 12800 + 2048 + 40);
  EXPECT_EQ(figures.device_bytes, 12800 + 512 + 40);
  EXPECT_EQ(figures.replicated_bytes, 12800 + 40);
  EXPECT_DOUBLE_EQ(figures.ReplicatedFraction(), 12840.0 / 14888.0);
  EXPECT_TRUE(AuditShards(table, {.device_bytes = 13352, .replicated_fraction = 0.87}));
  EXPECT_TRUE(Has(Refusal(table, {.device_bytes = 13351}), "at most 13351: 13352"));
  EXPECT_TRUE(Has(Refusal(table, {.replicated_fraction = 0.5}), "replicated fraction"));
  const ShardTable zero3 = MakeTable(text, "data=2,model=4", {.rules = {}, .zero3 = true});
  EXPECT_EQ(FiguresOf(zero3).device_bytes, 6400 + 256 + 40);
  EXPECT_EQ(FiguresOf(zero3).replicated_bytes, 40);
  EXPECT_EQ(FiguresOf(ShardTable{}).ReplicatedFraction(), 0.0);
}

// What changes, changes the fingerprint; nothing else does.
TEST(ShardFingerprint, ChangesWithNameTypeShapeAndSpec_AndWithNothingElse) {
  Proves("R83");
  const ShardTable table = MakeTable(kDecoder, "data=2,model=2");
  const std::string fingerprint = ShardFingerprint(table);
  EXPECT_EQ(fingerprint.size(), 32u);
  std::set<std::string> seen = {fingerprint};
  for (size_t i = 0; i < table.rows.size(); ++i) {
    for (const int what : {0, 1, 2, 3, 4, 5}) {
      ShardTable other = table;
      ShardRow& row = other.rows[i];
      if (what == 0) row.tensor.name += "x";
      if (what == 1) row.tensor.type = ElementType::kI64;
      if (what == 2) row.tensor.dims[0] *= 2;
      if (what == 3) row.tensor.dims.push_back(1);
      if (what == 4) (*row.spec)[0] = {"context"};
      if (what == 5) row.spec.reset();
      EXPECT_TRUE(seen.insert(ShardFingerprint(other)).second) << row.tensor.name << ", change " << what;
    }
  }
  ShardTable same = table;
  for (ShardRow& row : same.rows) {
    row.source = "elsewhere";
    row.is_pinned = !row.is_pinned;
  }
  same.num_q_heads = 64;
  std::mt19937_64 random(PrintedSeed());
  std::shuffle(same.rows.begin(), same.rows.end(), random);
  EXPECT_EQ(ShardFingerprint(same), fingerprint);
  ShardTable fewer = table;
  fewer.rows.pop_back();
  EXPECT_NE(ShardFingerprint(fewer), fingerprint);
}

TEST(ShardFingerprint, IsTheSameOnEveryMachine) {
  EXPECT_EQ(ShardFingerprint(MakeTable("[parameters]\n\"fc1.weight\" = \"f32[4, 2]\"\n", "model=2")),
            "e2dca8314631bd4cb0511bb3a69def2f");
}

TEST(ShardKey, StaleProgram_IsRejected) {
  Proves("R83");
  const ShardTable table = MakeTable(kDecoder, "data=2,model=2");
  const std::string key = ShardKey(table, "program");
  EXPECT_TRUE(key.starts_with(ShardFingerprint(table)));
  EXPECT_TRUE(key.ends_with("program"));
  EXPECT_TRUE(CheckShardKey(table, key));
  ShardTable other = table;
  other.rows[3].tensor.dims[0] *= 2;
  EXPECT_TRUE(Has(TextOfError(CheckShardKey(other, key), ErrorCode::kShardStale), "does not begin with"));
  // The same specs on a mesh of another size are another program too.
  ShardTable wider = table;
  wider.mesh.axes[0].size = 4;
  EXPECT_EQ(ShardFingerprint(wider), ShardFingerprint(table));
  EXPECT_TRUE(Has(TextOfError(CheckShardKey(wider, key), ErrorCode::kShardStale), "another mesh"));
  for (const char* no_key : {"", "program", "-", "0123456789abcdef0123456789abcdef-data=2,model=2-program"}) {
    EXPECT_FALSE(CheckShardKey(table, no_key)) << no_key;
  }
}

TEST(ShardText, TableAndJson_HaveEveryRow) {
  const ShardTable table = MakeTable(kDecoder, "data=2,model=2", {.rules = {}, .zero3 = true});
  const std::string text = ToText(table);
  const std::string json = ToJson(table);
  for (const ShardRow& row : table.rows) {
    EXPECT_TRUE(Has(text, row.tensor.name)) << row.tensor.name;
    EXPECT_TRUE(Has(json, "\"name\":\"" + row.tensor.name + "\"")) << row.tensor.name;
  }
  EXPECT_TRUE(Has(text, "ZeRO-3 on dimension 0"));
  EXPECT_TRUE(Has(json, "\"spec\":[[\"model\"],[\"data\"]],\"local_dims\":[32,32],\"zero3_dim\":1"));
  EXPECT_TRUE(Has(json, "\"fingerprint\":\"" + ShardFingerprint(table)));
  const ShardTable none = MakeTable("[parameters]\nmystery = \"f32[8]\"\n", "data=2");
  EXPECT_TRUE(Has(ToText(none), "none given"));
  EXPECT_TRUE(Has(ToJson(none), "\"spec\":null,\"local_dims\":null"));
}

}  // namespace
}  // namespace tessera
