// The XLA lane's programs compile for a TPU that is not here, with Google's compiler (script/setup --tpu). It is made
// for x86-64: elsewhere the x86-64 build of this program runs under emulation (script/test --all), and this one skips.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/bitmap.h"
#include "lanes/xla/pjrt/elf.h"
#include "lanes/xla/pjrt/find_plugins.h"
#include "lanes/xla/pjrt/topology.h"
#include "support/engine.h"
#include "tessera/tessera.h"

namespace tessera {
namespace {

// An emulator takes one to two minutes for each program, where x86-64 takes seconds: a cross build compiles the first
// case only, unless the environment says TESSERA_TPU=all. Its programs have every operand there is.
bool HasTime() {
#ifdef TESSERA_EMULATED
  const char* wanted = std::getenv("TESSERA_TPU");
  return wanted != nullptr && std::string_view(wanted) == "all";
#else
  return true;
#endif
}

struct TpuCase {
  const char* name;
  const char* mask;
  Shape shape;
  Score score = {.scale = 0.125};
  std::optional<TileSize> tile = {};  // else the target's, 256 x 256
  bool has_bitmap = false;            // in place of the mask, one per head
  bool has_routing = false;
};

// Every term that is an operand, each dtype, and lengths and dims that fill no tile.
const TpuCase kCases[] = {
    {"everything",
     "causal and documents and valid and (window(40, 0) or sink(4))",
     {1, 128, 128, 2, 1, 128, 128, DType::kBf16},
     {.scale = 0.125, .softcap = 30, .sink_logits = true},
     TileSize{128, 128}},
    {"causal_f32", "causal", {1, 300, 300, 2, 2, 64, 64, DType::kF32}},
    {"window_sink", "causal and (window(127, 0) or sink(4))", {1, 512, 512, 2, 1, 96, 96, DType::kBf16}},
    {"packed", "causal and documents and valid", {2, 200, 200, 2, 2, 128, 128, DType::kBf16}},
    {"softcap_grouped", "causal", {1, 257, 257, 4, 1, 128, 128, DType::kBf16}, {.scale = 0.125, .softcap = 30}},
    {"cross_f16", "full", {1, 77, 301, 1, 1, 80, 48, DType::kF16}},
    {.name = "bitmap", .mask = "full", .shape = {1, 300, 300, 2, 1, 64, 64, DType::kF32}, .has_bitmap = true},
    {.name = "routed",
     .mask = "causal and blocks",
     .shape = {1, 512, 512, 2, 1, 64, 64, DType::kBf16},
     .has_routing = true},
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
    for (const pjrt::FoundPlugin& found : pjrt::FindPlugins(OptionsFromEnvironment().xla_folder)) {
      if (found.name.rfind("libtpu-", 0) == 0) plugin_ = found.path;
    }
    if (plugin_.empty())
      GTEST_SKIP() << "no libtpu in " << OptionsFromEnvironment().xla_folder << ": script/setup --tpu installs it";
    if (const Status ok = pjrt::CheckSharedObject(plugin_); !ok) {
      ASSERT_EQ(ok.error().message.find("built for "), 0u) << ToText(ok.error());
      GTEST_SKIP() << plugin_ << ": " << ok.error().message;
    }
  }

  static Contract ContractOf(const TpuCase& wish) {
    const Shape& s = wish.shape;
    Contract contract;
    contract.shape = s;
    contract.mask.heads = {ParseMaskExpr(wish.mask).value()};
    contract.score = wish.score;
    if (wish.has_routing) contract.routing = Routing{.top_n = 2};
    if (wish.has_bitmap) {
      Bitmap bitmap{.heads = s.num_q_heads, .q_len = s.q_len, .kv_len = s.kv_len, .cells = {}, .digest = {}};
      for (int64_t i = 0; i < bitmap.heads * s.q_len * s.kv_len; ++i) bitmap.cells.push_back(i % 7 < 3 ? 1 : 0);
      bitmap.digest = BitmapDigest(bitmap);
      MaskTerm& term = contract.mask.heads[0].term;
      term.kind = TermKind::kBitmap;
      term.path = "no_file.npy";
      term.bitmap = std::make_shared<const Bitmap>(std::move(bitmap));
    }
    return contract;
  }

  // Where the mask asks for them: two documents per row, and the last tokens are no tokens.
  static Batch BatchOf(const TpuCase& wish) {
    const std::string_view mask = wish.mask;
    const int64_t len = wish.shape.q_len;
    Batch batch;
    if (mask.find("documents") != std::string_view::npos) {
      IdRows ids{.rows = wish.shape.batch, .len = len, .values = {}};
      for (int64_t i = 0; i < ids.rows * len; ++i) ids.values.push_back(i % len < len / 3 ? 0 : 1);
      batch.doc_ids = std::move(ids);
    }
    if (mask.find("valid") != std::string_view::npos) {
      batch.valid_tokens = std::vector<int64_t>(static_cast<size_t>(wish.shape.batch), len - 9);
    }
    return batch;
  }

