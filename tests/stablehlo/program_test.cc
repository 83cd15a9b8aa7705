// Programs are functions of the class: the same text, byte for byte, whatever the window, the documents or the batch,
// and no tensor in them grows with the square of the length.
#include "lanes/xla/stablehlo/program.h"

#include <gtest/gtest.h>

#include <random>
#include <regex>
#include <set>
#include <sstream>

#include "support/proves.h"
#include "support/random_batch.h"
#include "tessera/planner.h"

namespace tessera::stablehlo {
namespace {

struct Wanted {
  std::string mask = "causal";
  int64_t len = 1024;
  DType dtype = DType::kF32;
  double softcap = 0.0;
  double scale = 0.125;
  bool sink_logits = false;
  int64_t num_q_heads = 4;
};

Contract MakeContract(const Wanted& wanted) {
  Contract contract;
  contract.shape = {.batch = 2,
                    .q_len = wanted.len,
                    .kv_len = wanted.len,
                    .num_q_heads = wanted.num_q_heads,
                    .num_kv_heads = 2,
                    .dim_qk = 32,
                    .dim_v = 16,
                    .dtype = wanted.dtype};
  contract.mask.heads = {ParseMaskExpr(wanted.mask).value()};
  contract.score = {.scale = wanted.scale, .softcap = wanted.softcap, .sink_logits = wanted.sink_logits};
  contract.tiles = {64, 64};
  contract.tiles_reason = "short lengths";
  return contract;
}

struct Texts {
  std::string class_key;
  std::string forward;
  std::string backward;
};

Texts TextsOf(const Contract& contract, const Batch& batch = {}) {
  const Result<PlanResult> made = MakePlan(contract, batch, FindTarget("cpu").value(), {});
  EXPECT_TRUE(made.has_value()) << (made ? "" : ToText(made.error()));
  if (!made) return {};
  const ProgramSpec spec = SpecOf(contract, made->plan.view(), TargetKind::kCpu);
  const Result<Program> forward = LowerForward(spec);
  const Result<Program> backward = LowerBackward(spec);
  EXPECT_TRUE(forward.has_value()) << (forward ? "" : ToText(forward.error()));
  EXPECT_TRUE(backward.has_value()) << (backward ? "" : ToText(backward.error()));
  if (!forward || !backward) return {};
  return {spec.class_key, forward->text, backward->text};
}

void ExpectSame(const Texts& a, const Texts& b) {
  EXPECT_EQ(a.class_key, b.class_key);
  EXPECT_EQ(a.forward, b.forward);
  EXPECT_EQ(a.backward, b.backward);
}

Batch RandomDocuments(std::mt19937_64& rng, const Contract& contract) {
  IdRows ids{contract.shape.batch, contract.shape.q_len, {}};
  for (int64_t b = 0; b < ids.rows; ++b) {
    const std::vector<int32_t> row = RandomDocIds(rng, ids.len, false);
    ids.values.insert(ids.values.end(), row.begin(), row.end());
  }
  Batch batch;
  batch.doc_ids = std::move(ids);
  return batch;
}

TEST(Programs, AnyBatchOfAContract_SameText) {
  Proves("R13 R31");
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  const Contract contract = MakeContract({.mask = "causal and documents"});
  const Texts first = TextsOf(contract, RandomDocuments(rng, contract));
  for (int i = 0; i < 20; ++i) ExpectSame(first, TextsOf(contract, RandomDocuments(rng, contract)));
}

TEST(Programs, TwoWindowsScalesAndCapsOfOneClass_ShareTheText) {
  Proves("R39");
  const Texts first = TextsOf(MakeContract({.mask = "window(130, 0)", .softcap = 20.0}));
  // As many tiles wide, so the same class; another contract all the same.
  ExpectSame(first, TextsOf(MakeContract({.mask = "window(170, 0)", .softcap = 35.0, .scale = 0.2})));
  EXPECT_NE(first.class_key, TextsOf(MakeContract({.mask = "window(400, 0)", .softcap = 20.0})).class_key);
}

TEST(Programs, WhatIsCompiledDiffers_TextDiffers) {
  Proves("R14");
  const Texts plain = TextsOf(MakeContract({}));
  const Wanted others[] = {
      {.len = 1023}, {.dtype = DType::kBf16}, {.softcap = 3.0}, {.sink_logits = true}, {.num_q_heads = 2}};
  for (const Wanted& other : others) {
    const Texts texts = TextsOf(MakeContract(other));
    EXPECT_NE(texts.class_key, plain.class_key);
    EXPECT_NE(texts.forward, plain.forward);
  }
}

TEST(Programs, ClassKeyAndVersion_TravelInTheModule) {
  Proves("R91");
  const Texts texts = TextsOf(MakeContract({}));
  for (const std::string& text : {texts.forward, texts.backward}) {
    EXPECT_NE(text.find("tessera_class = \"" + texts.class_key + "\""), std::string::npos);
    EXPECT_NE(text.find("tessera_program = \"xla_chunked_"), std::string::npos);
    EXPECT_EQ(text.rfind("module @tessera_xla_chunked_", 0), 0u);
  }
}

// The operations that a text names, each with its dialect: a word, a dot and a word.
std::set<std::string> OperationsOf(const std::string& text) {
  const auto is_word = [](char c) { return (c >= 'a' && c <= 'z') || c == '_'; };
  std::set<std::string> operations;
  for (size_t dot = text.find('.'); dot != std::string::npos; dot = text.find('.', dot + 1)) {
    size_t begin = dot;
    size_t end = dot + 1;
    while (begin > 0 && is_word(text[begin - 1])) --begin;
    while (end < text.size() && is_word(text[end])) ++end;
    if (begin < dot && end > dot + 1) operations.insert(text.substr(begin, end - begin));
  }
  return operations;
}

// Everything that a text may name. The size of what each gives is in the text, and no data changes it; none sorts,
// compacts, or calls out of the program. Of dynamic_slice and dynamic_update_slice, data is only where they read.
const std::set<std::string>& StaticOperations() {
  static const std::set<std::string> operations = [] {
    std::set<std::string> names = {"func.func", "mhlo.frontend_attributes", "mhlo.num_partitions", "mhlo.num_replicas"};
    std::istringstream words(
        "add and broadcast_in_dim compare constant convert divide dot_general dynamic_slice dynamic_update_slice "
        "exponential if iota is_finite log maximum minimum multiply negate not or pad reduce remainder reshape return "
        "select shift_right_logical slice subtract tanh while");
    for (std::string name; words >> name;) names.insert("stablehlo." + name);
    return names;
  }();
  return operations;
}

void ExpectStatic(const std::string& text) {
  EXPECT_EQ(text.find('?'), std::string::npos) << "a size that is not known";
  const std::set<std::string> operations = OperationsOf(text);
  EXPECT_EQ(operations.count("stablehlo.dot_general"), 1u);
  for (const std::string& operation : operations) {
    EXPECT_EQ(StaticOperations().count(operation), 1u) << operation << ": is the size of its result in the text?";
  }
}

TEST(Programs, EveryCombinationOfOperands_NoDynamicOperation) {
  Proves("B12");
  std::mt19937_64 rng(PrintedSeed());
  std::set<std::string> distinct;
  for (const char* mask : {"causal", "causal and documents", "valid", "documents and valid", "causal and blocks",
                           "valid and blocks and (window(70, 0) or sink(3, document))"}) {
    for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
      for (const int operands : {0, 1, 2, 3}) {
        const Contract contract = MakeContract({.mask = mask,
                                                .len = dtype == DType::kF32 ? 300 : 256,
                                                .dtype = dtype,
                                                .softcap = (operands & 1) != 0 ? 3.0 : 0.0,
                                                .sink_logits = (operands & 2) != 0});
        const MaskFacts facts = DescribeMask(contract).value();
        Batch batch;
        if (facts.needs_documents) batch = RandomDocuments(rng, contract);
        if (facts.needs_valid) batch.valid_tokens = std::vector<int64_t>{200, 256};
        if (facts.needs_blocks) batch.picks = RandomPicks(rng, contract);
        const Texts texts = TextsOf(contract, batch);
        for (const std::string& text : {texts.forward, texts.backward}) {
          ExpectStatic(text);
          distinct.insert(text);
        }
      }
    }
  }
  EXPECT_EQ(distinct.size(), size_t{2} * 6 * 3 * 4);
  for (const DenseKind kind : {DenseKind::kForward, DenseKind::kBackward, DenseKind::kStep}) {
    for (const bool has_documents : {false, true}) {
      const DenseSpec spec{MakeContract({.len = 64}).shape, true, true, has_documents};
      ExpectStatic(LowerDense(spec, kind).value().text);
    }
  }
}

TEST(Programs, DynamicOperations_WouldBeSeen) {
  const std::string good = TextsOf(MakeContract({.len = 64})).forward;
  for (const std::string operation :
       {"chlo.top_k", "stablehlo.custom_call", "stablehlo.dynamic_broadcast_in_dim", "stablehlo.dynamic_gather",
        "stablehlo.dynamic_reshape", "stablehlo.get_dimension_size", "stablehlo.infeed", "stablehlo.outfeed",
        "stablehlo.real_dynamic_slice", "stablehlo.set_dimension_size", "stablehlo.sort"}) {
    EXPECT_EQ(StaticOperations().count(operation), 0u) << operation;
    EXPECT_EQ(OperationsOf(good + "%1 = \"" + operation + "\"(%0)").count(operation), 1u) << operation;
  }
}

// Elements of the largest tensor in the text whose every axis but heads and batch is none of the operands'.
int64_t LargestTensor(const std::string& text) {
  static const std::regex kType("tensor<((?:[0-9]+x)*)[a-z]+[0-9]+>");
  int64_t largest = 0;
  for (std::sregex_iterator it(text.begin(), text.end(), kType), end; it != end; ++it) {
    int64_t elements = 1;
    const std::string dims = (*it)[1];
    for (size_t at = 0; at < dims.size(); at = dims.find('x', at) + 1) elements *= std::stoll(dims.substr(at));
    largest = std::max(largest, elements);
  }
  return largest;
}

TEST(Programs, NoTensorGrowsWithTheSquareOfTheLength) {
  Proves("R36 R40");
  const auto largest = [](int64_t len) {
    const Texts texts = TextsOf(MakeContract({.mask = "causal and window(255, 0)", .len = len, .sink_logits = true}));
    return std::max(LargestTensor(texts.forward), LargestTensor(texts.backward));
  };
  // The tensors themselves, batch x heads x tokens x dim, are what is largest.
  EXPECT_EQ(largest(4096), 2 * 4 * 4096 * 32);
  EXPECT_EQ(largest(8192), 2 * 4 * 8192 * 32);
  const Texts texts = TextsOf(MakeContract({.len = 4096}));
  EXPECT_EQ(texts.forward.find("4096x4096"), std::string::npos);
  EXPECT_NE(texts.forward.find("tensor<64x64xf32>"), std::string::npos) << "scores come a tile at a time";
}

TEST(Programs, PartsOfAPass_HaveEveryRowOnceAndNoneIsEmpty) {
  for (const int64_t len : {1, 64, 65, 1000, 4096, 8191}) {
    for (const int64_t heads : {2, 4, 6, 14}) {
      const Contract contract = MakeContract({.len = len, .num_q_heads = heads});
      const Result<PlanResult> made = MakePlan(contract, {}, FindTarget("cpu").value(), {});
      ASSERT_TRUE(made.has_value());
      const ProgramSpec spec = SpecOf(contract, made->plan.view(), TargetKind::kCpu);
      for (const Direction direction : {Direction::kForward, Direction::kDq, Direction::kDkv}) {
        const PartRows part = spec.RowsOf(direction);
        const int64_t all_heads = 2 * (direction == Direction::kDkv ? 2 : heads);
        EXPECT_EQ(part.rows, all_heads * ((len + 63) / 64));
        EXPECT_GE(spec.parts * part.per_part, part.rows);
      }
      const PartRows forward = spec.RowsOf(Direction::kForward);
      EXPECT_LT((spec.parts - 1) * forward.per_part, forward.rows) << "the last part has a row";
      EXPECT_GE(spec.parts, std::min<int64_t>(forward.rows, 32)) << "enough for many cores";
      EXPECT_LE(spec.parts, 64);
    }
  }
}

TEST(Programs, DeviceThatIsOne_GetsOnePart) {
  const Contract contract = MakeContract({});
  const Result<PlanResult> made = MakePlan(contract, {}, FindTarget("v6e").value(), {});
  ASSERT_TRUE(made.has_value());
  for (const TargetKind kind : {TargetKind::kTpu, TargetKind::kGpu}) {
    const ProgramSpec spec = SpecOf(contract, made->plan.view(), kind);
    EXPECT_EQ(spec.parts, 1);
    EXPECT_EQ(spec.RowsOf(Direction::kDkv).per_part, spec.RowsOf(Direction::kDkv).rows);
  }
}

TEST(Programs, MoreCleanupsThanTheClassHasRoomFor_ALargerTable) {
  const Contract contract = MakeContract({.mask = "causal"});
  const Result<PlanResult> made = MakePlan(contract, {}, FindTarget("cpu").value(), {});
  ASSERT_TRUE(made.has_value());
  PlanView view = made->plan.view();
  const ProgramSpec small = SpecOf(contract, view, TargetKind::kCpu);
  const std::vector<CleanupItem> many(static_cast<size_t>(small.items) + 5);
  view.items = many;
  const ProgramSpec large = SpecOf(contract, view, TargetKind::kCpu);
  EXPECT_EQ(large.items, 2 * small.items);
  EXPECT_NE(LowerForward(small).value().text, LowerForward(large).value().text);
}

}  // namespace
}  // namespace tessera::stablehlo
