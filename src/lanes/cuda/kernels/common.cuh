// What the kernels share: rings of stages, sections of the plan image, the search for NaN and infinity, softcap.
#pragma once

#include "lanes/cuda/abi.h"
#include "lanes/cuda/kernels/ptx.cuh"
#include "lanes/cuda/mask_words.h"

namespace tessera::lanes::cuda {

inline constexpr int kWarpgroup = 128;
inline constexpr int kPanelCols = 64;  // 16-bit columns of a panel: 128 bytes

// Lane 0's value, which the compiler then knows to be the same in the whole warp: descriptors and branches stay in
// uniform registers.
__device__ __forceinline__ int Uniform(int x) { return __shfl_sync(~0U, x, 0); }
__device__ __forceinline__ Slot Uniform(Slot x) { return {Uniform(x.index), Uniform(x.cleanup)}; }

// Three warps of the loader's warpgroup look for NaN and infinity, and fetch rows.
inline constexpr int kScanThreads = 96;
inline constexpr int kScanWarps = kScanThreads / 32;  // each gives stages back itself, or a slow one might meet the next tile
inline constexpr int kScanBarrier = 3;
inline constexpr int kFetchAhead = 4;    // slots
inline constexpr int kFetchThread = 32;  // of the scan: fetches rows for the loader

// A position in a ring of stages, with the parity of its current use.
template <int Stages>
class Ring {
 public:
  __device__ __forceinline__ int stage() const { return kCounts ? at_ % Stages : at_; }
  __device__ __forceinline__ uint32_t parity() const { return kCounts ? at_ / Stages & 1 : parity_; }
  // Computed anew, where keeping it since the last time would take a register that is not there.
  __device__ __forceinline__ int StageAnew() const { return kCounts ? ptx::Opaque(at_) % Stages : at_; }
  __device__ __forceinline__ void Next() {
    ++at_;
    if constexpr (!kCounts) {
      if (at_ == Stages) at_ = 0, parity_ ^= 1;
    }
  }

