// Every named case on every lane, forward and backward, against the oracle; and random masks beyond the named ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "conformance/conformance.h"
#include "oracle/oracle.h"
#include "support/random_mask.h"

namespace tessera::conformance {
namespace {

std::vector<std::string> CaseNames() {
  std::vector<std::string> names;
  for (const CaseInfo& info : Cases()) names.push_back(info.name);
  return names;
}

class EveryCase : public testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  void SetUp() override {
    if (LaneOf(std::get<0>(GetParam())) == "cuda" && !CudaProblem().empty()) GTEST_SKIP() << CudaProblem();
  }
};

TEST_P(EveryCase, Run_MatchesOracle) {
  Proves("R10");
  const auto& [lane, name] = GetParam();
  const uint64_t seed = PrintedSeed();
  SCOPED_TRACE("tessera verify " + name + " --lane " + LaneOf(lane) + " --isa " + IsaOf(lane) + " --seed " +
               std::to_string(seed) + " --backward");
  Result<Case> built = BuildCase(name, seed);
  ASSERT_TRUE(built.has_value()) << ToText(built.error());
  RunAndCheck(MakeSetting(lane, std::move(built->contract), std::move(built->batch), seed));
}

TEST_P(EveryCase, TokensBeforeHeads_SameBits) {
  const auto& [lane, name] = GetParam();
  if ((CompilesPerClass(lane) || IsInterpreted(lane)) && name.size() % 8 != 0) {
    GTEST_SKIP() << "each case is costly to this lane, and how tensors lie is nothing that a program knows: an eighth "
                    "of the cases is enough";
  }
  const uint64_t seed = PrintedSeed();
  Result<Case> built = BuildCase(name, seed);
  ASSERT_TRUE(built.has_value()) << ToText(built.error());
  Setting heads_first = MakeSetting(lane, built->contract, built->batch, seed);
  Setting tokens_first = heads_first;
  tokens_first.options.layout = Layout::kBthd;
  tokens_first.inputs = MakeInputs(heads_first.contract, seed, true, Layout::kBthd);
  const RunOutcome want = RunSetting(heads_first);
  const RunOutcome got = RunSetting(tokens_first);
  for (const auto& [output, tensor] : want.outputs) {
    const auto found = got.outputs.find(output);
    ASSERT_NE(found, got.outputs.end()) << output;
    if (tensor.shape.size() != 4) {
      EXPECT_EQ(tensor.bytes, found->second.bytes) << output;
      continue;
    }
    const int64_t heads = tensor.shape[1];
    const int64_t len = tensor.shape[2];
    const int64_t row_bytes = tensor.shape[3] * BytesOf(tensor.type);
    Tensor transposed = found->second;
    transposed.shape = tensor.shape;
    for (int64_t b = 0; b < tensor.shape[0]; ++b) {
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t t = 0; t < len; ++t) {
          const auto from = found->second.bytes.begin() + ((b * len + t) * heads + h) * row_bytes;
          std::copy(from, from + row_bytes, transposed.bytes.begin() + ((b * heads + h) * len + t) * row_bytes);
        }
      }
    }
    EXPECT_TRUE(tensor == transposed) << output;
  }
}

INSTANTIATE_TEST_SUITE_P(Lanes, EveryCase,
                         testing::Combine(testing::ValuesIn(LanesUnderTest()), testing::ValuesIn(CaseNames())),
                         [](const auto& pair) {
                           return Slug(std::get<0>(pair.param) + "_" + std::get<1>(pair.param));
                         });

// The stock Splash kernels run the plain cases and none but those: what they have no form for, they refuse by a reason
// of their own. The random bands of tests/tpu_lane go further.
class SplashCases : public testing::TestWithParam<std::string> {};

