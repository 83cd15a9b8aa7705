// Tensors in and out: strided rows of any float type become padded operands, sums become rows again.
#if defined(TESSERA_CPU_PACK_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_PACK_INL_H
#undef TESSERA_CPU_PACK_INL_H
#else
#define TESSERA_CPU_PACK_INL_H
#endif

#include <algorithm>
#include <cstring>

#include "base/tensor_row.h"
#include "hwy/highway.h"
#include "lanes/cpu/half-inl.h"
#include "lanes/cpu/kernel.h"
#include "lanes/cpu/operands-inl.h"
#include "lanes/cpu/products-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::lanes::cpu {
namespace HWY_NAMESPACE {

// Rows pass through the stack this many dims at a time: a contract's dims go far beyond what a stack holds.
constexpr int64_t kMostDims = 512;

HWY_INLINE VF LoadF32(const std::byte* row, ElementType type, int64_t at) {
  const DF d;
  if (type == ElementType::kF32) return hn::LoadU(d, reinterpret_cast<const float*>(row) + at);
  if (type == ElementType::kBf16) {
    const hn::Rebind<uint16_t, DF> dh;
    const DU du;
    const VU bits = hn::PromoteTo(du, hn::LoadU(dh, reinterpret_cast<const uint16_t*>(row) + at));
    return hn::BitCast(d, hn::ShiftLeft<16>(bits));
  }
  return LoadF16(reinterpret_cast<const uint16_t*>(row) + at);
}

// One row as f32, zeros from `dim` on. Says whether every value is finite.
inline bool ConvertRow(const PackRows& pack, int64_t row, float* HWY_RESTRICT to) {
  const DF d;
  const std::byte* from = pack.from + row * pack.from_stride * BytesOf(pack.type);
  const VF zero = hn::Zero(d);
  VF sum = zero;  // of x * 0: NaN as soon as one x is not finite
  int64_t at = 0;
  for (; at + kLanes <= pack.dim; at += kLanes) {
    const VF x = LoadF32(from, pack.type, at);
    sum = hn::MulAdd(x, zero, sum);
    hn::StoreU(x, d, to + at);
  }
  bool is_finite = hn::AllTrue(d, hn::Eq(sum, zero));
  for (; at < pack.dim; ++at) {
    to[at] = ScalarAt(from, pack.type, at);
    is_finite = is_finite && to[at] * 0.0F == 0.0F;
  }
  std::fill(to + at, to + pack.padded_dim, 0.0F);
  return is_finite;
}

// Rows that are zeros without being read: past the last, or dead.
HWY_INLINE bool IsZeroRow(const PackRows& pack, int64_t row) {
  return row >= pack.num_rows || (pack.dead != nullptr && pack.dead[row] != 0);
}

// Rows that were found not to be finite when other dims of them were looked at.
HWY_INLINE bool IsFlagged(const PackRows& pack, int64_t row) {
  return pack.not_finite != nullptr && pack.not_finite[row] != 0;
}

// The same with the rules for rows that are missing, dead or not finite.
inline void TakeRow(const PackRows& pack, int64_t row, float* HWY_RESTRICT to) {
  if (IsZeroRow(pack, row) || IsFlagged(pack, row)) {
    std::fill_n(to, pack.padded_dim, 0.0F);
    return;
  }
  const bool is_finite = ConvertRow(pack, row, to);
  if (is_finite || pack.not_finite == nullptr) return;
  pack.not_finite[row] = 1;
  std::fill_n(to, pack.padded_dim, 0.0F);
}

// Looks at rows of f32 without copying them.
inline void FlagF32Rows(const PackRows& pack) {
  const DF d;
  const VF zero = hn::Zero(d);
  for (int64_t row = 0; row < pack.num_rows; ++row) {
    const auto* from = reinterpret_cast<const float*>(pack.from) + row * pack.from_stride;
    VF sums[4] = {zero, zero, zero, zero};
    int64_t at = 0;
    for (; at + 4 * kLanes <= pack.dim; at += 4 * kLanes) {
      for (int i = 0; i < 4; ++i) sums[i] = hn::MulAdd(hn::LoadU(d, from + at + i * kLanes), zero, sums[i]);
    }
    for (; at + kLanes <= pack.dim; at += kLanes) sums[0] = hn::MulAdd(hn::LoadU(d, from + at), zero, sums[0]);
    const VF sum = hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3]));
    bool is_finite = hn::AllTrue(d, hn::Eq(sum, zero));
    for (; at < pack.dim; ++at) is_finite = is_finite && from[at] * 0.0F == 0.0F;
    if (!is_finite) pack.not_finite[row] = 1;
  }
}

