// Isolation: documents do not reach one another, padding reaches nobody, and a non-finite value stays where it is seen.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "conformance/conformance.h"
#include "oracle/oracle.h"

namespace tessera::conformance {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

class Isolation : public EveryLane {};
INSTANTIATE_TEST_SUITE_P(Lanes, Isolation, testing::ValuesIn(LanesUnderTest()), LaneTestName);

// Tokens [begin, end) of batch row 0, as a tensor of batch 1.
Tensor Slice(const Tensor& from, int64_t begin, int64_t end) {
  const int64_t heads = from.shape[1];
  const int64_t len = from.shape[2];
  const int64_t row_bytes = (from.shape.size() == 4 ? from.shape[3] : 1) * BytesOf(from.type);
  Tensor out = from;
  out.shape[0] = 1;
  out.shape[2] = end - begin;
  out.bytes.clear();
  for (int64_t h = 0; h < heads; ++h) {
    const auto row = from.bytes.begin() + h * len * row_bytes;
    out.bytes.insert(out.bytes.end(), row + begin * row_bytes, row + end * row_bytes);
  }
  return out;
}

TEST_P(Isolation, DocumentPackedOrAlone_SameBits) {
  Proves("R66 B17");
  const uint64_t seed = PrintedSeed();
  const std::vector<int64_t> lengths = {37, 64, 1, 90, 23};
  for (const DType dtype : SomeOf<DType>(GetParam(), seed, {DType::kF32, DType::kBf16})) {
    const Small packed{.mask = "causal and window(40, 0) and documents",
                       .q_len = 215,
                       .kv_len = 215,
                       .num_q_heads = 4,
                       .num_kv_heads = 2,
                       .dtype = dtype,
                       .softcap = 2.0};
    const Contract contract = MakeContract(packed);
    const Setting together = MakeSetting(GetParam(), contract, DocumentBatch(contract, lengths), seed);
    const RunOutcome want = RunAndCheck(together);
    ASSERT_FALSE(want.error.has_value());
    int64_t begin = 0;
    for (const int64_t length : lengths) {
      if (CompilesPerClass(GetParam()) && length != lengths[0]) break;
      Small alone = packed;
      alone.mask = "causal and window(40, 0)";
      alone.q_len = alone.kv_len = length;
      Setting setting = MakeSetting(GetParam(), MakeContract(alone), {}, seed);
      for (auto& [name, tensor] : setting.inputs) tensor = Slice(together.inputs.at(name), begin, begin + length);
      const RunOutcome got = RunAndCheck(setting);
      for (const auto& [name, tensor] : got.outputs) {
        if (!IsBitwise(GetParam())) continue;
        EXPECT_TRUE(tensor == Slice(want.outputs.at(name), begin, begin + length)) << name << " at " << begin;
      }
      begin += length;
    }
  }
}

TEST_P(Isolation, AnyTile_SameBits) {
  if (!IsBitwise(GetParam())) GTEST_SKIP() << "this lane does not promise the same bits at every tile size";
  const uint64_t seed = PrintedSeed();
  const Contract contract = MakeContract({.mask = "causal and documents", .q_len = 150, .kv_len = 150});
  Setting setting = MakeSetting(GetParam(), contract, DocumentBatch(contract, {70, 11, 60}), seed);
  const RunOutcome want = RunSetting(setting);
  for (const TileSize tile : {TileSize{16, 64}, TileSize{128, 16}, TileSize{256, 256}}) {
    setting.options.plan.tile = tile;
    EXPECT_TRUE(RunSetting(setting).outputs == want.outputs) << tile.q << "x" << tile.kv;
  }
}

TEST_P(Isolation, OtherDocumentsChanged_ThisOneKeepsItsBits) {
  Proves("R66 R40 B17");
  const uint64_t seed = PrintedSeed();
  // Tiles of 16 far below the diagonal hold two documents each: causality alone would call them full.
  const Contract contract =
      MakeContract({.mask = "causal and documents", .q_len = 130, .kv_len = 130, .num_q_heads = 4, .num_kv_heads = 2});
  Setting setting = MakeSetting(GetParam(), contract, DocumentBatch(contract, {53, 40, 37}), seed);
  const RunOutcome before = RunSetting(setting);
  for (const double poison : {1e30, kNan, kInf}) {
    if (!std::isfinite(poison) && !IsolatesNonFinite(GetParam())) continue;
    for (const char* name : {"q", "k", "v", "do"}) {
      for (int64_t token = 0; token < 130; ++token) {
        if (token < 53 || token >= 93) FillToken(setting.inputs.at(name), {0, token}, poison);
      }
    }
    const RunOutcome after = RunSetting(setting);
    ASSERT_FALSE(after.error.has_value());
    for (const auto& [name, tensor] : before.outputs) {
      for (int64_t token = 53; token < 93; ++token) {
        EXPECT_EQ(TokenBytes(tensor, {0, token}), TokenBytes(after.outputs.at(name), {0, token}))
            << name << " token " << token << " poison " << poison;
      }
    }
  }
}

TEST_P(Isolation, PoisonedPadding_IsInert) {
  Proves("R67 B28");
  const uint64_t seed = PrintedSeed();
  // Padding as packers really number it: -1; or 0 while a real document is 0 too; or the last document's own id.
  struct Numbering {
    const char* mask;
    std::vector<int32_t> documents;
    int32_t padding;
    bool counts;
  };
  const std::vector<Numbering> numberings = {{"causal and documents", {0, 1}, -1, false},
                                             {"causal and documents and valid", {0, 1}, -1, true},
                                             {"causal and documents(equal) and valid", {0, 1}, 0, true},
                                             {"causal and documents and valid", {1, 0}, 0, true},
                                             {"valid", {}, 0, true}};
  for (const Numbering& numbering : numberings) {
    SCOPED_TRACE(numbering.mask);
    constexpr int64_t kLen = 75;
    constexpr int64_t kUsed = 58;
    const Contract contract =
        MakeContract({.mask = numbering.mask, .q_len = kLen, .kv_len = kLen, .num_q_heads = 2, .sink_logits = true});
    Batch batch;
    if (!numbering.documents.empty()) {
      std::vector<int32_t> ids(31, numbering.documents[0]);
      ids.resize(kUsed, numbering.documents[1]);
      ids.resize(kLen, numbering.padding);
      batch.doc_ids = IdRows{1, kLen, ids};
    }
    if (numbering.counts) batch.valid_tokens = std::vector<int64_t>{kUsed};
    Setting setting = MakeSetting(GetParam(), contract, batch, seed);
    const RunOutcome clean = RunAndCheck(setting);
    for (const char* name : {"q", "k", "v", "do"}) {
      for (int64_t token = kUsed; token < kLen; ++token) {
        FillToken(setting.inputs.at(name), {0, token}, token % 3 == 0 ? kNan : token % 3 == 1 ? kInf : -kInf);
      }
    }
    const RunOutcome poisoned = RunSetting(setting);
    ASSERT_FALSE(poisoned.error.has_value());
    EXPECT_TRUE(clean.outputs == poisoned.outputs);
    for (const char* name : {"o", "dq", "dk", "dv"}) {
      for (int64_t token = kUsed; token < kLen; ++token) {
        EXPECT_TRUE(IsZero(poisoned.outputs.at(name), {0, token})) << name << " token " << token;
      }
    }
  }
}

TEST_P(Isolation, NonFiniteKeyOrValue_ReachesOnlyRowsThatSeeIt) {
  if (!IsolatesNonFinite(GetParam())) GTEST_SKIP() << "this lane does not promise it";
  const uint64_t seed = PrintedSeed();
  constexpr int64_t kPoisoned = 41;
  // A ragged shape, and one so regular that a lane may use tensors where they lie.
  struct Lengths {
    int64_t len;
    int64_t dim;
  };
  for (const auto& [len, dim] : SomeOf<Lengths>(GetParam(), seed, {{90, 8}, {96, 32}})) {
    const Contract contract =
        ForLane(GetParam(), MakeContract({.mask = "causal and window(12, 0) or causal and sink(2)",
                                          .q_len = len,
                                          .kv_len = len,
                                          .num_q_heads = 2,
                                          .num_kv_heads = 2,
                                          .dim_qk = dim,
                                          .dim_v = dim}));
    const Result<std::vector<uint8_t>> mask = DenseMask(contract, {}, 0, 0);
    ASSERT_TRUE(mask.has_value());
    const int64_t n = len;
    const auto sees = [&](int64_t i, int64_t j) { return (*mask)[static_cast<size_t>(i * n + j)] != 0; };
    const auto is_key_of_dirty_row = [&](int64_t j) {
      for (int64_t i = 0; i < n; ++i) {
        if (sees(i, kPoisoned) && sees(i, j)) return true;
      }
      return false;
    };
    for (const char* poisoned : {"k", "v"}) {
      Setting setting = MakeSetting(GetParam(), contract, {}, seed);
      const RunOutcome clean = RunSetting(setting);
      FillToken(setting.inputs.at(poisoned), {0, kPoisoned}, kNan);
      const RunOutcome dirty = RunAndCheck(setting);
      int64_t clean_rows = 0;
      for (int64_t token = 0; token < n; ++token) {
        for (const char* name : {"o", "lse", "max", "dq"}) {
          if (sees(token, kPoisoned)) continue;
          ++clean_rows;
          EXPECT_EQ(TokenBytes(clean.outputs.at(name), {0, token}), TokenBytes(dirty.outputs.at(name), {0, token}))
              << name << " row " << token;
        }
        for (const char* name : {"dk", "dv"}) {
          if (is_key_of_dirty_row(token)) continue;
          EXPECT_EQ(TokenBytes(clean.outputs.at(name), {0, token}), TokenBytes(dirty.outputs.at(name), {0, token}))
              << name << " key " << token;
        }
        EXPECT_EQ(std::isnan(dirty.outputs.at("o").At(token * contract.shape.dim_v)), sees(token, kPoisoned)) << token;
      }
      EXPECT_GT(clean_rows, 0);
    }
  }
}

// Two runs, and which tokens differ between them.
struct Touched {
  const RunOutcome& clean;
  const RunOutcome& dirty;
  bool Differs(const char* name, int64_t token) const {
    return TokenBytes(clean.outputs.at(name), {0, token}) != TokenBytes(dirty.outputs.at(name), {0, token});
  }
};

// One bad token in each input in turn, at every dtype, in the middle of tiles that other rows see in part.
TEST_P(Isolation, AnyBadTokenOfAnyInput_ReachesOnlyWhatSeesIt) {
  Proves("R66");
  if (!IsolatesNonFinite(GetParam())) GTEST_SKIP() << "this lane does not promise it";
  const uint64_t seed = PrintedSeed();
  constexpr int64_t kLen = 100;
  for (const DType dtype : SomeOf<DType>(GetParam(), seed, {DType::kF32, DType::kBf16, DType::kF16})) {
    const Contract contract =
        ForLane(GetParam(), MakeContract({.mask = "causal and window(17, 0) and documents or causal and sink(2)",
                                          .q_len = kLen,
                                          .kv_len = kLen,
                                          .num_q_heads = 2,
                                          .num_kv_heads = 1,
                                          .dim_qk = 24,
                                          .dim_v = 40,
                                          .dtype = dtype,
                                          .softcap = seed % 2 == 0 ? 5.0 : 0.0}));
    Setting clean_setting = MakeSetting(GetParam(), contract, DocumentBatch(contract, {45, 30, 25}), seed);
    clean_setting.options.plan.tile = TileSize{32, 32};
    clean_setting.options.threads = 2;
    const RunOutcome clean = RunAndCheck(clean_setting);
    ASSERT_FALSE(clean.error.has_value());
    const Result<std::vector<uint8_t>> mask = DenseMask(contract, clean_setting.batch, 0, 0);
    ASSERT_TRUE(mask.has_value());
    const auto sees = [&](int64_t i, int64_t j) { return (*mask)[static_cast<size_t>(i * kLen + j)] != 0; };
    const double huge = dtype == DType::kF16 ? 60000.0 : 3e38;
    for (const double poison : {kNan, kInf, -kInf, huge}) {
      for (const int64_t bad : {1, 40, 44, 60, 99}) {
        for (const std::string name : {"q", "k", "v", "do"}) {
          SCOPED_TRACE(testing::Message() << ToText(dtype) << " " << poison << " in token " << bad << " of " << name
                                          << " TESSERA_SEED=" << seed);
          Setting setting = clean_setting;
          FillToken(setting.inputs.at(name), {0, bad}, poison);
          const RunOutcome dirty = RunSetting(setting);
          ASSERT_FALSE(dirty.error.has_value());
          const Touched touched{clean, dirty};
          const bool is_key = name == "k" || name == "v";
          const auto is_dirty_row = [&](int64_t i) { return is_key ? sees(i, bad) : i == bad; };
          for (int64_t token = 0; token < kLen; ++token) {
            if (!is_dirty_row(token) || name == "do") {
              for (const char* output : {"o", "lse", "max"})
                ASSERT_FALSE(touched.Differs(output, token)) << output << " " << token;
            }
            ASSERT_FALSE(!is_dirty_row(token) && touched.Differs("dq", token)) << "dq " << token;
            bool is_reached = false;
            for (int64_t i = 0; i < kLen; ++i) is_reached = is_reached || (is_dirty_row(i) && sees(i, token));
            if (is_reached) continue;
            for (const char* output : {"dk", "dv"})
              ASSERT_FALSE(touched.Differs(output, token)) << output << " " << token;
          }
          // What sees a NaN is a NaN.
          if (std::isnan(poison) && name != "do" && sees(bad, bad)) {
            EXPECT_TRUE(std::isnan(dirty.outputs.at("o").At(bad * contract.shape.dim_v))) << "hidden";
          }
        }
      }
    }
  }
}

// Padding of every kind of value at every dtype and a large dim, where packing could pull it into a tile.
TEST_P(Isolation, PoisonedPadding_IsInertAtEveryDtype) {
  Proves("R67");
  const uint64_t seed = PrintedSeed();
  constexpr int64_t kLen = 70;
  constexpr int64_t kUsed = 51;
  for (const DType dtype : SomeOf<DType>(GetParam(), seed, {DType::kF32, DType::kBf16, DType::kF16})) {
    const Contract contract = MakeContract({.mask = "causal and valid",
                                            .q_len = kLen,
                                            .kv_len = kLen,
                                            .num_q_heads = 2,
                                            .dim_qk = 96,
                                            .dim_v = 128,
                                            .dtype = dtype});
    Batch batch;
    batch.valid_tokens = std::vector<int64_t>{kUsed};
    Setting setting = MakeSetting(GetParam(), contract, batch, seed);
    setting.options.plan.tile = TileSize{32, 32};
    const RunOutcome clean = RunAndCheck(setting);
    const double huge = dtype == DType::kF16 ? 60000.0 : 3e38;
    for (const double poison : {kNan, kInf, -kInf, huge}) {
      for (const char* name : {"q", "k", "v", "do"}) {
        for (int64_t token = kUsed; token < kLen; ++token) FillToken(setting.inputs.at(name), {0, token}, poison);
      }
      EXPECT_TRUE(RunSetting(setting).outputs == clean.outputs) << ToText(dtype) << " " << poison;
    }
  }
}

}  // namespace
}  // namespace tessera::conformance