TEST_P(SplashCases, PlainMasks_MatchOracle_OthersAreRefused) {
  static const std::vector<std::string> kPlain = {"one_token-1-f32",           "full-97-f32",
                                                  "full-130x75-f16",           "causal-1k-f32",
                                                  "causal-513-bf16",           "causal_gqa-300-f32",
                                                  "causal_offset-200x260-f32", "window_self-150-f32",
                                                  "window_two_sided-301-f16",  "causal_window-700-bf16",
                                                  "cross_len-300x517-f16"};
  const uint64_t seed = PrintedSeed();
  Result<Case> built = BuildCase(GetParam(), seed);
  ASSERT_TRUE(built.has_value()) << ToText(built.error());
  const Setting setting = MakeSetting("splash:pjrt", std::move(built->contract), std::move(built->batch), seed);
  const RunOutcome outcome =
      tessera::Run(setting.contract, setting.batch, setting.inputs, TargetOf(setting.lane), OptionsOf(setting));
  const bool is_plain = std::find(kPlain.begin(), kPlain.end(), GetParam()) != kPlain.end();
  ASSERT_EQ(!outcome.error.has_value(), is_plain) << ToText(outcome.error.value_or(Error{}));
  if (is_plain) {
    EXPECT_EQ(outcome.receipt.executed, "splash");
    EXPECT_EQ(outcome.receipt.runtime_mode, "interpreted");
    return ExpectMatchesOracle(setting, outcome.outputs);
  }
  EXPECT_EQ(outcome.error->code, ErrorCode::kLaneRefused);
  EXPECT_NE(outcome.error->message.find("splash."), std::string::npos) << ToText(*outcome.error);
}
INSTANTIATE_TEST_SUITE_P(Lanes, SplashCases, testing::ValuesIn(CaseNames()),
                         [](const auto& name) { return Slug(name.param); });

// The lane that needs something installed is tested here where it is; where it is not, this says why.
TEST(Cases, XlaLane_IsUnderTestOrSaysWhyNot_xla_chunked) {
  const Result<Selection> selection = SelectLane(MakeContract({}), CpuTarget());
  ASSERT_TRUE(selection.has_value());
  for (const LaneDecision& d : selection->decisions) {
    if (d.lane != "xla_chunked" || d.decision.accepted) continue;
    GTEST_SKIP() << ReasonText(d.decision.reason) << ": " << d.decision.detail;
  }
  const std::vector<std::string>& lanes = LanesUnderTest();
  EXPECT_TRUE(std::any_of(lanes.begin(), lanes.end(), [](const std::string& lane) { return CompilesPerClass(lane); }));
}

TEST(Cases, CudaLane_IsUnderTestOrSaysWhyNot_cuda_sm_90a) {
  if (!CudaProblem().empty()) GTEST_SKIP() << CudaProblem();
  const std::vector<std::string>& lanes = LanesUnderTest();
  EXPECT_NE(std::find(lanes.begin(), lanes.end(), "cuda:sm_90a"), lanes.end());
}

TEST(Cases, EveryName_BuildsTheSameTwice) {
  for (const CaseInfo& info : Cases()) {
    const Result<Case> once = BuildCase(info.name, 7);
    const Result<Case> again = BuildCase(info.name, 7);
    ASSERT_TRUE(once.has_value()) << info.name << ": " << ToText(once.error());
    ASSERT_TRUE(again.has_value());
    EXPECT_EQ(once->contract, again->contract) << info.name;
    EXPECT_EQ(once->batch, again->batch) << info.name;
    EXPECT_TRUE(ResolveBatch(once->contract, once->batch).has_value()) << info.name;
  }
}

TEST(Cases, UnknownName_IsAnError) {
  const Result<Case> built = BuildCase("no_such_case-1-f32");
  ASSERT_FALSE(built.has_value());
  EXPECT_EQ(built.error().code, ErrorCode::kCaseUnknown);
}

// A batch that brings exactly what the mask needs.
Batch RandomBatch(std::mt19937_64& rng, const Contract& contract, const MaskFacts& facts) {
  const Shape& shape = contract.shape;
  Batch batch;
  const auto ids = [&](int64_t len) {
    IdRows rows{shape.batch, len, {}};
    for (int64_t b = 0; b < shape.batch; ++b) {
      int32_t next = 0;
      int32_t id = -1;
      for (int64_t t = 0; t < len; ++t) {
        if (t == 0 || RandomInt(rng, 0, 4) == 0) id = RandomInt(rng, 0, 5) == 0 ? -1 : next++;
        rows.values.push_back(id);
      }
    }
    return rows;
  };
  const auto counts = [&](int64_t len) {
    std::vector<int64_t> values;
    for (int64_t b = 0; b < shape.batch; ++b) values.push_back(RandomInt(rng, 0, len));
    return values;
  };
  const bool square = shape.q_len == shape.kv_len;
  if (facts.needs_documents && square) batch.doc_ids = ids(shape.q_len);
  if (facts.needs_documents && !square) {
    batch.q_doc_ids = ids(shape.q_len);
    batch.kv_doc_ids = ids(shape.kv_len);
  }
  if (facts.needs_valid && square) batch.valid_tokens = counts(shape.q_len);
  if (facts.needs_valid && !square) {
    batch.q_valid_tokens = counts(shape.q_len);
    batch.kv_valid_tokens = counts(shape.kv_len);
  }
  return batch;
}