  RunOptions Options(const TpuCase& wish) const {
    RunOptions options;
    options.lane = "xla_chunked";
    options.plan.tile = wish.tile;
    options.xla.plugin = plugin_;
    return options;
  }

  static Target V6e() { return FindTarget("v6e").value(); }

  // It compiles, and the receipt says for what and what came of it.
  void ExpectCompiles(const TpuCase& wish, bool is_backward) {
    SCOPED_TRACE(wish.name);
    const Contract contract = ContractOf(wish);
    RunOptions options = Options(wish);
    options.forward = !is_backward;
    options.backward = is_backward;
    const TensorMap inputs = wish.has_routing ? MakeInputs(contract, 1, false) : TensorMap{};
    const RunOutcome outcome = Compile(TestEngine(), contract, BatchOf(wish), V6e(), options, inputs);
    ASSERT_FALSE(outcome.error.has_value()) << ToText(*outcome.error);
    const Receipt& r = outcome.receipt;
    EXPECT_TRUE(CheckReceipt(r).empty()) << ToJson(r);
    EXPECT_EQ(r.runtime_mode, "compile-only");
    EXPECT_EQ(r.executed, "xla_chunked");
    EXPECT_EQ(r.compiles, 1);
    EXPECT_EQ(r.device.platform, "tpu");
    EXPECT_EQ(r.device.topology, "v6e:1x1");
    EXPECT_NE(r.device.name.find("v6"), std::string::npos) << r.device.name;
    const ProgramUse use = ProgramOf(r, is_backward ? "backward" : "forward");
    EXPECT_NE(use.name.find(is_backward ? "backward" : "forward"), std::string::npos) << use.name;
    EXPECT_NE(use.name.find(r.class_key), std::string::npos) << use.name;
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

  std::string plugin_;
};

// One test for each pass, so that two processes share the work.
TEST_F(TpuTest, Forward_CompilesForV6e) {
  for (const TpuCase& wish : kCases) {
    ExpectCompiles(wish, false);
    if (!HasTime()) break;
  }
}

TEST_F(TpuTest, Backward_CompilesForV6e) {
  for (const TpuCase& wish : kCases) {
    ExpectCompiles(wish, true);
    if (!HasTime()) break;
  }
}

// The fingerprint is of the compiled program, so it tells whether the same text gives the same program.
TEST_F(TpuTest, SameText_GivesTheSameProgram) {
  if (!HasTime()) GTEST_SKIP() << "minutes under emulation; TESSERA_TPU=all runs it";
  const Result<const pjrt::Plugin*> plugin = pjrt::Plugin::Load(plugin_);
  ASSERT_TRUE(plugin.has_value()) << ToText(plugin.error());
  const Result<pjrt::Topology> topology = pjrt::Topology::Create(**plugin, "v6e:1x1");
  ASSERT_TRUE(topology.has_value()) << ToText(topology.error());
  std::vector<std::string> fingerprints;
  for (const int64_t len : {100, 100, 200}) {
    const TpuCase wish{"", "causal", {1, len, len, 1, 1, 64, 64, DType::kBf16}};
    const Result<std::vector<ProgramText>> texts =
        LowerPrograms(TestEngine(), ContractOf(wish), {}, V6e(), Options(wish));
    ASSERT_TRUE(texts.has_value()) << ToText(texts.error());
    fingerprints.push_back(Fingerprint(topology->Compile(texts->front().text, {})));
  }
  EXPECT_NE(fingerprints[0], "");
  EXPECT_EQ(fingerprints[0], fingerprints[1]);
  EXPECT_NE(fingerprints[0], fingerprints[2]);
}

TEST_F(TpuTest, WhatDoesNotCompile_IsThePluginsOwnError) {
  const TpuCase& wish = kCases[1];
  RunOptions options = Options(wish);
  options.xla.device = 7;
  const RunOutcome device = Compile(TestEngine(), ContractOf(wish), {}, V6e(), options);
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
  // libtpu would end the process.
  const Result<pjrt::CompiledProgram> beyond = topology->Compile("module {}", {.device_ids = {7}});
  ASSERT_FALSE(beyond.has_value());
  EXPECT_EQ(beyond.error().code, ErrorCode::kBadArgument) << ToText(beyond.error());
}

}  // namespace
}  // namespace tessera
