// The StableHLO programs around our kernels: whole, and a function of the class alone. tests/tpu compiles them.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "support/engine.h"
#include "support/proves.h"
#include "tessera/tessera.h"
#include "tpu_lane/held.h"

namespace tessera {
namespace {

Contract ContractOf(const char* mask, DType dtype, int64_t dim, double softcap = 0, bool sinks = false) {
  Contract contract;
  contract.shape = {1, 500, 500, 4, 2, dim, dim, dtype};
  contract.mask.heads = {ParseMaskExpr(mask).value()};
  contract.score = {.scale = 0.125, .softcap = softcap, .sink_logits = sinks};
  return contract;
}

Result<std::vector<ProgramText>> Lower(const Contract& contract, const Batch& batch,
                                       std::optional<TileSize> tile = TileSize{128, 128}) {
  RunOptions options;
  options.lane = "xla_pallas";
  options.backward = true;
  options.plan.tile = tile;
  return LowerPrograms(TestEngine(), contract, batch, FindTarget("v6e").value(), options);
}

Batch Documents(int64_t first, int64_t tokens = 500) {
  IdRows ids{.rows = 1, .len = tokens, .values = {}};
  for (int64_t t = 0; t < tokens; ++t) ids.values.push_back(t < first ? 0 : 1);
  Batch batch;
  batch.doc_ids = std::move(ids);
  return batch;
}

TEST(KernelModules, EveryKind_IsOneCallPerKernel) {
  struct Kind {
    const char* name;
    Contract contract;
    Batch batch;
  };
  const Kind kinds[] = {
      {"causal_bf16_128", ContractOf("causal", DType::kBf16, 128), {}},
      {"causal_f32_64", ContractOf("causal", DType::kF32, 64), {}},
      {"window_softcap_sinks", ContractOf("causal and window(200, 0)", DType::kBf16, 128, 30, true), {}},
      {"documents_bf16_128", ContractOf("causal and documents", DType::kBf16, 128), Documents(170)},
      {"full_256", ContractOf("full", DType::kBf16, 256), {}},
  };
  for (const Kind& kind : kinds) {
    SCOPED_TRACE(kind.name);
    const Result<std::vector<ProgramText>> programs = Lower(kind.contract, kind.batch);
    ASSERT_TRUE(programs.has_value()) << ToText(programs.error());
    ASSERT_EQ(programs->size(), 2u);
    for (size_t i = 0; i < 2; ++i) {
      const std::string& text = (*programs)[i].text;
      size_t calls = 0;
      for (size_t at = text.find("@tpu_custom_call"); at != std::string::npos;
           at = text.find("@tpu_custom_call", at + 1)) {
        ++calls;
      }
      EXPECT_EQ(calls, 1u);
    }
    HoldPrograms(kind.name, *programs);
  }
}

// The tiles that users have: the target's own, those of the cost table (script/tpu-proof cost), where the walk takes
// tiles two by two and the backward its blocks in turn, and tiles longer in keys than in queries.
TEST(KernelModules, EveryTile_IsHeld) {
  struct Kind {
    const char* name;
    const char* mask;
    int64_t tokens;
    int64_t dim;
    std::optional<TileSize> tile;
    double softcap = 0;
    bool sinks = false;
  };
  const Kind kinds[] = {
      {"own_tile_causal", "causal", 600, 128, {}},
      {"own_tile_window_softcap_sinks", "causal and window(300, 0)", 600, 128, {}, 30, true},
      {"own_tile_documents", "causal and documents", 600, 64, {}},
      {"tile_512_documents", "causal and documents", 2048, 128, TileSize{512, 512}},
      {"tile_512_everything", "causal and documents and window(1023, 0)", 2048, 128, TileSize{512, 512}, 30},
      {"tile_1024_full", "full", 2048, 128, TileSize{1024, 1024}},
      {"in_range_causal_sinks", "causal", 384, 64, TileSize{128, 128}, 0, true},
      {"in_range_documents", "documents or sink(128)", 384, 64, TileSize{128, 128}},
      {"softcap_beyond_range", "causal and documents", 500, 64, TileSize{128, 128}, 90},
      {"tile_128x512", "causal and documents", 700, 64, TileSize{128, 512}},
      {"tile_256x512_softcap", "causal and documents", 600, 64, TileSize{256, 512}, 20},
  };
  for (const Kind& kind : kinds) {
    SCOPED_TRACE(kind.name);
    Contract contract = ContractOf(kind.mask, DType::kBf16, kind.dim, kind.softcap, kind.sinks);
    contract.shape.q_len = contract.shape.kv_len = kind.tokens;
    const bool is_packed = std::string_view(kind.mask).find("documents") != std::string_view::npos;
    const Result<std::vector<ProgramText>> programs =
        Lower(contract, is_packed ? Documents(170, kind.tokens) : Batch{}, kind.tile);
    ASSERT_TRUE(programs.has_value()) << ToText(programs.error());
    EXPECT_EQ((*programs)[0].kernels.size() + (*programs)[1].kernels.size(), 2u);
    HoldPrograms(kind.name, *programs);
  }
}

size_t Count(const std::string& text, std::string_view word) {
  size_t count = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++count;
  return count;
}

// For several chips: one region that each runs on its share of the heads, or of the batch where the key heads are too
// few, and the tensors of all outside of it.
TEST(KernelModules, SeveralChips_ShareHeadsOrRows) {
  struct Kind {
    const char* name;
    int64_t batch;
    int64_t num_kv_heads;
    const char* q;  // of all chips, and of one
    const char* own_q;
  };
  const Kind kinds[] = {
      {"chips_share_heads", 2, 4,
       "tensor<2x8x300x128xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{}, {\"chip\"}, {}, {}]>}",
       "tensor<2x2x300x128xbf16>"},
      {"chips_share_rows", 4, 1,
       "tensor<4x8x300x128xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{\"chip\"}, {}, {}, {}]>}",
       "tensor<1x8x300x128xbf16>"},
  };
  for (const Kind& kind : kinds) {
    SCOPED_TRACE(kind.name);
    Contract contract = ContractOf("causal and documents and valid", DType::kBf16, 128, 0, true);
    contract.shape = {kind.batch, 300, 300, 8, kind.num_kv_heads, 128, 128, DType::kBf16};
    IdRows ids{.rows = kind.batch, .len = 300, .values = {}};
    for (int64_t t = 0; t < kind.batch * 300; ++t) ids.values.push_back(t % 300 < 170 ? 0 : 1);
    Batch batch;
    batch.doc_ids = std::move(ids);
    batch.valid_tokens = std::vector<int64_t>(static_cast<size_t>(kind.batch), 290);
    RunOptions options;
    options.lane = "xla_pallas";
    options.backward = true;
    options.plan.tile = TileSize{128, 128};
    const Result<std::vector<ProgramText>> one =
        LowerPrograms(TestEngine(), contract, batch, FindTarget("v6e").value(), options);
    options.chips = 4;
    const Result<std::vector<ProgramText>> programs =
        LowerPrograms(TestEngine(), contract, batch, FindTarget("v6e").value(), options);
    ASSERT_TRUE(one.has_value() && programs.has_value()) << ToText(programs ? one.error() : programs.error());
    for (size_t pass = 0; pass < 2; ++pass) {
      const ProgramText& program = (*programs)[pass];
      EXPECT_EQ(program.chips, 4);
      EXPECT_EQ(Count(program.text, "sdy.manual_computation"), 1u);
      EXPECT_EQ(Count(program.text, "@tpu_custom_call"), Count((*one)[pass].text, "@tpu_custom_call"));
      EXPECT_EQ(Count(program.text, kind.q), pass == 0 ? 1u : 2u) << "q, and with a backward do";
      EXPECT_NE(program.text.find(kind.own_q), std::string::npos);
      // The caller gives what a program of one chip takes, and as much comes back.
      ASSERT_EQ(program.operands.size(), (*one)[pass].operands.size());
      for (size_t i = 0; i < program.operands.size(); ++i) {
        const ProgramOperand& whole = (*one)[pass].operands[i];
        EXPECT_EQ(program.operands[i].name, whole.name);
        EXPECT_EQ(program.operands[i].tensor.bytes, whole.tensor.bytes) << whole.name;
        EXPECT_EQ(program.operands[i].tensor.NumElements(), whole.tensor.NumElements()) << whole.name;
      }
      ASSERT_EQ(program.results.size(), (*one)[pass].results.size());
      for (size_t i = 0; i < program.results.size(); ++i) {
        const ProgramOperand& whole = (*one)[pass].results[i];
        const int64_t counts = whole.name == "tiles" ? 4 : 1;
        EXPECT_EQ(program.results[i].tensor.NumElements(), counts * whole.tensor.NumElements()) << whole.name;
      }
    }
    HoldPrograms(kind.name, *programs);
  }
}

TEST(KernelModules, ChipsThatCannotShareEvenly_AreRefused) {
  RunOptions options;
  options.lane = "xla_pallas";
  const auto code = [&](int64_t chips, const char* lane) -> std::optional<ErrorCode> {
    options.chips = chips;
    options.lane = lane;
    const Result<std::vector<ProgramText>> programs =
        LowerPrograms(TestEngine(), ContractOf("causal", DType::kBf16, 128), {}, FindTarget("v6e").value(), options);
    if (programs) return std::nullopt;
    return programs.error().code;
  };
  EXPECT_EQ(code(3, "xla_pallas"), ErrorCode::kLaneRefused);
  EXPECT_EQ(code(4, "xla_pallas"), ErrorCode::kLaneRefused) << "two key heads and one row";
  EXPECT_EQ(code(2, "xla_chunked"), ErrorCode::kLaneRefused);
  EXPECT_EQ(code(0, "xla_pallas"), ErrorCode::kBadArgument);
}

// A plan whose lists exceed a TPU's scalar memory is several calls in one program.
TEST(KernelModules, ListsBeyondScalarMemory_AreSeveralCalls) {
  Target target = FindTarget("v6e").value();
  RunOptions options;
  options.lane = "xla_pallas";
  options.backward = true;
  options.plan.tile = TileSize{128, 128};
  Contract contract = ContractOf("causal", DType::kBf16, 64);
  contract.shape.q_len = contract.shape.kv_len = 2048;
  Result<std::vector<ProgramText>> programs = LowerPrograms(TestEngine(), contract, {}, target, options);
  ASSERT_TRUE(programs.has_value()) << ToText(programs.error());
  const auto is_shared = [&] {
    return Count((*programs)[0].text, "@tpu_custom_call") > 1 && Count((*programs)[1].text, "@tpu_custom_call") > 3;
  };
  // As much as they take is more than a machine with a little less has.
  for (target.scalar_bytes = 48 << 10; !is_shared(); target.scalar_bytes -= 512) {
    programs = LowerPrograms(TestEngine(), contract, {}, target, options);
    ASSERT_TRUE(programs.has_value()) << target.scalar_bytes << " " << ToText(programs.error());
  }
  HoldPrograms("several_calls", *programs);
}

// Found by us, with a number, before any compiler sees it; interpret_test.cc has what a kernel has no form for.
TEST(KernelModules, BadInput_IsFoundBeforeAnyCompiler) {
  Proves("R16 B7");
  const auto code = [](const Contract& contract, const Batch& batch, const char* lane) -> std::optional<ErrorCode> {
    RunOptions options;
    options.lane = lane;
    options.plan.tile = TileSize{128, 128};
    const Result<std::vector<ProgramText>> programs =
        LowerPrograms(TestEngine(), contract, batch, FindTarget("v6e").value(), options);
    if (programs) return std::nullopt;
    return programs.error().code;
  };
  const Contract good = ContractOf("causal", DType::kBf16, 64);
  for (const char* lane : {"xla_pallas", "splash"}) {
    EXPECT_EQ(code(good, {}, lane), std::nullopt);
    Contract heads = good;
    heads.shape.num_q_heads = 3;  // over two key heads
    EXPECT_EQ(code(heads, {}, lane), ErrorCode::kContractInvalid) << lane;
  }
  const Contract packed = ContractOf("causal and documents", DType::kBf16, 64);
  Batch one_side;
  one_side.q_doc_ids = Documents(170).doc_ids;
  EXPECT_EQ(code(packed, Documents(170), "xla_pallas"), std::nullopt);
  EXPECT_EQ(code(packed, {}, "xla_pallas"), ErrorCode::kBatchInvalid) << "no segment ids";
  EXPECT_EQ(code(packed, one_side, "xla_pallas"), ErrorCode::kBatchInvalid) << "of queries only";
  one_side = {};
  one_side.kv_doc_ids = Documents(170).doc_ids;
  EXPECT_EQ(code(packed, one_side, "xla_pallas"), ErrorCode::kBatchInvalid) << "of keys only";
}

// A plan does not name its target; its tiles are a fact of it that the kernels depend on.
TEST(KernelModules, PlanOfAnotherTarget_IsRefused) {
  AttentionOptions options;
  options.lane = "xla_pallas";
  options.backward = true;
  options.xla.interpret = true;
  const Contract contract = ContractOf("causal and window(200, 0)", DType::kF32, 64);
  const auto bind = [&](const Target& planned_for, std::optional<TileSize> tile) {
    const Result<Attention> attention = TestEngine().Prepare(contract, FindTarget("v6e").value(), options);
    EXPECT_TRUE(attention.has_value());
    PlanOptions tiles;
    tiles.tile = tile;
    Result<PlanResult> plan = MakePlan(contract, {}, planned_for, tiles);
    EXPECT_TRUE(plan.has_value());
    const Result<Bound> bound = attention->Bind(std::move(plan->plan));
    return bound ? std::string() : ToText(bound.error());
  };
  const Target v6e = FindTarget("v6e").value();
  const Target v5e = FindTarget("v5e").value();
  const Target cpu = FindTarget("cpu").value();
  EXPECT_EQ(bind(v6e, {}), "");
  const std::string of_v5e = bind(v5e, {});
  EXPECT_EQ(of_v5e.find("TSR-P007"), 0u) << of_v5e;
  for (const char* part :
       {"tiles.forward: 256x256 expected of a plan for v6e, found 128x128", "tiles.dq", "tiles.dkv"}) {
    EXPECT_NE(of_v5e.find(part), std::string::npos) << of_v5e;
  }
  EXPECT_EQ(bind(cpu, TileSize{128, 128}).find("TSR-P007"), 0u);
  EXPECT_EQ(bind(cpu, TileSize{64, 64}).find("TSR-P007"), 0u);
  // A tile that is asked for on both sides makes the plans one and the same; the kernels' own rule still holds.
  options.plan.tile = TileSize{128, 128};
  EXPECT_EQ(bind(v5e, {}), "");
  options.plan.tile = TileSize{64, 64};
  EXPECT_NE(bind(cpu, TileSize{64, 64}).find("tpu.tile"), std::string::npos);
}

TEST(KernelModules, OtherDocuments_SameText) {
  const Contract contract = ContractOf("causal and documents", DType::kBf16, 64);
  const Result<std::vector<ProgramText>> a = Lower(contract, Documents(170));
  const Result<std::vector<ProgramText>> b = Lower(contract, Documents(333));
  ASSERT_TRUE(a.has_value() && b.has_value());
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ((*a)[i].text, (*b)[i].text);
    EXPECT_FALSE((*a)[i].operands == (*b)[i].operands) << "documents are operands";
  }
}

}  // namespace
}  // namespace tessera
