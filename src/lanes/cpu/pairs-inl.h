// bf16 rows as the 16-bit operands of a matrix unit: A as plain rows, B with two of its rows in each 32-bit word (what
// x86's instructions read). Inputs of such a kernel are bf16 already, so packing only moves bits.
#if defined(TESSERA_CPU_PAIRS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_PAIRS_INL_H
#undef TESSERA_CPU_PAIRS_INL_H
#else
#define TESSERA_CPU_PAIRS_INL_H
#endif

#include <algorithm>
#include <cstring>

#include "hwy/highway.h"
#include "lanes/cpu/kernel.h"
#include "lanes/cpu/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::lanes::cpu {
namespace HWY_NAMESPACE {

// Blocks of eight by eight suit every target: packing waits for memory, not for arithmetic.
using D8 = hn::FixedTag<uint16_t, 8>;
using V8 = hn::Vec<D8>;

inline bool IsFiniteRow(const uint16_t* row, int64_t dim) {
  const D8 d;
  const V8 exponent = hn::Set(d, 0x7F80);  // all ones: NaN or infinity
  V8 found = hn::Zero(d);
  int64_t at = 0;
  for (; at + 8 <= dim; at += 8) {
    const V8 bits = hn::And(hn::LoadU(d, row + at), exponent);
    found = hn::Or(found, hn::VecFromMask(d, hn::Eq(bits, exponent)));
  }
  bool is_finite = hn::AllTrue(d, hn::Eq(found, hn::Zero(d)));
  for (; at < dim; ++at) is_finite = is_finite && (row[at] & 0x7F80) != 0x7F80;
  return is_finite;
}

// One row, zeros from `dim` on, with the rules for rows that are missing, dead or not finite.
inline void TakeBf16Row(const PackRows& pack, int64_t row, uint16_t* HWY_RESTRICT to) {
  int64_t dim = 0;
  if (!IsZeroRow(pack, row) && !IsFlagged(pack, row)) {
    const auto* from = reinterpret_cast<const uint16_t*>(pack.from) + row * pack.from_stride;
    if (pack.not_finite == nullptr || IsFiniteRow(from, pack.dim)) {
      dim = pack.dim;
      std::memcpy(to, from, static_cast<size_t>(dim) * sizeof(uint16_t));
    } else {
      pack.not_finite[row] = 1;
    }
  }
  std::fill(to + dim, to + pack.padded_dim, uint16_t{0});
}

// Rows from `row` on, one after the other in `to`, kMostDims apart.
template <int kCount>
HWY_INLINE void TakeBf16Rows(const PackRows& pack, int64_t row, uint16_t* HWY_RESTRICT to) {
  for (int64_t i = 0; i < kCount; ++i) TakeBf16Row(pack, row + i, to + i * kMostDims);
}

// [row][dim]
inline void PackBf16Rows(const PackRows& pack) {
  for (int64_t row = 0; row < pack.padded_rows; ++row) {
    TakeBf16Row(pack, row, static_cast<uint16_t*>(pack.to) + row * pack.to_stride);
  }
}

// Three perfect shuffles transpose eight rows of eight.
HWY_INLINE void Transpose8(V8 (&rows)[8]) {
  const D8 d;
  for (int round = 0; round < 3; ++round) {
    V8 out[8];
    for (int i = 0; i < 4; ++i) {
      out[2 * i] = hn::InterleaveLower(d, rows[i], rows[i + 4]);
      out[2 * i + 1] = hn::InterleaveUpper(d, rows[i], rows[i + 4]);
    }
    for (int i = 0; i < 8; ++i) rows[i] = out[i];
  }
}

template <class Store>
HWY_INLINE void ForEachColumnBlockOfDims(const PackRows& pack, const Store& store) {
  const D8 d;
  constexpr int kRows = 32;
  alignas(64) uint16_t taken[kRows * kMostDims];
  for (int64_t begin = 0; begin < pack.padded_rows; begin += kRows) {
    TakeBf16Rows<kRows>(pack, begin, taken);
    const int64_t end = std::min(begin + kRows, pack.padded_rows);
    for (int64_t dim = 0; dim < pack.padded_dim; dim += 8) {
      for (int64_t row = begin; row < end; row += 8) {
        V8 block[8];
        for (int i = 0; i < 8; ++i) block[i] = hn::Load(d, taken + (row - begin + i) * kMostDims + dim);
        Transpose8(block);
        store(row, dim, block);
      }
    }
  }
}

// Calls `store(row, dim, block)` for blocks of eight rows, each now eight dims of eight rows. Rows come 32 at a time, a
// cache line of a column, so that the far-apart lines that columns go to are written whole.
template <class Store>
HWY_INLINE void ForEachColumnBlock(const PackRows& pack, const Store& store) {
  ForEachDims(pack, [&](const PackRows& part, int64_t first) HWY_ATTR {
    ForEachColumnBlockOfDims(
        part, [&](int64_t row, int64_t dim, const V8(&block)[8]) HWY_ATTR { store(row, first + dim, block); });
  });
}

// [dim][row]; a multiple of eight padded rows, or what follows them in a column is overwritten.
inline void PackBf16Columns(const PackRows& pack) {
  auto* to = static_cast<uint16_t*>(pack.to);
  ForEachColumnBlock(pack, [&](int64_t row, int64_t dim, const V8(&block)[8]) HWY_ATTR {
    for (int i = 0; i < 8; ++i) hn::StoreU(block[i], D8(), to + (dim + i) * pack.to_stride + row);
  });
}

// [dim / 2][panel]: two dims of a query are a word already.
inline void PackBf16Panel(const PackRows& pack) {
  ForEachDims(pack, [](const PackRows& part, int64_t first) HWY_ATTR {
    alignas(64) uint16_t four[4 * kMostDims];
    auto* to = static_cast<float*>(part.to) + first / 2 * kPanel;
    for (int64_t row = 0; row < kPanel; row += 4) {
      TakeBf16Rows<4>(part, row, four);
      ScatterFour(reinterpret_cast<const float*>(four), kMostDims / 2, part.padded_dim / 2, to + row, kPanel);
    }
  });
}

// [row / 2][dim]
inline void PackBf16RowPairs(const PackRows& pack) {
  ForEachDims(pack, [](const PackRows& part, int64_t first) HWY_ATTR {
    const D8 d;
    alignas(64) uint16_t two[2 * kMostDims];
    for (int64_t row = 0; row < part.padded_rows; row += 2) {
      TakeBf16Rows<2>(part, row, two);
      // A row of words for two rows of values.
      auto* to = static_cast<uint16_t*>(part.to) + row * part.to_stride + 2 * first;
      for (int64_t dim = 0; dim < part.padded_dim; dim += 8) {
        const V8 even = hn::Load(d, two + dim);
        const V8 odd = hn::Load(d, two + kMostDims + dim);
        hn::StoreU(hn::InterleaveLower(d, even, odd), d, to + 2 * dim);
        hn::StoreU(hn::InterleaveUpper(d, even, odd), d, to + 2 * dim + 8);
      }
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::lanes::cpu
HWY_AFTER_NAMESPACE();
#endif
