// xla_pallas in the interpreter against the dense oracle: the text of our TPU kernels, operand for operand what a TPU
// would be given, computes the contract. Nothing here ran on a TPU.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/bitmap.h"
#include "support/engine.h"
#include "support/proves.h"
#include "support/seed.h"
#include "tessera/check.h"
#include "tessera/tessera.h"
#include "tpu_lane/held.h"

namespace tessera {
namespace {

struct LaneCase {
  const char* name;
  const char* mask;
  Shape shape;  // batch, q_len, kv_len, query heads, key heads, dims, dtype
  double softcap = 0;
  bool sink_logits = false;
  bool has_bitmap = false;
  bool has_routing = false;
};

// Every kind of cleanup, each dim and dtype, grouped heads, lengths that fill no tile, and rows without keys.
const LaneCase kCases[] = {
    {"causal_f32", "causal", {1, 200, 200, 2, 2, 64, 64, DType::kF32}},
    {"causal_bf16", "causal", {1, 300, 300, 1, 1, 128, 128, DType::kBf16}},
    {"full_cross", "full", {2, 140, 260, 1, 1, 64, 128, DType::kF32}},
    {"window_softcap_grouped", "causal and window(70, 0)", {1, 290, 290, 4, 2, 64, 64, DType::kF32}, 2.0},
    {"documents", "causal and documents", {2, 256, 256, 2, 1, 64, 64, DType::kF32}},
    {"documents_valid_sinks",
     "causal and documents and valid and (window(30, 0) or sink(4, document))",
     {2, 210, 210, 2, 1, 64, 64, DType::kBf16},
     5.0,
     true},
    {"documents_reappear", "causal and documents(equal)", {1, 200, 200, 1, 1, 64, 64, DType::kF32}},
    {"several_chunks", "window(60, 0) or sink(40)", {1, 130, 2200, 1, 1, 256, 256, DType::kF32}},
    {"sink_logits", "causal", {1, 140, 140, 2, 2, 64, 64, DType::kF32}, 0, true},
    {"rows_without_keys", "causal", {1, 200, 130, 2, 1, 64, 64, DType::kF32}, 0, true},
    {"dims_192_128", "causal", {1, 130, 130, 1, 1, 192, 128, DType::kBf16}},
    {"dim_256_f32", "window(40, 40)", {1, 150, 150, 1, 1, 256, 256, DType::kF32}},
    {"mqa_chunk", "causal and chunk(96)", {1, 260, 260, 3, 1, 64, 64, DType::kF32}},
    {"short_cross", "causal", {2, 24, 75, 2, 1, 64, 64, DType::kF32}, 2.0, true},
    {.name = "bitmap_short", .mask = "full", .shape = {1, 70, 90, 2, 1, 64, 64, DType::kF32}, .has_bitmap = true},
    {.name = "bitmap", .mask = "full", .shape = {1, 200, 200, 2, 1, 64, 64, DType::kF32}, .has_bitmap = true},
    {.name = "routed",
     .mask = "causal and blocks",
     .shape = {1, 512, 512, 2, 1, 64, 64, DType::kF32},
     .has_routing = true},
};

Contract ContractOf(const LaneCase& wish) {
  const Shape& s = wish.shape;
  Contract contract;
  contract.shape = s;
  contract.mask.heads = {ParseMaskExpr(wish.mask).value()};
  contract.mask.offset = s.kv_len - s.q_len;
  contract.score = {.scale = 1.0 / std::sqrt(static_cast<double>(s.dim_qk)),
                    .softcap = wish.softcap,
                    .sink_logits = wish.sink_logits};
  if (wish.has_routing) contract.routing = Routing{.top_n = 2};
  if (wish.has_bitmap) {
    Bitmap bitmap{.heads = s.num_q_heads, .q_len = s.q_len, .kv_len = s.kv_len, .cells = {}, .digest = {}};
    for (int64_t i = 0; i < bitmap.heads * s.q_len * s.kv_len; ++i) bitmap.cells.push_back(i * 7 % 11 < 3 ? 1 : 0);
    bitmap.digest = BitmapDigest(bitmap);
    MaskTerm& term = contract.mask.heads[0].term;
    term.kind = TermKind::kBitmap;
    term.path = "no_file.npy";
    term.bitmap = std::make_shared<const Bitmap>(std::move(bitmap));
  }
  return contract;
}

// Where the mask asks for them: documents of uneven lengths and padding, and the last tokens are no tokens.
Batch BatchOf(const LaneCase& wish) {
  const std::string_view mask = wish.mask;
  const int64_t len = wish.shape.q_len;
  Batch batch;
  if (mask.find("documents") != std::string_view::npos || mask.find("document)") != std::string_view::npos) {
    IdRows ids{.rows = wish.shape.batch, .len = len, .values = {}};
    for (int64_t row = 0; row < ids.rows; ++row) {
      for (int64_t t = 0; t < len; ++t) {
        const bool may_reappear = mask.find("(equal)") != std::string_view::npos;
        const int32_t in_order = t < 37 + row ? 0 : t < 150 ? 1 : t < len - 20 ? 2 : -1;
        ids.values.push_back(may_reappear ? static_cast<int32_t>(t / 45 % 2) : in_order);
      }
    }
    batch.doc_ids = std::move(ids);
  }
  if (mask.find("valid") != std::string_view::npos) {
    batch.valid_tokens = std::vector<int64_t>(static_cast<size_t>(wish.shape.batch), len - 33);
  }
  return batch;
}

RunOptions Options() {
  RunOptions options;
  options.lane = "xla_pallas";
  options.backward = true;
  options.row_max = true;
  options.xla.interpret = true;
  options.plan.tile = TileSize{128, 128};
  return options;
}

Target V6e() { return FindTarget("v6e").value(); }

class Interpreted : public testing::TestWithParam<LaneCase> {};
INSTANTIATE_TEST_SUITE_P(Cases, Interpreted, testing::ValuesIn(kCases),
                         [](const auto& with) { return std::string(with.param.name); });

TEST_P(Interpreted, ForwardAndBackward_MatchTheOracle) {
  Proves("R16 R18 R36 R37 R38 R40 R41 B4");
  const uint64_t seed = PrintedSeed();
  const Contract contract = ContractOf(GetParam());
  const Batch batch = BatchOf(GetParam());
  const TensorMap inputs = MakeInputs(contract, seed, true);
  const RunOutcome outcome = tessera::Run(TestEngine(), contract, batch, inputs, V6e(), Options());
  ASSERT_FALSE(outcome.error.has_value()) << ToText(*outcome.error);
  EXPECT_EQ(outcome.receipt.executed, "xla_pallas");
  EXPECT_EQ(outcome.receipt.runtime_mode, "interpreted");
  EXPECT_EQ(outcome.receipt.device.kind, "interpreter");
  for (const Violation& violation : CheckReceipt(outcome.receipt)) {
    ADD_FAILURE() << violation.field << ": " << violation.expected;
  }
  CheckOptions check;
  check.arithmetic = Arithmetic::Single();
  // The oracle knows picks only, whoever made them.
  Contract asked = contract;
  Batch given = batch;
  asked.routing.reset();
  if (GetParam().has_routing) given.picks = outcome.picks;
  const Result<CheckReport> report = CheckOutputs(asked, given, inputs, outcome.outputs, check);
  ASSERT_TRUE(report.has_value()) << ToText(report.error());
  EXPECT_TRUE(report->pass) << report->text;
  // Picks have a part in the class, so they are always of the same inputs here.
  const Result<std::vector<ProgramText>> programs =
      LowerPrograms(TestEngine(), contract, batch, V6e(), Options(), MakeInputs(contract, 1, true));
  ASSERT_TRUE(programs.has_value()) << ToText(programs.error());
  HoldPrograms(GetParam().name, *programs);
}

// What padding holds reaches nobody, in either pass.
TEST(InterpretedLane, PoisonedPadding_IsInert) {
  const LaneCase wish{"", "causal and documents and valid", {1, 200, 200, 2, 1, 64, 64, DType::kF32}};
  const Contract contract = ContractOf(wish);
  const Batch batch = BatchOf(wish);
  TensorMap inputs = MakeInputs(contract, 7, true);
  const RunOutcome clean = tessera::Run(TestEngine(), contract, batch, inputs, V6e(), Options());
  ASSERT_FALSE(clean.error.has_value()) << ToText(*clean.error);
  for (const char* name : {"q", "k", "v", "do"}) {
    Tensor& tensor = inputs.at(name);
    auto* values = reinterpret_cast<float*>(tensor.bytes.data());
    const int64_t heads = tensor.shape[1];
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 167 * 64; i < 200 * 64; ++i) values[h * 200 * 64 + i] = std::numeric_limits<float>::quiet_NaN();
    }
  }
  const RunOutcome poisoned = tessera::Run(TestEngine(), contract, batch, inputs, V6e(), Options());
  ASSERT_FALSE(poisoned.error.has_value()) << ToText(*poisoned.error);
  EXPECT_TRUE(poisoned.outputs == clean.outputs);
}

