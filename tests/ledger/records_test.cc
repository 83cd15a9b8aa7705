// The records of sparse decoding: every rule, and the text others read.
#include "tessera/records.h"

#include <gtest/gtest.h>

#include "engine/fixtures.h"
#include "support/proves.h"

namespace tessera {
namespace {

TEST(ExactTokenRecord, IndexerWithoutTokens_ReroutesToFull) {
  Proves("R59");
  const Result<ExactTokenRecord> record =
      MakeExactTokenRecord({.indexer = "dsa", .returned_tokens = false, .seq_len = 4096, .requested_backend = "flash"});
  ASSERT_TRUE(record.has_value()) << ToText(record.error());
  EXPECT_EQ(ToJson(*record),
            R"({"path":"reroute_to_full","reason":"indexer_returned_none","indexer":"dsa","seq_len":4096})");
}

TEST(ExactTokenRecord, IndexerWithTokens_NamesBothBackends) {
  Proves("R59");
  const Result<ExactTokenRecord> record = MakeExactTokenRecord({.indexer = "dsa",
                                                                .returned_tokens = true,
                                                                .seq_len = 4096,
                                                                .requested_backend = "flash",
                                                                .actual_backend = "triton"});
  ASSERT_TRUE(record.has_value()) << ToText(record.error());
  EXPECT_EQ(ToJson(*record), R"({"path":"exact_token","indexer":"dsa","backend":"triton","seq_len":4096,)"
                             R"("requested_backend":"flash","actual_backend":"triton","runtime_mode":"exact_token"})");
}

TEST(ExactTokenRecord, WhatCannotBe_IsRefusedWithEveryField) {
  const Result<ExactTokenRecord> record = MakeExactTokenRecord({.indexer = "", .returned_tokens = true, .seq_len = -1});
  ASSERT_FALSE(record.has_value());
  EXPECT_EQ(record.error().violations.size(), 3u) << ToText(record.error());
}

// What a run leaves behind, in the words that others read.
TEST(ExactTokenRecord, Receipts_HaveOneWhereThereWerePicks) {
  Proves("R59");
  const Contract contract = SmallContract({.mask = "causal and blocks"});
  const Shape& s = contract.shape;
  const TensorMap inputs = MakeInputs(contract, 1, false);
  Batch batch;
  batch.picks = Picks{.block_tokens = 8, .shape = {s.batch, s.q_len, s.num_kv_heads, 0}, .blocks = {}};
  const Receipt nothing = tessera::Run(contract, batch, inputs, TargetNamed("cpu")).receipt;
  ASSERT_TRUE(ExactTokenRecordOf(nothing).has_value());
  EXPECT_EQ(ToJson(*ExactTokenRecordOf(nothing)),
            R"({"path":"reroute_to_full","reason":"indexer_returned_none","indexer":"caller","seq_len":48})");
  const Contract routed = MakeRoutedContract();
  const Receipt picked = tessera::Run(routed, {}, MakeInputs(routed, 1, false), TargetNamed("cpu")).receipt;
  ASSERT_TRUE(ExactTokenRecordOf(picked).has_value());
  EXPECT_EQ(ToJson(*ExactTokenRecordOf(picked)),
            R"({"path":"exact_token","indexer":"routing","backend":"cpu","seq_len":48,"requested_backend":"auto",)"
            R"("actual_backend":"cpu","runtime_mode":"exact_token"})");
  const Contract plain = SmallContract();
  EXPECT_FALSE(
      ExactTokenRecordOf(tessera::Run(plain, {}, MakeInputs(plain, 1, false), TargetNamed("cpu")).receipt).has_value());
}

constexpr bool kHere = true;
const BackendProbe kFlashHere{"flash", kHere, kHere};
const BackendProbe kFlashGone{"flash", false, false};

TEST(MobaRecord, NoWish_IsTriton) {
  Proves("R59");
  for (const std::optional<std::string>& asked :
       {std::optional<std::string>(), std::optional<std::string>(""), std::optional<std::string>("auto"),
        std::optional<std::string>("  Auto\n"), std::optional<std::string>(" TRITON ")}) {
    const Result<MobaRecord> record = ResolveMoba(asked, kFlashHere);
    ASSERT_TRUE(record.has_value()) << asked.value_or("null");
    EXPECT_EQ(record->requested_backend, "triton");
    EXPECT_EQ(record->actual_backend, "triton");
    EXPECT_FALSE(record->fallback_reason.has_value());
  }
}

TEST(MobaRecord, Flash_NeedsItsRuntime) {
  Proves("R59 R60");
  const Result<MobaRecord> here = ResolveMoba(" Flash", kFlashHere);
  ASSERT_TRUE(here.has_value());
  EXPECT_EQ(here->actual_backend, "flash");
  EXPECT_NE(ToJson(*here).find(R"("fallback_reason":null)"), std::string::npos) << ToJson(*here);
  for (const BackendProbe& probe :
       {kFlashGone, BackendProbe{"flash", true, false}, BackendProbe{"flash", false, true}}) {
    const Result<MobaRecord> gone = ResolveMoba("flash", probe);
    ASSERT_TRUE(gone.has_value());
    EXPECT_EQ(gone->requested_backend, "flash");
    EXPECT_EQ(gone->actual_backend, "triton");
    EXPECT_EQ(gone->fallback_reason, "flash_cute_runtime_unavailable");
    EXPECT_EQ(
        ToJson(*gone).rfind(
            R"({"semantic_branch":"block_sparse","router_type":"moba","requested_backend":"flash",)"
            R"("requested_backend_source":"runtime_contract","actual_backend":"triton",)"
            R"("runtime_mode":"blockized_sparse_cuda","fallback_reason":"flash_cute_runtime_unavailable","note":")",
            0),
        0u)
        << ToJson(*gone);
  }
}

TEST(MobaRecord, AnyOtherName_IsAnError) {
  Proves("R59");
  for (const char* name : {"cuda", "tri ton", "flash2", "null"}) {
    const Result<MobaRecord> record = ResolveMoba(name, kFlashHere);
    ASSERT_FALSE(record.has_value()) << name;
    EXPECT_EQ(record.error().code, ErrorCode::kLaneUnknown);
    EXPECT_NE(record.error().message.find("triton or flash"), std::string::npos);
  }
}

TEST(ChooseBackend, ExplicitBeatsAutodetect) {
  Proves("R60");
  const std::vector<BackendProbe> both = {{"xla", true, true}, {"cuda", true, true}};
  const Result<BackendChoice> detected = ChooseBackend(std::nullopt, both);
  ASSERT_TRUE(detected.has_value());
  EXPECT_EQ(detected->backend, "xla");
  EXPECT_EQ(detected->source, "autodetect");
  const Result<BackendChoice> asked = ChooseBackend(" CUDA ", both);
  ASSERT_TRUE(asked.has_value());
  EXPECT_EQ(ToJson(*asked), R"({"backend":"cuda","source":"explicit","reason":"asked for by name"})");
}

TEST(ChooseBackend, Probe_NeedsPackageAndDevice) {
  Proves("R60");
  for (const bool has_package : {false, true}) {
    for (const bool has_device : {false, true}) {
      const std::vector<BackendProbe> probes = {{"xla", has_package, has_device}, {"cpu", true, true}};
      const Result<BackendChoice> choice = ChooseBackend("auto", probes);
      ASSERT_TRUE(choice.has_value());
      EXPECT_EQ(choice->backend, has_package && has_device ? "xla" : "cpu");
      const Result<BackendChoice> asked = ChooseBackend("xla", probes);
      EXPECT_EQ(asked.has_value(), has_package && has_device) << "asked for by name, never another";
      EXPECT_TRUE(asked || asked.error().code == ErrorCode::kLaneRefused);
    }
  }
  EXPECT_FALSE(ChooseBackend(std::nullopt, {{"xla", true, false}}).has_value());
  EXPECT_FALSE(ChooseBackend(std::nullopt, {}).has_value());
  const Result<BackendChoice> unknown = ChooseBackend("tpu", {{"xla", true, true}});
  ASSERT_FALSE(unknown.has_value());
  EXPECT_EQ(unknown.error().code, ErrorCode::kLaneUnknown);
}

TEST(ClusteredSupport, NeedsPhasesOneAndThreeByName) {
  Proves("R35 B10");
  const PhaseParameters everything{.names = {"q", "doc_ids", "local_window", "valid_token_counts", "mask_contract"}};
  const PhaseParameters catch_all{.names = {"q"}, .has_catch_all = true};
  const ClusteredSupport all{true, true, true, true, true, true};
  EXPECT_EQ(SupportOf({true, everything, everything, everything}), all);
  EXPECT_EQ(SupportOf({false, everything, everything, everything}), ClusteredSupport{}) << "not there";
  EXPECT_EQ(SupportOf({true, everything, everything, catch_all}),
            (ClusteredSupport{.phase1_has_contract = true, .phase2_has_contract = true}));
  EXPECT_EQ(SupportOf({true, catch_all, catch_all, everything}), (ClusteredSupport{.phase3_has_contract = true}));
  EXPECT_EQ(SupportOf({true, {.names = {"window_size"}}, {}, {.names = {"local_window"}}}),
            (ClusteredSupport{.local_window = true}));
  EXPECT_EQ(ToJson(ClusteredSupport{.local_window = true}),
            R"({"local_window":true,"general_doc_ids":false,"valid_prefix":false,"phase1_has_contract":false,)"
            R"("phase2_has_contract":false,"phase3_has_contract":false})");
}

}  // namespace
}  // namespace tessera
