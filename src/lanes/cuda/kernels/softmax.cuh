// One tile's scores to probabilities, with the state of a thread's two rows.
#pragma once

#include <climits>

#include "lanes/cuda/kernels/common.cuh"

namespace tessera::lanes::cuda {

// Scores are raw, or (wide softcap) capped and in units of log2.
struct RowState {
  float shift[2];  // what exponents are taken relative to: a maximum, up to 2^8 behind
  float sum[2];    // of this thread's columns
  float top[2];    // the exact maximum; not of a bounded softcap
  uint32_t seen;   // bit r: this thread's columns of row r were not all masked
};

__device__ __forceinline__ float QuadMax(float x) {
  x = ptx::MaxNan(x, __shfl_xor_sync(~0U, x, 1));
  return ptx::MaxNan(x, __shfl_xor_sync(~0U, x, 2));
}
__device__ __forceinline__ float QuadSum(float x) {
  x += __shfl_xor_sync(~0U, x, 1);
  return x + __shfl_xor_sync(~0U, x, 2);
}

// Turns scores into probabilities relative to the new shift; returns the factors for what was summed before. `factor`
// brings a score to units of log2.
template <bool Masked, int N>
__device__ __forceinline__ float2 SoftmaxStep(float (&s)[N], RowState& rows, Words words, float factor) {
  if (Masked) {
#pragma unroll
    for (int i = 0; i < N; ++i) s[i] = Allowed(words, i) ? s[i] : -INFINITY;
  }
  // Row maxima on the bit patterns, three operands an instruction (VIMNMX3): the signed maximum is the floats' maximum
  // if any of them is positive; if none is, the signed minimum is.
  const auto bits = [&](int i) { return __float_as_int(s[i]); };
  int most[2][2] = {{INT_MIN, INT_MIN}, {INT_MIN, INT_MIN}};
#pragma unroll
  for (int i = 0; i < N; i += 2) {
    int& m = most[(i >> 1) & 1][(i >> 2) & 1];
    m = __vimax3_s32(m, bits(i), bits(i + 1));
  }
  int found[2] = {max(most[0][0], most[0][1]), max(most[1][0], most[1][1])};
  if (__any_sync(~0U, found[0] < 0 || found[1] < 0)) {
    int least[2] = {INT_MAX, INT_MAX};
#pragma unroll
    for (int i = 0; i < N; i += 2) least[(i >> 1) & 1] = __vimin3_s32(least[(i >> 1) & 1], bits(i), bits(i + 1));
    if (found[0] < 0) found[0] = least[0];
    if (found[1] < 0) found[1] = least[1];
  }
  float alpha[2];
  float shift[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float top = QuadMax(__int_as_float(found[r]));
    rows.top[r] = ptx::MaxNan(rows.top[r], top);
    float m = ptx::MaxNan(top, rows.shift[r]);
    // Probabilities up to 2^8 do no harm, and what was summed need not be rescaled. Decided per row.
    if ((m - rows.shift[r]) * factor <= 8.0F) m = rows.shift[r];
    const float safe = m == -INFINITY ? 0.0F : m;
    alpha[r] = ptx::Exp2((rows.shift[r] - safe) * factor);
    shift[r] = -safe * factor;
    rows.shift[r] = m;
  }
  float sum[2][2] = {{0, 0}, {0, 0}};
#pragma unroll
  for (int i = 0; i < N; ++i) {
    s[i] = ptx::Exp2(fmaf(s[i], factor, shift[(i >> 1) & 1]));
    sum[(i >> 1) & 1][i & 1] += s[i];
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) rows.sum[r] = fmaf(rows.sum[r], alpha[r], sum[r][0] + sum[r][1]);
  return {alpha[0], alpha[1]};
}

// visit(i) for every score. Skips: of a partial tile, scores of whole groups of columns that no row of the warp sees
// become 0 without it, which is what masks would make of them.
template <bool Skips, int N, class Visit>
__device__ __forceinline__ void ForEachScore(float (&s)[N], Words words, const Visit& visit) {
  const uint32_t seen = Skips ? WarpSees(words) : 0;
#pragma unroll
  for (int group = 0; group < N / kGroupScores; ++group) {
    if (!Skips || IsGroupSeen(seen, group)) {
#pragma unroll
      for (int i = group * kGroupScores; i < (group + 1) * kGroupScores; ++i) visit(i);
    } else {
#pragma unroll
      for (int i = group * kGroupScores; i < (group + 1) * kGroupScores; ++i) s[i] = 0.0F;
    }
  }
}

// `tops`: this thread's maxima, in shared memory; null: not wanted.
// A capped score is bounded, |u| <= cap * log2(e), so exp2(u) needs neither a running maximum nor rescaling: f32 and
// bf16 hold 2^88. Skips (ForEachScore) where no product is in flight: elsewhere ptxas then spills and serialises them.
template <bool Masked, bool Skips, int N>
__device__ __forceinline__ void BoundedStep(const SoftcapParams& p, float (&s)[N], RowState& rows, Words words,
                                            float2* tops) {
  if (tops != nullptr) {  // tanh is monotone: the maximum of raw scores will do
    float top[2] = {tops->x, tops->y};
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float x = !Masked || Allowed(words, i) ? s[i] : -INFINITY;
      top[(i >> 1) & 1] = ptx::MaxNan(top[(i >> 1) & 1], x);
    }
    *tops = {top[0], top[1]};
  }
  float sum[2] = {0, 0};
  const auto exponentials = [&](auto exponent) {
    ForEachScore<Masked && Skips>(s, words, [&](int i) {
      s[i] = ptx::Exp2(exponent(s[i]));
      if (Masked && !Allowed(words, i)) s[i] = 0.0F;
      sum[(i >> 1) & 1] += s[i];
    });
  };
  if (AllNear(p, s)) [[likely]] {
    exponentials([&](float x) { return Capped<true>(p, x); });
  } else [[unlikely]] {
    exponentials([&](float x) { return Capped<false>(p, x); });
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) rows.sum[r] += sum[r];
}