ReasonCode WhyNot(LaneCase wish, std::optional<TileSize> tile = TileSize{128, 128}) {
  RunOptions options = Options();
  options.lane = "auto";
  options.plan.tile = tile;
  const Contract contract = ContractOf(wish);
  const RunOutcome outcome =
      tessera::Run(TestEngine(), contract, BatchOf(wish), MakeInputs(contract, 1, true), V6e(), options);
  for (const LaneDecision& decision : outcome.receipt.decisions) {
    if (decision.lane == "xla_pallas" && !decision.decision.accepted) return decision.decision.reason;
  }
  return ReasonCode::kNone;
}

TEST(InterpretedLane, WhatKernelsHaveNoFormFor_IsRefusedByName) {
  const Shape good{1, 200, 200, 1, 1, 64, 64, DType::kF32};
  const auto with = [&](auto change) {
    LaneCase wish{"", "causal and window(50, 0)", good};
    change(wish.shape);
    return wish;
  };
  EXPECT_EQ(WhyNot(with([](Shape&) {})), ReasonCode::kNone);
  EXPECT_EQ(WhyNot(with([](Shape& s) { s.dtype = DType::kF16; })), ReasonCode::kTpuDtype);
  EXPECT_EQ(WhyNot(with([](Shape& s) { s.dim_qk = 80; })), ReasonCode::kTpuHeadDim);
  EXPECT_EQ(WhyNot(with([](Shape& s) { s.dim_v = 8; })), ReasonCode::kTpuHeadDim);
  EXPECT_EQ(WhyNot(with([](Shape&) {}), TileSize{64, 128}), ReasonCode::kTpuTile);
  EXPECT_EQ(WhyNot(with([](Shape&) {}), TileSize{128, 96}), ReasonCode::kTpuTile);
  EXPECT_EQ(WhyNot(with([](Shape& s) {
                     s.q_len = s.kv_len = 4096;
                     s.dim_qk = s.dim_v = 256;
                   }),
                   TileSize{4096, 4096}),
            ReasonCode::kTpuVectorMemory);
}

