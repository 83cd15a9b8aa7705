// f16 in and out of f32 vectors, with IEEE rounding, infinity and NaN. Where the instruction set has no conversions,
// Highway's own cut bits off instead of rounding and take infinity for a number, so they are written out here.
#if defined(TESSERA_CPU_HALF_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_HALF_INL_H
#undef TESSERA_CPU_HALF_INL_H
#else
#define TESSERA_CPU_HALF_INL_H
#endif

#include "hwy/highway.h"
#include "lanes/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::lanes::cpu {
namespace HWY_NAMESPACE {

using DU = hn::RebindToUnsigned<DF>;
using VU = hn::Vec<DU>;

#if HWY_TARGET == HWY_SSE4
// The bits of an f16 in the lower half of each lane.
HWY_INLINE VF WidenF16(VU half) {
  const DF d;
  const DU du;
  const VU size = hn::And(half, hn::Set(du, 0x7FFF));
  const VU shifted = hn::ShiftLeft<13>(size);
  // A subnormal has no leading one: given one, it is taken away again as a number, which leaves an exact f32.
  const VF least = hn::BitCast(d, hn::Set(du, 0x38800000));  // 2^-14, the least normal number
  const VF subnormal = hn::Sub(hn::BitCast(d, hn::Add(shifted, hn::Set(du, 0x38800000))), least);
  const VU normal = hn::Add(shifted, hn::Set(du, 0x38000000));  // the difference of the exponents' biases
  const VU special = hn::Add(shifted, hn::Set(du, 0x70000000));
  const VU finite = hn::IfThenElse(hn::Lt(size, hn::Set(du, 0x0400)), hn::BitCast(du, subnormal), normal);
  const VU value = hn::IfThenElse(hn::Lt(size, hn::Set(du, 0x7C00)), finite, special);
  return hn::BitCast(d, hn::Or(value, hn::ShiftLeft<16>(hn::Sub(half, size))));
}

// The nearest f16, as its bits.
HWY_INLINE VU NarrowF16(VF x) {
  const DF d;
  const DU du;
  const VU bits = hn::BitCast(du, x);
  const VU size = hn::And(bits, hn::Set(du, 0x7FFFFFFF));
  const VU odd = hn::And(hn::ShiftRight<13>(size), hn::Set(du, 1));
  const VU rounded = hn::Add(size, hn::Add(odd, hn::Set(du, 0x0FFF)));
  const VU normal = hn::ShiftRight<13>(hn::Sub(rounded, hn::Set(du, 0x38000000)));
  // Added to 1/2, the last bit of a sum stands for 2^-24, as that of a subnormal f16 does.
  const VF sum = hn::Add(hn::BitCast(d, size), hn::Set(d, 0.5F));
  const VU subnormal = hn::Sub(hn::BitCast(du, sum), hn::Set(du, 0x3F000000));
  VU half = hn::IfThenElse(hn::Lt(size, hn::Set(du, 0x38800000)), subnormal, normal);
  half = hn::IfThenElse(hn::Lt(size, hn::Set(du, 0x477FF000)), half, hn::Set(du, 0x7C00));  // from 65520 on, infinity
  half = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(x)), hn::Set(du, 0x7E00), half);
  return hn::Or(half, hn::ShiftRight<16>(hn::Xor(bits, size)));
}

HWY_INLINE VF LoadF16(const uint16_t* from) {
  const hn::Rebind<uint16_t, DF> dh;
  return WidenF16(hn::PromoteTo(DU(), hn::LoadU(dh, from)));
}
HWY_INLINE void StoreF16(VF x, uint16_t* to) {
  const hn::Rebind<uint16_t, DF> dh;
  hn::StoreU(hn::DemoteTo(dh, hn::BitCast(hn::RebindToSigned<DF>(), NarrowF16(x))), dh, to);
}
HWY_INLINE VF RoundF16(VF x) { return WidenF16(NarrowF16(x)); }
#else
HWY_INLINE VF LoadF16(const uint16_t* from) {
  const hn::Rebind<hwy::float16_t, DF> dh;
  return hn::PromoteTo(DF(), hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(from)));
}
HWY_INLINE void StoreF16(VF x, uint16_t* to) {
  const hn::Rebind<hwy::float16_t, DF> dh;
  hn::StoreU(hn::DemoteTo(dh, x), dh, reinterpret_cast<hwy::float16_t*>(to));
}
HWY_INLINE VF RoundF16(VF x) {
  const hn::Rebind<hwy::float16_t, DF> dh;
  return hn::PromoteTo(DF(), hn::DemoteTo(dh, x));
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace tessera::lanes::cpu
HWY_AFTER_NAMESPACE();
#endif
