// Exports read back: arrays of every library give the oracle's mask again, and what cannot be said is refused.
// Equality with the libraries themselves is in tests/peers.
#include "tessera/export.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "export/exports.h"
#include "oracle/oracle.h"
#include "support/proves.h"
#include "support/random_batch.h"
#include "tessera/io.h"

namespace tessera {
namespace {

struct Picture {
  Dense dense;
  int64_t width = 0;
};

// What the padded arrays of a Pallas kernel say, by rows or by columns.
Picture ReadPallas(const Export& exported, const Shape& shape, bool transposed) {
  const std::string suffix = transposed ? "_t" : "";
  const Tensor* slots = exported.Find("data_next" + suffix);
  const std::vector<int32_t> next = Ints(slots);
  const std::vector<int32_t> kinds = Ints(exported.Find("block_mask" + suffix));
  const std::vector<int32_t> ids = Ints(exported.Find("mask_next" + suffix));
  const std::vector<int32_t> cells = Ints(exported.Find("partial_mask_blocks"));
  Picture picture{Dense(static_cast<size_t>(shape.q_len * shape.kv_len), 0), slots->shape[1]};
  for (int64_t row = 0; row < slots->shape[0]; ++row) {
    int32_t last = -1;
    for (int64_t s = 0; s < picture.width; ++s) {
      const int64_t at = row * picture.width + s;
      if (kinds[at] == 0) {
        EXPECT_EQ(next[at], 0) << "padding slots are (0, 0)";
        continue;
      }
      EXPECT_GT(next[at], last) << "columns ascend";
      EXPECT_TRUE(s == 0 || kinds[at - 1] != 0) << "slots are packed to the left";
      last = next[at];
      const int32_t* tile = kinds[at] == 1 ? cells.data() + ids[at] * exported.tile.q * exported.tile.kv : nullptr;
      Paint(picture.dense, shape, exported.tile, transposed ? next[at] : row, transposed ? row : next[at], tile);
    }
  }
  return picture;
}

// The stored tile of the first partial slot at or after each slot, padding included, looked for one slot at a time.
std::vector<int32_t> NeededNext(const std::vector<int32_t>& kinds, const std::vector<int32_t>& ids) {
  std::vector<int32_t> needed(kinds.size(), 0);
  for (size_t i = 0; i < kinds.size(); ++i) {
    for (size_t ahead = 0; ahead < kinds.size(); ++ahead) {
      const size_t at = (i + ahead) % kinds.size();
      if (kinds[at] != 1) continue;
      needed[i] = ids[at];
      break;
    }
  }
  return needed;
}

TEST(Export, PallasArraysAreTheMaskByRowsAndByColumns) {
  Proves("R11 R12 R15 R17");
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  for (int i = 0; i < 300; ++i) {
    SCOPED_TRACE("TESSERA_SEED=" + std::to_string(seed) + " sample " + std::to_string(i));
    const MaskSample sample = RandomMaskSample(rng, 48, false);
    const Shape& shape = sample.contract.shape;
    ExportOptions options{.to = Library::kPallas, .tile = TileSize{RandomInt(rng, 1, 17), RandomInt(rng, 1, 17)}};
    options.segments = Segments::kBaked;
    options.batch_row = RandomInt(rng, 0, shape.batch - 1);
    Result<Export> made = MakeExport(sample.contract, sample.batch, options);
    const Result<Dense> want = DenseMask(sample.contract, sample.batch, *options.batch_row, 0);
    ASSERT_TRUE(want.has_value());
    if (!made) {
      ASSERT_EQ(made.error().code, ErrorCode::kExportMask) << ToText(made.error());
      bool differs = false;
      for (int64_t head = 1; head < shape.num_q_heads; ++head) {
        differs |= *want != *DenseMask(sample.contract, sample.batch, *options.batch_row, head);
      }
      ASSERT_TRUE(differs);
      continue;
    }
    for (const char* name : {"data_next", "block_mask", "data_next_t", "block_mask_t"}) {
      ASSERT_EQ(made->Find(name)->type, ElementType::kI32);
    }
    const Picture rows = ReadPallas(*made, shape, false);
    const Picture columns = ReadPallas(*made, shape, true);
    ASSERT_EQ(rows.dense, *want);
    ASSERT_EQ(columns.dense, *want);
    for (const std::string suffix : {"", "_t"}) {
      const std::vector<int32_t> ids = Ints(made->Find("mask_next" + suffix));
      ASSERT_EQ(ids, NeededNext(Ints(made->Find("block_mask" + suffix)), ids));
    }
    // Equal tiles are stored once.
    const std::vector<int32_t> cells = Ints(made->Find("partial_mask_blocks"));
    const int64_t area = made->tile.q * made->tile.kv;
    std::set<std::vector<int32_t>> distinct;
    for (size_t at = 0; at < cells.size(); at += area) {
      distinct.emplace(cells.begin() + static_cast<std::ptrdiff_t>(at),
                       cells.begin() + static_cast<std::ptrdiff_t>(at) + area);
    }
    ASSERT_EQ(static_cast<int64_t>(distinct.size()) * area, static_cast<int64_t>(cells.size()));
  }
}

TEST(Export, GridWidthIsTheFullestRowAndNeverZero) {
  Proves("R12");
  Contract contract = Square("prefix(0)", 64);
  const Export empty = Make(contract, {}, {.to = Library::kPallas, .tile = TileSize{16, 16}});
  EXPECT_EQ(empty.Find("data_next")->shape, (std::vector<int64_t>{4, 1}));
  EXPECT_EQ(Ints(empty.Find("block_mask")), std::vector<int32_t>(4, 0));
  const Export causal = Make(Square("causal", 64), {}, {.to = Library::kPallas, .tile = TileSize{16, 32}});
  EXPECT_EQ(causal.Find("data_next")->shape, (std::vector<int64_t>{4, 2}));
  EXPECT_EQ(causal.Find("data_next_t")->shape, (std::vector<int64_t>{2, 4}));
}

TEST(Export, SegmentIdsCarryDocumentsAndValidity) {
  Proves("R16 B28");
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  int checked = 0;
  for (int i = 0; i < 400; ++i) {
    SCOPED_TRACE("TESSERA_SEED=" + std::to_string(seed) + " sample " + std::to_string(i));
    const MaskSample sample = RandomMaskSample(rng, 48, false);
    const Shape& shape = sample.contract.shape;
    Result<Export> made = MakeExport(sample.contract, sample.batch, {.to = Library::kPallas, .tile = TileSize{8, 8}});
    if (!made) {
      ASSERT_EQ(made.error().code, ErrorCode::kExportMask) << ToText(made.error());
      continue;
    }
    if (!made->needs_segment_ids) continue;
    ASSERT_TRUE(made->segment_ids.has_value());
    ASSERT_EQ(made->segment_ids->q.shape, (std::vector<int64_t>{shape.batch, shape.q_len, 1}));
    ASSERT_EQ(made->segment_ids->kv.shape, (std::vector<int64_t>{shape.batch, 1, shape.kv_len}));
    EXPECT_EQ(made->operands, (std::vector<std::string>{"data_next", "block_mask", "mask_next", "q", "k", "v",
                                                        "q_segment_ids", "kv_segment_ids", "partial_mask_blocks"}));
    const Dense base = ReadPallas(*made, shape, false).dense;
    const std::vector<int32_t> q_ids = Ints(&made->segment_ids->q);
    const std::vector<int32_t> kv_ids = Ints(&made->segment_ids->kv);
    for (int64_t row = 0; row < shape.batch; ++row) {
      Dense got = base;
      for (int64_t q = 0; q < shape.q_len; ++q) {
        for (int64_t k = 0; k < shape.kv_len; ++k) {
          if (q_ids[row * shape.q_len + q] != kv_ids[row * shape.kv_len + k]) got[q * shape.kv_len + k] = 0;
        }
      }
      ASSERT_EQ(got, *DenseMask(sample.contract, sample.batch, row, 0));
    }
    ++checked;
  }
  EXPECT_GT(checked, 5);
}

TEST(Export, PallasNamesTheTileNeededNext) {
  Proves("R16");
  const Export made = Make(Square("window(8, 8)", 64), {}, {.to = Library::kPallas, .tile = TileSize{16, 16}});
  EXPECT_EQ(made.operands,
            (std::vector<std::string>{"data_next", "block_mask", "mask_next", "q", "k", "v", "partial_mask_blocks"}));
  EXPECT_EQ(Ints(made.Find("data_next")), (std::vector<int32_t>{0, 1, 0, 0, 1, 2, 1, 2, 3, 2, 3, 0}));
  EXPECT_EQ(Ints(made.Find("block_mask")), (std::vector<int32_t>{1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 0}));
  EXPECT_EQ(Ints(made.Find("mask_next")), (std::vector<int32_t>{0, 1, 2, 2, 0, 1, 2, 0, 1, 2, 0, 0}));
  // Full slots and padding name the tile of the partial slot that follows.
  const Export causal = Make(Square("causal", 48), {}, {.to = Library::kPallas, .tile = TileSize{16, 16}});
  EXPECT_EQ(Ints(causal.Find("block_mask")), (std::vector<int32_t>{1, 0, 0, 2, 1, 0, 2, 2, 1}));
  EXPECT_EQ(Ints(causal.Find("mask_next")), std::vector<int32_t>(9, 0));
}

TEST(Export, OneSideOfSegmentIdsIsRefused) {
  Proves("R16");
  Contract contract = Square("causal and documents", 64);
  Batch batch;
  batch.q_doc_ids = IdRows{1, 64, std::vector<int32_t>(64, 0)};
  EXPECT_EQ(CodeOf(contract, batch, {.to = Library::kPallas, .tile = TileSize{16, 16}}), ErrorCode::kBatchInvalid);
}

// Follows Splash's kernel through the arrays: fetches, then looks at the tile it fetched.
Dense ReadSplash(const Export& exported, const Shape& shape, int64_t head, int64_t head_shards) {
  const bool is_dkv = exported.direction == Direction::kDkv;
  const Tensor* data = exported.Find("data_next");
  const int64_t lines = data->shape[0];
  const int64_t line = lines == shape.num_q_heads ? head : head / (shape.num_q_heads / head_shards);
  const std::vector<int32_t> next = Ints(data);
  const std::vector<int32_t> kinds = Ints(exported.Find("block_mask"));
  const bool has_tiles = exported.Find("mask_next") != nullptr;
  const std::vector<int32_t> ids = has_tiles ? Ints(exported.Find("mask_next")) : std::vector<int32_t>();
  const std::vector<int32_t> cells = has_tiles ? Ints(exported.Find("partial_mask_blocks")) : std::vector<int32_t>();
  const TileSize tile = exported.tile;
  Dense dense(static_cast<size_t>(shape.q_len * shape.kv_len), 0);
  for (int64_t row = 0; row < data->shape[1]; ++row) {
    for (int64_t column = 0; column < data->shape[2]; ++column) {
      const int64_t at = (line * data->shape[1] + row) * data->shape[2] + column;
      if (kinds[at] == 0) continue;
      std::vector<int32_t> own;
      if (kinds[at] == 1) {
        own.resize(static_cast<size_t>(tile.q * tile.kv));
        const int32_t* stored = cells.data() + ids[at] * tile.q * tile.kv;
        for (int64_t q = 0; q < tile.q; ++q) {
          for (int64_t k = 0; k < tile.kv; ++k) {
            own[q * tile.kv + k] = is_dkv ? stored[k * tile.q + q] : stored[q * tile.kv + k];
          }
        }
      }
      Paint(dense, shape, tile, is_dkv ? next[at] : row, is_dkv ? column : next[at],
            own.empty() ? nullptr : own.data());
    }
  }
  return dense;
}

TEST(Export, SplashArraysAreTheMask) {
  Proves("R11 R15");
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  int checked = 0;
  for (int i = 0; i < 400; ++i) {
    SCOPED_TRACE("TESSERA_SEED=" + std::to_string(seed) + " sample " + std::to_string(i));
    const MaskSample sample = RandomMaskSample(rng, 48, false);
    const Shape& shape = sample.contract.shape;
    ExportOptions options;
    options.tile = TileSize{DivisorOf(rng, shape.q_len), DivisorOf(rng, shape.kv_len)};
    options.direction = RandomInt(rng, 0, 1) == 0 ? Direction::kForward : Direction::kDkv;
    options.store_tiles = true;
    options.segments = Segments::kBaked;
    options.shrink = RandomInt(rng, 0, 1) == 0;
    options.batch_row = RandomInt(rng, 0, shape.batch - 1);
    options.head_shards = DivisorOf(rng, shape.num_q_heads);
    Result<Export> made = MakeExport(sample.contract, sample.batch, options);
    if (!made) {
      ASSERT_EQ(made.error().code, ErrorCode::kExportFault) << ToText(made.error());
      continue;
    }
    for (int64_t head = 0; head < shape.num_q_heads; ++head) {
      ASSERT_EQ(ReadSplash(*made, shape, head, options.head_shards),
                *DenseMask(sample.contract, sample.batch, *options.batch_row, head));
    }
    ++checked;
  }
  EXPECT_GT(checked, 100);
}

TEST(Export, SplashFetchesAheadOfNeed) {
  ExportOptions options{.tile = TileSize{16, 16}};
  const Contract local = Square("window(8, 8)", 64);
  options.store_tiles = true;
  const Export forward = Make(local, {}, options);
  EXPECT_EQ(forward.Find("data_next")->shape, (std::vector<int64_t>{1, 4, 3}));
  EXPECT_EQ(Ints(forward.Find("data_next")), (std::vector<int32_t>{0, 1, 0, 0, 1, 2, 1, 2, 3, 2, 3, 0}));
  EXPECT_EQ(Ints(forward.Find("mask_next")), (std::vector<int32_t>{0, 1, 0, 2, 0, 1, 2, 0, 1, 2, 0, 0}));
  options.direction = Direction::kDkv;
  const Export dkv = Make(local, {}, options);
  EXPECT_EQ(dkv.Find("data_next")->shape, (std::vector<int64_t>{1, 3, 4}));
  EXPECT_EQ(Ints(dkv.Find("data_next")), (std::vector<int32_t>{0, 0, 1, 0, 0, 1, 2, 2, 1, 2, 3, 3}));
  EXPECT_EQ(Ints(dkv.Find("block_mask")), (std::vector<int32_t>{0, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1}));
}

TEST(Export, WhatTheKernelComputesStoresNoTiles) {
  const ExportOptions options{.tile = TileSize{16, 16}};
  struct Row {
    const char* expr;
    std::optional<MaskFunction> function;
  };
  using Kind = MaskFunction::Kind;
  const Row rows[] = {
      {"causal", MaskFunction{.kind = Kind::kCausal}},
      {"causal and documents", MaskFunction{.kind = Kind::kCausal}},
      {"window(5, -1)", MaskFunction{.kind = Kind::kLocal, .left = 5, .right = -1}},
      {"chunk(24) and causal and valid", MaskFunction{.kind = Kind::kChunkedCausal, .chunk = 24}},
      {"full", std::nullopt},
      {"chunk(24)", std::nullopt},
      {"causal and window(5, 0)", std::nullopt},
      {"causal or sink(3)", std::nullopt},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.expr);
    const Export made = Make(Square(row.expr, 64), {}, options);
    EXPECT_EQ(made.mask_function, row.function);
    EXPECT_EQ(made.Find("q_sequence") != nullptr, row.function.has_value());
    EXPECT_EQ(made.Find("partial_mask_blocks") != nullptr,
              !row.function.has_value() && std::string(row.expr) != "full");
  }
}

TEST(Export, IndicesAreAsNarrowAsTheirLargest) {
  ExportOptions options{.tile = TileSize{1, 1}};
  EXPECT_EQ(Make(Square("causal", 128), {}, options).Find("data_next")->type, ElementType::kI8);
  EXPECT_EQ(Make(Square("causal", 129), {}, options).Find("data_next")->type, ElementType::kI16);
}

TEST(Export, BakedDocumentsSkipTheTilesBetweenThem) {
  Contract contract = Square("causal and documents", 4096);
  Batch batch;
  batch.doc_ids = IdRows{1, 4096, {}};
  for (int32_t i = 0; i < 4096; ++i) batch.doc_ids->values.push_back(i / 512);
  ExportOptions options{.tile = TileSize{256, 256}};
  const Export runtime = Make(contract, batch, options);
  EXPECT_TRUE(runtime.needs_segment_ids);
  EXPECT_EQ(runtime.tiles.partial + runtime.tiles.full, 136);
  options.segments = Segments::kBaked;
  const Export baked = Make(contract, batch, options);
  EXPECT_FALSE(baked.needs_segment_ids);
  EXPECT_EQ(baked.tiles.partial + baked.tiles.full, 24);
  EXPECT_EQ(baked.Find("data_next")->shape, (std::vector<int64_t>{1, 16, 2}));
}

TEST(Export, WhatCannotBeSaidIsRefused) {
  const ExportOptions splash{.tile = TileSize{16, 16}};
  const auto with = [&](auto&& change) {
    ExportOptions options = splash;
    change(options);
    return options;
  };
  const Contract causal = Square("causal", 64, 2);
  // Shapes.
  EXPECT_EQ(CodeOf(Square("causal", 65), {}, splash), ErrorCode::kExportShape);
  EXPECT_EQ(CodeOf(causal, {}, with([](ExportOptions& o) { o.q_shards = 3; })), ErrorCode::kExportShape);
  EXPECT_EQ(CodeOf(causal, {}, with([](ExportOptions& o) { o.q_shards = 8; })), ErrorCode::kExportShape);
  EXPECT_EQ(CodeOf(causal, {}, with([](ExportOptions& o) { o.head_shards = 3; })), ErrorCode::kExportShape);
  // Masks.
  EXPECT_EQ(CodeOf(Square("sink(4) or documents", 64), {}, splash), ErrorCode::kExportMask);
  EXPECT_EQ(CodeOf(Square("causal and sink(4, document)", 64), {}, splash), ErrorCode::kExportMask);
  EXPECT_EQ(CodeOf(Square("causal and blocks", 64), {}, splash), ErrorCode::kExportMask);
  Contract per_head = causal;
  per_head.mask.heads = {*ParseMaskExpr("causal"), *ParseMaskExpr("full")};
  EXPECT_EQ(CodeOf(per_head, {}, with([](ExportOptions& o) { o.to = Library::kTokamax; })), ErrorCode::kExportMask);
  Contract two_rows = Square("causal and documents", 64);
  two_rows.shape.batch = 2;
  Batch batch;
  batch.doc_ids = IdRows{2, 64, std::vector<int32_t>(128, 0)};
  batch.doc_ids->values[63] = 1;
  EXPECT_EQ(CodeOf(two_rows, batch, with([](ExportOptions& o) { o.segments = Segments::kBaked; })),
            ErrorCode::kExportMask);
  // What the library itself fails on.
  EXPECT_EQ(CodeOf(Square("prefix(0)", 64), {}, splash), ErrorCode::kExportFault);
  EXPECT_EQ(CodeOf(Square("full", 64), {}, with([](ExportOptions& o) { o.q_shards = 2; })), ErrorCode::kExportFault);
  // Options that mean nothing there, and baking without a batch.
  EXPECT_EQ(CodeOf(causal, {}, with([](ExportOptions& o) { o.kv_shards = 2; })), ErrorCode::kBadArgument);
  EXPECT_EQ(CodeOf(causal, {}, with([](ExportOptions& o) { o.q_shards = 0; })), ErrorCode::kBadArgument);
  EXPECT_EQ(CodeOf(causal, {}, with([](ExportOptions& o) { o.direction = Direction::kDq; })), ErrorCode::kBadArgument);
  EXPECT_EQ(CodeOf(causal, {}, with([](ExportOptions& o) { o.tile = TileSize{0, 16}; })), ErrorCode::kTileInvalid);
  EXPECT_EQ(CodeOf(two_rows, {}, with([](ExportOptions& o) { o.segments = Segments::kBaked; })),
            ErrorCode::kBatchInvalid);
  // A grid that would not fit any memory is refused before it is made.
  Contract huge = Square("causal", 1 << 18, 4096);
  huge.mask.heads.assign(4096, *ParseMaskExpr("causal"));
  huge.mask.heads.back() = *ParseMaskExpr("full");
  EXPECT_EQ(CodeOf(huge, {}, with([](ExportOptions& o) { o.tile = TileSize{512, 512}; })), ErrorCode::kTooLarge);
}

TEST(Export, EqualMasksOfABatchAreOneMask) {
  // Two head classes that these documents make equal: to the libraries they are one mask.
  Contract contract = Square("causal and documents", 32, 2);
  contract.mask.heads = {*ParseMaskExpr("window(3, 0) and documents"), *ParseMaskExpr("causal and documents")};
  Batch batch;
  batch.doc_ids = IdRows{1, 32, {}};
  for (int32_t i = 0; i < 32; ++i) batch.doc_ids->values.push_back(i / 4);
  const Export made = Make(contract, batch, {.tile = TileSize{8, 8}, .segments = Segments::kBaked});
  EXPECT_EQ(made.Find("data_next")->shape[0], 1);
}

TEST(Export, JsonAndTensorsHoldTheSameArrays) {
  const Export made = Make(Square("window(8, 8)", 64), {}, {.tile = TileSize{16, 16}, .store_tiles = true});
  const std::string json = ToJson(made);
  EXPECT_NE(json.find(R"("data_next": {"dtype": "int8", "shape": [1, 4, 3], "data": [0,1,0,0,1,2,1,2,3,2,3,0]})"),
            std::string::npos);
  EXPECT_NE(json.find(R"("q_sequence": null)"), std::string::npos);
  EXPECT_NE(json.find(R"("grid_width": 3)"), std::string::npos);
  const TensorMap tensors = ToTensors(made);
  EXPECT_EQ(tensors.size(), 4U);
  Result<TensorMap> back = ParseSafetensors(ToSafetensors(tensors));
  ASSERT_TRUE(back.has_value()) << ToText(back.error());
  EXPECT_EQ(*back, tensors);
}

}  // namespace
}  // namespace tessera
