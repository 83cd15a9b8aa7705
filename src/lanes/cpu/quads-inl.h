// bf16 operands as Arm's bfmmla reads them. It multiplies two rows of four values with two columns of four, so both
// operands are stored as quads, four values along k of one row or column: A as [row / 2][k / 4] of two quads, B as
// [k / 4][column] of one. Every register then comes with one load and nothing is shuffled between products.
#if defined(TESSERA_CPU_QUADS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_QUADS_INL_H
#undef TESSERA_CPU_QUADS_INL_H
#else
#define TESSERA_CPU_QUADS_INL_H
#endif

#include "hwy/highway.h"
#include "lanes/cpu/kernel.h"
#include "lanes/cpu/operands-inl.h"
#include "lanes/cpu/pairs-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::lanes::cpu {
namespace HWY_NAMESPACE {

// Two rows of A: to(q) is where their quads q lie.
template <class To>
HWY_INLINE void StoreTwoRows(const uint16_t* HWY_RESTRICT two, int64_t padded_dim, const To& to) {
  const D8 d;
  for (int64_t dim = 0; dim < padded_dim; dim += 8) {
    const V8 first = hn::Load(d, two + dim);
    const V8 second = hn::Load(d, two + kMostDims + dim);
    hn::StoreU(hn::ConcatLowerLower(d, second, first), d, to(dim / 4));
    hn::StoreU(hn::ConcatUpperUpper(d, second, first), d, to(dim / 4 + 1));
  }
}

// A of rows.
inline void PackQuadRows(const PackRows& pack) {
  ForEachDims(pack, [](const PackRows& part, int64_t first) HWY_ATTR {
    alignas(64) uint16_t two[2 * kMostDims];
    for (int64_t row = 0; row < part.padded_rows; row += 2) {
      TakeBf16Rows<2>(part, row, two);
      auto* to = static_cast<uint16_t*>(part.to) + row * part.to_stride + first * 2;
      StoreTwoRows(two, part.padded_dim, [&](int64_t q) { return to + q * 8; });
    }
  });
}

// A of columns: dims are its rows, and rows its k; a multiple of eight padded rows.
inline void PackQuadColumns(const PackRows& pack) {
  auto* to = static_cast<uint16_t*>(pack.to);
  ForEachColumnBlock(pack, [&](int64_t row, int64_t dim, const V8(&block)[8]) HWY_ATTR {
    const D8 d;
    for (int i = 0; i < 8; i += 2) {
      uint16_t* at = to + (dim + i) * pack.to_stride + row * 2;
      hn::StoreU(hn::ConcatLowerLower(d, block[i + 1], block[i]), d, at);
      hn::StoreU(hn::ConcatUpperUpper(d, block[i + 1], block[i]), d, at + 8);
    }
  });
}

// B of a panel: rows are its columns.
inline void PackQuadPanel(const PackRows& pack) {
  ForEachDims(pack, [](const PackRows& part, int64_t first) HWY_ATTR {
    alignas(64) uint16_t two[2 * kMostDims];
    for (int64_t row = 0; row < kPanel; row += 2) {
      TakeBf16Rows<2>(part, row, two);
      auto* to = static_cast<uint16_t*>(part.to) + first * kPanel + row * 4;
      StoreTwoRows(two, part.padded_dim, [&](int64_t q) { return to + q * 4 * kPanel; });
    }
  });
}

// B of rows: dims are its columns, and rows its k.
inline void PackQuadBRowsOfDims(const PackRows& pack) {
  const D8 d;
  const hn::FixedTag<uint32_t, 4> dw;
  alignas(64) uint16_t four[4 * kMostDims];
  for (int64_t row = 0; row < pack.padded_rows; row += 4) {
    TakeBf16Rows<4>(pack, row, four);
    auto* to = static_cast<uint32_t*>(pack.to) + row / 2 * pack.to_stride;
    for (int64_t dim = 0; dim < pack.padded_dim; dim += 8) {
      V8 rows[4];
      for (int i = 0; i < 4; ++i) rows[i] = hn::Load(d, four + i * kMostDims + dim);
      const auto low01 = hn::BitCast(dw, hn::InterleaveLower(d, rows[0], rows[1]));
      const auto low23 = hn::BitCast(dw, hn::InterleaveLower(d, rows[2], rows[3]));
      const auto high01 = hn::BitCast(dw, hn::InterleaveUpper(d, rows[0], rows[1]));
      const auto high23 = hn::BitCast(dw, hn::InterleaveUpper(d, rows[2], rows[3]));
      hn::StoreU(hn::InterleaveLower(dw, low01, low23), dw, to + 2 * dim);
      hn::StoreU(hn::InterleaveUpper(dw, low01, low23), dw, to + 2 * dim + 4);
      hn::StoreU(hn::InterleaveLower(dw, high01, high23), dw, to + 2 * dim + 8);
      hn::StoreU(hn::InterleaveUpper(dw, high01, high23), dw, to + 2 * dim + 12);
    }
  }
}
inline void PackQuadBRows(const PackRows& pack) {
  ForEachDims(pack, [](PackRows part, int64_t first) HWY_ATTR {
    part.to = static_cast<uint32_t*>(part.to) + 2 * first;
    PackQuadBRowsOfDims(part);
  });
}

// Probabilities and score gradients: a vector of four queries of one key is a quad of A.
struct Bf16Quads {
  static constexpr bool kScaled = false;
  static constexpr int kRows = 4;
  static constexpr int kWide = 1;  // more vectors of four keys would not fit in registers
  static constexpr int kCount = kRows * kWide;
  static HWY_INLINE void StoreBQuads(const VU (&rounded)[kCount], void* operand, int32_t row, int v) {
    auto* to = static_cast<uint32_t*>(operand) + row / 2 * kPanel + v * 2 * kLanes;
#pragma GCC unroll 8
    for (int i = 0; i < kWide; ++i) {
      const VU first = PairOf(rounded[i], rounded[kWide + i]);
      const VU second = PairOf(rounded[2 * kWide + i], rounded[3 * kWide + i]);
      hn::StoreU(hn::InterleaveLower(DU(), first, second), DU(), to + i * 2 * kLanes);
      hn::StoreU(hn::InterleaveUpper(DU(), first, second), DU(), to + i * 2 * kLanes + kLanes);
    }
  }
  static HWY_INLINE void StoreAQuads(const VU (&rounded)[kCount], void* operand, int32_t row, int v) {
    const hn::Repartition<uint16_t, DU> dh;
    auto* to = static_cast<uint16_t*>(operand) + row * kPanel + v * 2 * kLanes;
#pragma GCC unroll 8
    for (int i = 0; i < kCount; i += 2 * kWide) {
#pragma GCC unroll 8
      for (int j = i; j < i + kWide; ++j) {
        const auto quads = hn::ConcatOdd(dh, hn::BitCast(dh, rounded[j + kWide]), hn::BitCast(dh, rounded[j]));
        hn::StoreU(quads, dh, to + i / kWide * kPanel + (j - i) * 2 * kLanes);
      }
    }
  }
  static HWY_INLINE void StoreB(const VF (&p)[kCount], const SoftmaxStep& step, int32_t row, int v) {
    StoreBack<Bf16Quads>(p, step.scores + int64_t{row} * kPanel + v * kLanes);
    VU rounded[kCount];
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) rounded[i] = RoundBf16(p[i]);
    StoreBQuads(rounded, step.operand, row, v);
  }
  static HWY_INLINE void StoreGradients(const VF (&p)[kCount], const VF (&ds)[kCount], const GradientStep& step,
                                        int32_t row, int v) {
    StoreBack<Bf16Quads>(p, step.scores + int64_t{row} * kPanel + v * kLanes);
    StoreBack<Bf16Quads>(ds, step.grads + int64_t{row} * kPanel + v * kLanes);
    VU rounded[kCount];
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) rounded[i] = RoundBf16(p[i]);
    StoreAQuads(rounded, step.prob_rows, row, v);
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) rounded[i] = RoundBf16(ds[i]);
    StoreAQuads(rounded, step.grad_rows, row, v);
    StoreBQuads(rounded, step.grad_pairs, row, v);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace tessera::lanes::cpu
HWY_AFTER_NAMESPACE();
#endif
