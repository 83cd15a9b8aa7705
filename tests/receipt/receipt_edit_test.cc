// Receipts that were edited: every value of good receipts is changed in every way that comes to mind, and what is then
// no longer consistent must be refused. Which values may hold anything well-formed is a list here, not a surprise.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <new>
#include <nlohmann/json.hpp>
#include <random>
#include <regex>
#include <set>
#include <string>

#include "engine/compiling_lane.h"
#include "engine/fixtures.h"
#include "support/proves.h"
#include "support/seed.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;
using Pointer = Json::json_pointer;

struct NamedReceipt {
  std::string name;
  Receipt receipt;
};

// A run whose lane an entry of a ledger chose: one that won at this shape, and was asked for.
RunOutcome RunWithLedger(const Contract& contract, const TensorMap& inputs) {
  const auto receipt_of = [&](const char* lane, int64_t ns) {
    Receipt receipt = tessera::Run(contract, {}, inputs, TargetNamed("cpu"), Ask{.lane = lane}).receipt;
    receipt.work = {};
    for (Timing& timing : receipt.timings) {
      if (timing.name == "forward") timing.ns = ns;
    }
    return receipt;
  };
  Receipt custom_run = receipt_of("reference", 1);
  const Receipt default_run = receipt_of("cpu", 2);
  const LedgerEntry entry = EntryFromReceipts({.custom_run = custom_run, .default_run = default_run}).value();
  custom_run.options["check"] = "passed";
  const Ledger ledger{.entries = {ProveEntry(entry, custom_run, default_run).value()}};
  RunOptions options;
  options.ledger = testing::TempDir() + "receipt_edit_" + std::to_string(getpid()) + ".json";
  options.experimental = true;
  EXPECT_TRUE(WriteLedger(options.ledger, ledger).has_value());
  RunOutcome outcome = tessera::Run(contract, {}, inputs, TargetNamed("cpu"), options);
  std::remove(options.ledger.c_str());
  EXPECT_EQ(outcome.receipt.ledger.chose, "reference");
  return outcome;
}

// One of every kind: both directions, fallback and force, and a failure at every step.
std::vector<NamedReceipt> GoodReceipts() {
  std::vector<NamedReceipt> receipts;
  const auto add = [&](std::string name, RunOutcome outcome) {
    receipts.push_back({std::move(name), std::move(outcome.receipt)});
  };
  const Contract plain = SmallContract();
  const Contract packed = SmallContract({.mask = "causal and documents", .softcap = 30});
  const Target cpu = TargetNamed("cpu");
  const TensorMap inputs = MakeInputs(plain, 1, true);
  const TensorMap forward = MakeInputs(plain, 1, false);
  add("backward", tessera::Run(packed, DocumentBatch(packed, {20, 9}), MakeInputs(packed, 1, true), cpu,
                               Ask{.backward = true, .input_source = "seed 1"}));
  add("forced", tessera::Run(plain, {}, forward, TargetNamed("v6e"), Ask{.lane = "reference"}));
  add("strict", tessera::Run(plain, {}, forward, TargetNamed("v6e"), Ask{.lane = "reference", .strict = true}));
  add("excluded", tessera::Run(plain, {}, forward, cpu, Ask{.exclude = {"cuda", "cpu"}}));
  RunOptions tiled = Ask{};
  tiled.plan.tile = TileSize{32, 16};
  tiled.plan.disable = {"balance"};
  add("tiled", tessera::Run(plain, {}, forward, TargetNamed("h200"), tiled));
  add("ledger", RunWithLedger(plain, forward));
  const Contract uneven = SmallContract({.mask = "causal and documents", .len = 40});
  add("class",
      RunAtClass(uneven, DocumentBatch(uneven, {20, 9}), MakeInputs(uneven, 1, true), cpu, Ask{.backward = true}));
  TestTable table;
  table.Build("xla_pallas").on_plan = Decision::No(ReasonCode::kScalarMemory, "too much");
  add("refused plan", table.Run(SmallContract({.softcap = 5}), TargetNamed("v6e")));
  add("request", tessera::Run(plain, {}, forward, cpu, Ask{.lane = "flash"}));
  add("inputs", tessera::Run(plain, {}, {}, cpu));
  add("decide", tessera::Run(plain, {}, forward, TargetNamed("h200"), Ask{.strict = true}));
  add("batch", tessera::Run(packed, {}, MakeInputs(packed, 1, false), cpu));
  Contract narrow = packed;
  narrow.capacity.width = {Limit::Kind::kNumber, 1};
  add("plan", tessera::Run(narrow, DocumentBatch(narrow, {48}), MakeInputs(narrow, 1, false), cpu));
  TestTable failing;
  failing.Build("cpu").workspace_bytes = int64_t{1} << 60;
  add("workspace", failing.Run(plain, cpu));
  failing.Build("cpu").forward_error = Error{ErrorCode::kTooLarge, "the kernel gave up", "cpu", {}};
  add("forward", failing.Run(plain, cpu));
  failing.Build("cpu").backward_error = Error{ErrorCode::kTooLarge, "the kernel gave up", "cpu", {}};
  add("failed backward", failing.Run(plain, cpu, Ask{.backward = true}));
  CompileTable compiling;
  add("compiled", compiling.Compile(plain, TargetNamed("v6e"), Ask{.backward = true}));
  compiling.lane.compile_error = Error{ErrorCode::kPluginFailed, "no such instruction", "made_up.so", {}};
  add("failed compile", compiling.Compile(plain, TargetNamed("v6e"), Ask{.backward = true}));
  const Error missing{ErrorCode::kFileRead, "cannot read the file: it is gone", "batch.json", {}};
  const RunOptions options;
  receipts.push_back({"read", ReceiptOf({.failed_at = "read", .target = "cpu", .contract = &plain}, options, missing)});
  receipts.push_back({"contract", ReceiptOf({.failed_at = "contract", .target = "cpu"}, options, missing)});
  receipts.push_back(
      {"target", ReceiptOf({.failed_at = "request", .target = "v9", .contract = &plain}, options, missing)});
  return receipts;
}