 private:
  static constexpr bool kCounts = (Stages & (Stages - 1)) == 0;  // one register instead of two
  uint32_t at_ = 0;
  uint32_t parity_ = 0;
};

// A section of the plan image; null where it is absent.
template <class T>
__device__ __forceinline__ const T* SectionOf(const PlanHeader* plan, Section section) {
  return section == 0 ? nullptr
                      : reinterpret_cast<const T*>(reinterpret_cast<const char*>(plan) + 16 * uint64_t{section});
}
// What a kernel needs of the plan, in shared memory: read when needed, so that it takes no registers.
struct PlanTables {
  const Work* work;
  const Slot* slots;
  const Item* items;
  const TokenSpan* tokens;  // null: no documents
  const TokenSpan* spans;
  const uint64_t* bits;
  const ValidTokens* valid;
  const uint32_t* row_offsets;
  const uint32_t* mask_of;
  int work_count, rows_per_mask;
};
__device__ __forceinline__ void FillTables(PlanTables& tables, const PlanHeader* plan, KernelKind kind) {
  const PlanList& list = plan->lists[static_cast<int>(kind)];
  tables = {SectionOf<Work>(plan, list.work),
            SectionOf<Slot>(plan, list.slots),
            SectionOf<Item>(plan, list.items),
            SectionOf<TokenSpan>(plan, list.tokens),
            SectionOf<TokenSpan>(plan, list.spans),
            SectionOf<uint64_t>(plan, plan->bits),
            SectionOf<ValidTokens>(plan, plan->valid),
            SectionOf<uint32_t>(plan, list.row_offsets),
            SectionOf<uint32_t>(plan, plan->mask_of),
            list.work_count,
            list.rows_per_mask};
}
__device__ __forceinline__ Slot LoadSlot(const Slot* slot) {
  const int2 x = __ldg(reinterpret_cast<const int2*>(slot));
  return {x.x, x.y};
}
__device__ __forceinline__ TokenSpan LoadSpan(const TokenSpan* span) {
  const int4 x = __ldg(reinterpret_cast<const int4*>(span));
  return {x.x, x.y, x.z, x.w};
}

// The row a CTA takes next. Its first is its own number; the others come by ticket, where there are more rows than CTAs.
// Every CTA stops at its first ticket beyond the rows, so that `work_count` tickets are drawn in all, and whoever draws
// the last one puts the counter back to the zero that the next kernel needs.
__device__ __forceinline__ int NextRow(uint32_t* ticket, int work_count) {
  const int ctas = static_cast<int>(gridDim.x);
  if (ctas >= work_count) return work_count;
  const int drawn = static_cast<int>(atomicAdd(ticket, 1U));
  if (drawn == work_count - 1) *ticket = 0;
  return ctas + drawn;
}

// A row as the loader needs it. Three loads that depend on each other: a thread of the scan fetches it while the loader
// is busy with the row before.
struct NextWork {
  alignas(16) Work work;  // row -1: there is none
  ValidTokens valid;
  Slot first;  // of its slots
};
// At which of a row's slots: so early that the loader, which is tiles ahead, need not wait for it, and so late that no CTA
// holds a row back which another would begin sooner.
__device__ __forceinline__ int FetchAt(int count) { return count > kFetchAhead ? count - kFetchAhead : 0; }
__device__ __forceinline__ void FetchWork(NextWork& next, const PlanTables& tables, int at, int heads) {
  next.work.row = -1;
  if (at >= tables.work_count) return;
  const auto* from = reinterpret_cast<const int4*>(tables.work + at);
  auto* to = reinterpret_cast<int4*>(&next.work);
  to[1] = __ldg(from + 1);
  to[0] = __ldg(from);
  next.valid = tables.valid[next.work.head / heads];
  if (next.work.slot_count > 0) next.first = LoadSlot(tables.slots + next.work.slot_begin);
}

// ---- NaN and infinity ------------------------------------------------------------------------------------------
// Masked probabilities are zero, and zero times NaN is NaN: on a partial tile a token that no row of the warpgroup sees
// could reach them all through a product. So three otherwise idle warps look through the streamed tiles of partial
// slots; rows that hold a NaN or an infinity ("bad" ones, rare) are zeroed in shared memory before such a product, and
// what they give to the pairs that are allowed is added by plain arithmetic. Full tiles need none of this: every row
// sees every column.

// Adds 16 bytes of a tile to what `found` knows: nonzero but for the signs once one of them was NaN or infinite.
template <class T, int N>
__device__ __forceinline__ void Look(const uint8_t* chunk, uint32_t (&found)[N]) {
  const uint4 x = *reinterpret_cast<const uint4*>(chunk);
  found[0] = ptx::AddZeroTimes(T{}, x.x, found[0]);
  found[1 % N] = ptx::AddZeroTimes(T{}, x.y, found[1 % N]);
  found[0] = ptx::AddZeroTimes(T{}, x.z, found[0]);
  found[1 % N] = ptx::AddZeroTimes(T{}, x.w, found[1 % N]);
}
template <int N>
__device__ __forceinline__ bool IsBad(const uint32_t (&found)[N]) {
  return ((found[0] | found[N - 1]) & 0x7FFF7FFFU) != 0;
}
// Whether this thread, one of kScanThreads, finds a NaN or an infinity in its share of a tile of `Bytes` bytes.
template <class T, int Bytes, int Unroll>
__device__ __forceinline__ bool FindsBad(const uint8_t* tile, int thread) {
  uint32_t found[Unroll == 1 ? 1 : 2] = {};
#pragma unroll Unroll
  for (int at = 16 * thread; at < Bytes; at += 16 * kScanThreads) Look<T>(tile + at, found);
  return IsBad(found);
}
// Says which rows are bad, a bit each. A search found some; all its threads call this.
template <class T, int Rows, int Bytes>
__device__ __forceinline__ void MarkBadRows(const uint8_t* tile, uint32_t* bad, int thread) {
  if (thread < Rows / 32) bad[thread] = 0;
  ptx::NamedSync(kScanBarrier, kScanThreads);
#pragma unroll 1
  for (int at = 16 * thread; at < Bytes; at += 16 * kScanThreads) {
    const int row = (at >> 7) % Rows;
    uint32_t found[1] = {0};
    Look<T>(tile + at, found);
    if (IsBad(found)) atomicOr(bad + (row >> 5), 1U << (row & 31));
  }
  ptx::NamedSync(kScanBarrier, kScanThreads);
}

// Zeroes the bad rows of a tile; the caller orders it against readers.
template <int Rows, int Panels>
__device__ __forceinline__ void ZeroRows(uint8_t* tile, const uint32_t* bad, int thread, int threads) {
#pragma unroll 1
  for (int chunk = thread; chunk < Rows * Panels * 8; chunk += threads) {
    const int row = (chunk >> 3) % Rows;
    if ((bad[row >> 5] >> (row & 31) & 1U) != 0) *reinterpret_cast<uint4*>(tile + 16 * chunk) = {0, 0, 0, 0};
  }
  ptx::FenceAsyncShared();
}

// Adds to the accumulator what the bad rows give: sum[r][d] += operand[r][c] * row c's element d for every bad column c
// that row r may see. `operand` are the packed probabilities (or dS) the product had as its A operand, `words` the
// tile's mask.
template <class T, int Operands, int Sums>
__device__ __forceinline__ void AddBadRows(float (&sum)[Sums], const uint32_t (&operand)[Operands], Words words,
                                           const uint32_t* bad, const uint16_t* rows, int64_t token_stride) {
  const int lane = threadIdx.x & 31;
#pragma unroll 1
  for (int c = 0; c < 4 * Operands; ++c) {
    if ((bad[c >> 5] >> (c & 31) & 1U) == 0) continue;
    const int from = (lane & ~3) | ((c & 7) >> 1);
    const int bit = 2 * (c >> 3) + (c & 1);
    float weight[2];
    bool sees[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      uint32_t pair = 0;
#pragma unroll
      for (int n = 0; n < Operands / 2; ++n) pair = n == (c >> 3) ? operand[2 * n + r] : pair;
      const float2 both = ptx::Unpack(T{}, __shfl_sync(~0U, pair, from));
      weight[r] = (c & 1) != 0 ? both.y : both.x;
      sees[r] = (__shfl_sync(~0U, words.word[r], from) >> bit & 1U) != 0;
    }
    const uint16_t* row = rows + c * token_stride + 2 * (lane & 3);
#pragma unroll
    for (int i = 0; i < Sums; i += 4) {
      const float2 x = ptx::Unpack(T{}, __ldg(reinterpret_cast<const uint32_t*>(row + 2 * i)));
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (!sees[r]) continue;
        sum[i + 2 * r] = fmaf(weight[r], x.x, sum[i + 2 * r]);
        sum[i + 2 * r + 1] = fmaf(weight[r], x.y, sum[i + 2 * r + 1]);
      }
    }
  }
}