// What ran in an interpreter cannot be called what ran on a TPU, nor the other way round.
TEST(InterpretedLane, ReceiptOfAnotherMode_IsNotBelieved) {
  const LaneCase wish{"", "causal and window(50, 0)", {1, 130, 130, 1, 1, 64, 64, DType::kF32}};
  const Contract contract = ContractOf(wish);
  const RunOutcome outcome = tessera::Run(TestEngine(), contract, {}, MakeInputs(contract, 1, true), V6e(), Options());
  ASSERT_FALSE(outcome.error.has_value()) << ToText(*outcome.error);
  EXPECT_TRUE(CheckReceipt(outcome.receipt).empty());
  EXPECT_EQ(outcome.receipt.fallback_reason, "dispatch.off_machine");
  Receipt unasked = outcome.receipt;
  unasked.options["interpret"] = "false";
  EXPECT_FALSE(CheckReceipt(unasked).empty());
  Receipt payload = outcome.receipt;
  payload.runtime_mode = "payload";
  EXPECT_FALSE(CheckReceipt(payload).empty());
}

// Lists that the scalar memory does not hold at once are walked by several calls, each a range of queries. No bit of
// what a query has changes; gradients of keys are sums of the calls', in another order.
TEST(InterpretedLane, WorklistsBeyondScalarMemory_AreSharedByCalls) {
  const LaneCase cases[] = {
      {"", "causal and window(200, 0)", {1, 700, 700, 2, 1, 64, 64, DType::kF32}, 2.0, true},
      {"", "causal and documents and valid", {2, 500, 500, 2, 1, 64, 64, DType::kBf16}},
      {.name = "", .mask = "full", .shape = {1, 300, 600, 1, 1, 64, 64, DType::kF32}, .has_bitmap = true},
  };
  for (const LaneCase& wish : cases) {
    SCOPED_TRACE(wish.mask);
    const Contract contract = ContractOf(wish);
    const Batch batch = BatchOf(wish);
    const TensorMap inputs = MakeInputs(contract, 3, true);
    const auto kernels = [&](const Target& target) {
      const Result<std::vector<ProgramText>> programs = LowerPrograms(TestEngine(), contract, batch, target, Options());
      size_t count = 0;
      if (programs) count = (*programs)[0].kernels.size() + (*programs)[1].kernels.size();
      return count;
    };
    Target small = V6e();
    const RunOutcome whole = tessera::Run(TestEngine(), contract, batch, inputs, small, Options());
    ASSERT_FALSE(whole.error.has_value()) << ToText(*whole.error);
    EXPECT_EQ(kernels(small), 2u);
    // The smallest memory that still has room for a row: below the one that holds all of them.
    int64_t too_small = 0;
    while (small.scalar_bytes - too_small > 1) {
      Target middle = small;
      middle.scalar_bytes = (too_small + small.scalar_bytes) / 2;
      if (kernels(middle) == 0) {
        too_small = middle.scalar_bytes;
      } else {
        small = middle;
      }
    }
    EXPECT_GT(kernels(small), 2u);
    const RunOutcome shared = tessera::Run(TestEngine(), contract, batch, inputs, small, Options());
    ASSERT_FALSE(shared.error.has_value()) << ToText(*shared.error);
    for (const auto& [name, tensor] : whole.outputs) {
      if (name == "dk" || name == "dv") continue;
      EXPECT_TRUE(shared.outputs.at(name) == tensor) << name;
    }
    CheckOptions check;
    check.arithmetic = Arithmetic::Single();
    const Result<CheckReport> report = CheckOutputs(contract, batch, inputs, shared.outputs, check);
    ASSERT_TRUE(report.has_value()) << ToText(report.error());
    EXPECT_TRUE(report->pass) << report->text;
    EXPECT_EQ(shared.receipt.tiles_executed, whole.receipt.tiles_executed);
  }
}