// Fields whose every value of the right type (for digests: 32 hex digits) is consistent with the rest.
bool IsFree(const std::string& at) {
  static const std::regex kFree(
      "/(cache/"
      "(hits|misses|builds|evictions)|error|contract_source|batch_source|input_source|kernel|isa|compiles|cache_hits|"
      "workspace_bytes|plan_bytes|"
      "metadata_bytes)|/decisions/[0-9]+/detail|/timings/[0-9]+/(name|ns)|/options/(check|threads|workers|disable|"
      "exclude|optimization|plugin|plugin_device)|/versions/(arch|compiler|tessera|contract|plan)|/ledger/"
      "(file|note|machine)|"
      "/class_request/(exact|class)_slots|"
      // What a lane says of its machine and of a program, nobody else knows; nor how many pairs a mask allows.
      "/device/(memory|driver|plugin|platform|platform_version|pjrt|stablehlo|guard|topology)|/work/pairs|"
      "/programs/[0-9]+/(name|note|compile_ns|parts|(argument|output|temp|code)_bytes|instructions|opcodes|"
      "custom_calls|collectives)|"
      // A receipt asks no table: what a target's memory is, what its rule says before the lane it names, which tile was
      // planned with and so how many tiles there are that need no work, and why a lane that did not matter refused.
      "/metadata_limit|/selection_rule|/options/tile|/(tiles|tiles_backward)/(empty|partial|full)|"
      "/decisions/[0-9]+/(lane|reason)");
  return std::regex_match(at, kFree);
}
bool IsFreeDigest(const std::string& at) {
  static const std::regex kFree(
      "/(cache/key|class_key|mask_digest|plan_fingerprint|input_digest|batch_digest|output_digest)|"
      "/ledger/entry|/class_request/request_key");
  return std::regex_match(at, kFree);
}

// A run that ended at its request may have read its files or not, and a target without a name here has any memory.
// Letters inside the reason of a tile are a contract of the same key. Which instruction sets another machine has, a
// receipt of a run that used none does not say.
bool IsUnknowable(const Receipt& receipt, const std::string& at, const Json& value) {
  if (at == "/contract_text") {
    const auto text = value.get<std::string>();
    const Result<Contract> contract = ParseContract(text);
    return contract && ToToml(*contract) == text && ContractKey(*contract).value() == receipt.contract_key;
  }
  // A set may have kernels for some types only, and then another runs: which sets build on which, a receipt does not
  // say.
  if (at == "/options/isa") {
    const auto text = value.get<std::string>();
    const bool is_word = !text.empty() && text.find_first_of(" ~") == std::string::npos;
    return receipt.executed.empty() || (is_word && receipt.kernel.ends_with("_" + receipt.isa));
  }
  // What was compiled for is not here to be asked.
  if (at == "/device/name") return receipt.runtime_mode == kCompileOnly && value != "";
  if (receipt.failed_at != "request") return false;
  return (at == "/metadata_limit" && receipt.target == "v9") ||
         ((at == "/input_digest" || at == "/batch_digest") && value == "");
}

