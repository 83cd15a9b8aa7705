// Full tiles of one document whose scores are in range take a body without a running maximum. It computes the contract
// beside the exact one in a row, and no document decides how another's scores are computed. Nothing here ran on a TPU.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string_view>
#include <vector>

#include "support/engine.h"
#include "support/proves.h"
#include "support/seed.h"
#include "tessera/check.h"
#include "tessera/dtype.h"
#include "tessera/tessera.h"

namespace tessera {
namespace {

constexpr int64_t kTile = 128;

Contract ContractOf(const char* mask, int64_t tokens, int64_t dim, bool sink_logits = false) {
  Contract contract;
  contract.shape = {1, tokens, tokens, 2, 1, dim, dim, DType::kBf16};
  contract.mask.heads = {ParseMaskExpr(mask).value()};
  contract.score = {.scale = 1.0 / std::sqrt(static_cast<double>(dim)), .softcap = 0, .sink_logits = sink_logits};
  return contract;
}

Batch DocumentsOf(std::vector<int64_t> lengths) {
  IdRows ids{.rows = 1, .len = 0, .values = {}};
  int32_t document = 0;
  for (const int64_t length : lengths) {
    ids.values.insert(ids.values.end(), static_cast<size_t>(length), document++);
    ids.len += length;
  }
  Batch batch;
  batch.doc_ids = std::move(ids);
  return batch;
}

// Multiplies tokens [begin, end) of every head.
void Multiply(Tensor& tensor, int64_t begin, int64_t end, float factor) {
  const int64_t heads = tensor.shape[1], tokens = tensor.shape[2], dim = tensor.shape[3];
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = (h * tokens + begin) * dim; i < (h * tokens + end) * dim; ++i) {
      std::byte* at = tensor.bytes.data() + 2 * i;
      uint16_t bits = 0;
      std::memcpy(&bits, at, 2);
      bits = F32ToBf16(Bf16ToF32(bits) * factor);
      std::memcpy(at, &bits, 2);
    }
  }
}

RunOptions Options() {
  RunOptions options;
  options.lane = "xla_pallas";
  options.backward = true;
  options.row_max = true;
  options.xla.interpret = true;
  options.plan.tile = TileSize{kTile, kTile};
  return options;
}

Target V6e() { return FindTarget("v6e").value(); }

TensorMap RunOf(const Contract& contract, const Batch& batch, const TensorMap& inputs) {
  const RunOutcome outcome = tessera::Run(TestEngine(), contract, batch, inputs, V6e(), Options());
  EXPECT_FALSE(outcome.error.has_value()) << ToText(*outcome.error);
  return outcome.outputs;
}

void ExpectRight(const Contract& contract, const Batch& batch, const TensorMap& inputs) {
  CheckOptions check;
  check.arithmetic = Arithmetic::Single();
  const Result<CheckReport> report = CheckOutputs(contract, batch, inputs, RunOf(contract, batch, inputs), check);
  ASSERT_TRUE(report.has_value()) << ToText(report.error());
  EXPECT_TRUE(report->pass) << report->text;
}

// How many rows' numbers differ, of tokens [begin, end) of every head.
int64_t NumDifferent(const Tensor& a, const Tensor& b, int64_t begin, int64_t end) {
  const int64_t heads = a.shape[1], tokens = a.shape[2];
  const size_t row = a.bytes.size() / static_cast<size_t>(a.shape[0] * heads * tokens);
  int64_t different = 0;
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t t = begin; t < end; ++t) {
      const size_t at = static_cast<size_t>(h * tokens + t) * row;
      different += std::memcmp(a.bytes.data() + at, b.bytes.data() + at, row) != 0 ? 1 : 0;
    }
  }
  return different;
}

// Kinds of the forward's slots, row after row without their padding.
std::vector<int32_t> KindsOf(const Contract& contract, const Batch& batch) {
  const Result<std::vector<ProgramText>> programs = LowerPrograms(TestEngine(), contract, batch, V6e(), Options());
  EXPECT_TRUE(programs.has_value());
  std::vector<int32_t> kinds;
  for (const ProgramOperand& operand : (*programs)[0].operands) {
    if (operand.name != "kinds_forward") continue;
    for (int64_t i = 0; i < operand.tensor.NumElements(); ++i) {
      int32_t kind = 0;
      std::memcpy(&kind, operand.tensor.bytes.data() + 4 * i, 4);
      if (kind != 0) kinds.push_back(kind);
    }
  }
  return kinds;
}

constexpr int32_t kFull = 2, kSpan = 3, kRange = 4;  // kernels::TileKind

