// Backward in two kernels from one text, dq.cu and dkv.cu: deterministic, without atomics or f32 scratch beyond 8 bytes
// a query row. 128 row tokens stay in shared memory, tiles of 64 column tokens pass by:
//   dkv: rows are keys (K, V), columns queries (Q, dO)    S^T = K Q^T, dP^T = V dO^T, dV += P^T dO, dK += dS^T Q
//   dq:  rows are queries (Q, dO), columns keys (K, V)    S = Q K^T,   dP = dO V^T,                 dQ += dS K
// with P = exp2(min(0, S - lse2)) and dS = P (dP - delta). In both the rows of the accumulators are the row tokens, so
// P and dS become operands in registers. S and dP are computed twice (7 products instead of 5), and every gradient is
// written once, in the order of the plan: slots ascending, and for dkv the query heads of a group one after another.
//
// Warpgroup 0 loads (one thread, TMA) and looks for NaN and infinity (three warps); warpgroups 1 and 2 have 64 rows
// each.
#pragma once

#include "lanes/cuda/kernels/common.cuh"

namespace tessera::lanes::cuda {
namespace {

using T = ptx::TESSERA_CUDA_TYPE;
constexpr int kDim0 = TESSERA_CUDA_DIM_QK;  // of Q and K
constexpr int kDim1 = TESSERA_CUDA_DIM_V;   // of V and dO
constexpr bool kIsCapped = Softcap::TESSERA_CUDA_SOFTCAP != Softcap::kNone;
constexpr bool kKeys = kKind == KernelKind::kDkv;

constexpr Tile kTile = TileOf(kKind, kDim0);
constexpr Stages kStages = StagesOf(kKind, kDim0);
constexpr int kRows = kTile.rows;
constexpr int kCols = kTile.cols;
constexpr int kRowPanel = kRows * 128;  // bytes of 64 elements of a tile's tokens
constexpr int kColPanel = kCols * 128;
constexpr int kScores = kCols / 2;  // of a thread

constexpr bool kKeepsStats = kKeys || kDim0 <= 192;  // in registers

struct Shared {
  uint8_t rows0[kStages.rows][2 * kRows * kDim0], rows1[kStages.rows][2 * kRows * kDim1];    // K or Q, V or dO
  uint8_t cols0[kStages.cols0][2 * kCols * kDim0], cols1[kStages.cols1][2 * kCols * kDim1];  // Q or K, dO or V
  alignas(16) float lse2[kKeys ? kStages.cols0 : 1][kCols],
      delta[kKeys ? kStages.cols1 : 1][kCols];  // of column queries
  alignas(16) Item item[kStages.cols0];  // the first of a partial slot's, travels with its stage; so does ...
  struct Column {
    int index, cleanup;  // a Slot
    int head;            // of the column tensors
  } column[kStages.cols0];
  float row_lse2[kKeepsStats ? 1 : kRows], row_delta[kKeepsStats ? 1 : kRows];
  uint32_t words[kKeepsStats ? 1 : 2 * kWarpgroup];
  PlanTables tables;
  // Travels with the row tiles: a row of one head of the row tensors. row: -1 to stop. slot_count: over all heads of the
  // column tensors that it meets.
  struct Place {
    int row, batch, head, slot_begin, slot_count, part, col_head, col_heads;
    Idle idle;
    ValidTokens valid;
  } place[kStages.rows];
  NextWork next;   // for the loader, from the scan
  int loader_end;  // the loader's, which has no registers to spare for it, ...
  Ring<kStages.rows> loader_rows;  // ... nor for this
  Ring<2> loader_turn;
  int unreleased[2];  // of each consumer warpgroup, the row stage whose gradients may still be leaving through it, or
                      // -1
  uint32_t bad[kStages.cols0][2][kCols / 32], is_bad[kStages.cols0];  // travel with the stage of a partial slot
  uint64_t rows_full[kStages.rows], rows_empty[kStages.rows], full0[kStages.cols0], full1[kStages.cols1],
      empty0[kStages.cols0], empty1[kStages.cols1];
  uint64_t checked[kStages.cols0], next_full;
};
static_assert(sizeof(Shared) <= SharedBytes(kKind, kDim0, kDim1));
static_assert(SharedBytes(kKind, kDim0, kDim1) <= 227 * 1024);
// Where dK and dV of 64 keys are too many registers for one warpgroup (dims above 128), both warpgroups have the same
// 64 keys: the first forms dV, the second dK. S is computed by both.
constexpr bool kSplits = kKeys && kRows == 64;
constexpr bool kSameRing = kStages.cols0 == kStages.cols1;
static_assert(!kKeys || kStages.cols0 == kStages.cols1);

// exp2 of what a score lies below its row's log-sum-exp; at most 1, also where that was rounded to less than the score
// (lanes/weights.h). In every tile: were it left out of some, a row's bits would depend on its neighbours.
__device__ __forceinline__ float Weight(float exponent) { return ptx::Exp2(ptx::MinNan(exponent, 0.0F)); }

// Calls visit(head of the column tensors, its first slot, the one past its last): for dkv once per query head of the
// group, by that head's mask, or of those heads that a part has.
template <class Visit>
__device__ __forceinline__ void ForEachHead(const BackwardParams& p, Shared& sm, const Shared::Place& at,
                                            const Visit& visit) {
  if constexpr (kKeys) {
    int head = at.col_head;
    do {
      int begin = at.slot_begin;
      int end = begin + at.slot_count;
      if (at.col_heads != 0) {
        const uint32_t mask = __ldg(sm.tables.mask_of + at.batch * p.shape.num_q_heads + head);
        const uint32_t* offset = sm.tables.row_offsets + mask * sm.tables.rows_per_mask + at.row;
        begin = static_cast<int>(__ldg(offset));
        end = static_cast<int>(__ldg(offset + 1));
      }
      visit(head, begin, end);
    } while (++head < at.col_head + at.col_heads);
  } else {
    visit(at.head / (p.shape.num_q_heads / p.shape.num_kv_heads), at.slot_begin, at.slot_begin + at.slot_count);
  }
}
__device__ __forceinline__ int HeadsOf(const ShapeParams& shape) {  // of the row tensors
  return kKeys ? shape.num_kv_heads : shape.num_q_heads;
}

// ---- loader --------------------------------------------------------------------------------------------------------
__device__ __forceinline__ void LoadTiles(const BackwardParams& p, Shared& sm) {
  Ring<kStages.rows>& rows = sm.loader_rows = {};
  Ring<2>& turn = sm.loader_turn = {};
  Ring<kStages.cols0> ring0;
  Ring<kSameRing ? 1 : kStages.cols1> other;  // of the second tensor, where it has fewer stages
  const auto stage1 = [&] { return kSameRing ? ring0.stage() : other.stage(); };
  const auto parity1 = [&] { return kSameRing ? ring0.parity() : other.parity(); };
  FetchWork(sm.next, sm.tables, static_cast<int>(blockIdx.x), HeadsOf(p.shape));
  while (true) {
    const uint32_t full = ptx::Smem(&sm.rows_full[rows.stage()]);
    Shared::Place& at = sm.place[rows.stage()];
    ptx::BarWait(ptx::Smem(&sm.rows_empty[rows.stage()]), rows.parity() ^ 1);
    {
      const Work& work = sm.next.work;
      const int batch = work.head / HeadsOf(p.shape);
      const int head = work.head - batch * HeadsOf(p.shape);
      at = {work.row,      batch,          head,      work.slot_begin, work.slot_count, work.part,
            work.col_head, work.col_heads, work.idle, sm.next.valid};
      if (work.row < 0) {
        ptx::BarArrive(full);
        return;
      }
      ptx::BarArriveExpect(full, sizeof(sm.rows0[0]) + sizeof(sm.rows1[0]));
      const ptx::TileAt tile{work.row * kRows, head, batch};
      ptx::TmaLoad<ptx::Keep::kFirst>(ptx::Smem(sm.rows0[rows.stage()]), &p.rows[0], full, tile);
      ptx::TmaLoad<ptx::Keep::kFirst>(ptx::Smem(sm.rows1[rows.stage()]), &p.rows[1], full, tile);
    }
    ForEachHead(p, sm, at, [&](int head, int begin, int end) {
      sm.loader_end = end;
      for (int i = begin; i < sm.loader_end; ++i) {
        const Slot slot = LoadSlot(sm.tables.slots + i);
        const int batch = at.batch;
        const uint32_t full0 = ptx::Smem(&sm.full0[ring0.stage()]);
        ptx::BarWait(ptx::Smem(&sm.empty0[ring0.stage()]), ring0.parity() ^ 1);
        sm.column[ring0.stage()] = {slot.index, slot.cleanup, head};
        ptx::BarArriveExpect(full0, sizeof(sm.cols0[0]) + (kKeys ? sizeof(sm.lse2[0]) : 0) +
                                        (slot.cleanup != 0 ? sizeof(Item) : 0));
        if (slot.cleanup != 0) {
          ptx::BulkLoad(ptx::Smem(&sm.item[ring0.stage()]), sm.tables.items + (slot.cleanup - 1), sizeof(Item), full0);
        }
        const int token = slot.index * kCols;
        const uint32_t stats = (batch * p.shape.num_q_heads + head) * p.shape.padded_q + token;
        ptx::TmaLoad<ptx::Keep::kLast>(ptx::Smem(sm.cols0[ring0.stage()]), &p.cols[0], full0, {token, head, batch});
        if (kKeys) ptx::BulkLoad(ptx::Smem(sm.lse2[ring0.stage()]), p.lse2 + stats, sizeof(sm.lse2[0]), full0);
        const uint32_t full1 = ptx::Smem(&sm.full1[stage1()]);
        if (!kKeys) ptx::BarWait(ptx::Smem(&sm.empty1[stage1()]), parity1() ^ 1);  // dkv gives both back at once
        ptx::BarArriveExpect(full1, sizeof(sm.cols1[0]) + (kKeys ? sizeof(sm.delta[0]) : 0));
        ptx::TmaLoad<ptx::Keep::kLast>(ptx::Smem(sm.cols1[stage1()]), &p.cols[1], full1, {token, head, batch});
        if (kKeys) {
          ptx::BulkLoad(ptx::Smem(sm.delta[stage1()]), p.delta + stats, sizeof(sm.delta[0]), full1);
        }
        ring0.Next();
        if (!kSameRing) other.Next();
      }
    });
    rows.Next();
    ptx::BarWait(ptx::Smem(&sm.next_full), turn.stage());
    turn.Next();
  }
}

// ---- the search for NaN and infinity in what streams past the gradients' products ---------------------------
__device__ __forceinline__ void ScanTiles(const BackwardParams& p, Shared& sm) {
  constexpr int kScanUnroll = kLoaderRegs < 40 ? 1 : 4;
  const int thread = threadIdx.x - 32;
  Ring<kStages.rows> rows;
  Ring<kStages.cols0> ring;
  const auto fetch = [&] {
    if (thread != kFetchThread) return;
    FetchWork(sm.next, sm.tables, NextRow(p.ticket, sm.tables.work_count), HeadsOf(p.shape));
    ptx::BarArrive(ptx::Smem(&sm.next_full));
  };
  while (true) {
    ptx::BarWait(ptx::Smem(&sm.rows_full[rows.stage()]), rows.parity());
    if (sm.place[rows.stage()].row < 0) return;
    const int count = sm.place[rows.stage()].slot_count;
    const int fetch_at = FetchAt(count);
    if (count == 0) fetch();
    for (int i = 0; i < count; ++i, ring.Next()) {
      const int stage = ring.stage();
      if (i == fetch_at) fetch();
      ptx::BarWait(ptx::Smem(&sm.full0[stage]), ring.parity());
      if constexpr (kKeys) ptx::BarWait(ptx::Smem(&sm.full1[stage]), ring.parity());
      if (sm.column[stage].cleanup != 0) {
        constexpr int kBytes0 = 2 * kCols * kDim0;
        constexpr int kBytes1 = 2 * kCols * kDim1;
        bool is_bad = FindsBad<T, kBytes0, kScanUnroll>(sm.cols0[stage], thread);
        if constexpr (kKeys) is_bad |= FindsBad<T, kBytes1, kScanUnroll>(sm.cols1[stage], thread);
        is_bad = ptx::NamedAny(kScanBarrier, kScanThreads, is_bad);
        if (is_bad) {
          MarkBadRows<T, kCols, kBytes0>(sm.cols0[stage], sm.bad[stage][0], thread);
          if constexpr (kKeys) MarkBadRows<T, kCols, kBytes1>(sm.cols1[stage], sm.bad[stage][1], thread);
        }
        if (thread == 0) sm.is_bad[stage] = is_bad ? 1 : 0;
      }
      __syncwarp();
      if ((thread & 31) == 0) ptx::BarArrive(ptx::Smem(&sm.empty0[stage]));
      if (thread == 0) ptx::BarArrive(ptx::Smem(&sm.checked[stage]));
    }
    __syncwarp();
    if ((thread & 31) == 0) ptx::BarArrive(ptx::Smem(&sm.rows_empty[rows.StageAnew()]));
    rows.Next();
  }
}

// ---- consumer warpgroup: 64 rows -----------------------------------------------------------------------------------
// HasDv: forms dV. HasDs: forms dS, and dK or dQ from it.
template <bool HasDv, bool HasDs>
__device__ __forceinline__ void Accumulate(const BackwardParams& p, Shared& sm, int wg) {
  const int lane = threadIdx.x & 31;
  const int half = kSplits ? 0 : wg;  // of the row tile
  // This thread's first row; the other is 8 on. Computed anew where it is wanted: dkv has no register to keep it in.
  const auto local_row = [&] {
    const int thread = static_cast<int>(ptx::Opaque(threadIdx.x));
    return half * 64 + ((thread >> 5) & 3) * 16 + ((thread & 31) >> 2);
  };
  const bool is_leader = (threadIdx.x & 127) == 0;
  float grad0[kDim0 / 2], grad1[kDim1 / 2];  // dK and dV, or dQ
  float s[kScores], dp[kScores];
  uint32_t prob[kScores / 2], ds[kScores / 2];
  // dq: of the rows. In shared memory where registers are short, as are the words of a partial tile.
  float row_lse2[2] = {0, 0};
  float row_delta[2] = {0, 0};
  const int kept_row = kKeepsStats ? 0 : local_row();
  const auto lse2_of_row = [&](int r) { return kKeepsStats ? row_lse2[r] : sm.row_lse2[kept_row + 8 * r]; };
  const auto delta_of_row = [&](int r) { return kKeepsStats ? row_delta[r] : sm.row_delta[kept_row + 8 * r]; };
  Ring<kStages.rows> rows;
  const auto opaque = [](uint32_t at) { return kStages.rows == 1 ? ptx::Opaque(at) : at; };
  const auto rows0 = [&] { return opaque(ptx::Smem(sm.rows0[rows.stage()]) + half * 64 * 128); };
  const auto rows1 = [&] { return opaque(ptx::Smem(sm.rows1[rows.stage()]) + half * 64 * 128); };
  if (kStages.rows > 1 && is_leader) sm.unreleased[wg] = -1;

  const auto words_of = [&](int stage) {
    const Shared::Place& at = sm.place[rows.stage()];
    const Shared::Column& column = sm.column[stage];
    const MaskTables tables{sm.tables.items,
                            sm.tables.spans,
                            sm.tables.bits,
                            kKeys ? at.valid.kv : at.valid.q,
                            kKeys ? at.valid.q : at.valid.kv,
                            kKeys ? p.shape.q_len : p.shape.kv_len};
    const int local = local_row();
    RowPair pair{{local, local + 8}, at.row * kRows, {}};
    if (sm.tables.tokens != nullptr) {
      const TokenSpan* tokens =
          sm.tables.tokens + (static_cast<int64_t>(at.batch) * sm.tables.rows_per_mask + at.row) * kRows + local;
      pair.span[0] = LoadSpan(tokens);
      pair.span[1] = LoadSpan(tokens + 8);
    }
    return CleanupWords<kCols, kKeys>(tables, column.cleanup, sm.item[stage], pair, column.index * kCols, lane & 3);
  };

  Ring<kStages.cols0> ring0;                        // the tile being scored
  Ring<kStages.cols0> before;                       // dq: the one whose dS waits to be multiplied
  Ring<kSameRing ? 1 : kStages.cols1> ring1_of_dq;  // dkv has one ring for both
  const auto stage1 = [&] { return kSameRing ? ring0.stage() : ring1_of_dq.stage(); };
  const auto parity1 = [&] { return kSameRing ? ring0.parity() : ring1_of_dq.parity(); };
  const auto issue_grad0 = [&](int stage) {
    IssueSums<T>(grad0, ds, ptx::Desc(ptx::Smem(sm.cols0[stage]), kColPanel));
  };

  const auto of_columns = [&](const float* values, int j) {  // dkv: of this thread's two columns of a group of eight
    return *reinterpret_cast<const float2*>(values + 8 * j + 2 * (lane & 3));
  };

  // s becomes P (for dkv packed too) and then, with softcap, P times the slope of the cap.
  const auto probabilities = [&]<bool Masked, bool Near>(Words words) {
#pragma unroll
    for (int j = 0; j < kScores / 4; ++j) {
      float2 lse2{0, 0};
      if (kKeys) lse2 = of_columns(sm.lse2[ring0.stage()], j);
      [[maybe_unused]] float u[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int i = 4 * j + e;
        const float shift = kKeys ? ((e & 1) != 0 ? lse2.y : lse2.x) : lse2_of_row(e >> 1);
        if constexpr (kIsCapped) {
          u[e] = Capped<Near>(p.shape.softcap, s[i]);  // tanh
          s[i] = Weight(fmaf(u[e], p.shape.softcap.cap_log2, -shift));
        } else {
          s[i] = Weight(fmaf(s[i], p.shape.scale_log2, -shift));
        }
        if (Masked && !Allowed(words, i)) s[i] = 0.0F;
      }
      if constexpr (HasDv) {
        prob[2 * j] = ptx::Pack(T{}, s[4 * j], s[4 * j + 1]);
        prob[2 * j + 1] = ptx::Pack(T{}, s[4 * j + 2], s[4 * j + 3]);
      }
      if constexpr (kIsCapped && HasDs) {
#pragma unroll
        for (int e = 0; e < 4; ++e) s[4 * j + e] *= fmaf(-u[e], u[e], 1.0F);  // what is masked may be NaN until dS
      }
    }
  };
  const auto all_probabilities = [&](bool is_partial, Words words) {
    if constexpr (kIsCapped) {
      if (AllNear(p.shape.softcap, s)) [[likely]] {
        if (is_partial) {
          probabilities.template operator()<true, true>(words);
        } else {
          probabilities.template operator()<false, true>(words);
        }
      } else [[unlikely]] {
        probabilities.template operator()<true, false>(words);  // all ones where the tile is full
      }
    } else if (is_partial) {
      probabilities.template operator()<true, true>(words);
    } else {
      probabilities.template operator()<false, true>(words);
    }
  };
  const auto score_gradients = [&]<bool Masked>(Words words) {  // dS, packed
#pragma unroll
    for (int j = 0; j < kScores / 4; ++j) {
      float2 delta{0, 0};
      if (kKeys) delta = of_columns(sm.delta[stage1()], j);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int i = 4 * j + 2 * r;
        float a = s[i] * (dp[i] - (kKeys ? delta.x : delta_of_row(r)));
        float b = s[i + 1] * (dp[i + 1] - (kKeys ? delta.y : delta_of_row(r)));
        if (Masked) {  // dP may be NaN where nothing may be seen
          a = Allowed(words, i) ? a : 0.0F;
          b = Allowed(words, i + 1) ? b : 0.0F;
        }
        ds[2 * j + r] = ptx::Pack(T{}, a, b);
      }
    }
  };