void CollectLeaves(const Json& json, const std::string& at, std::vector<std::string>& leaves) {
  if (!json.is_structured()) leaves.push_back(at);
  for (const auto& [key, value] : json.items()) {
    if (json.is_structured()) CollectLeaves(value, at + "/" + key, leaves);
  }
}

std::vector<Json> OtherValues(const Json& value, std::mt19937_64& random) {
  if (value.is_boolean()) return {Json(!value.get<bool>())};
  if (value.is_number_float()) return {Json(value.get<double>() + 1.5), Json(-1.5)};
  if (value.is_number_integer()) {
    const auto number = value.get<int64_t>();
    return {Json(number + 1), Json(number - 1), Json(-1 - number),
            Json(number + 1 + static_cast<int64_t>(random() % 1000))};
  }
  const auto text = value.get<std::string>();
  std::vector<Json> others = {Json(text + "x"), Json("something else")};
  if (!text.empty()) {
    others.emplace_back("");
    others.emplace_back(text.substr(1));
    std::string swapped = text;
    swapped[random() % text.size()] = '~';
    others.emplace_back(swapped);
  }
  return others;
}

TEST(ReceiptEdit, GoodOnes_AreSoundAndOfEveryStep) {
  std::set<std::string> steps;
  for (const NamedReceipt& good : GoodReceipts()) {
    SCOPED_TRACE(good.name);
    ExpectSound(good.receipt);
    steps.insert(good.receipt.failed_at);
  }
  EXPECT_EQ(steps, (std::set<std::string>{"", "contract", "request", "read", "inputs", "decide", "batch", "plan",
                                          "decide_plan", "workspace", "forward", "backward", "compile"}));
}

TEST(ReceiptEdit, EveryValue_IsHeldToTheOthers) {
  Proves("R53 B11");
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 random(seed);
  int64_t refused = 0;
  for (const NamedReceipt& named : GoodReceipts()) {
    SCOPED_TRACE(named.name);
    const Json good = Json::parse(ToJson(named.receipt));
    std::vector<std::string> leaves;
    CollectLeaves(good, "", leaves);
    for (const std::string& at : leaves) {
      for (const Json& other : OtherValues(good[Pointer(at)], random)) {
        Json bad = good;
        bad[Pointer(at)] = other;
        const Result<Receipt> read = ParseReceipt(bad.dump());
        if (!read) {
          ++refused;
          EXPECT_EQ(read.error().code, ErrorCode::kReceiptInvalid);
          EXPECT_FALSE(read.error().violations.empty()) << at;
        } else {
          EXPECT_TRUE(IsFree(at) || IsUnknowable(named.receipt, at, other))
              << at << " = " << other.dump() << " was believed; it was " << good[Pointer(at)].dump();
        }
      }
      for (const Json& other : {Json(nullptr), Json(1.5), Json::array(), Json::object()}) {
        if (good[Pointer(at)].is_number_float() && other.is_number_float()) continue;
        Json bad = good;
        bad[Pointer(at)] = other;
        const Result<Receipt> read = ParseReceipt(bad.dump());
        ASSERT_FALSE(read.has_value()) << at << " = " << other.dump();
        // The path, as a person would write it.
        const std::string field =
            std::regex_replace(std::regex_replace(at.substr(1), std::regex("/([0-9]+)"), "[$1]"), std::regex("/"), ".");
        EXPECT_NE(Words(read.error().violations).find(field + ": "), std::string::npos)
            << field << ": " << Words(read.error().violations);
      }
      if (!IsFreeDigest(at) || good[Pointer(at)] == "") continue;
      if (at == "/class_key" && !named.receipt.programs.empty()) continue;  // the program's name carries it
      Json bad = good;
      bad[Pointer(at)] = std::string(32, 'a');
      EXPECT_TRUE(ParseReceipt(bad.dump()).has_value()) << at << ": another digest is not for the check to see";
    }
  }
  EXPECT_GT(refused, 1000);
}

