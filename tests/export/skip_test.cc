// Exports that store no tile, and exports of one shape: what a kernel visits, times its mask function, times segment
// ids, is the oracle's mask, and no batch of a contract changes a shape or a type.
#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "export/exports.h"
#include "oracle/oracle.h"
#include "support/proves.h"
#include "support/random_batch.h"

namespace tessera {
namespace {

// A static mask that kernels compute, spelled in one of many ways.
std::string RandomStatic(std::mt19937_64& rng, int64_t len, bool chunks) {
  const auto number = [&](int64_t low, int64_t high) { return std::to_string(RandomInt(rng, low, high)); };
  switch (RandomInt(rng, 0, chunks ? 7 : 6)) {
    case 0:
      return "full";
    case 1:
      return "causal";
    case 2:
      return "window(" + number(-1, len) + ", " + number(-1, len) + ")";
    case 3:
      return "causal and window(" + number(0, len) + ", 0)";
    case 4:
      return "window(" + number(0, len) + ", -1) and causal and window(-1, " + number(0, len) + ")";
    case 5:
      return "(full or sink(" + number(0, len) + "))";
    case 6:
      return "(window(" + number(0, len) + ", 0) or causal)";
    default:
      return "causal and chunk(" + number(1, len) + ")";
  }
}

std::string RandomRuntime(std::mt19937_64& rng) {
  const char* terms[] = {"", " and documents", " and documents(equal)", " and valid", " and documents and valid"};
  return terms[RandomInt(rng, 0, 4)];
}

Contract RandomContract(std::mt19937_64& rng, TileSize tile, bool divides) {
  const auto length = [&](int64_t step) {
    const int64_t whole = step * RandomInt(rng, 1, 6);
    return divides ? whole : std::max<int64_t>(1, whole - RandomInt(rng, 0, step - 1));
  };
  const int64_t q_len = length(tile.q);
  const bool is_square = RandomInt(rng, 0, 2) != 0 && (!divides || q_len % tile.kv == 0);
  const int64_t kv_len = is_square ? q_len : length(tile.kv);
  const bool plain = RandomInt(rng, 0, 1) == 0;
  const int64_t offset = plain ? 0 : RandomInt(rng, -q_len, kv_len);
  std::string text = "version = 1\n[shape]\nbatch = " + std::to_string(RandomInt(rng, 1, 2)) +
                     "\nq_len = " + std::to_string(q_len) + "\nkv_len = " + std::to_string(kv_len) +
                     "\nnum_q_heads = " + std::to_string(RandomInt(rng, 1, 2)) + "\nnum_kv_heads = 1\ndim_qk = 16\n";
  text += "[mask]\nexpr = \"" + RandomStatic(rng, std::max(q_len, kv_len), plain) + RandomRuntime(rng) + "\"\n";
  return Parse(text + "offset = " + std::to_string(offset) + "\n");
}

Batch RandomBatch(std::mt19937_64& rng, const Contract& contract) {
  const Shape& shape = contract.shape;
  const Result<MaskFacts> facts = DescribeMask(contract);
  EXPECT_TRUE(facts.has_value());
  const auto ids = [&](int64_t len) {
    IdRows rows{shape.batch, len, {}};
    for (int64_t row = 0; row < shape.batch; ++row) {
      const std::vector<int32_t> values = RandomDocIds(rng, len, facts->documents_may_reappear);
      rows.values.insert(rows.values.end(), values.begin(), values.end());
    }
    return rows;
  };
  const auto counts = [&](int64_t len) {
    std::vector<int64_t> values;
    for (int64_t row = 0; row < shape.batch; ++row) values.push_back(RandomInt(rng, 0, len));
    return values;
  };
  Batch batch;
  if (facts->needs_documents) {
    batch.q_doc_ids = ids(shape.q_len);
    batch.kv_doc_ids = shape.q_len == shape.kv_len && RandomInt(rng, 0, 1) == 0 ? batch.q_doc_ids : ids(shape.kv_len);
  }
  if (facts->needs_valid) {
    batch.q_valid_tokens = counts(shape.q_len);
    batch.kv_valid_tokens = counts(shape.kv_len);
  }
  return batch;
}

bool IsWholeLibrary(Library library) { return library == Library::kSplash || library == Library::kTokamax; }

ExportOptions RandomOptions(std::mt19937_64& rng) {
  const Library libraries[] = {Library::kSplash, Library::kSplash, Library::kTokamax, Library::kFlex, Library::kPallas};
  ExportOptions options{.to = libraries[RandomInt(rng, 0, 4)]};
  options.tile = TileSize{RandomInt(rng, 1, 9), RandomInt(rng, 1, 9)};
  options.segments = Segments::kSkip;
  options.fixed_shapes = RandomInt(rng, 0, 1) == 0;
  if (IsWholeLibrary(options.to) && RandomInt(rng, 0, 1) == 0) options.direction = Direction::kDkv;
  if (options.to == Library::kSplash) options.shrink = RandomInt(rng, 0, 3) != 0;
  options.dynamic_grid = options.to == Library::kTokamax;
  return options;
}

TEST(ExportSkip, VisitsTimesFunctionTimesSegmentIdsIsTheMask) {
  Proves("R11 R15 R16 B28");
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  int checked = 0;
  for (int i = 0; i < 1200; ++i) {
    SCOPED_TRACE("TESSERA_SEED=" + std::to_string(seed) + " sample " + std::to_string(i));
    ExportOptions options = RandomOptions(rng);
    const Contract contract = RandomContract(rng, *options.tile, IsWholeLibrary(options.to));
    const Batch batch = RandomBatch(rng, contract);
    options.batch_row = RandomInt(rng, 0, contract.shape.batch - 1);
    SCOPED_TRACE(std::string(ToText(options.to)) + " " + ToToml(contract) + ToJson(batch));
    Result<Export> made = MakeExport(contract, batch, options);
    if (!made) {
      // Only a dkv grid of Splash's own width that has no tile at all.
      ASSERT_EQ(made.error().code, ErrorCode::kExportFault) << ToText(made.error());
      ASSERT_TRUE(options.direction == Direction::kDkv && !options.fixed_shapes);
      continue;
    }
    ASSERT_EQ(made->Find("partial_mask_blocks"), nullptr);
    ASSERT_EQ(made->Find("mask_next"), nullptr);
    const std::vector<Visit> visits = VisitsOf(*made, *options.batch_row);
    for (int64_t row = 0; row < (options.to == Library::kFlex ? contract.shape.batch : 1); ++row) {
      const int64_t batch_row = options.to == Library::kFlex ? row : *options.batch_row;
      const std::vector<Visit> own = options.to == Library::kFlex ? VisitsOf(*made, row) : visits;
      ASSERT_EQ(PairsOf(*made, contract.shape, own, batch_row), *DenseMask(contract, batch, batch_row, 0));
    }
    if (IsWholeLibrary(options.to) && options.direction == Direction::kForward) {
      std::set<int64_t> rows;
      for (const Visit& visit : visits) rows.insert(visit.q);
      ASSERT_EQ(static_cast<int64_t>(rows.size()), contract.shape.q_len / options.tile->q) << "a row is never written";
    }
    ++checked;
  }
  EXPECT_GT(checked, 1000);
}

TEST(ExportSkip, NoTileWithoutAPairIsVisited) {
  Contract contract = Square("causal and documents", 4096);
  Batch batch;
  batch.doc_ids = IdRows{1, 4096, {}};
  for (int32_t i = 0; i < 4096; ++i) batch.doc_ids->values.push_back(i / 512);
  const Export made = Make(contract, batch, {.tile = TileSize{256, 256}, .segments = Segments::kSkip});
  EXPECT_EQ(VisitsOf(made, 0).size(), 24U);
  EXPECT_EQ(made.tiles.partial + made.tiles.full, 24);
  EXPECT_TRUE(made.needs_segment_ids);
  EXPECT_EQ(made.Find("data_next")->shape, (std::vector<int64_t>{1, 16, 2}));
}

TEST(ExportSkip, TheFunctionIsWhatTheMaskMeans) {
  using Kind = MaskFunction::Kind;
  struct Row {
    const char* expr;
    std::optional<MaskFunction> function;
  };
  const Row rows[] = {
      {"documents", std::nullopt},
      {"causal and window(63, 63) and documents", MaskFunction{.kind = Kind::kCausal}},
      {"causal and window(5, 0) and valid", MaskFunction{.kind = Kind::kLocal, .left = 5, .right = 0}},
      {"window(3, 0) or window(5, 0)", MaskFunction{.kind = Kind::kLocal, .left = 5, .right = 0}},
      {"window(5, 63)", MaskFunction{.kind = Kind::kLocal, .left = 5, .right = -1}},
      {"chunk(24) and causal and documents", MaskFunction{.kind = Kind::kChunkedCausal, .chunk = 24}},
      {"chunk(64) and causal", MaskFunction{.kind = Kind::kCausal}},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.expr);
    Batch batch;
    if (std::string(row.expr).find("documents") != std::string::npos) {
      batch.doc_ids = IdRows{1, 64, std::vector<int32_t>(64, 7)};
    }
    if (std::string(row.expr).find("valid") != std::string::npos) batch.valid_tokens = std::vector<int64_t>{60};
    const Export made = Make(Square(row.expr, 64, 2), batch, {.tile = TileSize{16, 16}, .segments = Segments::kSkip});
    EXPECT_EQ(made.mask_function, row.function);
    EXPECT_EQ(made.Find("q_sequence") != nullptr, row.function.has_value());
  }
}

TEST(ExportSkip, WhatAKernelCannotComputeIsRefused) {
  const ExportOptions options{.tile = TileSize{16, 16}, .segments = Segments::kSkip};
  for (const char* expr : {"causal or sink(3)", "prefix(9)", "chunk(24)", "sink(4) or documents",
                           "causal and sink(4, document)", "causal and blocks", "documents and chunk(8)"}) {
    SCOPED_TRACE(expr);
    EXPECT_EQ(CodeOf(Square(expr, 64), {}, options), ErrorCode::kExportMask);
  }
  Contract per_head = Square("causal", 64, 2);
  per_head.mask.heads = {*ParseMaskExpr("causal"), *ParseMaskExpr("full")};
  EXPECT_EQ(CodeOf(per_head, {}, options), ErrorCode::kExportMask);
  // Heads that are spelled apart and mean the same are one mask.
  per_head.mask.heads = {*ParseMaskExpr("causal"), *ParseMaskExpr("window(-1, 0)")};
  EXPECT_EQ(Make(per_head, {}, options).mask_function, MaskFunction{.kind = MaskFunction::Kind::kCausal});
  const Contract documents = Square("causal and documents", 64);
  EXPECT_EQ(CodeOf(documents, {}, options), ErrorCode::kBatchInvalid);
  ExportOptions stored = options;
  stored.store_tiles = true;
  EXPECT_EQ(CodeOf(documents, {}, stored), ErrorCode::kBadArgument);
  ExportOptions whole_grid = options;
  whole_grid.to = Library::kTokamax;
  EXPECT_EQ(CodeOf(Square("causal", 64), {}, whole_grid), ErrorCode::kBadArgument);
  whole_grid.direction = Direction::kDkv;
  EXPECT_EQ(VisitsOf(Make(Square("causal", 64), {}, whole_grid), 0).size(), 10U);
}

struct ShapeCase {
  const char* name;
  ExportOptions options;
};

std::vector<ShapeCase> ShapeCases() {
  std::vector<ShapeCase> cases;
  for (const Segments segments : {Segments::kSkip, Segments::kBaked}) {
    for (const Direction direction : {Direction::kForward, Direction::kDkv}) {
      ExportOptions options{.tile = TileSize{8, 8}, .direction = direction, .segments = segments};
      options.fixed_shapes = true;
      cases.push_back({"splash shrunk", options});
      options.q_shards = 2;
      cases.push_back({"splash sharded", options});
      options.q_shards = 1;
      options.shrink = false;
      cases.push_back({"splash whole", options});
      options.shrink = true;
      options.to = Library::kTokamax;
      options.dynamic_grid = true;
      cases.push_back({"tokamax lists", options});
      options.dynamic_grid = false;
      if (direction == Direction::kDkv) cases.push_back({"tokamax whole", options});
    }
    ExportOptions options{.to = Library::kFlex, .tile = TileSize{8, 8}, .segments = segments, .fixed_shapes = true};
    cases.push_back({"flex", options});
    options.to = Library::kPallas;
    cases.push_back({"pallas", options});
  }
  return cases;
}

TEST(ExportFixedShapes, NoBatchChangesAShapeOrAType) {
  Proves("R13 R15");
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  for (const ShapeCase& shape_case : ShapeCases()) {
    const bool is_baked = shape_case.options.segments == Segments::kBaked;
    SCOPED_TRACE(std::string(shape_case.name) + (is_baked ? " baked" : " skip"));
    Contract contract = Square("causal and window(40, 0) and documents", 96);
    contract.capacity.cleanups = {Limit::Kind::kNumber, 150};
    std::set<std::string> signatures;
    for (int i = 0; i < 12; ++i) {
      SCOPED_TRACE("TESSERA_SEED=" + std::to_string(seed) + " batch " + std::to_string(i));
      Batch batch;
      batch.doc_ids = IdRows{1, 96, RandomDocIds(rng, 96, false)};
      if (i == 0) batch.doc_ids->values.assign(96, 3);   // one document
      if (i == 1) batch.doc_ids->values.assign(96, -1);  // padding alone
      const Export made = Make(contract, batch, shape_case.options);
      signatures.insert(SignatureOf(made));
      if (shape_case.options.q_shards > 1) continue;                      // rows are relative to their shard there
      if (is_baked && shape_case.options.to == Library::kFlex) continue;  // its mask is the caller's function
      EXPECT_EQ(PairsOf(made, contract.shape, VisitsOf(made, 0), 0), *DenseMask(contract, batch, 0, 0));
    }
    EXPECT_EQ(signatures.size(), 1U) << *signatures.begin() << *signatures.rbegin();
  }
}

TEST(ExportFixedShapes, SizesAreTheClasses) {
  Proves("R13");
  Contract contract = Square("causal and window(40, 0) and documents", 96);
  contract.capacity.width = {Limit::Kind::kNumber, 3};
  contract.capacity.width_transposed = {Limit::Kind::kPow2, 0};
  contract.capacity.cleanups = {Limit::Kind::kNumber, 130};
  ExportOptions options{.tile = TileSize{8, 8}, .segments = Segments::kBaked};
  options.fixed_shapes = true;
  Batch narrow;
  narrow.doc_ids = IdRows{1, 96, {}};
  for (int32_t i = 0; i < 96; ++i) narrow.doc_ids->values.push_back(i / 10);
  const Export forward = Make(contract, narrow, options);
  EXPECT_EQ(forward.Find("data_next")->shape, (std::vector<int64_t>{1, 12, 3}));
  EXPECT_EQ(forward.Find("partial_mask_blocks")->shape, (std::vector<int64_t>{130, 8, 8}));
  EXPECT_EQ(forward.Find("mask_next")->type, ElementType::kI16) << "tile 129 needs more than 8 bits";
  EXPECT_EQ(forward.Find("data_next")->type, ElementType::kI8);
  options.direction = Direction::kDkv;
  EXPECT_EQ(Make(contract, narrow, options).Find("data_next")->shape, (std::vector<int64_t>{1, 8, 12}));
  options.direction = Direction::kForward;

  Batch wide;
  wide.doc_ids = IdRows{1, 96, std::vector<int32_t>(96, 0)};
  EXPECT_EQ(CodeOf(contract, wide, options), ErrorCode::kCapacityExceeded);
  options.widen_class = true;
  EXPECT_EQ(Make(contract, wide, options).Find("data_next")->shape, (std::vector<int64_t>{1, 12, 8}));
  contract.capacity.width = {};
  contract.capacity.cleanups = {Limit::Kind::kNumber, 2};
  options.widen_class = false;
  EXPECT_EQ(CodeOf(contract, narrow, options), ErrorCode::kCapacityExceeded);
  options.segments = Segments::kSkip;  // needs no room for tiles
  EXPECT_EQ(Make(contract, narrow, options).Find("data_next")->shape, (std::vector<int64_t>{1, 12, 6}));
  options.fixed_shapes = false;
  options.widen_class = true;
  EXPECT_EQ(CodeOf(contract, narrow, options), ErrorCode::kBadArgument);
}

TEST(ExportFixedShapes, RoomForTilesBeyondMemoryIsRefused) {
  const Contract contract = Square("causal and documents", 1 << 17);
  Batch batch;
  batch.doc_ids = IdRows{1, 1 << 17, std::vector<int32_t>(1 << 17, 0)};
  ExportOptions options{.tile = TileSize{512, 512}, .segments = Segments::kBaked};
  options.fixed_shapes = true;
  EXPECT_EQ(CodeOf(contract, batch, options), ErrorCode::kTooLarge);
  // No room is needed where no tile is stored.
  Contract roomy = contract;
  roomy.capacity.cleanups = {Limit::Kind::kNumber, 1 << 20};
  options.segments = Segments::kSkip;
  EXPECT_EQ(Make(roomy, batch, options).Find("partial_mask_blocks"), nullptr);
}

TEST(ExportFixedShapes, PaddingFetchesWhatComesNext) {
  Contract contract = Square("causal and documents", 64);
  Batch batch;
  batch.doc_ids = IdRows{1, 64, {}};
  for (int32_t i = 0; i < 64; ++i) batch.doc_ids->values.push_back(i / 32);
  ExportOptions options{.tile = TileSize{16, 16}, .segments = Segments::kSkip};
  options.fixed_shapes = true;
  const Export forward = Make(contract, batch, options);
  EXPECT_EQ(Ints(forward.Find("block_mask")), (std::vector<int32_t>{1, 0, 0, 0, 2, 1, 0, 0, 1, 0, 0, 0, 2, 1, 0, 0}));
  EXPECT_EQ(Ints(forward.Find("data_next")), (std::vector<int32_t>{0, 0, 0, 0, 0, 1, 2, 2, 2, 2, 2, 2, 2, 3, 0, 0}));
  options.direction = Direction::kDkv;
  const Export dkv = Make(contract, batch, options);
  EXPECT_EQ(Ints(dkv.Find("block_mask")), (std::vector<int32_t>{0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 2, 1, 2, 1}));
  EXPECT_EQ(Ints(dkv.Find("data_next")), (std::vector<int32_t>{0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 1, 1, 3, 3}));
}

}  // namespace
}  // namespace tessera
