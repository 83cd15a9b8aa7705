// What the export tests share: contracts, exports that must succeed or fail, and arrays read back as numbers.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tessera/export.h"

namespace tessera {

using Dense = std::vector<uint8_t>;

inline Contract Parse(const std::string& text) {
  Result<Contract> contract = ParseContract(text);
  EXPECT_TRUE(contract.has_value()) << ToText(contract.error());
  return *contract;
}

inline Contract Square(const std::string& expr, int64_t len, int64_t heads = 1) {
  return Parse("version = 1\n[shape]\nq_len = " + std::to_string(len) + "\nnum_q_heads = " + std::to_string(heads) +
               "\ndim_qk = 16\n[mask]\nexpr = \"" + expr + "\"\n");
}

inline Export Make(const Contract& contract, const Batch& batch, const ExportOptions& options) {
  Result<Export> made = MakeExport(contract, batch, options);
  EXPECT_TRUE(made.has_value()) << ToText(made.error());
  return made ? std::move(*made) : Export();
}

inline ErrorCode CodeOf(const Contract& contract, const Batch& batch, const ExportOptions& options) {
  Result<Export> made = MakeExport(contract, batch, options);
  EXPECT_FALSE(made.has_value()) << "was not refused";
  return made ? ErrorCode::kBadArgument : made.error().code;
}

inline std::vector<int32_t> Ints(const Tensor* tensor) {
  EXPECT_NE(tensor, nullptr);
  std::vector<int32_t> values;
  for (int64_t i = 0; tensor != nullptr && i < tensor->NumElements(); ++i) {
    const std::byte* at = tensor->bytes.data() + i * BytesOf(tensor->type);
    int32_t wide = 0;
    int16_t half = 0;
    if (BytesOf(tensor->type) == 4) std::memcpy(&wide, at, 4);
    if (BytesOf(tensor->type) == 2) std::memcpy(&half, at, 2);
    values.push_back(tensor->type == ElementType::kI8 ? static_cast<int8_t>(*at)
                     : BytesOf(tensor->type) == 1     ? static_cast<uint8_t>(*at)
                     : BytesOf(tensor->type) == 2     ? half
                                                      : wide);
  }
  return values;
}

// Spreads one tile over a dense mask: all of it, or where `cells` (row-major, tile-sized) is set.
inline void Paint(Dense& dense, const Shape& shape, TileSize tile, int64_t q_tile, int64_t kv_tile,
                  const int32_t* cells) {
  for (int64_t q = q_tile * tile.q; q < std::min((q_tile + 1) * tile.q, shape.q_len); ++q) {
    for (int64_t k = kv_tile * tile.kv; k < std::min((kv_tile + 1) * tile.kv, shape.kv_len); ++k) {
      const int64_t cell = (q - q_tile * tile.q) * tile.kv + k - kv_tile * tile.kv;
      if (cells == nullptr || cells[cell] != 0) dense[q * shape.kv_len + k] = 1;
    }
  }
}

inline int64_t DivisorOf(std::mt19937_64& rng, int64_t length) {
  std::vector<int64_t> divisors;
  for (int64_t d = 1; d <= length; ++d) {
    if (length % d == 0) divisors.push_back(d);
  }
  return divisors[rng() % divisors.size()];
}

// One step of a kernel's grid that does some work.
struct Visit {
  int64_t q = 0;
  int64_t kv = 0;
  int32_t kind = 0;    // 1 partial, 2 full
  int32_t stored = 0;  // of a partial tile, where tiles are stored
};

// What a kernel visits on behalf of the first head: one shard, in the order of the arrays. Flex and pallas by rows.
std::vector<Visit> VisitsOf(const Export& exported, int64_t batch_row);

// The pairs that those visits compute: all of a full tile; of a partial one its stored tile, or where no tile is stored
// what the mask function and the segment ids of the batch row leave.
Dense PairsOf(const Export& exported, const Shape& shape, const std::vector<Visit>& visits, int64_t batch_row);

// Every array's name, type and shape: what a compiler that traces a call sees of it.
std::string SignatureOf(const Export& exported);

}  // namespace tessera
