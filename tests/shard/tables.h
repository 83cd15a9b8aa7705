// What the tests of sharding share: small models and meshes as text.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "tessera/shard.h"

namespace tessera {

inline Mesh MakeMesh(const std::string& text) {
  Result<Mesh> mesh = ParseMesh(text);
  EXPECT_TRUE(mesh.has_value()) << text << ": " << ToText(mesh.error());
  return mesh.value_or(Mesh{});
}

inline DeclaredModel MakeModel(const std::string& text) {
  Result<DeclaredModel> model = ParseDeclaredModel("version = 1\n" + text);
  EXPECT_TRUE(model.has_value()) << ToText(model.error());
  return model.value_or(DeclaredModel{});
}

inline std::vector<SpecRule> MakeRules(const std::string& text) {
  Result<std::vector<SpecRule>> rules = ParseSpecs("version = 1\n" + text);
  EXPECT_TRUE(rules.has_value()) << ToText(rules.error());
  return rules.value_or(std::vector<SpecRule>{});
}

inline ShardTable MakeTable(const std::string& model, const std::string& mesh, const ShardOptions& options = {}) {
  Result<ShardTable> table = MakeShardTable(MakeModel(model), MakeMesh(mesh), options);
  EXPECT_TRUE(table.has_value()) << ToText(table.error());
  return table.value_or(ShardTable{});
}

// The spec of a name as text; "?" where there is none.
inline std::string SpecOf(const ShardTable& table, const std::string& name) {
  const ShardRow* row = table.Find(name);
  EXPECT_NE(row, nullptr) << name;
  return row == nullptr || !row->spec ? "?" : ToText(*row->spec);
}

template <class T>
std::string TextOfError(const Result<T>& result, ErrorCode code) {
  EXPECT_FALSE(result.has_value());
  if (result) return {};
  EXPECT_EQ(result.error().code, code) << ToText(result.error());
  return ToText(result.error());
}

inline bool Has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// A decoder's tensors, matrices [out, in].
inline const std::string kDecoder = R"(
[model]
num_heads = 8
num_kv_heads = 4
[parameters]
"wte.weight" = "bf16[512, 64]"
"layers.0.ln_1.weight" = "f32[64]"
"layers.0.attn.c_q.weight" = "bf16[64, 64]"
"layers.0.attn.c_k.weight" = "bf16[32, 64]"
"layers.0.attn.c_v.weight" = "bf16[32, 64]"
"layers.0.attn.c_v.bias" = "bf16[32]"
"layers.0.attn.c_proj.weight" = "bf16[64, 64]"
"layers.0.attn.c_proj.bias" = "bf16[64]"
"layers.0.mlp.linear_fc1.weight" = "bf16[256, 64]"
"layers.0.mlp.linear_fc2.weight" = "bf16[64, 128]"
"lm_head.weight" = "bf16[512, 64]"
[buffers]
"rope.cos" = "f32[128, 4]"
[activations]
"input_ids" = "i32[4, 128]"
"attention.q" = "bf16[4, 8, 128, 8]"
"attention.lse" = "f32[4, 8, 128]"
"hidden" = "bf16[4, 128, 64]"
)";

}  // namespace tessera
