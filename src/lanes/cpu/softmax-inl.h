// The work between the products: scores become probabilities (forward), or probabilities and score gradients
// (backward), for one panel of queries and a stretch of keys. Masks are tested only where not every query sees a key.
#if defined(TESSERA_CPU_SOFTMAX_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_SOFTMAX_INL_H
#undef TESSERA_CPU_SOFTMAX_INL_H
#else
#define TESSERA_CPU_SOFTMAX_INL_H
#endif

#include <algorithm>
#include <limits>

#include "hwy/highway.h"
#include "lanes/cpu/kernel.h"
#include "lanes/cpu/operands-inl.h"
#include "lanes/cpu/products-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::lanes::cpu {
namespace HWY_NAMESPACE {

using DI = hn::RebindToSigned<DF>;
using VI = hn::Vec<DI>;
using MF = hn::Mask<DF>;

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

// Tests keys against the panel's vectors of queries.
class KeyTest {
 public:
  explicit KeyTest(const StepMask& mask) : cells_(mask.cells) {
    const DI di;
    for (int v = 0; v < kVectors; ++v) {
      begin_[v] = hn::LoadU(di, mask.begin + v * kLanes);
      end_[v] = hn::LoadU(di, mask.end + v * kLanes);
    }
  }
  HWY_INLINE MF Sees(int32_t key, int v) const {
    const DI di;
    const DF d;
    if (cells_ != nullptr) {
      const hn::Rebind<uint8_t, DI> du8;
      const VI cells = hn::PromoteTo(di, hn::LoadU(du8, cells_ + key * kPanel + v * kLanes));
      return hn::RebindMask(d, hn::Gt(cells, hn::Zero(di)));
    }
    const VI k = hn::Set(di, key);
    return hn::RebindMask(d, hn::AndNot(hn::Lt(k, begin_[v]), hn::Lt(k, end_[v])));
  }