  // A bad column of a partial slot: both warpgroups have their scores, then its rows are zeroed for the products.
  const auto zero_bad = [&](int stage) {
    ptx::NamedSync(4, 2 * kWarpgroup);
    const int thread = threadIdx.x - kWarpgroup;
    ZeroRows<kCols, kDim0 / 64>(sm.cols0[stage], sm.bad[stage][0], thread, 2 * kWarpgroup);
    if constexpr (kKeys) ZeroRows<kCols, kDim1 / 64>(sm.cols1[stage], sm.bad[stage][1], thread, 2 * kWarpgroup);
    ptx::NamedSync(4, 2 * kWarpgroup);
  };
  const auto add_bad = [&](int stage) {
    const int head = sm.column[stage].head;
    const int batch = sm.place[rows.stage()].batch;
    const Words words = words_of(stage);
    const int token = sm.column[stage].index * kCols;
    if constexpr (HasDs) {
      AddBadRows<T>(grad0, ds, words, sm.bad[stage][0], RowOf(p.col_rows[0], batch, head, token),
                    p.col_rows[0].token_stride);
    }
    if constexpr (HasDv) {
      AddBadRows<T>(grad1, prob, words, sm.bad[stage][1], RowOf(p.col_rows[1], batch, head, token),
                    p.col_rows[1].token_stride);
    }
  };