// A lane of which the receipt speaks elsewhere must have decided; its refusal of a plan can only be missed where the
// fallback rests on it. Of other lanes nobody but a table knows, and a receipt asks none.
bool IsNeeded(const Receipt& r, const LaneDecision& decision) {
  if (decision.step == "plan") return r.ok;
  const std::vector<std::string> excluded = SplitNames(r.options.at("exclude"));
  return decision.lane == r.requested || decision.lane == r.selected || decision.lane == r.executed ||
         decision.lane == r.ledger.over || std::count(excluded.begin(), excluded.end(), decision.lane) > 0;
}

TEST(ReceiptEdit, ListsThatLoseGainOrRepeat_AreRefused) {
  for (const NamedReceipt& named : GoodReceipts()) {
    SCOPED_TRACE(named.name);
    const Json good = Json::parse(ToJson(named.receipt));
    for (size_t i = 0; i < good["decisions"].size(); ++i) {
      Json lost = good;
      lost["decisions"].erase(i);
      const bool is_needed = IsNeeded(named.receipt, named.receipt.decisions[i]);
      EXPECT_FALSE(ParseReceipt(lost.dump()).has_value() && is_needed) << "without decision " << i;
      Json twice = good;
      twice["decisions"].push_back(good["decisions"][i]);
      EXPECT_FALSE(ParseReceipt(twice.dump()).has_value()) << "decision " << i << " twice";
    }
    for (size_t i = 0; i < good["timings"].size(); ++i) {
      Json twice = good;
      twice["timings"].push_back(good["timings"][i]);
      EXPECT_FALSE(ParseReceipt(twice.dump()).has_value()) << "timing " << i << " twice";
    }
    for (const char* map : {"options", "versions"}) {
      for (const auto& [key, value] : good[map].items()) {
        Json lost = good;
        lost[map].erase(key);
        EXPECT_FALSE(ParseReceipt(lost.dump()).has_value()) << map << "." << key;
      }
    }
  }
}