 private:
  const uint8_t* cells_;
  VI begin_[kVectors];
  VI end_[kVectors];
};

// Rows of a step, [0, num_keys), as a stretch to test, one where all is seen, and a stretch to test.
struct Stretches {
  int32_t inner_begin;
  int32_t inner_end;
};
HWY_INLINE Stretches StretchesOf(const StepMask& mask, int32_t num_keys) {
  const int32_t begin = std::clamp(mask.inner_begin - mask.first, 0, num_keys);
  return {begin, std::clamp(mask.inner_end - mask.first, begin, num_keys)};
}

// What still has to happen to scores before they are logits in base 2.
enum class Logits { kReady, kScaleLater, kScaleNow, kSoftcap };

template <class Operand>
Logits LogitsOf(const ScoreFunction& score) {
  if (score.has_softcap) return Logits::kSoftcap;
  if (Operand::kScaled) return Logits::kReady;
  // A maximum of scores is that of logits only when the scale is positive.
  return score.scale_log2 > 0.0F ? Logits::kScaleLater : Logits::kScaleNow;
}

// Scores to logits where that cannot wait, masked, with their maximum.
template <class Operand, Logits kLogits, bool kTest>
HWY_INLINE void MaxRows(const SoftmaxStep& step, const KeyTest& test, int32_t begin, int32_t end, VF (&max)[kVectors]) {
  const DF d;
  const VF minus_inf = hn::Set(d, kMinusInf);
  const VF scale = hn::Set(d, step.score.scale_log2);
  const VF inner = hn::Set(d, step.score.inner);
  const VF cap = hn::Set(d, step.score.cap_log2);
  for (int32_t row = begin; row < end; ++row) {
    float* at = step.scores + row * kPanel;
    for (int v = 0; v < kVectors; ++v) {
      VF x = hn::Load(d, at + v * kLanes);
      if constexpr (kLogits == Logits::kSoftcap) x = hn::Mul(cap, Tanh(Operand::kScaled ? x : hn::Mul(inner, x)));
      if constexpr (kLogits == Logits::kScaleNow) x = hn::Mul(scale, x);
      if constexpr (kTest) x = hn::IfThenElse(test.Sees(step.mask.first + row, v), x, minus_inf);
      if constexpr (kTest || kLogits == Logits::kScaleNow || kLogits == Logits::kSoftcap)
        hn::Store(x, d, at + v * kLanes);
      max[v] = hn::Max(max[v], x);
    }
  }
}

template <class Operand, Logits kLogits>
HWY_INLINE void MaxAllRows(const SoftmaxStep& step, VF (&max)[kVectors]) {
  const KeyTest test(step.mask);
  const Stretches at = StretchesOf(step.mask, step.num_keys);
  MaxRows<Operand, kLogits, true>(step, test, 0, at.inner_begin, max);
  MaxRows<Operand, kLogits, false>(step, test, at.inner_begin, at.inner_end, max);
  MaxRows<Operand, kLogits, true>(step, test, at.inner_end, step.num_keys, max);
}

// A comparison drops a NaN on some machines and keeps it on others; who wants the maximum gets told.
HWY_INLINE void NoteNan(const SoftmaxStep& step) {
  const DF d;
  for (int v = 0; v < kVectors; ++v) {
    VF sum = hn::Zero(d);
    for (int32_t row = 0; row < step.num_keys; ++row) {
      const VF x = hn::Load(d, step.scores + row * kPanel + v * kLanes);
      sum = hn::Add(sum, hn::IfThenElseZero(hn::IsNaN(x), x));
    }
    const DI di;
    auto* at = reinterpret_cast<int32_t*>(step.row_nan) + v * kLanes;
    const VI seen = hn::VecFromMask(di, hn::RebindMask(di, hn::IsNaN(sum)));
    hn::StoreU(hn::Or(hn::LoadU(di, at), seen), di, at);
  }
}

// Multiplies a panel's sums by `factor`, unless it is 1 for every query.
HWY_INLINE void Rescale(float* HWY_RESTRICT out, int64_t rows, const VF (&factor)[kVectors]) {
  const DF d;
  const VF one = hn::Set(d, 1.0F);
  bool is_one = true;
  for (int v = 0; v < kVectors; ++v) is_one = is_one && hn::AllTrue(d, hn::Eq(factor[v], one));
  if (is_one) return;
  for (int64_t row = 0; row < rows; ++row) {
    for (int v = 0; v < kVectors; ++v) {
      float* at = out + row * kPanel + v * kLanes;
      hn::Store(hn::Mul(hn::Load(d, at), factor[v]), d, at);
    }
  }
}

// Scaling and subtracting the maximum in one instruction rounds once, and the maximum was rounded too: between logits
// so large that this shows, it would leave the largest weight far above 1, or at 0.
constexpr float kLargeLogit = 4096.0F;

// So a query with such logits has them scaled first, each as its maximum was, and all exponents of the step are formed
// here. Those of other queries keep the bits they have without it in the panel.
HWY_NOINLINE void FormExponents(const SoftmaxStep& step, const VF (&shift)[kVectors]) {
  const DF d;
  const VF scale = hn::Set(d, step.score.scale_log2);
  for (int v = 0; v < kVectors; ++v) {
    const MF is_large = hn::Gt(hn::Abs(shift[v]), hn::Set(d, kLargeLogit));
    // Times 1: a compiler may make one instruction, with one rounding, of a product and a difference that follow.
    const VF rest = hn::IfThenElse(is_large, hn::Set(d, 1.0F), scale);
    for (int32_t row = 0; row < step.num_keys; ++row) {
      float* at = step.scores + row * kPanel + v * kLanes;
      const VF x = hn::Load(d, at);
      hn::Store(hn::MulSub(hn::IfThenElse(is_large, hn::Mul(x, scale), x), rest, shift[v]), d, at);
    }
  }
}

template <class Operand>
void Softmax(const SoftmaxStep& step) {
  const DF d;
  const Logits logits = LogitsOf<Operand>(step.score);
  VF top[kVectors];
  for (int v = 0; v < kVectors; ++v) top[v] = hn::Set(d, kMinusInf);
  switch (logits) {
    case Logits::kReady:
      MaxAllRows<Operand, Logits::kReady>(step, top);
      break;
    case Logits::kScaleLater:
      MaxAllRows<Operand, Logits::kScaleLater>(step, top);
      break;
    case Logits::kScaleNow:
      MaxAllRows<Operand, Logits::kScaleNow>(step, top);
      break;
    case Logits::kSoftcap:
      MaxAllRows<Operand, Logits::kSoftcap>(step, top);
      break;
  }
  if (step.row_nan != nullptr) NoteNan(step);

  VF scale = hn::Set(d, logits == Logits::kScaleLater ? step.score.scale_log2 : 1.0F);
  const VF minus_inf = hn::Set(d, kMinusInf);
  VF shift[kVectors];
  VF factor[kVectors];
  VF sum[kVectors];
  MF is_large = hn::Gt(hn::Zero(d), hn::Zero(d));  // none; not a maximum, which a NaN of another query could hide
  for (int v = 0; v < kVectors; ++v) {
    const VF before = hn::Load(d, step.row_max + v * kLanes);
    const VF now = hn::Max(before, hn::Mul(top[v], scale));
    hn::Store(now, d, step.row_max + v * kLanes);
    // A query that has seen nothing yet has no maximum to subtract.
    shift[v] = hn::IfThenZeroElse(hn::Eq(now, minus_inf), now);
    factor[v] = hn::IfThenElse(hn::Eq(before, now), hn::Set(d, 1.0F), Exp2(hn::Sub(before, shift[v])));
    sum[v] = hn::Mul(hn::Load(d, step.row_sum + v * kLanes), factor[v]);
    is_large = hn::Or(is_large, hn::Gt(hn::Abs(shift[v]), hn::Set(d, kLargeLogit)));
  }
  Rescale(step.out, step.out_rows, factor);
  if (logits == Logits::kScaleLater && !hn::AllFalse(d, is_large)) {
    FormExponents(step, shift);
    scale = hn::Set(d, 1.0F);
    for (int v = 0; v < kVectors; ++v) shift[v] = hn::Zero(d);
  }

  constexpr int kWide = Operand::kWide;
  constexpr int kCount = Operand::kRows * kWide;
  for (int32_t row = 0; row < step.num_keys; row += Operand::kRows) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; v += kWide) {
      float* at = step.scores + row * kPanel + v * kLanes;
      VF p[kCount];
#pragma GCC unroll 8
      for (int i = 0; i < kCount; ++i) {
        p[i] = hn::Load(d, at + AtCount<Operand>(i));
        p[i] = Operand::kScaled ? hn::Sub(p[i], shift[v + i % kWide]) : hn::MulSub(p[i], scale, shift[v + i % kWide]);
      }
      Exp2(p);
#pragma GCC unroll 8
      for (int i = 0; i < kCount; ++i) sum[v + i % kWide] = hn::Add(sum[v + i % kWide], p[i]);
      Operand::StoreB(p, step, row, v);
    }
  }
  for (int v = 0; v < kVectors; ++v) hn::Store(sum[v], d, step.row_sum + v * kLanes);
}