// Masked and unmasked tiles are separate code: a branch in the middle would keep the sums from filling the gaps
// between exponentials.
// First: of a row's first tile, where no product is in flight yet.
template <Softcap Cap, bool First, int N>
__device__ __forceinline__ float2 Probabilities(const ShapeParams& shape, float (&s)[N], RowState& rows,
                                                bool is_partial, Words words, float2* tops) {
  if constexpr (Cap == Softcap::kBounded) {
    // Each key's probability is above zero: the sum tells.
  } else if (is_partial) {
    rows.seen |= (words.word[0] != 0 ? 1U : 0U) | (words.word[1] != 0 ? 2U : 0U);
  } else {
    rows.seen = 3;
  }
  if constexpr (Cap == Softcap::kBounded) {
    // A first tile always, whose words are all ones where it is full: two copies of the code less to fetch.
    if (First || is_partial) {
      BoundedStep<true, First>(shape.softcap, s, rows, words, tops);
    } else {
      BoundedStep<false, First>(shape.softcap, s, rows, words, tops);
    }
    return {1.0F, 1.0F};
  } else {
    if constexpr (Cap == Softcap::kWide) {
#pragma unroll
      for (int i = 0; i < N; ++i) s[i] = Capped<false>(shape.softcap, s[i]);
    }
    const float factor = Cap == Softcap::kWide ? 1.0F : shape.scale_log2;
    return is_partial ? SoftmaxStep<true>(s, rows, words, factor) : SoftmaxStep<false>(s, rows, words, factor);
  }
}

// A row's sums over all of its slots, or over those of a part. A float4 in memory.
struct RowTotals {
  float sum;      // of probabilities
  float shift;    // what their exponents are relative to, in units of log2
  float top;      // the largest score
  float is_seen;  // 1: there was a key, 0: none
};
template <Softcap Cap>
__device__ __forceinline__ RowTotals TotalsOf(const ShapeParams& shape, const RowState& rows, int r, float raw_top) {
  constexpr float kLn2 = 0.693147181F;
  const float sum = QuadSum(rows.sum[r]);
  if constexpr (Cap == Softcap::kBounded) {
    return {sum, 0.0F, Capped<false>(shape.softcap, QuadMax(raw_top)) * kLn2, sum != 0.0F ? 1.0F : 0.0F};
  } else {
    const bool is_seen = (__ballot_sync(~0U, (rows.seen >> r & 1U) != 0) >> (threadIdx.x & 28) & 15U) != 0;
    return {sum, Cap == Softcap::kWide ? rows.shift[r] : rows.shift[r] * shape.scale_log2,
            raw_top * (Cap == Softcap::kWide ? kLn2 : shape.scale), is_seen ? 1.0F : 0.0F};
  }
}

// A row at its end: what its sum of values is multiplied with, and its statistics.
struct RowEnd {
  float factor, lse, top;
};
__device__ __forceinline__ RowEnd EndRow(const RowTotals& totals, const float* sink) {
  constexpr float kLn2 = 0.693147181F;
  constexpr float kLog2e = 1.44269504F;
  if (totals.is_seen == 0.0F) return {0.0F, -INFINITY, -INFINITY};  // no key, whatever the sink
  float sum = totals.sum;
  float shift = totals.shift;
  float factor = 1.0F;
  bool is_sink_top = false;
  if (sink != nullptr) {
    float logit = *sink * kLog2e;
    if (logit == INFINITY && *sink != INFINITY) logit = 3.402823466e38F;  // above any score, and no infinity yet
    is_sink_top = logit > shift;
    const float most = ptx::MaxNan(shift, logit);
    factor = ptx::Exp2(shift - most);
    if (shift == -INFINITY && most != -INFINITY) factor = 0.0F;
    sum = fmaf(sum, factor, ptx::Exp2(logit - most));
    shift = most;
  }
  // Keys, but all of their scores minus infinity: 0 / 0, as the definition has it.
  if (sum == 0.0F) sum = NAN;
  const float log_sum = __logf(sum);
  return {__fdividef(factor, sum), is_sink_top ? *sink + log_sum : fmaf(shift, kLn2, log_sum), totals.top};
}

}  // namespace tessera::lanes::cuda
