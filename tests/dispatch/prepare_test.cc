// Prepared runs in the caller's hands: what they hold a run to, and what a run does when it is another one.
#include "tessera/prepare.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "fixtures.h"
#include "support/proves.h"

namespace tessera {
namespace {

RunOptions WithCache(RunCache& cache) {
  RunOptions options;
  options.cache = &cache;
  return options;
}
RunOptions WithoutCache() {
  RunOptions options;
  options.use_cache = false;
  return options;
}

TEST(Pinned, WindowThatChanges_IsRefusedOrBecomesANewContract) {
  Proves("R45");
  const Target target = TargetNamed("cpu");
  const Contract contract = MakeContract({.mask = "causal and window(7, 0)"});
  const Contract narrow = MakeContract({.mask = "causal and window(3, 0)"});
  const TensorMap inputs = MakeInputs(contract, 1, false);
  RunCache cache(4);
  RunOptions options = WithCache(cache);
  const Result<std::shared_ptr<const PreparedRun>> prepared = Prepare(contract, target, options);
  ASSERT_TRUE(prepared.has_value()) << ToText(prepared.error());
  options.pinned = *prepared;

  const RunOutcome same = tessera::Run(contract, {}, inputs, target, options);
  ASSERT_FALSE(same.error.has_value()) << ErrorText(same);
  EXPECT_EQ(same.receipt.cache.outcome, "off");
  EXPECT_EQ(same.receipt.cache.key, (*prepared)->key_digest);
  ExpectSound(same.receipt);
  // Another spelling is no change.
  const Contract spelled = MakeContract({.mask = "window(7, 0)"});
  EXPECT_EQ(tessera::Run(spelled, {}, inputs, target, options).receipt.cache.outcome, "off");

  const RunOutcome refused = tessera::Run(narrow, {}, inputs, target, options);
  ASSERT_TRUE(refused.error.has_value());
  EXPECT_EQ(refused.error->code, ErrorCode::kPinnedMismatch);
  EXPECT_EQ(refused.receipt.failed_at, "request");
  EXPECT_EQ(refused.receipt.contract_key, ContractKey(narrow).value());
  EXPECT_TRUE(refused.outputs.empty());
  const std::string text = ErrorText(refused);
  for (const std::string& part : {std::string("TSR-R011"), std::string("window (7, 0)"), std::string("window (3, 0)"),
                                  ContractKey(contract).value(), ContractKey(narrow).value()}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
  }
  ExpectSound(refused.receipt);
  EXPECT_EQ(cache.stats().builds, 1);  // what was refused took no place

  // A tile, a lane or a target is a change too.
  RunOptions tiled = options;
  tiled.plan.tile = TileSize{32, 32};
  EXPECT_EQ(tessera::Run(contract, {}, inputs, target, tiled).error->code, ErrorCode::kPinnedMismatch);
  EXPECT_EQ(tessera::Run(contract, {}, inputs, TargetNamed("h200"), options).error->code, ErrorCode::kPinnedMismatch);

  options.on_change = OnChange::kNewContract;
  const RunOutcome renewed = tessera::Run(narrow, {}, inputs, target, options);
  ASSERT_FALSE(renewed.error.has_value()) << ErrorText(renewed);
  EXPECT_EQ(renewed.receipt.cache.outcome, "miss");
  EXPECT_EQ(renewed.receipt.cache.builds, 2);
  EXPECT_NE(renewed.receipt.cache.key, (*prepared)->key_digest);
  EXPECT_EQ(renewed.receipt.output_digest,
            tessera::Run(narrow, {}, inputs, target, WithoutCache()).receipt.output_digest);
  ExpectSound(renewed.receipt);
  EXPECT_EQ(tessera::Run(narrow, {}, inputs, target, options).receipt.cache.outcome, "hit");
  EXPECT_EQ(tessera::Run(contract, {}, inputs, target, options).receipt.cache.outcome, "off");
}

TEST(Prepare, WrongNames_AreErrorsOfTheRequest) {
  RunOptions options;
  options.lane = "flash";
  Result<std::shared_ptr<const PreparedRun>> made = Prepare(MakeContract(), TargetNamed("cpu"), options);
  ASSERT_FALSE(made.has_value());
  EXPECT_EQ(made.error().code, ErrorCode::kLaneUnknown);
  options.lane = "auto";
  options.isa = "mmx";
  made = Prepare(MakeContract(), TargetNamed("cpu"), options);
  ASSERT_FALSE(made.has_value());
  EXPECT_EQ(made.error().code, ErrorCode::kIsaUnavailable);
}

}  // namespace
}  // namespace tessera
