// The texts of xla_chunked are the same from every compiler: nothing in them depends on the order in which a compiler
// evaluates a call's arguments. The digest was the same from GCC on aarch64 and x86-64 and from clang on aarch64.
#include <gtest/gtest.h>

#include <string>

#include "base/hash.h"
#include "lanes/xla/stablehlo/program.h"
#include "tessera/version.h"

namespace tessera::stablehlo {
namespace {

constexpr const char* kDigest = "f0aa6722a8eab5718677d05c286909e8";

ProgramSpec SpecWith(DType dtype, bool has_all) {
  ProgramSpec spec;
  spec.class_key = "0123456789abcdef0123456789abcdef";
  spec.shape = {.batch = 2,
                .q_len = 200,
                .kv_len = 180,
                .num_q_heads = 4,
                .num_kv_heads = 2,
                .dim_qk = 32,
                .dim_v = 16,
                .dtype = dtype};
  spec.has_softcap = spec.has_sink_logits = spec.has_documents = spec.has_valid = has_all;
  spec.masks = 2;
  for (ListShape& list : spec.lists) list = {.tile_q = 64, .tile_kv = 64, .rows = 4, .width = 3, .row_words = 2};
  spec.items = 64;
  spec.words = 64;
  spec.parts = has_all ? 4 : 1;
  return spec;
}

TEST(ProgramText, OrderOfOperations_IsNoCompilersChoice) {
  Hasher hasher;
  const auto add = [&](const Result<Program>& program) {
    ASSERT_TRUE(program.has_value()) << ToText(program.error());
    std::string text = program->text;
    const std::string_view version = TESSERA_VERSION;
    if (const size_t at = text.find(version); at != std::string::npos) text.erase(at, version.size());
    hasher.Text(text);
  };
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    for (const bool has_all : {false, true}) {
      add(LowerForward(SpecWith(dtype, has_all)));
      add(LowerBackward(SpecWith(dtype, has_all)));
    }
  }
  for (const DenseKind kind : {DenseKind::kForward, DenseKind::kBackward, DenseKind::kStep}) {
    DenseSpec dense{.shape = SpecWith(DType::kF32, true).shape};
    dense.is_causal = dense.has_window = dense.has_documents = true;
    dense.shape.kv_len = dense.shape.q_len;
    add(LowerDense(dense, kind));
  }
  EXPECT_EQ(Hex(hasher.Finish()), kDigest)
      << "Where the programs were changed on purpose this is their digest now, if GCC and clang both say so.";
}

}  // namespace
}  // namespace tessera::stablehlo