// Row `token` of a tensor.
__device__ __forceinline__ const uint16_t* RowOf(const TensorRows& tensor, int batch, int head, int token) {
  return static_cast<const uint16_t*>(tensor.data) + batch * tensor.batch_stride + head * tensor.head_stride +
         token * tensor.token_stride;
}

// ---- masks, scores ---------------------------------------------------------------------------------------------
// Score i of a thread: row (i >> 1) & 1, bit 2 (i >> 2) + (i & 1) of that row's word.
__device__ __forceinline__ bool Allowed(Words words, int i) {
  return (words.word[(i >> 1) & 1] >> (2 * (i >> 2) + (i & 1)) & 1U) != 0;
}

// A partial tile's columns by 32: whether some row of the warp sees one of a group's. `seen` is WarpSees(words).
inline constexpr int kGroupScores = 16;  // of a thread
__device__ __forceinline__ uint32_t WarpSees(Words words) { return __reduce_or_sync(~0U, words.word[0] | words.word[1]); }
__device__ __forceinline__ bool IsGroupSeen(uint32_t seen, int group) { return (seen >> (8 * group) & 0xFFU) != 0; }

// u(x) = most * tanh(x * scale / cap). The formula is chosen by |x| alone, so that no score's bits depend on
// its neighbours; `Near` says that every score of the warp's tile is in the polynomial's range.
template <bool Near>
__device__ __forceinline__ float Capped(const SoftcapParams& p, float x) {
  const float t = x * x;
  float r = p.near[kNearTerms - 1];
#pragma unroll
  for (int i = kNearTerms - 2; i >= 0; --i) r = fmaf(r, t, p.near[i]);
  // Rounded here, whatever is done with it: fused with a later addition in one formula and not in the other, a score's
  // bits would depend on its neighbours after all.
  const float near = __fmul_rn(x, r);
  if constexpr (Near) return near;
  const float far = fmaf(-2.0F * p.most, ptx::Rcp(1.0F + ptx::Exp2(fabsf(x) * p.far_exp)), p.most);
  return fabsf(x) <= p.near_range ? near : copysignf(far, x);
}
// Whether every score of the warp is in the polynomial's range. A NaN is not.
template <int N>
__device__ __forceinline__ bool AllNear(const SoftcapParams& p, const float (&s)[N]) {
  int reach[2] = {0, 0};  // the largest |x|, as a bit pattern
#pragma unroll
  for (int i = 0; i < N; i += 4) {
    const float a = ptx::MaxNan(fabsf(s[i]), fabsf(s[i + 1]));
    const float b = ptx::MaxNan(fabsf(s[i + 2]), fabsf(s[i + 3]));
    reach[(i >> 2) & 1] = __vimax3_s32(reach[(i >> 2) & 1], __float_as_int(a), __float_as_int(b));
  }
  return __all_sync(~0U, max(reach[0], reach[1]) <= __float_as_int(p.near_range));
}

