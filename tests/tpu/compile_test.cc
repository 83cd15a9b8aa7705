// The XLA lane's programs compile for a TPU that is not here, with Google's compiler (script/setup --tpu). It is made
// for x86-64: elsewhere the x86-64 build of this program runs under emulation (script/test --all), and this one skips.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "contract/bitmap.h"
#include "lanes/xla/pjrt/elf.h"
#include "lanes/xla/pjrt/find_plugins.h"
#include "lanes/xla/pjrt/topology.h"
#include "tessera/tessera.h"

namespace tessera {
namespace {

struct TpuCase {
  const char* name;
  const char* mask;
  Shape shape;
  Score score = {.scale = 0.125};
  bool has_documents = false;
  bool has_valid = false;
};

const TpuCase kPacked{"packed_valid",
                      "causal and documents and valid",
                      {2, 200, 200, 2, 1, 128, 128, DType::kBf16},
                      {.scale = 0.125, .softcap = 30, .sink_logits = true},
                      true,
                      true};
// Every operand a program can have, each dtype, and lengths and dims that fill no tile. The target's tile is 256 x 256.
const TpuCase kCases[] = {
    {"causal_f32", "causal", {1, 300, 300, 2, 2, 64, 64, DType::kF32}},
    {"window_sink_softcap",
     "causal and (window(127, 0) or sink(4))",
     {1, 512, 512, 2, 1, 96, 96, DType::kBf16},
     {.scale = 0.125, .softcap = 30}},
    {"grouped_sink_logits",
     "causal",
     {1, 257, 257, 4, 1, 128, 128, DType::kBf16},
     {.scale = 0.125, .sink_logits = true}},
    {"cross_f16", "full", {1, 77, 301, 1, 1, 80, 48, DType::kF16}},
};

std::string Fingerprint(const Result<pjrt::CompiledProgram>& program) {
  EXPECT_TRUE(program.has_value()) << ToText(program.error());
  const Result<std::string> fingerprint = program ? program->Fingerprint() : tl::unexpected(program.error());
  EXPECT_TRUE(fingerprint.has_value()) << ToText(fingerprint.error());
  return fingerprint.value_or("");
}

class TpuTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const pjrt::FoundPlugin& found : pjrt::FindPlugins()) {
      if (found.name.rfind("libtpu-", 0) == 0) plugin_ = found.path;
    }
    if (plugin_.empty()) GTEST_SKIP() << "no libtpu in " << pjrt::XlaFolder() << ": script/setup --tpu installs it";
    if (const Status ok = pjrt::CheckSharedObject(plugin_); !ok) {
      ASSERT_EQ(ok.error().message.find("built for "), 0u) << ToText(ok.error());
      GTEST_SKIP() << plugin_ << ": " << ok.error().message;
    }
  }

  static Contract ContractOf(const TpuCase& wish) {
    Contract contract;
    contract.shape = wish.shape;
    contract.mask.heads = {ParseMaskExpr(wish.mask).value()};
    contract.score = wish.score;
    return contract;
  }

  // Two documents per row; the last tokens are no tokens.
  static Batch BatchOf(const TpuCase& wish) {
    Batch batch;
    const int64_t len = wish.shape.q_len;
    if (wish.has_documents) {
      IdRows ids{.rows = wish.shape.batch, .len = len, .values = {}};
      for (int64_t i = 0; i < ids.rows * len; ++i) ids.values.push_back(i % len < len / 3 ? 0 : 1);
      batch.doc_ids = std::move(ids);
    }
    if (wish.has_valid) batch.valid_tokens = std::vector<int64_t>(static_cast<size_t>(wish.shape.batch), len - 9);
    return batch;
  }

  RunOptions Options() const {
    RunOptions options;
    options.lane = "xla_chunked";
    options.backward = true;
    options.xla.plugin = plugin_;
    return options;
  }

  static Target V6e() { return FindTarget("v6e").value(); }

  // Forward and backward compile, and the receipt says for what and what came of it.
  void ExpectCompiles(const Contract& contract, const Batch& batch, const TensorMap& inputs = {}) {
    const RunOutcome outcome = Compile(contract, batch, V6e(), Options(), inputs);
    ASSERT_FALSE(outcome.error.has_value()) << ToText(*outcome.error);
    const Receipt& r = outcome.receipt;
    EXPECT_TRUE(CheckReceipt(r).empty()) << ToJson(r);
    EXPECT_EQ(r.runtime_mode, "compile-only");
    EXPECT_EQ(r.executed, "xla_chunked");
    EXPECT_EQ(r.compiles, 2);
    EXPECT_EQ(r.xla.platform, "tpu");
    EXPECT_EQ(r.xla.topology, "v6e:1x1");
    EXPECT_NE(r.xla.device_kind.find("v6"), std::string::npos) << r.xla.device_kind;
    for (const XlaProgramUse& use : {r.xla_forward, r.xla_backward}) {
      SCOPED_TRACE(use.name);
      EXPECT_NE(use.name.find(r.class_key), std::string::npos);
      EXPECT_GT(use.compile_ns, 0);
      EXPECT_GT(use.argument_bytes, 0);
      EXPECT_GT(use.output_bytes, 0);
      EXPECT_GT(use.temp_bytes, 0);
      EXPECT_GT(use.code_bytes, 0);
      EXPECT_GT(use.instructions, 0);
      EXPECT_NE(use.opcodes, "");
      EXPECT_EQ(use.custom_calls, "");
      EXPECT_EQ(use.collectives, "");
    }
  }

  std::string plugin_;
};