// Flags every row that is not finite, whatever its type.
inline void FlagRows(const PackRows& pack) {
  const DF d;
  const VF zero = hn::Zero(d);
  for (int64_t row = 0; row < std::min(pack.num_rows, pack.padded_rows); ++row) {
    if (IsZeroRow(pack, row)) continue;
    const std::byte* from = pack.from + row * pack.from_stride * BytesOf(pack.type);
    VF sum = zero;
    int64_t at = 0;
    for (; at + kLanes <= pack.dim; at += kLanes) sum = hn::MulAdd(LoadF32(from, pack.type, at), zero, sum);
    bool is_finite = hn::AllTrue(d, hn::Eq(sum, zero));
    for (; at < pack.dim; ++at) is_finite = is_finite && ScalarAt(from, pack.type, at) * 0.0F == 0.0F;
    if (!is_finite) pack.not_finite[row] = 1;
  }
}

// Calls `take(part, first)` for stretches of dims that fit on the stack, `first` being the first of them; what a row
// comes to must not depend on where it is cut, so rows of several stretches are looked at beforehand.
template <class Take>
HWY_INLINE void ForEachDims(const PackRows& pack, const Take& take) {
  if (pack.padded_dim <= kMostDims) return take(pack, int64_t{0});
  if (pack.not_finite != nullptr) FlagRows(pack);
  for (int64_t first = 0; first < pack.padded_dim; first += kMostDims) {
    PackRows part = pack;
    part.from += std::min(first, pack.dim) * BytesOf(pack.type);
    part.dim = std::clamp<int64_t>(pack.dim - first, 0, kMostDims);
    part.padded_dim = std::min(pack.padded_dim - first, kMostDims);
    take(part, first);
  }
}

inline void PackF32Rows(const PackRows& pack) {
  for (int64_t row = 0; row < pack.padded_rows; ++row) {
    TakeRow(pack, row, static_cast<float*>(pack.to) + row * pack.to_stride);
  }
}

using D4 = hn::FixedTag<float, 4>;
using V4 = hn::Vec<D4>;

HWY_INLINE void Transpose4(V4 (&rows)[4]) {
  const D4 d;
  const V4 low02 = hn::InterleaveLower(d, rows[0], rows[2]);
  const V4 low13 = hn::InterleaveLower(d, rows[1], rows[3]);
  const V4 high02 = hn::InterleaveUpper(d, rows[0], rows[2]);
  const V4 high13 = hn::InterleaveUpper(d, rows[1], rows[3]);
  rows[0] = hn::InterleaveLower(d, low02, low13);
  rows[1] = hn::InterleaveUpper(d, low02, low13);
  rows[2] = hn::InterleaveLower(d, high02, high13);
  rows[3] = hn::InterleaveUpper(d, high02, high13);
}

// Rows and columns change places in squares as large as a vector allows: packing and finishing a panel are what short
// rows pay for beside their products.
#if HWY_TARGET == HWY_AVX3
constexpr int64_t kSquare = 16;
using DSquare = DF;
HWY_INLINE void TransposeSquare(VF (&rows)[kSquare]) {
  const DF d;
  // Within blocks of four lanes, then between neighbouring blocks, then between halves.
#pragma GCC unroll 16
  for (int i = 0; i < 16; i += 4) {
    const VF low02 = hn::InterleaveLower(d, rows[i], rows[i + 2]);
    const VF low13 = hn::InterleaveLower(d, rows[i + 1], rows[i + 3]);
    const VF high02 = hn::InterleaveUpper(d, rows[i], rows[i + 2]);
    const VF high13 = hn::InterleaveUpper(d, rows[i + 1], rows[i + 3]);
    rows[i] = hn::InterleaveLower(d, low02, low13);
    rows[i + 1] = hn::InterleaveUpper(d, low02, low13);
    rows[i + 2] = hn::InterleaveLower(d, high02, high13);
    rows[i + 3] = hn::InterleaveUpper(d, high02, high13);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    if ((i & 4) != 0) continue;
    const VF a = rows[i];
    const VF b = rows[i + 4];
    rows[i] = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(b), a);
    rows[i + 4] = hn::OddEvenBlocks(b, hn::SwapAdjacentBlocks(a));
  }