class RandomMasks : public EveryLane {};

const Small kShapes[] = {
    {.q_len = 37,
     .kv_len = 37,
     .batch = 2,
     .num_q_heads = 2,
     .num_kv_heads = 1,
     .dim_qk = 5,
     .dim_v = 3,
     .softcap = 1.5},
    {.q_len = 24,
     .kv_len = 40,
     .num_q_heads = 2,
     .num_kv_heads = 2,
     .dim_qk = 4,
     .dim_v = 6,
     .dtype = DType::kBf16,
     .sink_logits = true},
};

TEST_P(RandomMasks, AnyExpressionAnyTile_MatchesOracleAndDenseMask) {
  Proves("R9");
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  for (int round = 0; round < (CompilesPerClass(GetParam()) ? 6 : RoundsOf(GetParam(), 150)); ++round) {
    SCOPED_TRACE("TESSERA_SEED=" + std::to_string(seed) + " round " + std::to_string(round));
    Small small;
    small.q_len = RandomInt(rng, 1, 40);
    small.kv_len = RandomInt(rng, 0, 2) == 0 ? RandomInt(rng, 1, 40) : small.q_len;
    small.batch = RandomInt(rng, 1, 2);
    small.num_kv_heads = RandomInt(rng, 1, 2);
    small.num_q_heads = small.num_kv_heads * RandomInt(rng, 1, 2);
    small.dim_qk = RandomInt(rng, 1, 6);
    small.dim_v = RandomInt(rng, 1, 6);
    small.dtype = static_cast<DType>(RandomInt(rng, 0, 2));
    small.softcap = RandomInt(rng, 0, 1) == 0 ? 0.0 : 1.5;
    small.sink_logits = RandomInt(rng, 0, 2) == 0;
    TileSize tile{int64_t{1} << RandomInt(rng, 2, 5), int64_t{1} << RandomInt(rng, 2, 5)};
    if (CompilesPerClass(GetParam())) {
      // The same few classes over and over, with any mask and any batch in them.
      small = kShapes[round % std::size(kShapes)];
      tile = {8, 16};
    }
    Contract contract = MakeContract(small);
    RandomMaskOptions mask_options;
    mask_options.q_len = small.q_len;
    mask_options.kv_len = small.kv_len;
    mask_options.bitmap = true;
    mask_options.registered = true;
    contract.mask.heads.clear();
    int64_t masks = RandomInt(rng, 0, 1) == 0 ? 1 : small.num_q_heads;
    if (CompilesPerClass(GetParam())) {
      masks = small.num_q_heads;
      WidenClass(contract, tile);
    }
    for (int64_t n = 0; n < masks; ++n) contract.mask.heads.push_back(RandomMask(rng, mask_options));
    contract.mask.offset = RandomInt(rng, -3, 3) + small.kv_len - small.q_len;
    SCOPED_TRACE(ToToml(contract));
    const Result<MaskFacts> facts = DescribeMask(contract);
    ASSERT_TRUE(facts.has_value()) << ToText(facts.error());
    Setting setting = MakeSetting(GetParam(), contract, RandomBatch(rng, contract, *facts), seed + 1);
    setting.options.plan.tile = tile;
    RunAndCheck(setting);
    ExpectDenseMask(setting.contract, setting.batch, *setting.options.plan.tile);
    if (testing::Test::HasFailure()) return;
  }
}
INSTANTIATE_TEST_SUITE_P(Lanes, RandomMasks, testing::ValuesIn(LanesUnderTest()), LaneTestName);

}  // namespace
}  // namespace tessera::conformance