// Emulated, a program takes a minute or so. TESSERA_TPU_CASES=all compiles every one of them, as docs/measurements.md
// says was done; otherwise the one with the most operands.
bool WantsAll() {
  const char* which = std::getenv("TESSERA_TPU_CASES");
  return which != nullptr && std::string_view(which) == "all";
}

TEST_F(TpuTest, PackedDocuments_CompileForV6e) { ExpectCompiles(ContractOf(kPacked), BatchOf(kPacked)); }

TEST_F(TpuTest, EveryKindOfContract_CompilesForV6e) {
  if (!WantsAll()) GTEST_SKIP() << "takes minutes where it is emulated; TESSERA_TPU_CASES=all runs it";
  for (const TpuCase& wish : kCases) {
    SCOPED_TRACE(wish.name);
    ExpectCompiles(ContractOf(wish), BatchOf(wish));
  }
  {
    SCOPED_TRACE("bitmap per head");
    auto bitmap = std::make_shared<Bitmap>(Bitmap{.heads = 2, .q_len = 300, .kv_len = 300, .cells = {}, .digest = {}});
    for (int64_t i = 0; i < 2 * 300 * 300; ++i) bitmap->cells.push_back(i % 7 < 3 ? 1 : 0);
    bitmap->digest = BitmapDigest(*bitmap);
    Contract contract = ContractOf({"", "causal", {1, 300, 300, 2, 1, 64, 64, DType::kF32}});
    MaskExpr expr;
    expr.term.kind = TermKind::kBitmap;
    expr.term.path = "no_file.npy";
    expr.term.bitmap = bitmap;
    contract.mask.heads = {expr};
    ExpectCompiles(contract, {});
  }
  {
    SCOPED_TRACE("routed");
    Contract contract = ContractOf({"", "causal and blocks", {1, 512, 512, 2, 1, 64, 64, DType::kBf16}});
    contract.routing = Routing{.top_n = 2};
    ExpectCompiles(contract, {}, MakeInputs(contract, 1, false));
  }
}

// The fingerprint is of the compiled program, so it tells whether the same text gives the same program.
TEST_F(TpuTest, SameText_GivesTheSameProgram) {
  if (!WantsAll()) GTEST_SKIP() << "takes minutes where it is emulated; TESSERA_TPU_CASES=all runs it";
  const Result<const pjrt::Plugin*> plugin = pjrt::Plugin::Load(plugin_);
  ASSERT_TRUE(plugin.has_value()) << ToText(plugin.error());
  const Result<pjrt::Topology> topology = pjrt::Topology::Create(**plugin, "v6e:1x1");
  ASSERT_TRUE(topology.has_value()) << ToText(topology.error());
  RunOptions options = Options();
  options.backward = false;
  std::vector<std::string> fingerprints;
  for (const char* mask : {"causal and window(40, 0)", "causal and window(40, 0)", "full"}) {
    const int64_t len = std::string_view(mask) == "full" ? 200 : 100;
    const Contract contract = ContractOf({"", mask, {1, len, len, 1, 1, 64, 64, DType::kBf16}});
    const Result<std::vector<ProgramText>> texts = LowerPrograms(contract, {}, V6e(), options);
    ASSERT_TRUE(texts.has_value()) << ToText(texts.error());
    fingerprints.push_back(Fingerprint(topology->Compile(texts->front().text, {})));
  }
  EXPECT_NE(fingerprints[0], "");
  EXPECT_EQ(fingerprints[0], fingerprints[1]);
  EXPECT_NE(fingerprints[0], fingerprints[2]);
}

TEST_F(TpuTest, WhatDoesNotCompile_IsThePluginsOwnError) {
  RunOptions options = Options();
  options.xla.device = 7;
  const Contract contract = ContractOf(kCases[0]);
  const RunOutcome device = Compile(contract, {}, V6e(), options);
  ASSERT_TRUE(device.error.has_value());
  EXPECT_NE(ToText(*device.error).find("xla.device"), std::string::npos) << ToText(*device.error);
  const Result<const pjrt::Plugin*> plugin = pjrt::Plugin::Load(plugin_);
  ASSERT_TRUE(plugin.has_value()) << ToText(plugin.error());
  const Result<pjrt::Topology> none = pjrt::Topology::Create(**plugin, "v6e:nothing");
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code, ErrorCode::kPluginFailed) << ToText(none.error());
  const Result<pjrt::Topology> topology = pjrt::Topology::Create(**plugin, "v6e:1x1");
  ASSERT_TRUE(topology.has_value()) << ToText(topology.error());
  const Result<pjrt::CompiledProgram> program = topology->Compile("module {", {});
  ASSERT_FALSE(program.has_value());
  EXPECT_EQ(program.error().code, ErrorCode::kPluginFailed) << ToText(program.error());
}

}  // namespace
}  // namespace tessera