#pragma GCC unroll 16
  for (int i = 0; i < 8; ++i) {
    const VF a = rows[i];
    const VF b = rows[i + 8];
    rows[i] = hn::ConcatLowerLower(d, b, a);
    rows[i + 8] = hn::ConcatUpperUpper(d, b, a);
  }
}
#else
constexpr int64_t kSquare = 4;
using DSquare = D4;
HWY_INLINE void TransposeSquare(V4 (&rows)[kSquare]) { Transpose4(rows); }
#endif
using VSquare = hn::Vec<DSquare>;

// Four rows of `count` 32-bit values, side by side in `from`, to columns of `to`.
HWY_INLINE void ScatterFour(const float* HWY_RESTRICT from, int64_t from_stride, int64_t count, float* HWY_RESTRICT to,
                            int64_t to_stride) {
  const D4 d;
  for (int64_t at = 0; at < count; at += 4) {
    V4 rows[4];
    for (int i = 0; i < 4; ++i) rows[i] = hn::LoadU(d, from + i * from_stride + at);
    Transpose4(rows);
    for (int i = 0; i < 4; ++i) hn::StoreU(rows[i], d, to + (at + i) * to_stride);
  }
}

// Rows of f32 that need nothing but a factor, read where they lie.
inline void PackSquares(const PackRows& pack, int64_t row) {
  const DSquare d;
  const VSquare factor = hn::Set(d, pack.factor);
  const float* from = reinterpret_cast<const float*>(pack.from) + row * pack.from_stride;
  for (int64_t at = 0; at < pack.dim; at += kSquare) {
    VSquare rows[kSquare];
#pragma GCC unroll 16
    for (int i = 0; i < kSquare; ++i) rows[i] = hn::Mul(hn::LoadU(d, from + i * pack.from_stride + at), factor);
    TransposeSquare(rows);
#pragma GCC unroll 16
    for (int i = 0; i < kSquare; ++i) hn::StoreU(rows[i], d, static_cast<float*>(pack.to) + (at + i) * kPanel + row);
  }
}

inline void PackF32PanelDims(const PackRows& pack) {
  const DF d;
  const VF factor = hn::Set(d, pack.factor);
  const bool lies_right = pack.type == ElementType::kF32 && pack.dead == nullptr && pack.not_finite == nullptr &&
                          pack.dim == pack.padded_dim && pack.dim % kSquare == 0;
  alignas(64) float four[4 * kMostDims];
  int64_t row = 0;
  for (; lies_right && row + kSquare <= pack.num_rows; row += kSquare) PackSquares(pack, row);
  for (; row < kPanel; row += 4) {
    for (int64_t i = 0; i < 4; ++i) {
      float* to = four + i * kMostDims;
      TakeRow(pack, row + i, to);
      for (int64_t at = 0; at < pack.padded_dim; at += kLanes) {
        hn::Store(hn::Mul(hn::Load(d, to + at), factor), d, to + at);
      }
    }
    ScatterFour(four, kMostDims, pack.padded_dim, static_cast<float*>(pack.to) + row, kPanel);
  }
}

// At most a panel of rows.
inline void PackF32Panel(const PackRows& pack) {
  ForEachDims(pack, [](PackRows part, int64_t first) HWY_ATTR {
    part.to = static_cast<float*>(part.to) + first * kPanel;
    PackF32PanelDims(part);
  });
}

inline void StoreRow(const float* HWY_RESTRICT from, int64_t dim, ElementType type, std::byte* to) {
  const DF d;
  int64_t at = 0;
  if (type == ElementType::kF32) {
    std::memcpy(to, from, static_cast<size_t>(dim) * sizeof(float));
    return;
  }
  auto* halves = reinterpret_cast<uint16_t*>(to);
  if (type == ElementType::kBf16) {
    for (; at + kLanes <= dim; at += kLanes) {
      StoreUpper(RoundBf16(hn::LoadU(d, from + at)), halves + at);
    }
    for (; at < dim; ++at) halves[at] = F32ToBf16(from[at]);
    return;
  }
  for (; at + kLanes <= dim; at += kLanes) StoreF16(hn::LoadU(d, from + at), halves + at);
  for (; at < dim; ++at) halves[at] = F32ToF16(from[at]);
}

