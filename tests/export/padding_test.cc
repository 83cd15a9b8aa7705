// The padding slots of the arrays for a Pallas kernel: the kernel gates on block_mask alone, so it computes the same
// mask whatever else they hold.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "oracle/oracle.h"
#include "support/proves.h"
#include "support/random_batch.h"
#include "tessera/export.h"

namespace tessera {
namespace {

using Dense = std::vector<uint8_t>;

std::vector<int32_t> Numbers(const Export& exported, const std::string& name) {
  const Tensor* tensor = exported.Find(name);
  EXPECT_TRUE(tensor != nullptr && tensor->type == ElementType::kI32) << name;
  std::vector<int32_t> values(tensor == nullptr ? 0 : tensor->bytes.size() / 4);
  if (!values.empty()) std::memcpy(values.data(), tensor->bytes.data(), values.size() * 4);
  return values;
}

// The worklist as a kernel gets it: three arrays of [rows, width].
struct List {
  int64_t rows = 0;
  int64_t width = 0;
  std::vector<int32_t> block_mask;
  std::vector<int32_t> data_next;
  std::vector<int32_t> mask_next;
};

List ListOf(const Export& exported, const std::string& suffix) {
  const std::vector<int64_t>& shape = exported.Find("data_next" + suffix)->shape;
  return {shape[0], shape[1], Numbers(exported, "block_mask" + suffix), Numbers(exported, "data_next" + suffix),
          Numbers(exported, "mask_next" + suffix)};
}

// The walk of a kernel: every slot of every row, and nothing is looked at where block_mask is 0.
Dense Walk(const Export& exported, const List& list, const Shape& shape, bool is_transposed) {
  const Tensor& cells = *exported.Find("partial_mask_blocks");
  const TileSize tile = exported.tile;
  const auto is_set = [&](int64_t i) {
    const auto* at = cells.bytes.data() + i * BytesOf(cells.type);
    return std::any_of(at, at + BytesOf(cells.type), [](std::byte byte) { return byte != std::byte{0}; });
  };
  Dense dense(static_cast<size_t>(shape.q_len * shape.kv_len), 0);
  for (int64_t i = 0; i < list.rows * list.width; ++i) {
    const auto slot = static_cast<size_t>(i);
    if (list.block_mask[slot] == 0) continue;
    const int64_t q_tile = is_transposed ? list.data_next[slot] : i / list.width;
    const int64_t kv_tile = is_transposed ? i / list.width : list.data_next[slot];
    for (int64_t q = q_tile * tile.q; q < std::min((q_tile + 1) * tile.q, shape.q_len); ++q) {
      for (int64_t k = kv_tile * tile.kv; k < std::min((kv_tile + 1) * tile.kv, shape.kv_len); ++k) {
        const int64_t cell = (list.mask_next[slot] * tile.q + q - q_tile * tile.q) * tile.kv + k - kv_tile * tile.kv;
        if (list.block_mask[slot] == 2 || is_set(cell)) dense[static_cast<size_t>(q * shape.kv_len + k)] = 1;
      }
    }
  }
  return dense;
}

TEST(ExportPadding, WhateverItHolds_SameMask) {
  Proves("R12");
  std::mt19937_64 rng(PrintedSeed());
  int64_t num_padding = 0;
  for (int sample_number = 0; sample_number < 100; ++sample_number) {
    const MaskSample sample = RandomMaskSample(rng, 48, false);
    const Shape& shape = sample.contract.shape;
    ExportOptions options{.to = Library::kPallas, .tile = TileSize{RandomInt(rng, 1, 17), RandomInt(rng, 1, 17)}};
    options.segments = Segments::kBaked;
    options.batch_row = RandomInt(rng, 0, shape.batch - 1);
    const Result<Export> made = MakeExport(sample.contract, sample.batch, options);
    if (!made) continue;  // heads that differ
    const Result<Dense> want = DenseMask(sample.contract, sample.batch, *options.batch_row, 0);
    ASSERT_TRUE(want.has_value());
    for (const bool is_transposed : {false, true}) {
      List list = ListOf(*made, is_transposed ? "_t" : "");
      ASSERT_EQ(Walk(*made, list, shape, is_transposed), *want);
      for (size_t i = 0; i < list.block_mask.size(); ++i) {
        if (list.block_mask[i] != 0) continue;
        ++num_padding;
        list.data_next[i] = rng() % 2 == 0 ? std::numeric_limits<int32_t>::max() : -1;
        list.mask_next[i] = rng() % 2 == 0 ? std::numeric_limits<int32_t>::min() : 1 << 30;
      }
      ASSERT_EQ(Walk(*made, list, shape, is_transposed), *want) << "sample " << sample_number;
    }
  }
  EXPECT_GT(num_padding, 100);
}

}  // namespace
}  // namespace tessera
