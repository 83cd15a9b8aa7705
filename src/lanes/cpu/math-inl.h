// exp2 and tanh on vectors, written once for every instruction set. Re-included per target by kernels.cc (and by the
// test that holds the error bounds stated here); no include guard of the usual kind.
#if defined(TESSERA_CPU_MATH_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_MATH_INL_H
#undef TESSERA_CPU_MATH_INL_H
#else
#define TESSERA_CPU_MATH_INL_H
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::lanes::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;

// The larger (smaller) of both, NaN when x is: Highway's Max keeps a NaN on one machine and drops it on another.
HWY_INLINE VF AtLeast(VF limit, VF x) {
#if HWY_TARGET == HWY_NEON
  return VF(vmaxq_f32(limit.raw, x.raw));
#elif HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  return hn::Max(limit, x);  // the instruction gives its second operand when either is NaN
#else
  return hn::IfThenElse(hn::Lt(x, limit), limit, x);
#endif
}
HWY_INLINE VF AtMost(VF limit, VF x) {
#if HWY_TARGET == HWY_NEON
  return VF(vminq_f32(limit.raw, x.raw));
#elif HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  return hn::Min(limit, x);
#else
  return hn::IfThenElse(hn::Gt(x, limit), limit, x);
#endif
}

// A constant that a multiply-add adds to. NEON overwrites the addend, so that a constant kept in a register has to be
// copied first, on the units that do the arithmetic; loading it again leaves them free.
struct alignas(16) Addends {
  float values[3][4];
};
inline constexpr Addends kExp2Addends = {
    {{0.00967554133421079F, 0.00967554133421079F, 0.00967554133421079F, 0.00967554133421079F},
     {0.24022119723848648F, 0.24022119723848648F, 0.24022119723848648F, 0.24022119723848648F},
     {1.0F, 1.0F, 1.0F, 1.0F}}};
template <int kIndex>
HWY_INLINE VF Addend() {
#if HWY_TARGET == HWY_NEON
  const float* at = kExp2Addends.values[kIndex];
  asm volatile("" : "+r"(at));  // NOLINT(hicpp-no-assembler): no instruction
  return hn::Load(DF(), at);
#else
  return hn::Set(DF(), kExp2Addends.values[kIndex][0]);
#endif
}

// 2^x for x <= 128, with a relative error below 3e-7 where the result is a normal number; NaN stays NaN. Exactly 0
// below -126.5, so that -inf (a masked score) gives 0, and infinity above 127.5. A minimax polynomial of degree 5 on
// [-1/2, 1/2]; the integer part becomes the exponent bits of a factor, which is 0 for -127 and infinity for 128.
//
// Several vectors go through every step together: one alone would wait for its own results.
template <int kCount>
HWY_INLINE void Exp2(VF (&x)[kCount]) {
  const DF d;
  const hn::RebindToSigned<DF> di;
  // Adding it leaves the nearest integer, plus the exponent's bias, in the low bits.
  const VF magic = hn::Set(d, 12582912.0F + 127.0F);
  VF factor[kCount];
  VF p[kCount];
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) x[i] = AtLeast(hn::Set(d, -127.0F), x[i]);
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) factor[i] = hn::Add(x[i], magic);
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) x[i] = hn::Sub(x[i], hn::Sub(factor[i], magic));
  // Pairs of terms first: shorter chains, and where a multiply-add overwrites its addend, fewer copies of constants.
  VF u[kCount];
  VF high[kCount];
  VF low[kCount];
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) high[i] = hn::MulAdd(x[i], hn::Set(d, 0.00132764719791664F), Addend<0>());
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) u[i] = hn::Mul(x[i], x[i]);
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) low[i] = hn::MulAdd(x[i], hn::Set(d, 0.05550713273543588F), Addend<1>());
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) p[i] = hn::MulAdd(x[i], hn::Set(d, 0.6931469670647326F), Addend<2>());
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) low[i] = hn::MulAdd(high[i], u[i], low[i]);
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) p[i] = hn::MulAdd(low[i], u[i], p[i]);
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) factor[i] = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, factor[i])));
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) x[i] = hn::Mul(p[i], factor[i]);
}

HWY_INLINE VF Exp2(VF x) {
  VF one[1] = {x};
  Exp2(one);
  return one[0];
}

// 1 / x for x in [1, 2^20], to the last bit or two: a division is slow where two steps from an estimate are not.
HWY_INLINE VF Reciprocal(VF x) {
#if HWY_TARGET == HWY_NEON || HWY_TARGET == HWY_AVX3
  const VF two = hn::Set(DF(), 2.0F);
  VF y = hn::ApproximateReciprocal(x);
  y = hn::Mul(y, hn::NegMulAdd(x, y, two));
  return hn::Mul(y, hn::NegMulAdd(x, y, two));
#else
  return hn::Div(hn::Set(DF(), 1.0F), x);
#endif
}

// tanh x with a relative error below 4e-7, for any x; NaN stays NaN. x * P(x^2) / Q(x^2) up to 9.02, where tanh is 1 to
// the last bit.
HWY_INLINE VF Tanh(VF x) {
  const DF d;
  x = AtLeast(hn::Set(d, -9.02F), AtMost(hn::Set(d, 9.02F), x));
  const VF u = hn::Mul(x, x);
  VF p = hn::Set(d, 1.3319151935676237e-08F);
  p = hn::MulAdd(p, u, hn::Set(d, 2.0583545261936716e-05F));
  p = hn::MulAdd(p, u, hn::Set(d, 0.003494038745839313F));
  p = hn::MulAdd(p, u, hn::Set(d, 0.13379721588463608F));
  p = hn::MulAdd(p, u, hn::Set(d, 0.9999999790767973F));
  VF q = hn::Set(d, 7.762054010498394e-07F);
  q = hn::MulAdd(q, u, hn::Set(d, 0.00032830994680570804F));
  q = hn::MulAdd(q, u, hn::Set(d, 0.02587108948199912F));
  q = hn::MulAdd(q, u, hn::Set(d, 0.46713036845260814F));
  q = hn::MulAdd(q, u, hn::Set(d, 1.0F));
  return hn::Mul(hn::Mul(x, p), Reciprocal(q));
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::lanes::cpu
HWY_AFTER_NAMESPACE();
#endif
