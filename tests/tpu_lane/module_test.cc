// The StableHLO programs around our kernels: whole, and a function of the class alone. tests/tpu compiles them.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/engine.h"
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

Result<std::vector<ProgramText>> Lower(const Contract& contract, const Batch& batch) {
  RunOptions options;
  options.lane = "xla_pallas";
  options.backward = true;
  options.plan.tile = TileSize{128, 128};
  return LowerPrograms(TestEngine(), contract, batch, FindTarget("v6e").value(), options);
}

Batch Documents(int64_t first) {
  IdRows ids{.rows = 1, .len = 500, .values = {}};
  for (int64_t t = 0; t < 500; ++t) ids.values.push_back(t < first ? 0 : 1);
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