// A parser that takes the last of two equal keys, or the first, could be shown two receipts in one.
TEST(ReceiptEdit, RepeatedKeysAndBigTrees_AreRefused) {
  const std::string good = ToJson(GoodReceipts()[0].receipt);
  EXPECT_FALSE(ParseReceipt(good.substr(0, good.rfind('}')) + ", \"ok\": true}").has_value());
  std::string nested = good.substr(0, good.rfind('}')) + ", \"x\": ";
  nested += std::string(1'000'000, '[') + std::string(1'000'000, ']') + "}";
  EXPECT_FALSE(ParseReceipt(nested).has_value());
  std::string wide = good.substr(0, good.rfind('}')) + ", \"x\": [0";
  for (int i = 0; i < 100'000; ++i) wide += ",0";
  const Result<Receipt> read = ParseReceipt(wide + "]}");
  ASSERT_FALSE(read.has_value());
  EXPECT_NE(read.error().message.find("values"), std::string::npos) << read.error().message;
}

class HungryLane : public TestLane {
 public:
  using TestLane::TestLane;
  Result<std::unique_ptr<BoundLane>> Bind(const BindRequest&) const override { throw std::bad_alloc(); }
};

// No exception leaves a run: the receipt says that memory ran out, and where.
TEST(ReceiptOfFailure, MemoryThatRunsOut_IsAStepLikeAnother) {
  TestTable table;
  table.Put(std::make_shared<HungryLane>("cpu"));
  const RunOutcome outcome = table.Run(SmallContract(), TargetNamed("cpu"));
  ASSERT_TRUE(outcome.error.has_value());
  EXPECT_EQ(outcome.error->code, ErrorCode::kTooLarge);
  EXPECT_EQ(outcome.receipt.failed_at, "workspace");
  EXPECT_TRUE(outcome.outputs.empty());
  ExpectSound(outcome.receipt);
}

std::string Changes(const Receipt& before, const Receipt& after) {
  std::string text;
  for (const ReceiptChange& c : DiffReceipts(before, after)) {
    // What a cache had seen before differs from run to run.
    const bool is_history = c.group == "timings" || c.field.rfind("cache.", 0) == 0 || c.field.rfind("work.", 0) == 0;
    if (!is_history) text += fmt::format("{}/{}{} ", c.group, c.field, c.matters ? "!" : "");
  }
  return text;
}

TEST(ReceiptDiff, EveryField_IsSeen) {
  const Receipt good = GoodReceipts()[0].receipt;
  EXPECT_TRUE(DiffReceipts(good, good).empty());
  const Json json = Json::parse(ToJson(good));
  std::vector<std::string> leaves;
  CollectLeaves(json, "", leaves);
  for (const std::string& at : leaves) {
    if (at == "/version" || at.rfind("/decisions", 0) == 0) continue;  // in versions; by lane and step, below
    Json changed = json;
    Json& value = changed[Pointer(at)];
    value = value.is_boolean()  ? Json(!value.get<bool>())
            : value.is_number() ? Json(value.get<int64_t>() + 1)
                                : Json(at == "/contract_text" ? "version = 2\n" : value.get<std::string>() + "x");
    const Result<Receipt> other = ParseReceiptFields(changed.dump());
    ASSERT_TRUE(other.has_value()) << at;
    EXPECT_FALSE(DiffReceipts(good, *other).empty()) << at;
  }
}

TEST(ReceiptDiff, Groups_SayWhatChangedAndWhatMatters) {
  const Contract contract = SmallContract({.softcap = 30});
  Contract other = contract;
  other.score.softcap = 20;
  other.tiles_reason = "another";
  const TensorMap inputs = MakeInputs(contract, 1, false);
  const Target cpu = TargetNamed("cpu");
  const RunOptions one = Ask{.threads = 1};
  const RunOptions two = Ask{.threads = 2};
  const Receipt a = tessera::Run(contract, {}, inputs, cpu, one).receipt;
  const std::string softcap = Changes(a, tessera::Run(other, {}, inputs, cpu, one).receipt);
  EXPECT_EQ(
      softcap.rfind("meaning/contract_key! meaning/score.softcap! meaning/tiles.reason outputs/output_digest! ", 0), 0u)
      << softcap;
  other = contract;
  other.tiles_reason = "another";
  // Each thread has scratch memory of its own, and that is all that more of them change.
  EXPECT_EQ(Changes(a, tessera::Run(other, {}, inputs, cpu, two).receipt),
            "meaning/tiles.reason options/threads cost/workspace_bytes ");
  // Two spellings of one mask are one meaning.
  const Contract twice = SmallContract({.mask = "causal and causal", .softcap = 30});
  EXPECT_EQ(Changes(a, tessera::Run(twice, {}, inputs, cpu, one).receipt), "meaning/mask.expr ");
  // Another lane has other bits; the same lane, now asked for by name, has the same.
  const Receipt fallen = tessera::Run(contract, {}, inputs, cpu, Ask{.exclude = {"cpu"}, .threads = 1}).receipt;
  const Receipt named = tessera::Run(contract, {}, inputs, cpu, Ask{.lane = "reference", .threads = 1}).receipt;
  const std::string other_lane = Changes(a, fallen);
  EXPECT_EQ(other_lane.rfind("outputs/output_digest! what ran/executed! what ran/fallback_reason! ", 0), 0u)
      << other_lane;
  const std::string forced = Changes(fallen, named);
  for (const char* part : {"what ran/requested! what ran/selected! what ran/selection_rule! what ran/fallback_reason! ",
                           "what ran/decision of cuda on the contract! ", "options/lane! "}) {
    EXPECT_NE(forced.find(part), std::string::npos) << forced;
  }
  EXPECT_EQ(forced.find("outputs"), std::string::npos) << forced;
  const std::string data = Changes(a, tessera::Run(contract, {}, MakeInputs(contract, 2, false), cpu, one).receipt);
  EXPECT_EQ(data, "inputs/input_digest! outputs/output_digest! ");
}

TEST(ReceiptDiff, MasksPerHead_AreComparedHeadByHead) {
  Contract contract = SmallContract();
  contract.mask.heads = {*ParseMaskExpr("causal"), *ParseMaskExpr("full")};
  Contract other = contract;
  other.mask.heads[1] = *ParseMaskExpr("window(3, 0)");
  const TensorMap inputs = MakeInputs(contract, 1, false);
  const std::string changes = Changes(tessera::Run(contract, {}, inputs, TargetNamed("cpu")).receipt,
                                      tessera::Run(other, {}, inputs, TargetNamed("cpu")).receipt);
  EXPECT_EQ(changes.rfind("meaning/contract_key! meaning/mask.heads[1]! outputs", 0), 0u) << changes;
}

}  // namespace
}  // namespace tessera
