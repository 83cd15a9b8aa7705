// How probabilities and score gradients become operands of the next product: rounded to the inputs' type, and stored
// as that product's unit reads them.
#if defined(TESSERA_CPU_OPERANDS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_OPERANDS_INL_H_
#undef TESSERA_CPU_OPERANDS_INL_H_
#else
#define TESSERA_CPU_OPERANDS_INL_H_
#endif

#include "hwy/highway.h"
#include "lanes/cpu/kernel.h"
#include "lanes/cpu/products-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::lanes::cpu {
namespace HWY_NAMESPACE {

using DU = hn::RebindToUnsigned<DF>;
using VU = hn::Vec<DU>;

// The nearest bf16, as the upper half of each lane; the lower half is noise. NaN stays NaN.
HWY_INLINE VU RoundBf16(VF x) {
  const DU du;
  const VU bits = hn::BitCast(du, x);
  const VU odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const VU rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7FFF)));
  return hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(x)), hn::Set(du, 0x7FC00000), rounded);
}

struct RoundNot {
  static HWY_INLINE VF Round(VF x) { return x; }
};
struct RoundToBf16 {
  static HWY_INLINE VF Round(VF x) { return hn::BitCast(DF(), hn::And(RoundBf16(x), hn::Set(DU(), 0xFFFF0000))); }
};
// SSE4 has no f16 conversions, and Highway's substitute does not round to nearest: one by one then.
#if HWY_TARGET == HWY_SSE4
HWY_INLINE VF LoadF16(const uint16_t* from) {
  alignas(16) const float four[4] = {F16ToF32(from[0]), F16ToF32(from[1]), F16ToF32(from[2]), F16ToF32(from[3])};
  return hn::Load(DF(), four);
}
HWY_INLINE void StoreF16(VF x, uint16_t* to) {
  alignas(16) float four[4];
  hn::Store(x, DF(), four);
  for (int i = 0; i < 4; ++i) to[i] = F32ToF16(four[i]);
}
#else
HWY_INLINE VF LoadF16(const uint16_t* from) {
  const hn::Rebind<hwy::float16_t, DF> dh;
  return hn::PromoteTo(DF(), hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(from)));
}
HWY_INLINE void StoreF16(VF x, uint16_t* to) {
  const hn::Rebind<hwy::float16_t, DF> dh;
  hn::StoreU(hn::DemoteTo(dh, x), dh, reinterpret_cast<hwy::float16_t*>(to));
}
#endif

struct RoundToF16 {
  static HWY_INLINE VF Round(VF x) {
    uint16_t halves[hn::MaxLanes(DF())];
    StoreF16(x, halves);
    return LoadF16(halves);
  }
};

// Operands stay f32, rounded where the inputs' type is narrower, in the place they were computed in.
template <class Rounding>
struct F32Operand {
  static constexpr bool kScaled = true;  // queries were multiplied by the scale when they were packed
  static constexpr int kRows = 1;
  static HWY_INLINE void StoreB(const VF (&p)[kVectors], float* at, void* /*operand*/, int32_t /*row*/) {
    for (int v = 0; v < kVectors; ++v) hn::Store(Rounding::Round(p[v]), DF(), at + v * kLanes);
  }
  static HWY_INLINE void StoreGradients(const VF (&p)[kVectors], const VF (&ds)[kVectors], const GradientStep& step,
                                        int32_t row) {
    const DF d;
    const int64_t at = int64_t{row} * kPanel;
    for (int v = 0; v < kVectors; ++v) {
      hn::Store(Rounding::Round(p[v]), d, step.scores + at + v * kLanes);
      hn::Store(Rounding::Round(ds[v]), d, step.grads + at + v * kLanes);
    }
  }
};

// Operands are bf16: B as pairs of keys, A as rows. The f32 values stay where they were.
struct Bf16Operand {
  static constexpr bool kScaled = false;
  static constexpr int kRows = 2;
  static HWY_INLINE VU Pair(VU first, VU second) {
    return hn::Or(hn::ShiftRight<16>(first), hn::And(second, hn::Set(DU(), 0xFFFF0000)));
  }
  static HWY_INLINE void StorePair(VU pair, void* operand, int32_t row, int v) {
    hn::StoreU(pair, DU(), static_cast<uint32_t*>(operand) + (row / 2) * kPanel + v * kLanes);
  }
  static HWY_INLINE void StoreRow(VU rounded, void* operand, int64_t at) {
    const hn::Rebind<uint16_t, DU> dh;
    const hn::RebindToSigned<DU> di;
    hn::StoreU(hn::DemoteTo(dh, hn::BitCast(di, hn::ShiftRight<16>(rounded))), dh,
               static_cast<uint16_t*>(operand) + at);
  }
  static HWY_INLINE void StoreB(const VF (&p)[2 * kVectors], float* at, void* operand, int32_t row) {
    for (int i = 0; i < 2 * kVectors; ++i) hn::Store(p[i], DF(), at + i * kLanes);
    for (int v = 0; v < kVectors; ++v) {
      StorePair(Pair(RoundBf16(p[v]), RoundBf16(p[kVectors + v])), operand, row, v);
    }
  }
  static HWY_INLINE void StoreGradients(const VF (&p)[2 * kVectors], const VF (&ds)[2 * kVectors],
                                        const GradientStep& step, int32_t row) {
    const DF d;
    VU rounded[2 * kVectors];
    for (int i = 0; i < 2 * kVectors; ++i) {
      const int64_t at = int64_t{row} * kPanel + i * kLanes;
      hn::Store(p[i], d, step.scores + at);
      hn::Store(ds[i], d, step.grads + at);
      StoreRow(RoundBf16(p[i]), step.prob_rows, at);
      rounded[i] = RoundBf16(ds[i]);
      StoreRow(rounded[i], step.grad_rows, at);
    }
    for (int v = 0; v < kVectors; ++v) StorePair(Pair(rounded[v], rounded[kVectors + v]), step.grad_pairs, row, v);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace tessera::lanes::cpu
HWY_AFTER_NAMESPACE();
#endif