// 64K causal tokens in tiles of 128 have lists of over a megabyte.
TEST(InterpretedLane, LongSequences_AreWalkedByManyCalls) {
  const Contract contract = ContractOf({"", "causal", {1, 65536, 65536, 1, 1, 128, 128, DType::kBf16}});
  const Result<std::vector<ProgramText>> programs = LowerPrograms(TestEngine(), contract, {}, V6e(), Options());
  ASSERT_TRUE(programs.has_value()) << ToText(programs.error());
  EXPECT_GT((*programs)[0].kernels.size(), 1u);
}

// One that has no room for a single row is found by counting, before any compiler.
TEST(InterpretedLane, ScalarMemoryForNoRow_IsRefused) {
  const Contract contract = ContractOf({"", "causal", {1, 1024, 1024, 1, 1, 128, 128, DType::kBf16}});
  Target tiny = V6e();
  tiny.scalar_bytes = 4096;
  const Result<std::vector<ProgramText>> programs = LowerPrograms(TestEngine(), contract, {}, tiny, Options());
  ASSERT_FALSE(programs.has_value());
  EXPECT_EQ(programs.error().code, ErrorCode::kLaneRefused);
  EXPECT_NE(ToText(programs.error()).find("bytes of scalar memory"), std::string::npos) << ToText(programs.error());
}

TEST(InterpretedLane, OtherLanesHaveNothingToInterpret) {
  RunOptions options = Options();
  options.lane = "xla_chunked";
  const LaneCase wish{"", "causal", {1, 130, 130, 1, 1, 64, 64, DType::kF32}};
  const Contract contract = ContractOf(wish);
  const RunOutcome outcome = tessera::Run(TestEngine(), contract, {}, MakeInputs(contract, 1, true), V6e(), options);
  ASSERT_TRUE(outcome.error.has_value());
  EXPECT_NE(ToText(*outcome.error).find("dispatch.nothing_to_interpret"), std::string::npos) << ToText(*outcome.error);
}

}  // namespace
}  // namespace tessera