  // One tile. dq keeps the product with dS for the next step, where it runs behind that step's S; dkv has no registers
  // for that and lives on the other warpgroup's products. Nothing may be in flight when a step ends: accumulators that
  // cross the loop's back edge make ptxas serialise every product (C7514).
  constexpr bool kDefers = !kKeys && kDim0 <= 192;
  bool is_bad = false;  // the tile at hand, or (deferring) the one before
  const auto step = [&]<bool First>() {
    const int stage = ring0.stage();
    int cleanup = 0;  // kept in a uniform register; as a bool it would cost a predicate
    Words words{{~0U, ~0U}};
    int read = 0;
    const auto make_words = [&] {
      cleanup = Uniform(kIsCapped ? read : sm.column[stage].cleanup);
      if (cleanup != 0) words = words_of(stage);
    };
    const auto reload_words = [&] {
      if (kKeepsStats) return;
      const uint32_t both = sm.words[threadIdx.x - kWarpgroup];
      words = {{both, both >> 16}};
    };
    ptx::BarWait(ptx::Smem(&sm.full0[stage]), ring0.parity());
    // Before the products are issued or after: ptxas then schedules dkv 5 % better, with softcap the one, without it the
    // other (docs/cuda_kernels.md).
    if (kIsCapped) read = sm.column[stage].cleanup;
    if constexpr (!kKeepsStats) {  // no registers for it beside the products
      make_words();
      sm.words[threadIdx.x - kWarpgroup] = (words.word[0] & 0xFFFFU) | words.word[1] << 16;
    }
    IssueScores<T, kDim0, kRowPanel, kColPanel>(s, ptx::Desc(rows0(), 16), ptx::Desc(ptx::Smem(sm.cols0[stage]), 16));
    if constexpr (kDefers && !First) issue_grad0(before.stage());
    ptx::BarWait(ptx::Smem(&sm.full1[stage1()]), parity1());
    if constexpr (HasDs) {
      IssueScores<T, kDim1, kRowPanel, kColPanel>(dp, ptx::Desc(rows1(), 16),
                                                  ptx::Desc(ptx::Smem(sm.cols1[stage1()]), 16));
    }
    if constexpr (kKeepsStats) make_words();  // while the products run
    ptx::WgmmaWait<(HasDs ? 1 : 0) + (kDefers && !First ? 1 : 0)>(s);
    reload_words();
    all_probabilities(cleanup != 0, words);
    if constexpr (kDefers && !First) {
      ptx::WgmmaWait<1>(grad0);
      ptx::Tie(ds);
      if (!is_bad && lane == 0) ptx::BarArrive(ptx::Smem(&sm.empty0[before.stage()]));
    }
    if constexpr (HasDs) ptx::WgmmaWait<0>(dp);
    if (!kKeys && lane == 0) ptx::BarArrive(ptx::Smem(&sm.empty1[stage1()]));
    if constexpr (kDefers && !First) {
      if (is_bad) [[unlikely]] {
        add_bad(before.stage());
        if (lane == 0) ptx::BarArrive(ptx::Smem(&sm.empty0[before.stage()]));
      }
      before.Next();
    }
    is_bad = false;
    if (cleanup != 0) {
      ptx::BarWait(ptx::Smem(&sm.checked[ring0.stage()]), ring0.parity());
      is_bad = sm.is_bad[ring0.stage()] != 0;
      if (is_bad) [[unlikely]]
        zero_bad(ring0.stage());
    }
    if constexpr (HasDv) {  // runs while dS is formed
      IssueSums<T>(grad1, prob, ptx::Desc(ptx::Smem(sm.cols1[ring0.stage()]), kColPanel));
    }
    if constexpr (HasDs) {
      reload_words();
      if (cleanup != 0) {
        score_gradients.template operator()<true>(words);
      } else {
        score_gradients.template operator()<false>(words);
      }
    }
    if constexpr (!kDefers) {
      if constexpr (HasDs) issue_grad0(ring0.stage());
      if constexpr (HasDv) {
        ptx::WgmmaWait<HasDs ? 1 : 0>(grad1);
        ptx::Tie(prob);
      }
      if constexpr (HasDs) {
        ptx::WgmmaWait<0>(grad0);
        ptx::Tie(ds);
      }
      if (is_bad) [[unlikely]]
        add_bad(ring0.stage());
      if constexpr (kKeys) __syncwarp();  // what travels with the stage leaves with it, and every lane has read it
      if (lane == 0) ptx::BarArrive(ptx::Smem(&sm.empty0[ring0.stage()]));
    }
    if (!kSameRing) ring1_of_dq.Next();
    ring0.Next();
  };
  // Tiles of which this warpgroup's rows see nothing: both warpgroups still zero what is bad in them, and give them back.
  const auto pass = [&](int count) {
#pragma unroll 1
    for (; count > 0; --count) {
      const int stage = ring0.stage();
      ptx::BarWait(ptx::Smem(&sm.full0[stage]), ring0.parity());
      ptx::BarWait(ptx::Smem(&sm.full1[stage1()]), parity1());
      ptx::BarWait(ptx::Smem(&sm.checked[stage]), ring0.parity());
      if (sm.is_bad[stage] != 0) [[unlikely]]
        zero_bad(stage);
      __syncwarp();
      if (lane == 0) {
        if (!kKeys) ptx::BarArrive(ptx::Smem(&sm.empty1[stage1()]));
        ptx::BarArrive(ptx::Smem(&sm.empty0[stage]));
      }
      if (!kSameRing) ring1_of_dq.Next();
      if (kDefers) before.Next();
      ring0.Next();
    }
  };
  const auto release_rows = [&] {  // of the row before: its gradients have left by now
    if constexpr (kStages.rows == 1) return;
    if (is_leader && sm.unreleased[wg] >= 0) {
      ptx::TmaStoreWaitRead();
      ptx::BarArrive(ptx::Smem(&sm.rows_empty[sm.unreleased[wg]]));
      sm.unreleased[wg] = -1;
    }
  };
  while (true) {
    ptx::BarWait(ptx::Smem(&sm.rows_full[rows.stage()]), rows.parity());
    const Shared::Place& at = sm.place[rows.stage()];
    if (Uniform(at.row) < 0) break;
    if constexpr (HasDs) {
#pragma unroll
      for (int i = 0; i < kDim0 / 2; ++i) grad0[i] = 0;
    }
    if constexpr (HasDv) {
#pragma unroll
      for (int i = 0; i < kDim1 / 2; ++i) grad1[i] = 0;
    }
    if constexpr (!kKeys) {
      const int64_t head = static_cast<int64_t>(at.batch) * p.shape.num_q_heads + at.head;
      const int local = local_row();
      const int64_t first = head * p.shape.padded_q + at.row * kRows + local;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        (kKeepsStats ? row_lse2[r] : sm.row_lse2[local + 8 * r]) = __ldg(p.lse2 + first + 8 * r);
        (kKeepsStats ? row_delta[r] : sm.row_delta[local + 8 * r]) = __ldg(p.delta + first + 8 * r);
      }
    }
    // Idle slots at both ends: read when they are needed, because dkv has no registers to keep their numbers in.
    const auto here = [&]() -> const Shared::Place& { return sm.place[rows.StageAnew()]; };
    const auto lead = [&] { return kSplits ? 0 : Uniform(here().idle.lead[wg]); };
    const auto trail = [&] { return kSplits ? 0 : Uniform(here().idle.trail[wg]); };
    if constexpr (kDefers) {
      pass(lead());
      const int count = Uniform(at.slot_count) - lead() - trail();
      if (count > 0) {
        step.template operator()<true>();
        release_rows();
        for (int i = 1; i < count; ++i) step.template operator()<false>();
        issue_grad0(before.stage());
        ptx::WgmmaWait<0>(grad0);
        ptx::Tie(ds);
        if (is_bad) [[unlikely]]
          add_bad(before.stage());
        if (lane == 0) ptx::BarArrive(ptx::Smem(&sm.empty0[before.stage()]));
        before.Next();
        is_bad = false;
      }
      pass(trail());
    } else {
      int heads = Uniform(HeadsApart(at.idle, at.col_heads));
      const int count = Uniform(at.slot_count / heads) - lead() - trail();
      do {
        pass(lead());
        for (int i = 0; i < count; ++i) {
          step.template operator()<true>();
          if (i == 0) release_rows();
        }
        pass(trail());
      } while (--heads > 0);
    }
    release_rows();

