// Requests at their classes: few classes, the same results. The padding is filled with NaN, so that anything that
// reaches a result from there shows.
#include "tessera/normalise.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <set>

#include "engine/fixtures.h"
#include "support/proves.h"
#include "support/random_batch.h"
#include "tessera/check.h"

namespace tessera {
namespace {

constexpr double kPoison = std::numeric_limits<double>::quiet_NaN();

bool HasRegistered(const MaskExpr& expr) {
  return (expr.op == MaskExpr::Op::kTerm && expr.term.kind == TermKind::kRegistered) ||
         std::any_of(expr.children.begin(), expr.children.end(), HasRegistered);
}

struct Request {
  Contract contract;
  Batch batch;
  bool keeps_lengths = false;  // registered terms do
};

// Any mask there is, at any short lengths, for one of two models.
Request RandomRequest(std::mt19937_64& rng) {
  MaskSample sample = RandomMaskSample(rng, /*max_len=*/40);
  while (sample.contract.shape.num_kv_heads > 1) sample = RandomMaskSample(rng, /*max_len=*/40);
  Contract& contract = sample.contract;
  const bool is_first = RandomInt(rng, 0, 1) == 0;
  const bool keeps = std::any_of(contract.mask.heads.begin(), contract.mask.heads.end(), HasRegistered);
  // Two heads may have a mask each, and a registered term may ask which head it is for.
  if (contract.shape.num_q_heads == 1 && !keeps) {
    contract.shape.num_q_heads = is_first ? 5 : 2;
    contract.shape.num_kv_heads = !is_first ? 2 : RandomInt(rng, 0, 1) == 0 ? 1 : 5;
  }
  contract.shape.dtype = is_first ? DType::kF32 : DType::kBf16;
  contract.score.softcap = is_first ? 0.0 : 2.0;
  contract.score.sink_logits = !is_first;
  contract.tiles = {32, 32};
  contract.tiles_reason = "a small test";
  if (sample.batch.picks) sample.batch.picks = RandomPicks(rng, contract);
  return {std::move(sample.contract), std::move(sample.batch), keeps};
}

struct Run1 {
  std::string lane = "reference";
  bool backward = false;
  uint64_t seed = 1;
};

// Runs the request at its class with poisoned padding, and holds what comes back against the oracle on the request.
void ExpectSameResult(const Request& request, const RequestClass& at, const Run1& how) {
  const Target cpu = TargetNamed("cpu");
  const Result<Contract> contract = AtClass(request.contract, at);
  ASSERT_TRUE(contract.has_value()) << ToText(contract.error());
  const Result<Batch> batch = AtClass(request.contract, request.batch, at);
  ASSERT_TRUE(batch.has_value()) << ToText(batch.error());
  const TensorMap inputs = MakeInputs(request.contract, how.seed, how.backward);
  const Result<TensorMap> padded = PadToClass(inputs, at, {.fill = kPoison});
  ASSERT_TRUE(padded.has_value()) << ToText(padded.error());
  RunOptions options = Ask{.lane = how.lane, .backward = how.backward, .row_max = true, .threads = 1};
  const RunOutcome outcome = Run(*contract, *batch, *padded, cpu, options);
  ASSERT_FALSE(outcome.error.has_value()) << ToText(*outcome.error) << ToToml(*contract);
  EXPECT_EQ(outcome.receipt.class_key, at.key);
  const Result<TensorMap> outputs = CropToRequest(outcome.outputs, at);
  ASSERT_TRUE(outputs.has_value()) << ToText(outputs.error());
  CheckOptions check;
  check.arithmetic = how.lane == "reference" ? Arithmetic::Double() : Arithmetic::Single();
  const Result<CheckReport> report = CheckOutputs(request.contract, request.batch, inputs, *outputs, check);
  ASSERT_TRUE(report.has_value()) << ToText(report.error());
  EXPECT_TRUE(report->pass) << report->text << ToToml(request.contract) << ToToml(*contract);
}

// 4 x 4 lengths, 2 batch rows, 5 pairs of model and heads, with documents or not, with picks or not, 2 x 2 widths,
// masks that are one or two of a kind.
constexpr size_t kMostClasses = size_t{16} * 2 * 5 * 2 * 2 * 4 * 2;

TEST(Normalise, TenThousandRequests_FewClassesAndTheOraclesResults) {
  Proves("R46 R91");
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  const Target cpu = TargetNamed("cpu");
  std::set<std::string> classes;
  std::set<std::string> meanings;
  std::set<PaddingCut> cuts;
  for (int i = 0; i < 10000; ++i) {
    SCOPED_TRACE(testing::Message() << "TESSERA_SEED=" << seed << " request " << i);
    const Request request = RandomRequest(rng);
    const Result<RequestClass> at = Normalise(request.contract, cpu);
    ASSERT_TRUE(at.has_value()) << ToText(at.error()) << ToToml(request.contract);
    EXPECT_GE(at->class_slots, at->exact_slots);
    cuts.insert(at->cut);
    if (!request.keeps_lengths && at->cut != PaddingCut::kNone) {
      classes.insert(at->key);
      meanings.insert(ContractKey(request.contract).value());
    }
    ExpectSameResult(
        request, *at,
        {.lane = i % 2 == 0 ? "cpu" : "reference", .backward = i % 8 < 2, .seed = seed + static_cast<uint64_t>(i)});
    if (HasFailure()) return;
  }
  EXPECT_LE(classes.size(), kMostClasses);
  EXPECT_LT(classes.size() * 5, meanings.size());
  EXPECT_EQ(cuts.size(), 3u) << "every way to shut padding out";
  RecordProperty("meanings", static_cast<int>(meanings.size()));
  RecordProperty("classes", static_cast<int>(classes.size()));
}

// What a service of one model sees: any length, any window, any number of rows. Windows are operands, so only the
// width of the worklist can tell their classes apart, and that is a power of two.
TEST(Normalise, RequestsOfAService_AreBoundedByTheList) {
  Proves("R46 R91");
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  const Target cpu = TargetNamed("cpu");
  std::set<std::string> classes;
  std::set<std::string> meanings;
  Contract contract = SmallContract({.mask = "causal and window(0, 0) and documents", .num_q_heads = 8});
  contract.tiles = {256, 256};
  for (int i = 0; i < 10000; ++i) {
    contract.shape.batch = RandomInt(rng, 1, 8);
    contract.shape.q_len = RandomInt(rng, 1, 8192);
    contract.shape.kv_len = contract.shape.q_len;
    contract.mask.heads[0].children[1].term.first = RandomInt(rng, 0, 8192);
    const Result<RequestClass> at = Normalise(contract, cpu);
    ASSERT_TRUE(at.has_value()) << ToText(at.error());
    ASSERT_LE(at->shape.q_len * 2, std::max<int64_t>(contract.shape.q_len * 3, 32)) << "half as long again at most";
    classes.insert(at->key);
    meanings.insert(ContractKey(contract).value());
  }
  // 19 lengths up to 8192, 6 numbers of rows, 6 powers of two up to the 32 tiles of a row.
  EXPECT_LE(classes.size(), size_t{19} * 6 * 6) << "TESSERA_SEED=" << seed;
  EXPECT_GT(meanings.size(), 9000u);
  RecordProperty("meanings", static_cast<int>(meanings.size()));
  RecordProperty("classes", static_cast<int>(classes.size()));
}

RequestClass ClassOf(const Contract& contract) {
  Result<RequestClass> at = Normalise(contract, TargetNamed("cpu"));
  EXPECT_TRUE(at.has_value()) << (at ? "" : ToText(at.error()));
  return at.value_or(RequestClass{});
}

TEST(Normalise, Window_IsNotInTheClassButInTheContractKey) {
  Proves("R46 R14");
  const Contract narrow = SmallContract({.mask = "causal and window(20, 0)", .len = 200});
  const Contract wide = SmallContract({.mask = "causal and window(27, 0)", .len = 200});
  EXPECT_EQ(ClassOf(narrow).key, ClassOf(wide).key);
  EXPECT_NE(ContractKey(narrow).value(), ContractKey(wide).value());
  EXPECT_NE(ContractKey(AtClass(narrow, ClassOf(narrow)).value()).value(),
            ContractKey(AtClass(wide, ClassOf(wide)).value()).value());
}

TEST(Normalise, Lengths_ShareTheContractItself) {
  // With the same offset two lengths of one class differ in their valid lengths only: run-time payload.
  Contract shorter = SmallContract({.mask = "causal and documents", .len = 33});
  Contract longer = SmallContract({.mask = "causal and documents", .len = 48});
  const RequestClass at = ClassOf(shorter);
  EXPECT_EQ(at.shape.q_len, 48);
  EXPECT_EQ(at.key, ClassOf(longer).key);
  EXPECT_EQ(ContractKey(AtClass(shorter, at).value()).value(),
            ContractKey(AtClass(longer, ClassOf(longer)).value()).value());
}

TEST(Normalise, Lists_AreShortAndHalfAgainApartAtMost) {
  EXPECT_EQ(ClassLengths().size(), 33u);
  EXPECT_EQ(ClassLengths().front(), 16);
  EXPECT_EQ(ClassLengths().back(), int64_t{1} << 20);
  EXPECT_EQ(ClassCounts().front(), 1);
  EXPECT_EQ(ClassCounts().back(), 65536);
  for (const std::vector<int64_t>* list : {&ClassLengths(), &ClassCounts()}) {
    for (size_t i = 1; i < list->size(); ++i) {
      EXPECT_LT((*list)[i - 1], (*list)[i]);
      EXPECT_LE((*list)[i], std::max((*list)[i - 1] * 3 / 2, (*list)[i - 1] + 1));
    }
  }
  for (const int64_t length : ClassLengths()) EXPECT_TRUE(length < 256 || length % 128 == 0) << length;
}

TEST(Normalise, BeyondTheLargestClass_IsRefusedWithEveryField) {
  Proves("R91");
  Contract contract = SmallContract();
  contract.shape.q_len = (int64_t{1} << 20) + 1;
  contract.shape.kv_len = contract.shape.q_len;
  const Result<RequestClass> at = Normalise(contract, TargetNamed("cpu"));
  ASSERT_FALSE(at.has_value());
  EXPECT_EQ(CodeText(at.error().code), "TSR-L007");
  const std::string text = ToText(at.error());
  EXPECT_NE(text.find("shape.q_len: at most 1048576, the largest class, got 1048577"), std::string::npos) << text;
  EXPECT_NE(text.find("shape.kv_len"), std::string::npos) << text;
  const RunOutcome outcome = RunAtClass(contract, {}, {}, TargetNamed("cpu"));
  ASSERT_TRUE(outcome.error.has_value());
  EXPECT_EQ(outcome.receipt.failed_at, "request");
  ExpectSound(outcome.receipt);
}

TEST(Normalise, AnotherRequestsClass_IsRefused) {
  const RequestClass at = ClassOf(SmallContract({.len = 40}));
  const Contract other = SmallContract({.len = 41});
  const Result<Contract> contract = AtClass(other, at);
  ASSERT_FALSE(contract.has_value());
  EXPECT_EQ(contract.error().code, ErrorCode::kClassRefused);
  const Result<Batch> batch = AtClass(other, Batch{}, at);
  ASSERT_FALSE(batch.has_value());
  EXPECT_EQ(batch.error().code, ErrorCode::kClassRefused);
}

TEST(Normalise, Tensors_OfWrongNameOrSizeAreRefusedTogether) {
  const RequestClass at = ClassOf(SmallContract());
  TensorMap inputs = MakeInputs(SmallContract(), 1, false);
  inputs["bias"] = inputs["q"];
  inputs["k"].shape[2] += 1;
  const Result<TensorMap> padded = PadToClass(inputs, at);
  ASSERT_FALSE(padded.has_value());
  EXPECT_EQ(padded.error().code, ErrorCode::kTensorMismatch);
  EXPECT_EQ(padded.error().violations.size(), 2u) << ToText(padded.error());
}

TEST(Normalise, Picks_ArePaddedWithNone) {
  Contract contract = SmallContract({.mask = "causal and blocks", .len = 20, .num_q_heads = 3, .num_kv_heads = 3});
  Batch batch;
  batch.picks = Picks{.block_tokens = 8, .shape = {1, 2, 3, 2}, .blocks = {0, 1, 2, -1, 1, 0, 0, 2, 1, 1, 2, 0}};
  RequestClass at;
  at.request = contract.shape;
  at.shape = contract.shape;
  at.shape.q_len = at.shape.kv_len = 24;
  const Result<Batch> padded = AtClass(contract, batch, at);
  ASSERT_TRUE(padded.has_value()) << ToText(padded.error());
  EXPECT_EQ(padded->picks->shape, (std::vector<int64_t>{1, 2, 3, 2}));
  EXPECT_EQ(padded->picks->blocks, batch.picks->blocks);
  batch.picks->shape = {1, 20, 3, 1};
  batch.picks->blocks.assign(60, 1);
  const Result<Batch> per_query = AtClass(contract, batch, at);
  ASSERT_TRUE(per_query.has_value()) << ToText(per_query.error());
  EXPECT_EQ(per_query->picks->shape, (std::vector<int64_t>{1, 24, 3, 1}));
  EXPECT_EQ(per_query->picks->blocks[59], 1);
  EXPECT_EQ(per_query->picks->blocks[60], -1);
  EXPECT_TRUE(ResolveBatch(AtClass(contract, at).value(), *per_query).has_value());
}

TEST(RunAtClass, GivesTheRequestsOutputsAndSaysWhatItCost) {
  Proves("R46");
  for (const Layout layout : {Layout::kBhtd, Layout::kBthd}) {
    const Contract contract = SmallContract({.mask = "causal and documents", .len = 40, .num_q_heads = 5});
    const Batch batch = DocumentBatch(contract, {15, 9});
    const TensorMap inputs = MakeInputs(contract, 7, true, layout);
    const RunOptions options = Ask{.backward = true, .layout = layout};
    const RunOutcome outcome = RunAtClass(contract, batch, inputs, TargetNamed("cpu"), options);
    ASSERT_FALSE(outcome.error.has_value()) << ToText(*outcome.error);
    ExpectSound(outcome.receipt);
    const ClassUse& use = outcome.receipt.class_request;
    EXPECT_EQ(use.request, "b1 q40 kv40 h5/1 d8/4 f32");
    EXPECT_EQ(use.padded, "b1 q48 kv48 h6/1 d8/4 f32");
    EXPECT_EQ(use.request_key, ContractKey(contract).value());
    EXPECT_EQ(use.exact_slots, 5 * 3 * 3);
    EXPECT_EQ(use.class_slots, 6 * 3 * 4);
    EXPECT_EQ(outcome.receipt.output_digest, Digest(outcome.outputs));
    CheckOptions check;
    check.arithmetic = Arithmetic::Single();
    check.layout = layout;
    const Result<CheckReport> report = CheckOutputs(contract, batch, inputs, outcome.outputs, check);
    ASSERT_TRUE(report.has_value()) << ToText(report.error());
    EXPECT_TRUE(report->pass) << report->text;
    EXPECT_EQ(report->outputs.size(), 5u);
  }
}

}  // namespace
}  // namespace tessera
