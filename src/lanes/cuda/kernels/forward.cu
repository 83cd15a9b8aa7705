// Forward: a row of tiles at a time, 128 queries. Warpgroup 0 loads (one thread, TMA) and looks for NaN and infinity
// (three warps); warpgroups 1 and 2 have 64 queries each. Workers are persistent and take rows by ticket.
//
// In a step the next scores and the last values are in flight while the softmax runs: S(i) = Q K(i)^T and
// O += P(i-1) V(i-1). docs/cuda.md has the figures behind each choice.
#include "lanes/cuda/kernels/softmax.cuh"

namespace tessera::lanes::cuda {
namespace {

using T = ptx::TESSERA_CUDA_TYPE;
constexpr int kDimQk = TESSERA_CUDA_DIM_QK;
constexpr int kDimV = TESSERA_CUDA_DIM_V;
constexpr Softcap kCap = Softcap::TESSERA_CUDA_SOFTCAP;

constexpr Tile kTile = TileOf(KernelKind::kForward, kDimQk);
constexpr Stages kStages = StagesOf(KernelKind::kForward, kDimQk);
constexpr int kRows = kTile.rows;
constexpr int kCols = kTile.cols;
constexpr int kRowPanel = kRows * 128;  // bytes
constexpr int kColPanel = kCols * 128;
constexpr int kQBytes = 2 * kRows * kDimQk;
constexpr int kKBytes = 2 * kCols * kDimQk;
constexpr int kVBytes = 2 * kCols * kDimV;
constexpr int kScores = kCols / 2;  // of a thread
constexpr int kOutputs = kDimV / 2;

struct Shared {
  uint8_t q[kStages.rows][kQBytes];
  uint8_t k[kStages.cols0][kKBytes];
  uint8_t v[kStages.cols1][kVBytes];
  // Travels with the Q stage. count: slots, or -1 to stop.
  struct Row {
    int row, batch, head, count, slot_begin, kv_head, part;
    Idle idle;
    ValidTokens valid;
  } row[kStages.rows];
  alignas(16) Item item[kStages.cols0];  // the first of a partial slot's, travels with the K stage, ...
  Slot slot[kStages.cols0];              // ... and so does the slot
  int v_cleanup[kStages.cols1];          // of the slot, travels with the V stage
  NextWork next;                         // for the loader, from the scan
  PlanTables tables;
  int unreleased[2];  // of each consumer warpgroup, the Q stage whose O store may still be reading it, or -1
  float2 tops[kCap == Softcap::kBounded ? 2 * kWarpgroup : 1];     // of the consumers' rows, when the maxima are wanted
  alignas(16) TokenSpan spans[kStages.rows][kRows];                // of the row's queries
  uint32_t bad[kStages.cols1][kCols / 32], is_bad[kStages.cols1];  // travel with the V stage of a partial slot
  uint64_t q_full[kStages.rows], q_empty[kStages.rows];
  uint64_t k_full[kStages.cols0], k_empty[kStages.cols0];
  uint64_t v_full[kStages.cols1], v_empty[kStages.cols1], v_checked[kStages.cols1];
  uint64_t next_full;
};
static_assert(sizeof(Shared) <= SharedBytes(KernelKind::kForward, kDimQk, kDimV));
static_assert(SharedBytes(KernelKind::kForward, kDimQk, kDimV) <= 227 * 1024);

// ---- loader: Q, K0, V (last of the row before), K1, V0, K2, V1, ... ----------------------------------------------
__device__ __forceinline__ void LoadRows(const ForwardParams& p, Shared& sm) {
  const PlanTables& lists = sm.tables;
  Ring<kStages.rows> q;
  Ring<kStages.cols0> k;
  Ring<kStages.cols1> v;
  Ring<2> turn;
  ptx::TileAt pending{-1, 0, 0};  // the V tile still to load
  int pending_cleanup = 0;
  const auto load_pending = [&] {
    if (pending.token < 0) return;
    const uint32_t full = ptx::Smem(&sm.v_full[v.stage()]);
    ptx::BarWait(ptx::Smem(&sm.v_empty[v.stage()]), v.parity() ^ 1);
    sm.v_cleanup[v.stage()] = pending_cleanup;
    ptx::BarArriveExpect(full, kVBytes);
    ptx::TmaLoad<ptx::Keep::kLast>(ptx::Smem(sm.v[v.stage()]), &p.v, full, pending);
    v.Next();
    pending.token = -1;
  };
  FetchWork(sm.next, lists, static_cast<int>(blockIdx.x), p.shape.num_q_heads);
  while (true) {
    const Work work = sm.next.work;  // read before Q is on its way: once it has come, the next row is fetched
    Slot slot = sm.next.first;
    const int count = work.row < 0 ? -1 : work.slot_count;
    if (count <= 0 || kStages.rows == 1) load_pending();  // consumers drain before they go on
    const uint32_t q_full = ptx::Smem(&sm.q_full[q.stage()]);
    ptx::BarWait(ptx::Smem(&sm.q_empty[q.stage()]), q.parity() ^ 1);
    const int batch = work.head / p.shape.num_q_heads;
    const int head = work.head - batch * p.shape.num_q_heads;
    const int kv_head = head / (p.shape.num_q_heads / p.shape.num_kv_heads);
    sm.row[q.stage()] = {work.row, batch, head, count, work.slot_begin, kv_head, work.part, work.idle,
                           sm.next.valid};
    if (count <= 0) {
      ptx::BarArrive(q_full);
      if (count < 0) return;
    } else {
      ptx::BarArriveExpect(q_full, kQBytes + (lists.tokens != nullptr ? sizeof(sm.spans[0]) : 0));
      ptx::TmaLoad<ptx::Keep::kFirst>(ptx::Smem(sm.q[q.stage()]), &p.q, q_full, {work.row * kRows, head, batch});
      if (lists.tokens != nullptr) {
        ptx::BulkLoad(ptx::Smem(sm.spans[q.stage()]),
                      lists.tokens + (static_cast<int64_t>(batch) * lists.rows_per_mask + work.row) * kRows,
                      sizeof(sm.spans[0]), q_full);
      }
      const Slot* following = lists.slots + work.slot_begin;
      for (int i = 0; i < count; ++i) {
        const ptx::TileAt tile{slot.index * kCols, kv_head, batch};
        const int cleanup = slot.cleanup;
        const uint32_t full = ptx::Smem(&sm.k_full[k.stage()]);
        ptx::BarWait(ptx::Smem(&sm.k_empty[k.stage()]), k.parity() ^ 1);
        sm.slot[k.stage()] = slot;
        if (i + 1 < count) slot = LoadSlot(++following);
        ptx::BarArriveExpect(full, kKBytes + (cleanup != 0 ? sizeof(Item) : 0));
        if (cleanup != 0) ptx::BulkLoad(ptx::Smem(&sm.item[k.stage()]), lists.items + (cleanup - 1), sizeof(Item), full);
        ptx::TmaLoad<ptx::Keep::kLast>(ptx::Smem(sm.k[k.stage()]), &p.k, full, tile);
        k.Next();
        load_pending();
        pending = tile;
        pending_cleanup = cleanup;
      }
    }
    q.Next();
    ptx::BarWait(ptx::Smem(&sm.next_full), turn.stage());
    turn.Next();
  }
}

// ---- the search for NaN and infinity in V, of partial slots --------------------------------------------------------
__device__ __forceinline__ void ScanValues(const ForwardParams& p, Shared& sm) {
  const int thread = threadIdx.x - 32;
  Ring<kStages.rows> q;
  Ring<kStages.cols1> v;
  const auto fetch = [&] {
    if (thread != kFetchThread) return;
    FetchWork(sm.next, sm.tables, NextRow(p.ticket, sm.tables.work_count), p.shape.num_q_heads);
    ptx::BarArrive(ptx::Smem(&sm.next_full));
  };
  while (true) {
    ptx::BarWait(ptx::Smem(&sm.q_full[q.stage()]), q.parity());
    const int count = sm.row[q.stage()].count;
    if (count < 0) return;
    __syncwarp();  // every thread has read the row
    if ((thread & 31) == 0) ptx::BarArrive(ptx::Smem(&sm.q_empty[q.stage()]));
    q.Next();
    const int fetch_at = FetchAt(count);
    if (count == 0) fetch();
    for (int i = 0; i < count; ++i, v.Next()) {
      if (i == fetch_at) fetch();  // before the row's last V, which the loader brings when it knows the next row
      ptx::BarWait(ptx::Smem(&sm.v_full[v.stage()]), v.parity());
      if (sm.v_cleanup[v.stage()] != 0) {
        const bool is_bad = ptx::NamedAny(kScanBarrier, kScanThreads, FindsBad<T, kVBytes, 6>(sm.v[v.stage()], thread));
        if (is_bad) {
          MarkBadRows<T, kCols, kVBytes>(sm.v[v.stage()], sm.bad[v.stage()], thread);
          ZeroRows<kCols, kDimV / 64>(sm.v[v.stage()], sm.bad[v.stage()], thread, kScanThreads);
          ptx::NamedSync(kScanBarrier, kScanThreads);
        }
        if (thread == 0) sm.is_bad[v.stage()] = is_bad ? 1 : 0;
      }
      __syncwarp();
      if ((thread & 31) == 0) ptx::BarArrive(ptx::Smem(&sm.v_empty[v.stage()]));
      if (thread == 0) ptx::BarArrive(ptx::Smem(&sm.v_checked[v.stage()]));
    }
  }
}

// ---- consumer warpgroup: 64 queries --------------------------------------------------------------------------------
__device__ __forceinline__ void AttendRows(const ForwardParams& p, Shared& sm, int wg) {
  const int lane = threadIdx.x & 31;
  const int local =
      wg * 64 + ((threadIdx.x >> 5) & 3) * 16 + (lane >> 2);  // this thread's first row; the other is 8 on
  const bool is_leader = (threadIdx.x & 127) == 0;
  Ring<kStages.rows> q;
  Ring<kStages.cols0> k;
  Ring<kStages.cols1> v;
  if (is_leader) sm.unreleased[wg] = -1;

  float s[kScores], o[kOutputs];
  uint32_t prob[kScores / 2];
  RowState rows;
  float2* const tops = kCap == Softcap::kBounded && p.row_max != nullptr ? &sm.tops[threadIdx.x - kWarpgroup] : nullptr;
  const auto k_desc = [&] { return ptx::Desc(ptx::Smem(sm.k[k.stage()]), 16); };
  const auto v_desc = [&] { return ptx::Desc(ptx::Smem(sm.v[v.stage()]), kColPanel); };
  const auto wait_k = [&] { ptx::BarWait(ptx::Smem(&sm.k_full[k.stage()]), k.parity()); };
  bool is_bad = false;  // the V tile at hand
  const auto wait_v = [&](bool is_partial) {
    ptx::BarWait(ptx::Smem(is_partial ? &sm.v_checked[v.stage()] : &sm.v_full[v.stage()]), v.parity());
    if (kCap != Softcap::kBounded) is_bad = is_partial && sm.is_bad[v.stage()] != 0;
  };
  const auto has_bad = [&](bool is_partial) {  // a bounded softcap has no register to keep it in
    return kCap == Softcap::kBounded ? is_partial && sm.is_bad[v.stage()] != 0 : is_bad;
  };
  const auto release_k = [&] {
    __syncwarp();  // every lane has read what travels with the stage
    if (lane == 0) ptx::BarArrive(ptx::Smem(&sm.k_empty[k.stage()]));
    k.Next();
  };
  const auto release_v = [&] {
    if (lane == 0) ptx::BarArrive(ptx::Smem(&sm.v_empty[v.stage()]));
    v.Next();
  };

  while (true) {
    ptx::BarWait(ptx::Smem(&sm.q_full[q.stage()]), q.parity());
    const Shared::Row& at = sm.row[q.stage()];
    const int count = Uniform(at.count);
    if (count < 0) break;
    const uint32_t q_smem = ptx::Smem(sm.q[q.stage()]) + wg * 64 * 128;
    const auto q_desc = [&] {
      const uint32_t desc = ptx::Desc(q_smem, 16);
      return kStages.rows == 1 ? ptx::Opaque(desc) : desc;
    };
    rows = {{-INFINITY, -INFINITY}, {0, 0}, {-INFINITY, -INFINITY}, 0};
    if (tops != nullptr) *tops = {-INFINITY, -INFINITY};
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) o[i] = 0;

    const auto release_q = [&] {  // the stage of the row before: its O has left by now
      if (is_leader && sm.unreleased[wg] >= 0) {
        ptx::TmaStoreWaitRead();
        ptx::BarArrive(ptx::Smem(&sm.q_empty[sm.unreleased[wg]]));
        sm.unreleased[wg] = -1;
      }
    };
    const auto words_of = [&](Slot slot, const Item* first) {
      if (slot.cleanup == 0) return Words{{~0U, ~0U}};
      const MaskTables tables{sm.tables.items, sm.tables.spans, sm.tables.bits,
                              at.valid.q,      at.valid.kv,     p.shape.kv_len};
      const RowPair pair{
          {local, local + 8}, at.row * kRows, {sm.spans[q.stage()][local], sm.spans[q.stage()][local + 8]}};
      return CleanupWords<kCols, false>(tables, slot.cleanup, *first, pair, slot.index * kCols, lane & 3);
    };
    const auto add_bad = [&](int i) {  // after O += P V of slot i
      const Slot slot = LoadSlot(sm.tables.slots + at.slot_begin + i);
      AddBadRows<T>(o, prob, words_of(slot, sm.tables.items + slot.cleanup - 1), sm.bad[v.stage()],
                    RowOf(p.v_rows, at.batch, at.kv_head, slot.index * kCols), p.v_rows.token_stride);
    };
    const auto num_slots = [&] { return kCap == Softcap::kBounded ? at.count : count; };  // no register to keep it in
    const auto pack = [&] {
#pragma unroll
      for (int i = 0; i < kScores / 2; ++i) prob[i] = ptx::Pack(T{}, s[2 * i], s[2 * i + 1]);
    };

    if (count > 0) {
      wait_k();
      IssueScores<T, kDimQk, kRowPanel, kColPanel>(s, q_desc(), k_desc());
      Slot slot = Uniform(sm.slot[k.stage()]);
      Words words = words_of(slot, &sm.item[k.stage()]);
      ptx::WgmmaWait<0>(s);
      release_k();
      release_q();
      Probabilities<kCap, true>(p.shape, s, rows, slot.cleanup != 0, words, tops);
      pack();
      for (int i = 1; i < num_slots(); ++i) {  // scores of this slot, values of the slot before
        const int was = slot.cleanup;
        wait_k();
        const Slot read = sm.slot[k.stage()];  // comes while the products are issued
        IssueScores<T, kDimQk, kRowPanel, kColPanel>(s, q_desc(), k_desc());
        wait_v(was != 0);
        IssueSums<T>(o, prob, v_desc());
        slot = Uniform(read);  // while the products run
        words = words_of(slot, &sm.item[k.stage()]);
        ptx::WgmmaWait<1>(s);    // the values stay in flight
        release_k();
        const float2 alpha = Probabilities<kCap, false>(p.shape, s, rows, slot.cleanup != 0, words, tops);
        ptx::WgmmaWait<0>(o);
        ptx::Tie(prob);
        if (has_bad(was != 0)) [[unlikely]]
          add_bad(i - 1);
        release_v();
        if (kCap != Softcap::kBounded && !__all_sync(~0U, alpha.x == 1.0F && alpha.y == 1.0F)) {
#pragma unroll
          for (int n = 0; n < kOutputs; ++n) o[n] *= (n & 2) != 0 ? alpha.y : alpha.x;
        }
        pack();
      }
      wait_v(slot.cleanup != 0);
      if (kCap != Softcap::kNone && kCols == 2 * kCellTokens && Uniform(at.idle.trail[wg]) != 0) {
        // These rows see nothing of the last cell. Without a softcap this gains nothing.
        IssueSums<T>(o, Half<0>(prob), v_desc());
      } else {
        IssueSums<T>(o, prob, v_desc());
      }
      ptx::WgmmaWait<0>(o);
      ptx::Tie(prob);
      if (has_bad(slot.cleanup != 0)) [[unlikely]]
        add_bad(num_slots() - 1);
      release_v();
    } else {
      release_q();
    }

    // O leaves through this warpgroup's half of the Q stage; the sums of a part as they are.
    const int tile = at.row;
    const int batch = at.batch;
    const int head = at.head;
    const int part = at.part;
    const int kept = PartRows(kRows, p.shape.q_len);
    float* const sums = p.parts + part * PartFloats(KernelKind::kForward, kept, kDimV);
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = rows.top[r];
      if (tops != nullptr) top = r == 0 ? tops->x : tops->y;
      const RowTotals totals = TotalsOf<kCap>(p.shape, rows, r, top);
      if (part >= 0) {
        float* const to = sums + kept * kDimV + (local + 8 * r) * kPartStatistics;
        if ((lane & 3) == 0 && local + 8 * r < kept) *reinterpret_cast<RowTotals*>(to) = totals;
        continue;
      }
      const RowEnd end = EndRow(totals, p.sinks == nullptr ? nullptr : p.sinks + head);
      const int token = tile * kRows + local + 8 * r;
      if ((lane & 3) == 0 && token < p.shape.q_len) {
        const int64_t at = (static_cast<int64_t>(batch) * p.shape.num_q_heads + head) * p.shape.q_len + token;
        if (p.lse != nullptr) p.lse[at] = end.lse;
        if (p.row_max != nullptr) p.row_max[at] = end.top;
      }
      factor[r] = end.factor;
    }
    ptx::NamedSync(1 + wg, kWarpgroup);  // every warp is done reading Q
    if (part >= 0) {
      WritePart(o, sums, kDimV, local, kept);
    } else {
      StageOut<T, kRowPanel>(o, q_smem, factor[0], factor[1]);
      ptx::FenceAsyncShared();
      ptx::NamedSync(1 + wg, kWarpgroup);
    }
    if (is_leader) {
      const int token = tile * kRows + wg * 64;
      if (part < 0 && token < p.shape.q_len) {
#pragma unroll
        for (int panel = 0; panel < kDimV / 64; ++panel) {
          ptx::TmaStore(&p.o, q_smem + panel * kRowPanel, {token, head, batch}, panel);
        }
      }
      ptx::TmaStoreCommit();
      if (kStages.rows == 1) {
        ptx::TmaStoreWaitRead();
        ptx::BarArrive(ptx::Smem(&sm.q_empty[q.stage()]));
      } else {
        sm.unreleased[wg] = static_cast<int>(q.stage());
      }
    }
    q.Next();
  }
  if (is_leader) ptx::TmaStoreWait();
}

}  // namespace
}  // namespace tessera::lanes::cuda

