// The definition of a model as text, and its parameters. No plugin is needed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "model/model_fixture.h"

namespace tessera {
namespace {

using testing::HasSubstr;

constexpr const char* kText = R"toml(
[model]
vocab = 256
layers = 2
width = 96
num_q_heads = 4
rows = 8
row_tokens = 512
masks = ["causal and documents", "causal and documents and window(127, 0)"]

[train]
steps = 100
)toml";

TEST(ModelSpec, Defaults_AreFilledIn) {
  const Result<ModelSpec> spec = ParseModel(kText);
  ASSERT_TRUE(spec) << ToText(spec.error());
  EXPECT_EQ(spec->num_kv_heads, 4);
  EXPECT_EQ(spec->head_dim, 24);
  EXPECT_EQ(spec->mlp_width, 256);
  EXPECT_EQ(spec->PaddedVocab(), 256);
  EXPECT_EQ(spec->dtype, DType::kF32);
}

TEST(ModelSpec, Text_ReadsBackAsItself) {
  for (const ModelSpec& spec : {TinySpec(), FullSpec(), ParseModel(kText).value()}) {
    const Result<ModelSpec> again = ParseModel(ToToml(spec));
    ASSERT_TRUE(again) << ToText(again.error());
    EXPECT_TRUE(*again == spec);
    EXPECT_EQ(Digest(*again), Digest(spec));
  }
  EXPECT_NE(Digest(TinySpec()), Digest(FullSpec()));
  const Result<ModelSpec> json = ParseModel(
      R"({"model": {"vocab": 8, "layers": 1, "width": 8, "num_q_heads": 2, "row_tokens": 16, "dtype": "bf16"}})");
  ASSERT_TRUE(json) << ToText(json.error());
  EXPECT_EQ(json->dtype, DType::kBf16);
}

std::string Refused(const std::string& text) {
  const Result<ModelSpec> spec = ParseModel(text);
  EXPECT_FALSE(spec) << text;
  if (spec) return {};
  EXPECT_EQ(spec.error().code, ErrorCode::kModelInvalid);
  return ToText(spec.error());
}

TEST(ModelSpec, BadText_EveryViolationNamed) {
  EXPECT_THAT(Refused("[model"), HasSubstr("TSR-T001"));
  EXPECT_THAT(Refused("x = 1"), HasSubstr("model: expected a table"));
  const std::string missing = Refused("[model]\nwidth = 'a'\nspeed = 3\n");
  for (const char* field :
       {"model.vocab", "model.layers", "model.width", "model.num_q_heads", "model.row_tokens", "model.speed"}) {
    EXPECT_THAT(missing, HasSubstr(field));
  }
  const auto with = [](const std::string& line) {
    return "[model]\nvocab = 256\nlayers = 2\nwidth = 96\nnum_q_heads = 4\nrow_tokens = 512\n" + line + "\n";
  };
  EXPECT_THAT(Refused(with("num_kv_heads = 3")), HasSubstr("a divisor of num_q_heads (4)"));
  EXPECT_THAT(Refused(with("head_dim = 7")), HasSubstr("an even number"));
  EXPECT_THAT(Refused(with("rows = 0")), HasSubstr("model.rows: expected 1 to"));
  EXPECT_THAT(Refused(with("rows = 16777216")), HasSubstr("tokens in a batch"));
  EXPECT_THAT(Refused(with("dtype = 'f16'")), HasSubstr("\"f32\" or \"bf16\""));
  EXPECT_THAT(Refused(with("rope_base = 0")), HasSubstr("model.rope_base"));
  EXPECT_THAT(Refused(with("softcap = -1.0")), HasSubstr("model.softcap"));
  EXPECT_THAT(Refused(with("masks = []")), HasSubstr("model.masks"));
  EXPECT_THAT(Refused(with("masks = [3]")), HasSubstr("model.masks"));
  EXPECT_THAT(Refused(with("masks = ['causal and']")), HasSubstr("model.masks[0]"));
  EXPECT_THAT(Refused(with("masks = ['causal', 'blocks']")),
              HasSubstr("model.masks[1]: expected a mask that rows alone"));
  EXPECT_THAT(Refused(with("mlp_width = 9223372036854775807")), HasSubstr("model.mlp_width"));
}

TEST(ModelParameters, NamesShapesAndBeginnings) {
  const std::vector<ParameterInfo> plain = ParametersOf(TinySpec());
  const std::vector<ParameterInfo> full = ParametersOf(FullSpec());
  std::set<std::string> names;
  for (const ParameterInfo& info : full) EXPECT_TRUE(names.insert(info.name).second) << info.name;
  for (const ParameterInfo& info : plain) EXPECT_TRUE(names.contains(info.name)) << info.name;
  EXPECT_EQ(full.size(), plain.size() + 6 + 2 * 2);  // structure; sinks and gates of two layers
  const TensorMap a = InitialParameters(FullSpec(), 7);
  EXPECT_TRUE(a == InitialParameters(FullSpec(), 7));
  EXPECT_FALSE(a == InitialParameters(FullSpec(), 8));
  // A parameter more changes none of the others.
  for (const auto& [name, tensor] : InitialParameters(TinySpec(), 7)) EXPECT_TRUE(a.at(name) == tensor) << name;
  for (const ParameterInfo& info : full) {
    const double norm = Norm(a.at(info.name));
    const auto count = static_cast<double>(a.at(info.name).NumElements());
    const double deviation = info.init == Init::kZeros ? 0.0 : info.init == Init::kOnes ? 1.0 : info.deviation;
    EXPECT_NEAR(norm, deviation * std::sqrt(count),
                info.init == Init::kNormal ? 0.3 * deviation * std::sqrt(count) : 0.0)
        << info.name;
  }
}

TEST(ModelParameters, Substitutes_LeaveTablesAndHeadsAlone) {
  Proves("R85");
  EXPECT_EQ(SubstituteExclusions().size(), 12U);
  for (const char* name : {"wte", "lm_head", "structure_emb.out", "layers.3.router.weight", "layers.0.lora_a"}) {
    EXPECT_FALSE(MaySubstitute(name)) << name;
  }
  for (const char* name : {"layers.0.qkv", "layers.1.fc2", "layers.1.proj"}) EXPECT_TRUE(MaySubstitute(name)) << name;
}

}  // namespace
}  // namespace tessera