    // The gradients leave through the row tiles; each warpgroup has its own half of them.
    if constexpr (kSplits) {
      ptx::NamedSync(4, 2 * kWarpgroup);  // the tiles are read by both
    } else {
      ptx::NamedSync(1 + wg, kWarpgroup);
    }
    const int part = at.part;
    if (part >= 0) {
      constexpr int kDims = kDim0 + (kKeys ? kDim1 : 0);
      const int kept = PartRows(kRows, kKeys ? p.shape.kv_len : p.shape.q_len);
      const int local = local_row();
      float* const sums = p.parts + part * PartFloats(kKind, kept, kDims);
      if constexpr (HasDs) WritePart(grad0, sums, kDims, local, kept);
      if constexpr (HasDv) WritePart(grad1, sums + kDim0, kDims, local, kept);
    } else {
      if constexpr (HasDs) StageOut<T, kRowPanel>(grad0, rows0(), p.shape.scale, p.shape.scale);
      if constexpr (HasDv) StageOut<T, kRowPanel>(grad1, rows1(), 1.0F, 1.0F);
      ptx::FenceAsyncShared();
      ptx::NamedSync(1 + wg, kWarpgroup);
    }
    if (is_leader) {
      const ptx::TileAt to{at.row * kRows + half * 64, at.head, at.batch};
      if (part < 0 && to.token < (kKeys ? p.shape.kv_len : p.shape.q_len)) {
        if constexpr (HasDs) {
#pragma unroll
          for (int panel = 0; panel < kDim0 / 64; ++panel)
            ptx::TmaStore(&p.out[0], rows0() + panel * kRowPanel, to, panel);
        }
        if constexpr (HasDv) {
#pragma unroll
          for (int panel = 0; panel < kDim1 / 64; ++panel)
            ptx::TmaStore(&p.out[1], rows1() + panel * kRowPanel, to, panel);
        }
      }
      ptx::TmaStoreCommit();
      if constexpr (kStages.rows == 1) {
        ptx::TmaStoreWaitRead();
        ptx::BarArrive(ptx::Smem(&sm.rows_empty[0]));
      } else {
        sm.unreleased[wg] = static_cast<int>(rows.stage());
      }
    }
    rows.Next();
  }
  if (is_leader) ptx::TmaStoreWait();
}

}  // namespace
}  // namespace tessera::lanes::cuda