extern "C" __global__ void __launch_bounds__(384, 1)
    TESSERA_CUDA_NAME(const __grid_constant__ tessera::lanes::cuda::ForwardParams p) {
  using namespace tessera::lanes::cuda;
  extern __shared__ __align__(1024) uint8_t memory[];
  Shared& sm = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages.rows; ++i) {
      ptx::BarInit(ptx::Smem(&sm.q_full[i]), 1);
      ptx::BarInit(ptx::Smem(&sm.q_empty[i]), 2 + kScanWarps);  // a leader per warpgroup
    }
    for (int i = 0; i < kStages.cols0; ++i) {
      ptx::BarInit(ptx::Smem(&sm.k_full[i]), 1);
      ptx::BarInit(ptx::Smem(&sm.k_empty[i]), 8);  // one lane per consumer warp
    }
    for (int i = 0; i < kStages.cols1; ++i) {
      ptx::BarInit(ptx::Smem(&sm.v_full[i]), 1);
      ptx::BarInit(ptx::Smem(&sm.v_empty[i]), 8 + kScanWarps);
      ptx::BarInit(ptx::Smem(&sm.v_checked[i]), 1);
    }
    ptx::BarInit(ptx::Smem(&sm.next_full), 1);
    ptx::BarInitFence();
    FillTables(sm.tables, p.plan, KernelKind::kForward);
    ptx::PrefetchMap(&p.q);
    ptx::PrefetchMap(&p.k);
    ptx::PrefetchMap(&p.v);
    ptx::PrefetchMap(&p.o);
  }
  __syncthreads();
  const int wg = Uniform(static_cast<int>(threadIdx.x) >> 7);
  if (wg == 0) {
    ptx::RegsDec<40>();
    if (threadIdx.x == 0) {
      LoadRows(p, sm);
    } else if (threadIdx.x >= 32) {
      ScanValues(p, sm);
    }
  } else {
    ptx::RegsInc<232>();
    AttendRows(p, sm, wg - 1);
  }
}