TEST(ScoresInRange, OnlyFullTilesOfOneDocument_MayBe) {
  using Kinds = std::vector<int32_t>;
  EXPECT_EQ(KindsOf(ContractOf("full", 256, 64), {}), (Kinds{kRange, kRange, kRange, kRange}));
  EXPECT_EQ(KindsOf(ContractOf("causal", 256, 64), {}), (Kinds{kSpan, kRange, kSpan}));
  // The last tile holds padding.
  EXPECT_EQ(KindsOf(ContractOf("full", 200, 64), {}), (Kinds{kRange, kSpan, kSpan, kSpan}));
  EXPECT_EQ(KindsOf(ContractOf("documents", 256, 64), DocumentsOf({128, 128})), (Kinds{kRange, kRange}));
  // Everybody sees the first tile of keys: queries of one document, of the other, and of both.
  const Contract sinks = ContractOf("documents or sink(128)", 384, 64);
  EXPECT_EQ(KindsOf(sinks, DocumentsOf({256, 128})), (Kinds{kRange, kRange, kRange, kRange, kFull, kRange}));
  const Kinds mixed = KindsOf(sinks, DocumentsOf({200, 184}));
  ASSERT_EQ(mixed.size(), 8u);
  EXPECT_EQ(mixed[0], kRange);
  EXPECT_EQ(mixed[2], kFull) << "queries of both";
  EXPECT_EQ(mixed[5], kFull) << "queries of the other";
  // A softcap bounds the scores by itself, and f32 has no such body.
  Contract capped = ContractOf("full", 256, 64);
  capped.score.softcap = 30;
  EXPECT_EQ(KindsOf(capped, {}), (Kinds{kFull, kFull, kFull, kFull}));
  Contract wide = ContractOf("full", 256, 64);
  wide.shape.dtype = DType::kF32;
  EXPECT_EQ(KindsOf(wide, {}), (Kinds{kFull, kFull, kFull, kFull}));
}

// Rows of tiles in range alone, of others alone, and of both, in each order; scores of thousands, values that the sums
// could not hold or would lose, and zeros.
TEST(ScoresInRange, BesideOthers_MatchTheOracle) {
  Proves("R36 R38");
  const uint64_t seed = PrintedSeed();
  for (const char* mask : {"full", "causal"}) {
    SCOPED_TRACE(mask);
    const bool is_full = std::string_view(mask) == "full";
    const Contract contract = ContractOf(mask, 3 * kTile, is_full ? 128 : 64, !is_full);
    const TensorMap inputs = MakeInputs(contract, seed, true);
    ExpectRight(contract, {}, inputs);
    for (const float factor : {3.0F, 300.0F, 1e-20F}) {
      SCOPED_TRACE(factor);
      TensorMap changed = inputs;
      Multiply(changed.at("q"), 2 * kTile + 1, 2 * kTile + 2, factor);
      Multiply(changed.at("k"), kTile, 2 * kTile, factor);
      ExpectRight(contract, {}, changed);
    }
    for (const float factor : {0x1p30F, 0x1p-50F, 0.0F}) {
      SCOPED_TRACE(factor);
      TensorMap changed = inputs;
      Multiply(changed.at("v"), 5, 9, factor);
      ExpectRight(contract, {}, changed);
    }
  }
}

// Just within the range and just beyond it: every score of a tile as large as its bound.
TEST(ScoresInRange, AtTheLimit_MatchTheOracle) {
  const Contract contract = ContractOf("full", 2 * kTile, 64);
  for (const float score : {-59.5F, 59.5F, 60.5F, -60.5F, 87.0F, 90.0F, -200.0F}) {
    SCOPED_TRACE(score);
    TensorMap inputs = MakeInputs(contract, 5, true);
    for (const char* name : {"q", "k"}) {
      Tensor& tensor = inputs.at(name);
      for (int64_t i = 0; i < tensor.NumElements(); ++i) {
        // Queries of ones, and keys whose product with them is the score: 64 * 1 * k / 8.
        const bool is_key = name[0] == 'k';
        const bool is_first = i / 64 % (2 * kTile) < kTile;
        const uint16_t bits = F32ToBf16(!is_key ? 1.0F : is_first ? score / 8 : 0.25F * static_cast<float>(i % 7 - 3));
        std::memcpy(tensor.bytes.data() + 2 * i, &bits, 2);
      }
    }
    ExpectRight(contract, {}, inputs);
  }
}

// One query's size decides for its tile, which shows in its neighbours' bits, and for no other tile.
TEST(ScoresInRange, AQueryBeyond_ChangesItsTileAlone) {
  const Contract contract = ContractOf("full", 2 * kTile, 128);
  const TensorMap inputs = MakeInputs(contract, 11, true);
  TensorMap changed = inputs;
  Multiply(changed.at("q"), 3, 4, 300.0F);
  const TensorMap before = RunOf(contract, {}, inputs);
  const TensorMap after = RunOf(contract, {}, changed);
  EXPECT_GT(NumDifferent(before.at("lse"), after.at("lse"), 4, kTile), 0) << "the other body ran";
  for (const char* name : {"o", "lse", "max"}) {
    EXPECT_EQ(NumDifferent(before.at(name), after.at(name), kTile, 2 * kTile), 0) << name;
  }
}

TEST(ScoresInRange, OtherDocuments_DecideNothing) {
  Proves("R38");
  struct Packed {
    const char* mask;
    std::vector<int64_t> lengths;
  };
  const Packed kPacked[] = {{"documents", {256, 256}},
                            {"documents", {200, 312}},
                            {"causal and documents", {300, 212}},
                            {"documents or sink(128)", {200, 312}}};
  for (const Packed& packed : kPacked) {
    SCOPED_TRACE(packed.mask);
    const Contract contract = ContractOf(packed.mask, 512, 64);
    const Batch batch = DocumentsOf(packed.lengths);
    const TensorMap inputs = MakeInputs(contract, 13, true);
    TensorMap changed = inputs;
    for (const char* name : {"q", "k", "v"}) Multiply(changed.at(name), packed.lengths[0], 512, 4096.0F);
    const TensorMap before = RunOf(contract, batch, inputs);
    const TensorMap after = RunOf(contract, batch, changed);
    for (const char* name : {"o", "lse", "max", "dq"}) {
      EXPECT_EQ(NumDifferent(before.at(name), after.at(name), 0, packed.lengths[0]), 0) << name;
    }
  }
}

}  // namespace
}  // namespace tessera