extern "C" __global__ void __launch_bounds__(384, 1)
    TESSERA_CUDA_NAME(const __grid_constant__ tessera::lanes::cuda::BackwardParams p) {
  using namespace tessera::lanes::cuda;
  extern __shared__ __align__(1024) uint8_t memory[];
  Shared& sm = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages.rows; ++i) {
      ptx::BarInit(ptx::Smem(&sm.rows_full[i]), 1);
      ptx::BarInit(ptx::Smem(&sm.rows_empty[i]), 2 + kScanWarps);  // a leader per warpgroup
    }
    for (int i = 0; i < kStages.cols0; ++i) {
      ptx::BarInit(ptx::Smem(&sm.full0[i]), 1);
      ptx::BarInit(ptx::Smem(&sm.empty0[i]), 8 + kScanWarps);  // one lane per warp
      ptx::BarInit(ptx::Smem(&sm.checked[i]), 1);
    }
    for (int i = 0; i < kStages.cols1; ++i) {
      ptx::BarInit(ptx::Smem(&sm.full1[i]), 1);
      ptx::BarInit(ptx::Smem(&sm.empty1[i]), 8);
    }
    ptx::BarInit(ptx::Smem(&sm.next_full), 1);
    ptx::BarInitFence();
    FillTables(sm.tables, p.plan, kKind);
  }
  __syncthreads();
  const int wg = Uniform(static_cast<int>(threadIdx.x) >> 7);
  if (wg == 0) {
    ptx::RegsDec<kLoaderRegs>();
    if (threadIdx.x == 0) {
      // dq begins where dkv leaves multiprocessors idle, and ends after it: what follows on the stream waits for dq alone.
      if (kKeys) ptx::LetNextBegin();
      LoadTiles(p, sm);
      if (!kKeys) ptx::WaitForBefore();
    } else if (threadIdx.x >= 32) {
      ScanTiles(p, sm);
    }
  } else {
    ptx::RegsInc<kConsumerRegs>();
    if constexpr (!kSplits) {
      Accumulate<kKeys, true>(p, sm, wg - 1);
    } else if (wg == 1) {
      Accumulate<true, false>(p, sm, 0);
    } else {
      Accumulate<false, true>(p, sm, 1);
    }
  }
}
