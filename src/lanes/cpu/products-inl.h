// Matrix products with f32 operands. Register blocking: kBlockA rows of A against two vectors of B, so that each
// loaded value is used often enough for the multiply-add units to be the limit.
#if defined(TESSERA_CPU_PRODUCTS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_PRODUCTS_INL_H
#undef TESSERA_CPU_PRODUCTS_INL_H
#else
#define TESSERA_CPU_PRODUCTS_INL_H
#endif

#include "hwy/highway.h"
#include "lanes/cpu/kernel.h"
#include "lanes/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::lanes::cpu {
namespace HWY_NAMESPACE {

constexpr int64_t kLanes = hn::MaxLanes(DF());

// A block of C is kBlockA x kBlockVectors accumulators, of 32 registers (NEON, AVX-512) or 16. Where vectors are short
// a panel is several blocks wide: a row of A that came into the first cache serves them all.
constexpr int kBlockVectors = 2;
#if HWY_TARGET == HWY_AVX3
constexpr int kBlockA = 12;
constexpr int kVectors = 2;
#elif HWY_TARGET == HWY_NEON
constexpr int kBlockA = 8;
constexpr int kVectors = 4;
#elif HWY_TARGET == HWY_AVX2
constexpr int kBlockA = 6;
constexpr int kVectors = 2;
#else
constexpr int kBlockA = 4;
constexpr int kVectors = 2;
#endif
constexpr int64_t kPanel = kVectors * kLanes;
constexpr int64_t kBlockWidth = kBlockVectors * kLanes;

enum class Stored { kRows, kColumns };  // A as [a][k] or as [k][a]

#if HWY_TARGET == HWY_NEON
// A multiply-add takes one lane of a register as a factor, so that four factors come with one load.
template <int kLane, int kA>
HWY_INLINE void StepLane(const VF (&a)[kA], const float* HWY_RESTRICT b, VF (&acc)[kA][kBlockVectors]) {
  const DF d;
  VF row[kBlockVectors];
#pragma GCC unroll 16
  for (int v = 0; v < kBlockVectors; ++v) row[v] = hn::Load(d, b + v * kLanes);
#pragma GCC unroll 16
  for (int i = 0; i < kA; ++i) {
#pragma GCC unroll 16
    for (int v = 0; v < kBlockVectors; ++v) acc[i][v] = hn::MulAdd(hn::Broadcast<kLane>(a[i]), row[v], acc[i][v]);
  }
}

template <int kA>
HWY_INLINE void SegmentRows(const float* HWY_RESTRICT a, int64_t a_stride, const float* HWY_RESTRICT b,
                            int64_t b_stride, int64_t num_k, VF (&acc)[kA][kBlockVectors]) {
  const DF d;
  for (int64_t k = 0; k < num_k; k += 4) {
    VF rows[kA];
#pragma GCC unroll 16
    for (int i = 0; i < kA; ++i) rows[i] = hn::LoadU(d, a + i * a_stride + k);
    StepLane<0>(rows, b, acc);
    StepLane<1>(rows, b + b_stride, acc);
    StepLane<2>(rows, b + 2 * b_stride, acc);
    StepLane<3>(rows, b + 3 * b_stride, acc);
    b += 4 * b_stride;
  }
}

template <int kA>
HWY_INLINE void SegmentColumns(const float* HWY_RESTRICT a, int64_t a_stride, const float* HWY_RESTRICT b,
                               int64_t b_stride, int64_t num_k, VF (&acc)[kA][kBlockVectors]) {
  static_assert(kA % 4 == 0);
  const DF d;
  for (int64_t k = 0; k < num_k; ++k) {
    VF row[kBlockVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kBlockVectors; ++v) row[v] = hn::Load(d, b + v * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < kA; i += 4) {
      const VF four = hn::LoadU(d, a + i);
#pragma GCC unroll 16
      for (int v = 0; v < kBlockVectors; ++v) {
        acc[i][v] = hn::MulAdd(hn::Broadcast<0>(four), row[v], acc[i][v]);
        acc[i + 1][v] = hn::MulAdd(hn::Broadcast<1>(four), row[v], acc[i + 1][v]);
        acc[i + 2][v] = hn::MulAdd(hn::Broadcast<2>(four), row[v], acc[i + 2][v]);
        acc[i + 3][v] = hn::MulAdd(hn::Broadcast<3>(four), row[v], acc[i + 3][v]);
      }
    }
    a += a_stride;
    b += b_stride;
  }
}
#else
// A multiply-add takes a factor from memory, broadcast: A is read where it lies. Rows come in twos, because there are
// fewer address registers than rows.
template <int kA>
HWY_INLINE void SegmentRows(const float* HWY_RESTRICT a, int64_t a_stride, const float* HWY_RESTRICT b,
                            int64_t b_stride, int64_t num_k, VF (&acc)[kA][kBlockVectors]) {
  static_assert(kA % 2 == 0);
  const DF d;
  const float* rows[kA / 2];
#pragma GCC unroll 16
  for (int i = 0; i < kA / 2; ++i) rows[i] = a + 2 * i * a_stride;
  for (int64_t k = 0; k < num_k; ++k) {
    VF row[kBlockVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kBlockVectors; ++v) row[v] = hn::Load(d, b + v * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < kA; ++i) {
      const VF factor = hn::Set(d, rows[i / 2][k + i % 2 * a_stride]);
#pragma GCC unroll 16
      for (int v = 0; v < kBlockVectors; ++v) acc[i][v] = hn::MulAdd(factor, row[v], acc[i][v]);
    }
    b += b_stride;
  }
}
template <int kA>
HWY_INLINE void SegmentColumns(const float* HWY_RESTRICT a, int64_t a_stride, const float* HWY_RESTRICT b,
                               int64_t b_stride, int64_t num_k, VF (&acc)[kA][kBlockVectors]) {
  const DF d;
  for (int64_t k = 0; k < num_k; ++k) {
    VF row[kBlockVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kBlockVectors; ++v) row[v] = hn::Load(d, b + v * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < kA; ++i) {
      const VF factor = hn::Set(d, a[i]);
#pragma GCC unroll 16
      for (int v = 0; v < kBlockVectors; ++v) acc[i][v] = hn::MulAdd(factor, row[v], acc[i][v]);
    }
    a += a_stride;
    b += b_stride;
  }
}
#endif

// Keeps the compiler from computing the addresses of all rows beforehand, for which it has no registers.
HWY_INLINE float* NextRow(float* row, int64_t stride) {
  row += stride;
  asm("" : "+r"(row));  // NOLINT(hicpp-no-assembler): no instruction
  return row;
}

// kA rows of C, a block wide.
template <int kA, Stored kStored, bool kAccumulate>
HWY_INLINE void Block(const Product& p, const float* a, const float* b, float* c) {
  const DF d;
  VF acc[kA][kBlockVectors];
  float* row = c;
#pragma GCC unroll 16
  for (int i = 0; i < kA; ++i) {
#pragma GCC unroll 16
    for (int v = 0; v < kBlockVectors; ++v) acc[i][v] = kAccumulate ? hn::Load(d, row + v * kLanes) : hn::Zero(d);
    if constexpr (kAccumulate) row = NextRow(row, p.c_stride);
  }
  for (int64_t s = p.num_segments;;) {
    if constexpr (kStored == Stored::kRows) {
      SegmentRows<kA>(a, p.a_stride, b, p.b_stride, p.num_k, acc);
    } else {
      SegmentColumns<kA>(a, p.a_stride, b, p.b_stride, p.num_k, acc);
    }
    if (--s == 0) break;
    a += p.a_segment;
    b += p.b_segment;
  }
  row = c;
#pragma GCC unroll 16
  for (int i = 0; i < kA; ++i) {
#pragma GCC unroll 16
    for (int v = 0; v < kBlockVectors; ++v) hn::Store(acc[i][v], d, row + v * kLanes);
    row = NextRow(row, p.c_stride);
  }
}

// Blocks from the top of C down, a panel wide. What kBlockA leaves over is a multiple of kTail.
template <Stored kStored, bool kAccumulate>
HWY_NOINLINE void MultiplyPanel(const Product& product, const float* a, const float* b, float* c) {
  constexpr int kTail = kBlockA % 4 == 0 ? 4 : 2;
  const Product p = product;  // a copy that no store can change
  const int64_t a_step = kStored == Stored::kRows ? p.a_stride : 1;
  int64_t left = p.num_a;
  for (; left >= kBlockA; left -= kBlockA) {
    for (int64_t j = 0; j < kPanel; j += kBlockWidth) Block<kBlockA, kStored, kAccumulate>(p, a, b + j, c + j);
    a += kBlockA * a_step;
    c += kBlockA * p.c_stride;
  }
  for (; left > 0; left -= kTail) {
    for (int64_t j = 0; j < kPanel; j += kBlockWidth) Block<kTail, kStored, kAccumulate>(p, a, b + j, c + j);
    a += kTail * a_step;
    c += kTail * p.c_stride;
  }
}

template <Stored kStored>
void Multiply(const Product& p) {
  const auto* a = static_cast<const float*>(p.a);
  const auto* b = static_cast<const float*>(p.b);
  for (int64_t j = 0; j < p.width; j += kPanel) {
    if (p.accumulate) {
      MultiplyPanel<kStored, true>(p, a, b + j, p.c + j);
    } else {
      MultiplyPanel<kStored, false>(p, a, b + j, p.c + j);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::lanes::cpu
HWY_AFTER_NAMESPACE();
#endif