// kRows x kWide vectors at once: rows from `row` on, vectors from `v` on.
template <class Operand, bool kSoftcap, bool kTest>
HWY_INLINE void GradientVectors(const GradientStep& step, const KeyTest& test, int32_t row, int v) {
  const DF d;
  const VF scale = hn::Set(d, kSoftcap ? step.score.cap_log2 : step.score.scale_log2);
  const VF inner = hn::Set(d, step.score.inner);
  const VF one = hn::Set(d, 1.0F);
  constexpr int kWide = Operand::kWide;
  constexpr int kCount = Operand::kRows * kWide;
  const int64_t at = int64_t{row} * kPanel + v * kLanes;
  VF x[kCount];
  VF p[kCount];
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) {
    x[i] = hn::Load(d, step.scores + at + AtCount<Operand>(i));
    if constexpr (kSoftcap) x[i] = Tanh(Operand::kScaled ? x[i] : hn::Mul(inner, x[i]));
    const VF lse = hn::Load(d, step.lse_log2 + (v + i % kWide) * kLanes);
    p[i] = Operand::kScaled && !kSoftcap ? hn::Sub(x[i], lse) : hn::MulSub(x[i], scale, lse);
    // No weight is above 1, whatever rounding the log-sum-exp has been through (lanes/weights.h).
    p[i] = AtMost(hn::Zero(d), p[i]);
  }
  Exp2(p);
  VF ds[kCount];
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) {
    const VF delta = hn::Load(d, step.delta + (v + i % kWide) * kLanes);
    ds[i] = hn::Mul(p[i], hn::Sub(hn::Load(d, step.grads + at + AtCount<Operand>(i)), delta));
    if constexpr (kSoftcap) ds[i] = hn::Mul(ds[i], hn::NegMulAdd(x[i], x[i], one));
    if constexpr (kTest) {
      const MF sees = test.Sees(step.mask.first + row + i / kWide, v + i % kWide);
      p[i] = hn::IfThenElseZero(sees, p[i]);
      ds[i] = hn::IfThenElseZero(sees, ds[i]);
    }
  }
  Operand::StoreGradients(p, ds, step, row, v);
}

template <class Operand, bool kSoftcap, bool kTest>
HWY_INLINE void GradientRows(const GradientStep& step, const KeyTest& test, int32_t begin, int32_t end) {
  for (int32_t row = begin; row < end; row += Operand::kRows) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; v += Operand::kWide) {
      GradientVectors<Operand, kSoftcap, kTest>(step, test, row, v);
    }
  }
}

template <class Operand, bool kSoftcap>
HWY_INLINE void AllGradientRows(const GradientStep& step) {
  const KeyTest test(step.mask);
  Stretches at = StretchesOf(step.mask, step.num_keys);
  // Stretches are whole groups of rows.
  at.inner_begin += -at.inner_begin & (Operand::kRows - 1);
  at.inner_end = std::max(at.inner_begin, at.inner_end & -Operand::kRows);
  GradientRows<Operand, kSoftcap, true>(step, test, 0, at.inner_begin);
  GradientRows<Operand, kSoftcap, false>(step, test, at.inner_begin, at.inner_end);
  GradientRows<Operand, kSoftcap, true>(step, test, at.inner_end, step.num_keys);
}

template <class Operand>
void Gradients(const GradientStep& step) {
  if (step.score.has_softcap) {
    AllGradientRows<Operand, true>(step);
  } else {
    AllGradientRows<Operand, false>(step);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::lanes::cpu
HWY_AFTER_NAMESPACE();
#endif