// The same from a panel to rows of f32.
inline void StoreSquares(const FinishPanel& finish, int64_t row) {
  const DSquare d;
  const VSquare factors = hn::LoadU(d, finish.factors + row);
  float* to = reinterpret_cast<float*>(finish.to) + row * finish.to_stride;
  for (int64_t at = 0; at < finish.dim; at += kSquare) {
    VSquare rows[kSquare];
#pragma GCC unroll 16
    for (int i = 0; i < kSquare; ++i) rows[i] = hn::Mul(hn::LoadU(d, finish.sums + (at + i) * kPanel + row), factors);
    TransposeSquare(rows);
#pragma GCC unroll 16
    for (int i = 0; i < kSquare; ++i) hn::StoreU(rows[i], d, to + i * finish.to_stride + at);
  }
}

inline void StorePanelDims(const FinishPanel& finish) {
  const D4 d;
  alignas(64) float four[4 * kMostDims];
  const bool lies_right = finish.type == ElementType::kF32 && finish.dim % kSquare == 0;
  int64_t row = 0;
  for (; lies_right && row + kSquare <= finish.num_rows; row += kSquare) StoreSquares(finish, row);
  for (; row < finish.num_rows; row += 4) {
    const V4 factors = hn::LoadU(d, finish.factors + row);
    for (int64_t at = 0; at < finish.dim; at += 4) {
      V4 rows[4];
      for (int i = 0; i < 4; ++i) {
        rows[i] = hn::Mul(hn::LoadU(d, finish.sums + (at + i) * kPanel + row), factors);
      }
      Transpose4(rows);
      for (int i = 0; i < 4; ++i) hn::StoreU(rows[i], d, four + i * kMostDims + at);
    }
    for (int64_t i = 0; i < std::min<int64_t>(4, finish.num_rows - row); ++i) {
      std::byte* to = finish.to + (row + i) * finish.to_stride * BytesOf(finish.type);
      StoreRow(four + i * kMostDims, finish.dim, finish.type, to);
    }
  }
}

inline void StorePanel(const FinishPanel& finish) {
  for (int64_t first = 0; first < finish.dim; first += kMostDims) {
    FinishPanel part = finish;
    part.sums += first * kPanel;
    part.dim = std::min(finish.dim - first, kMostDims);
    part.to += first * BytesOf(finish.type);
    StorePanelDims(part);
  }
}

inline void StoreRows(const FinishRows& finish) {
  const DF d;
  alignas(64) float scaled[kMostDims];
  const VF factor = hn::Set(d, finish.factor);
  for (int64_t row = 0; row < finish.num_rows; ++row) {
    for (int64_t first = 0; first < finish.dim; first += kMostDims) {
      const float* from = finish.sums + row * finish.sums_stride + first;
      const int64_t dim = std::min(finish.dim - first, kMostDims);
      for (int64_t at = 0; at < dim; at += kLanes) {
        hn::Store(hn::Mul(hn::LoadU(d, from + at), factor), d, scaled + at);
      }
      StoreRow(scaled, dim, finish.type, finish.to + (row * finish.to_stride + first) * BytesOf(finish.type));
    }
  }
}

inline void DotRows(const RowDots& args) {
  const DF d;
  for (int64_t row = 0; row < args.num_rows; ++row) {
    args.dots[row] = 0.0F;
    if (args.dead[row] != 0) continue;
    const std::byte* a = args.a + row * args.a_stride * BytesOf(args.a_type);
    const std::byte* b = args.b + row * args.b_stride * BytesOf(args.b_type);
    VF sum = hn::Zero(d);
    int64_t at = 0;
    for (; at + kLanes <= args.dim; at += kLanes) {
      sum = hn::MulAdd(LoadF32(a, args.a_type, at), LoadF32(b, args.b_type, at), sum);
    }
    float total = hn::GetLane(hn::SumOfLanes(d, sum));
    for (; at < args.dim; ++at) total += ScalarAt(a, args.a_type, at) * ScalarAt(b, args.b_type, at);
    args.dots[row] = total;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::lanes::cpu
HWY_AFTER_NAMESPACE();
#endif