// One half of a register array.
template <int Which, class X, int N>
__device__ __forceinline__ X (&Half(X (&x)[N]))[N / 2] {
  return reinterpret_cast<X(&)[N / 2]>(x[Which * (N / 2)]);
}

// ---- products --------------------------------------------------------------------------------------------------
// C[64 x N] = A[64 x Dim] B[N x Dim]^T, both in shared memory as panels of PanelA and PanelB bytes.
template <class T, int Dim, int PanelA, int PanelB, int N>
__device__ __forceinline__ void IssueScores(float (&c)[N], uint32_t a, uint32_t b) {
  ptx::WgmmaFence();
#pragma unroll
  for (int step = 0; step < Dim / 16; ++step) {
    const uint32_t at_a = ptx::Advance(a, (step >> 2) * PanelA + (step & 3) * 32);
    const uint32_t at_b = ptx::Advance(b, (step >> 2) * PanelB + (step & 3) * 32);
    if (step == 0) {
      ptx::WgmmaSs<0>(T{}, c, at_a, at_b);
    } else {
      ptx::WgmmaSs<1>(T{}, c, at_a, at_b);
    }
  }
  ptx::WgmmaCommit();
}
// C[64 x Dim] += A[64 x K] B[K x Dim]: A packed in registers, B in shared memory.
template <class T, int Operands, int Sums>
__device__ __forceinline__ void IssueSums(float (&c)[Sums], uint32_t (&a)[Operands], uint32_t b) {
  ptx::WgmmaFence();
#pragma unroll
  for (int t = 0; t < Operands / 4; ++t) ptx::WgmmaRs(T{}, c, a + 4 * t, ptx::Advance(b, t * 2048));
  ptx::WgmmaCommit();
}

// Writes a warpgroup's accumulator, times `factor`, as 16-bit rows into panels of `Panel` bytes.
template <class T, int Panel, int N>
__device__ __forceinline__ void StageOut(const float (&a)[N], uint32_t tile, float factor0, float factor1) {
  const int lane = threadIdx.x & 31;
  const int row = ((threadIdx.x >> 5) & 3) * 16 + (lane & 15);
#pragma unroll
  for (int j = 0; j < N / 4; j += 2) {
    const auto pair = [&](int i) {
      const float f = (i & 2) != 0 ? factor1 : factor0;
      return ptx::Pack(T{}, a[i] * f, a[i + 1] * f);
    };
    ptx::StMatrix(tile + (j >> 3) * Panel + row * 128 + ((((j & 7) + (lane >> 4)) ^ (row & 7)) << 4), pair(4 * j),
                  pair(4 * j + 2), pair(4 * j + 4), pair(4 * j + 6));
  }
}

// Writes a thread's share of a part's sums: rows `local` and 8 on, of `rows` that are kept, `stride` floats apart. `to` is
// the part's first.
template <int N>
__device__ __forceinline__ void WritePart(const float (&a)[N], float* to, int stride, int local, int rows) {
  float* row = to + local * stride + 2 * (threadIdx.x & 3);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (local + 8 * r >= rows) break;
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      *reinterpret_cast<float2*>(row + 8 * r * stride + 2 * i) = {a[i + 2 * r], a[i + 2 * r + 1]};
    }
  }
}

}  // namespace tessera::lanes::cuda
