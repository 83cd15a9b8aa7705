// How probabilities and score gradients become operands of the next product: rounded to the inputs' type, and stored
// as that product's unit reads them.
#if defined(TESSERA_CPU_OPERANDS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_OPERANDS_INL_H
#undef TESSERA_CPU_OPERANDS_INL_H
#else
#define TESSERA_CPU_OPERANDS_INL_H
#endif

#include "hwy/highway.h"
#include "lanes/cpu/half-inl.h"
#include "lanes/cpu/kernel.h"
#include "lanes/cpu/products-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::lanes::cpu {
namespace HWY_NAMESPACE {

// The nearest bf16, as the upper half of each lane; the lower half is noise. NaN stays NaN.
HWY_INLINE VU RoundBf16(VF x) {
  const DU du;
  const VU bits = hn::BitCast(du, x);
  const VU odd = hn::ShiftRight<31>(hn::ShiftLeft<15>(bits));  // shifted so, because Arm shifts and adds in one
  const VU rounded = hn::Add(hn::Add(bits, hn::Set(du, 0x7FFF)), odd);
  return hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(x)), hn::Set(du, 0x7FC00000), rounded);
}

struct RoundNot {
  static HWY_INLINE VF Round(VF x) { return x; }
  static HWY_INLINE VF RoundGradient(VF x) { return x; }
};
struct RoundToBf16 {
  static HWY_INLINE VF Round(VF x) { return hn::BitCast(DF(), hn::And(RoundBf16(x), hn::Set(DU(), 0xFFFF0000))); }
  static HWY_INLINE VF RoundGradient(VF x) { return Round(x); }
};
struct RoundToF16 {
  static HWY_INLINE VF Round(VF x) { return RoundF16(x); }
  // A score gradient may be beyond what f16 holds where no result is, so it stays as it is.
  static HWY_INLINE VF RoundGradient(VF x) { return x; }
};

// Where vector i of kRows x kWide lies, from the first.
template <class Operand>
constexpr int64_t AtCount(int i) {
  return i / Operand::kWide * kPanel + i % Operand::kWide * kLanes;
}

// Operands stay f32, rounded where the inputs' type is narrower, in the place they were computed in.
template <class Rounding>
struct F32Operand {
  static constexpr bool kScaled = true;   // queries were multiplied by the scale when they were packed
  static constexpr int kRows = 1;         // keys and
  static constexpr int kWide = kVectors;  // vectors of queries that are stored together
  static HWY_INLINE void StoreB(const VF (&p)[kWide], const SoftmaxStep& step, int32_t row, int /*v*/) {
    float* at = step.scores + int64_t{row} * kPanel;
    for (int v = 0; v < kVectors; ++v) hn::Store(Rounding::Round(p[v]), DF(), at + v * kLanes);
  }
  static HWY_INLINE void StoreGradients(const VF (&p)[kWide], const VF (&ds)[kWide], const GradientStep& step,
                                        int32_t row, int /*v*/) {
    const DF d;
    const int64_t at = int64_t{row} * kPanel;
    for (int v = 0; v < kVectors; ++v) {
      hn::Store(Rounding::Round(p[v]), d, step.scores + at + v * kLanes);
      hn::Store(Rounding::RoundGradient(ds[v]), d, step.grads + at + v * kLanes);
    }
  }
};

// Two keys of a query as one word, the first in the lower half, from their rounded values.
HWY_INLINE VU PairOf(VU first, VU second) {
#if HWY_TARGET == HWY_NEON
  return VU(vsriq_n_u32(second.raw, first.raw, 16));
#else
  return hn::Or(hn::ShiftRight<16>(first), hn::And(second, hn::Set(DU(), 0xFFFF0000)));
#endif
}

// The upper halves of a vector, as narrow ones.
HWY_INLINE void StoreUpper(VU rounded, uint16_t* to) {
  const hn::Rebind<uint16_t, DU> dh;
  const hn::RebindToSigned<DU> di;
  hn::StoreU(hn::DemoteTo(dh, hn::BitCast(di, hn::ShiftRight<16>(rounded))), dh, to);
}

// The f32 values, unrounded, where they were: what repairs of values that are not finite read.
template <class Operand, int kCount>
HWY_INLINE void StoreBack(const VF (&x)[kCount], float* to) {
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) hn::Store(x[i], DF(), to + AtCount<Operand>(i));
}

// Operands are bf16: B as pairs of keys, A as plain rows.
struct Bf16Pairs {
  static constexpr bool kScaled = false;
  static constexpr int kRows = 2;
  static constexpr int kWide = kVectors;
  static constexpr int kCount = kRows * kWide;
  static HWY_INLINE void StorePairs(const VU (&rounded)[kCount], void* operand, int32_t row) {
    for (int v = 0; v < kWide; ++v) {
      hn::StoreU(PairOf(rounded[v], rounded[kWide + v]), DU(),
                 static_cast<uint32_t*>(operand) + row / 2 * kPanel + v * kLanes);
    }
  }
  static HWY_INLINE void StoreRows(const VU (&rounded)[kCount], void* operand, int32_t row) {
    for (int i = 0; i < kCount; ++i) {
      StoreUpper(rounded[i], static_cast<uint16_t*>(operand) + row * kPanel + AtCount<Bf16Pairs>(i));
    }
  }
  static HWY_INLINE void StoreB(const VF (&p)[kCount], const SoftmaxStep& step, int32_t row, int /*v*/) {
    StoreBack<Bf16Pairs>(p, step.scores + int64_t{row} * kPanel);
    VU rounded[kCount];
    for (int i = 0; i < kCount; ++i) rounded[i] = RoundBf16(p[i]);
    StorePairs(rounded, step.operand, row);
  }
  static HWY_INLINE void StoreGradients(const VF (&p)[kCount], const VF (&ds)[kCount], const GradientStep& step,
                                        int32_t row, int /*v*/) {
    StoreBack<Bf16Pairs>(p, step.scores + int64_t{row} * kPanel);
    StoreBack<Bf16Pairs>(ds, step.grads + int64_t{row} * kPanel);
    VU rounded[kCount];
    for (int i = 0; i < kCount; ++i) rounded[i] = RoundBf16(p[i]);
    StoreRows(rounded, step.prob_rows, row);
    for (int i = 0; i < kCount; ++i) rounded[i] = RoundBf16(ds[i]);
    StoreRows(rounded, step.grad_rows, row);
    StorePairs(rounded, step.grad_pairs, row);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace tessera::lanes::cpu
HWY_AFTER_NAMESPACE();
#endif
