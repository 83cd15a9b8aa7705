// Backward, in one pass over the transposed worklist: a unit of work is one tile of keys of one key head, which visits
// the queries that see it, recomputes their probabilities from the log-sum-exp, and keeps dK and dV to itself.
//
// dQ gathers over key tiles, so tiles add to it in one fixed order: a query tile counts the key tiles that are done
// with it, and the next one waits for its turn (the plan's rank). Key tiles are taken in ascending order, so whoever is
// waited for is always running. That makes the bits the same for any number of threads, without computing scores twice.
//
// Short rows wait for memory more than for products, so everything is done when its data is at hand: the first key tile
// of a query tile packs it, the last one writes its dQ, and a few heads at a time pass through the same memory.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "lanes/cpu/passes.h"
#include "lanes/cpu/turns.h"
#include "lanes/weights.h"
#include "lanes/workers.h"

namespace tessera::lanes::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// The rows of one tile of queries as the B of a product: a copy, or the tensor itself where it lies as products read
// it.
struct RowSource {
  const std::byte* data = nullptr;
  int64_t stride = 0;  // as a product counts it
};

// Queries and output gradients, packed once: [kept head][panels][dim][panel] and [kept head][rows][dim].
struct PackedQueries {
  std::byte* panels = nullptr;
  std::byte* rows = nullptr;
  uint8_t* not_finite = nullptr;        // [batch, head][rows]
  std::vector<RowSource> sources = {};  // [tile]
};

struct WorkerScratch {
  PackedKeys keys;  // of a tile that cannot be read where it lies
  PackedKeys values;
  float* dk = nullptr;  // [tile_kv + slack][dim_qk]
  float* dv = nullptr;
  float* scores = nullptr;  // [panels of a step][grad_keys][panel]
  float* grads = nullptr;
  std::byte* prob_rows = nullptr;  // the same, where operands are narrower
  std::byte* grad_rows = nullptr;
  std::byte* grad_pairs = nullptr;
  TileMasks masks;
  int64_t num_tiles = 0;  // walked so far
};

// A tile of queries of one head.
struct QueryTile {
  int64_t index = 0;  // among all of them
  int64_t batch = 0;
  int64_t head = 0;  // query head, of this batch row
  int64_t q_begin = 0;
  int64_t num_rows = 0;
  int64_t lane = 0;  // the first, among those of all tiles
  int64_t kept = 0;  // the same among those of the heads that are kept at a time
};

// The same against a tile of keys.
struct TilePair : QueryTile {
  int64_t num_panels = 0;
  int64_t kv_head = 0;  // of all batch rows
  int64_t kv_begin = 0;
  TileKeys keys = {};
  TileKeys values = {};
};

class BackwardPass {
 public:
  BackwardPass(const BackwardSetup& setup, Scratch scratch)
      : setup_(setup),
        kernel_(setup.kernel),
        sizes_(setup.sizes),
        plan_(setup.plan),
        list_(setup.list),
        scratch_(scratch),
        turns_({.plan = &setup.plan, .num_key_tiles = setup.num_key_tiles},
               {.kv_heads = setup.heads / sizes_.group,
                .group = sizes_.group,
                .q_tiles = setup.q_tiles,
                .threads = setup.threads},
               scratch_) {
    queries_ = TakeQueries(sizes_.dim_qk);
    douts_ = TakeQueries(sizes_.dim_v);
    dq_ = scratch_.Take<float>(KeptLanes() * sizes_.dim_qk);
    lse_ = scratch_.Take<float>(Lanes());
    delta_ = scratch_.Take<float>(Lanes());
    dead_ = scratch_.Take<uint8_t>(Lanes());
    workers_.resize(static_cast<size_t>(setup_.threads));
    for (WorkerScratch& worker : workers_) worker = TakeWorker();
  }

  int64_t bytes() const { return scratch_.bytes(); }
  int64_t Run(const BackwardArgs& args, std::atomic<int64_t>* done) {
    args_ = &args;
    keys_ = InPlace(PackRunOf(), args.k, workers_[0].keys);
    values_ = InPlace(PackRunOf(), args.v, workers_[0].values);
    turns_.Begin();
    const auto run_key_tile = [&](int64_t unit, int64_t worker) {
      Metered(done, workers_[static_cast<size_t>(worker)], [&](auto& own) { RunKeyTile(turns_.UnitAt(unit), own); });
    };
    RunUnits(setup_.threads, turns_.num_units(), run_key_tile, {kernel_.enter, kernel_.leave});
    RunUnits(setup_.threads, setup_.heads * setup_.q_tiles, [&](int64_t unit, int64_t) {
      if (turns_.NumKeyTiles(unit) == 0) FinishWithoutKeys(TileOf(unit));
    });
    for (int64_t h = 0; h < static_cast<int64_t>(args.dsink_logits.size()); ++h) FinishSink(h);
    int64_t num_tiles = 0;
    for (const WorkerScratch& worker : workers_) num_tiles += worker.num_tiles;
    return num_tiles;
  }

 private:
  PackRun PackRunOf() const { return {&kernel_, &sizes_, list_.tile_kv, setup_.threads}; }

  // Lanes of every query tile, whole panels each.
  int64_t LanesPerTile() const { return setup_.panels_per_tile * kernel_.panel; }
  int64_t Lanes() const { return setup_.heads * setup_.q_tiles * LanesPerTile(); }
  int64_t KeptLanes() const { return turns_.kept_heads() * setup_.q_tiles * LanesPerTile(); }

  // The tiles of one head follow one another.
  QueryTile TileOf(int64_t index) const {
    const int64_t all_head = index / setup_.q_tiles;
    const int64_t q_begin = index % setup_.q_tiles * list_.tile_q;
    const int64_t kept_head = all_head % turns_.kept_heads();
    return {.index = index,
            .batch = all_head / sizes_.shape.num_q_heads,
            .head = all_head % sizes_.shape.num_q_heads,
            .q_begin = q_begin,
            .num_rows = std::min<int64_t>(list_.tile_q, plan_.q_len - q_begin),
            .lane = index * LanesPerTile(),
            .kept = (kept_head * setup_.q_tiles + index % setup_.q_tiles) * LanesPerTile()};
  }

  PackedQueries TakeQueries(int64_t dim) {
    PackedQueries out;
    out.panels = scratch_.TakeBytes(KeptLanes() * dim * kernel_.operand_bytes);
    out.rows = scratch_.TakeBytes(KeptLanes() * dim * kernel_.operand_bytes);
    out.not_finite = scratch_.Take<uint8_t>(Lanes());
    out.sources.resize(static_cast<size_t>(Lanes() / LanesPerTile()));
    return out;
  }

  WorkerScratch TakeWorker() {
    const int64_t keys = RoundUp(TileKeysOf(list_, plan_), kCellSlack) + kCellSlack;
    const int64_t step = kernel_.grad_keys * RoundUp(kernel_.grad_queries, kernel_.panel);
    WorkerScratch worker;
    worker.keys = TakeTile(scratch_, kernel_, sizes_, sizes_.shape.dim_qk, list_.tile_kv,
                           {.rows = true, .columns = true, .flags = true});
    worker.values =
        TakeTile(scratch_, kernel_, sizes_, sizes_.shape.dim_v, list_.tile_kv, {.rows = true, .flags = true});
    worker.dk = scratch_.Take<float>(keys * sizes_.dim_qk);
    worker.dv = scratch_.Take<float>(keys * sizes_.dim_v);
    worker.scores = scratch_.Take<float>(step);
    worker.grads = scratch_.Take<float>(step);
    if (kernel_.operand_bytes != 4) {
      worker.prob_rows = scratch_.TakeBytes(step * 2);
      worker.grad_rows = scratch_.TakeBytes(step * 2);
      worker.grad_pairs = scratch_.TakeBytes(step * 2);
    }
    worker.masks = TileMasks(scratch_, setup_.panels_per_tile, kernel_.panel, TileKeysOf(list_, plan_));
    return worker;
  }

  // Rows without keys are never read: they count as dead, with a log-sum-exp that makes every probability 0.
  void ReadStats(const QueryTile& at) {
    const int64_t lane = at.lane;
    std::fill_n(lse_ + lane, LanesPerTile(), kInf);
    std::fill_n(delta_ + lane, LanesPerTile(), 0.0F);
    std::fill_n(dead_ + lane, LanesPerTile(), uint8_t{1});
    const size_t stats =
        static_cast<size_t>((at.batch * sizes_.shape.num_q_heads + at.head) * plan_.q_len + at.q_begin);
    for (int64_t row = 0; row < at.num_rows; ++row) {
      const float lse = args_->lse[stats + static_cast<size_t>(row)];
      if (lse == -kInf) continue;
      dead_[lane + row] = 0;
      lse_[lane + row] = static_cast<float>(LeanLse(static_cast<double>(lse)) * kLog2E);
    }
    if (!args_->delta.empty()) {
      for (int64_t row = 0; row < at.num_rows; ++row) {
        if (dead_[lane + row] == 0) delta_[lane + row] = args_->delta[stats + static_cast<size_t>(row)];
      }
    } else {
      kernel_.row_dots({.a_type = args_->o.type,
                        .b_type = args_->dout.type,
                        .a = RowAt(args_->o, at.batch, at.head, at.q_begin),
                        .b = RowAt(args_->dout, at.batch, at.head, at.q_begin),
                        .a_stride = args_->o.token_stride,
                        .b_stride = args_->dout.token_stride,
                        .num_rows = at.num_rows,
                        .dim = sizes_.shape.dim_v,
                        .dead = dead_ + lane,
                        .dots = delta_ + lane});
    }
  }

  void PackQueryTile(const QueryTile& at) {
    ReadStats(at);
    PackQueryRows(args_->q, queries_, sizes_.shape.dim_qk, sizes_.query_factor, at);
    PackQueryRows(args_->dout, douts_, sizes_.shape.dim_v, 1.0F, at);
    std::fill_n(dq_ + at.kept * sizes_.dim_qk, LanesPerTile() * sizes_.dim_qk, 0.0F);
  }

  // Whether a tile's rows can be multiplied where they lie, if every value is finite: no row is missing or dead, and no
  // vector of them lies across two cache lines.
  bool LiesRight(const PackRows& pack) const {
    constexpr int64_t kLine = 64;
    const bool is_aligned = reinterpret_cast<uintptr_t>(pack.from) % kLine == 0 &&
                            pack.from_stride * static_cast<int64_t>(sizeof(float)) % kLine == 0;
    return is_aligned && kernel_.operand_bytes == 4 && pack.type == ElementType::kF32 && pack.dim == pack.padded_dim &&
           pack.num_rows == pack.padded_rows && !HasFlag(pack.dead, pack.num_rows);
  }

  void PackQueryRows(const TensorRef& from, PackedQueries& to, int64_t dim, float factor, const QueryTile& at) {
    const int64_t padded_dim = RoundUp(dim, kernel_.dim_step);
    uint8_t* flags = to.not_finite + at.lane;
    std::fill_n(flags, LanesPerTile(), uint8_t{0});
    PackRows pack{.type = from.type,
                  .from = RowAt(from, at.batch, at.head, at.q_begin),
                  .from_stride = from.token_stride,
                  .num_rows = at.num_rows,
                  .dim = dim,
                  .padded_dim = padded_dim,
                  .padded_rows = LanesPerTile(),
                  .dead = dead_ + at.lane,
                  .not_finite = flags,
                  .to = to.rows + at.kept * padded_dim * kernel_.operand_bytes,
                  .to_stride = padded_dim};
    const int64_t bytes = padded_dim * kernel_.operand_bytes;
    RowSource& source = to.sources[static_cast<size_t>(at.index)];
    source = {pack.from, pack.from_stride};
    bool stays = LiesRight(pack);
    if (stays) {
      kernel_.flag_rows(pack);
      stays = !HasFlag(flags, pack.num_rows);
    }
    if (!stays) {
      kernel_.pack_b_rows(pack);
      source = {static_cast<const std::byte*>(pack.to), padded_dim};
    }
    // A score of a query that is not finite reaches only that query, so the panels keep such rows as they are.
    pack.not_finite = nullptr;
    pack.padded_rows = kernel_.panel;
    pack.factor = factor;
    for (int64_t begin = 0; begin < LanesPerTile(); begin += kernel_.panel) {
      pack.from = RowAt(from, at.batch, at.head, at.q_begin + begin);
      pack.num_rows = std::clamp<int64_t>(at.num_rows - begin, 0, kernel_.panel);
      pack.dead = dead_ + at.lane + begin;
      if (!HasFlag(pack.dead, pack.num_rows)) pack.dead = nullptr;
      pack.to = to.panels + (at.kept + begin) * bytes;
      kernel_.pack_panel(pack);
    }
  }

  void RunKeyTile(const Turns::KeyTile& key_tile, WorkerScratch& worker) {
    const int64_t column = key_tile.column;
    const int64_t kv_head = key_tile.kv_head;
    const int64_t batch = kv_head / sizes_.shape.num_kv_heads;
    const int64_t first_head = kv_head % sizes_.shape.num_kv_heads * sizes_.group;
    const int64_t kv_begin = column * list_.tile_kv;
    const int64_t num_keys = std::min<int64_t>(list_.tile_kv, plan_.kv_len - kv_begin);
    const int64_t kept = RoundUp(num_keys, kernel_.key_step);
    std::fill_n(worker.dk, kept * sizes_.dim_qk, 0.0F);
    std::fill_n(worker.dv, kept * sizes_.dim_v, 0.0F);
    const RowFacts facts = FactsOf(plan_, batch);
    TileKeys keys;  // looked at when a query sees them
    TileKeys values;
    for (int64_t head = first_head; head < first_head + sizes_.group; ++head) {
      const int64_t all_head = batch * sizes_.shape.num_q_heads + head;
      const uint64_t row =
          uint64_t{plan_.mask_of[static_cast<size_t>(all_head)]} * list_.rows_per_mask + static_cast<uint64_t>(column);
      for (uint64_t slot = list_.row_offsets[row]; slot < list_.row_offsets[row + 1]; ++slot) {
        TilePair at{TileOf(all_head * setup_.q_tiles + list_.slots[slot].index)};
        at.num_panels = RoundUp(at.num_rows, kernel_.panel) / kernel_.panel;
        at.kv_head = kv_head;
        at.kv_begin = kv_begin;
        if (keys.keys == nullptr) {
          keys = LookAtTile(PackRunOf(), args_->k, keys_, worker.keys, kv_head, kv_begin);
          values = LookAtTile(PackRunOf(), args_->v, values_, worker.values, kv_head, kv_begin);
        }
        at.keys = keys;
        at.values = values;
        RunTile(at, facts, slot, worker);
      }
    }
    const auto store = [&](const float* sums, int64_t dim, float factor, const TensorRef& to) {
      kernel_.finish_rows({.sums = sums,
                           .sums_stride = RoundUp(dim, kernel_.dim_step),
                           .factor = factor,
                           .num_rows = num_keys,
                           .dim = dim,
                           .type = to.type,
                           .to = RowAt(to, batch, kv_head % sizes_.shape.num_kv_heads, kv_begin),
                           .to_stride = to.token_stride});
    };
    store(worker.dk, sizes_.shape.dim_qk, sizes_.scale, args_->dk);
    store(worker.dv, sizes_.shape.dim_v, 1.0F, args_->dv);
  }

  void RunTile(const TilePair& at, const RowFacts& facts, uint64_t slot, WorkerScratch& worker) {
    const TileAt tile{.plan = &plan_,
                      .worklist = &list_,
                      .facts = &facts,
                      .cleanup = list_.slots[slot].cleanup,
                      .q_begin = at.q_begin,
                      .kv_begin = at.kv_begin};
    ++worker.num_tiles;
    worker.masks.Fill(tile, at.num_rows);
    const uint32_t rank = list_.ranks[slot];
    turns_.Wait(at.index, rank);
    if (rank == 0) {
      turns_.WaitForMemory(at.index);
      PackQueryTile(at);
    }
    const int64_t panels_per_step = std::max<int64_t>(1, kernel_.grad_queries / kernel_.panel);
    for (int64_t p = 0; p < at.num_panels; p += panels_per_step) {
      RunPanels(at, p, std::min(p + panels_per_step, at.num_panels), worker);
    }
    if (rank + 1 == turns_.NumKeyTiles(at.index)) FinishQueryTile(at);
    turns_.Done(at.index, rank);
  }

  // A few panels against the tile's keys, in blocks. Keys that no panel of the step sees are skipped.
  void RunPanels(const TilePair& at, int64_t first_panel, int64_t last_panel, WorkerScratch& worker) {
    int32_t begin = INT32_MAX;
    int32_t end = 0;
    for (int64_t p = first_panel; p < last_panel; ++p) {
      if (worker.masks[p].begin >= worker.masks[p].end) continue;
      begin = std::min(begin, worker.masks[p].begin);
      end = std::max(end, worker.masks[p].end);
    }
    const auto step = static_cast<int32_t>(kernel_.key_step);
    const auto block = static_cast<int32_t>(kernel_.grad_keys);
    for (int32_t first = begin / step * step; first < end; first += block) {
      RunBlock(at, {first_panel, last_panel, first, std::min(first + block, end)}, worker);
    }
  }

  struct StepAt {
    int64_t first_panel = 0;
    int64_t last_panel = 0;
    int32_t first_key = 0;  // of the tile
    int32_t last_key = 0;
  };
  void RunBlock(const TilePair& at, const StepAt& step, WorkerScratch& worker) {
    const int64_t num_keys = RoundUp(step.last_key - step.first_key, kernel_.key_step);
    const bool has_flag = at.keys.IsLeftOut(step.first_key, num_keys) || at.values.IsLeftOut(step.first_key, num_keys);
    for (int64_t p = step.first_panel; p < step.last_panel; ++p) RunPanel(at, step, p, has_flag, worker);
    AddKeyGradients(at, step, num_keys, worker);
    const int64_t first_lane = at.lane + step.first_panel * kernel_.panel;
    const int64_t num_lanes = (step.last_panel - step.first_panel) * kernel_.panel;
    const bool has_query_flag =
        HasFlag(queries_.not_finite + first_lane, num_lanes) || HasFlag(douts_.not_finite + first_lane, num_lanes);
    if (has_flag || has_query_flag) AddNotFinite(at, step, worker);
  }

  // Probabilities and score gradients of one panel, and its dQ. Only keys that the panel sees are computed; the others
  // are zeros for the products that take all panels at once.
  void RunPanel(const TilePair& at, const StepAt& step, int64_t p, bool has_flag, WorkerScratch& worker) {
    const int64_t panel = kernel_.panel;
    const PanelMask& mask = worker.masks[p];
    const auto key_step = static_cast<int32_t>(kernel_.key_step);
    const int32_t first = std::max(step.first_key, mask.begin / key_step * key_step);
    const int32_t last = std::min(step.last_key, mask.end);
    const int64_t num_keys = first < last ? RoundUp(last - first, key_step) : 0;
    const int64_t plane = (p - step.first_panel) * kernel_.grad_keys * panel;
    const int64_t before = num_keys == 0 ? 0 : first - step.first_key;
    const int64_t all_keys = RoundUp(step.last_key - step.first_key, key_step);
    ClearRows(worker, plane, before);
    ClearRows(worker, plane + (before + num_keys) * panel, all_keys - before - num_keys);
    if (num_keys == 0) return;

    const int64_t at_keys = plane + before * panel;
    const int64_t lane = at.lane + p * panel;
    const int64_t kept = at.kept + p * panel;
    // Operands of 16 bits, where the kernel has them.
    const auto narrow = [&](std::byte* all) { return all == nullptr ? nullptr : all + at_keys * 2; };
    float* scores = worker.scores + at_keys;
    float* grads = worker.grads + at_keys;
    const auto multiply = [&](const TileKeys& a, const PackedQueries& b, float* c) {
      kernel_.multiply({.a = a.Row(first),
                        .a_stride = a.keys->row_stride(),
                        .b = b.panels + kept * a.keys->padded_dim * kernel_.operand_bytes,
                        .b_stride = panel,
                        .c = c,
                        .c_stride = panel,
                        .num_a = num_keys,
                        .num_k = a.keys->padded_dim,
                        .width = panel});
    };
    multiply(at.keys, queries_, scores);
    multiply(at.values, douts_, grads);
    if (has_flag) RepairScores(at, step, p, worker);
    kernel_.gradients({.score = sizes_.score,
                       .mask = mask.From(first),
                       .num_keys = static_cast<int32_t>(num_keys),
                       .scores = scores,
                       .grads = grads,
                       .prob_rows = narrow(worker.prob_rows),
                       .grad_rows = narrow(worker.grad_rows),
                       .grad_pairs = narrow(worker.grad_pairs),
                       .lse_log2 = lse_ + lane,
                       .delta = delta_ + lane});
    kernel_.multiply_columns({.a = at.keys.Column(first),
                              .a_stride = at.keys.keys->column_stride(),
                              .b = kernel_.operand_bytes == 4 ? static_cast<void*>(grads) : narrow(worker.grad_pairs),
                              .b_stride = panel,
                              .c = dq_ + kept * sizes_.dim_qk,
                              .c_stride = panel,
                              .num_a = sizes_.dim_qk,
                              .num_k = num_keys,
                              .width = panel,
                              .accumulate = true});
  }

  // Zeros for keys that a panel does not see.
  void ClearRows(WorkerScratch& worker, int64_t at, int64_t num_keys) const {
    const int64_t count = num_keys * kernel_.panel;
    if (kernel_.operand_bytes == 4) {
      std::fill_n(worker.scores + at, count, 0.0F);
      std::fill_n(worker.grads + at, count, 0.0F);
    } else {
      std::memset(worker.prob_rows + at * 2, 0, static_cast<size_t>(count * 2));
      std::memset(worker.grad_rows + at * 2, 0, static_cast<size_t>(count * 2));
    }
  }

  // dV += P dO and dK += dS Q, over the queries of every panel of the step at once.
  void AddKeyGradients(const TilePair& at, const StepAt& step, int64_t num_keys, WorkerScratch& worker) {
    const bool is_f32 = kernel_.operand_bytes == 4;
    const auto add = [&](const void* a, const PackedQueries& queries, int64_t dim, float* c) {
      const RowSource& b = queries.sources[static_cast<size_t>(at.index)];
      kernel_.multiply({.a = a,
                        .a_stride = kernel_.panel,
                        .a_segment = kernel_.grad_keys * kernel_.panel,
                        .b = b.data + step.first_panel * kernel_.panel * b.stride * kernel_.operand_bytes,
                        .b_stride = b.stride,
                        .b_segment = is_f32 ? kernel_.panel * b.stride : kernel_.panel / 2 * b.stride,
                        .c = c + step.first_key * dim,
                        .c_stride = dim,
                        .num_a = num_keys,
                        .num_k = kernel_.panel,
                        .num_segments = step.last_panel - step.first_panel,
                        .width = dim,
                        .accumulate = true});
    };
    add(is_f32 ? static_cast<const void*>(worker.scores) : worker.prob_rows, douts_, sizes_.dim_v, worker.dv);
    add(is_f32 ? static_cast<const void*>(worker.grads) : worker.grad_rows, queries_, sizes_.dim_qk, worker.dk);
  }

  // Scores of keys that packing left out, for the queries that see them.
  void RepairScores(const TilePair& at, const StepAt& step, int64_t p, WorkerScratch& worker) {
    const int64_t panel = kernel_.panel;
    const int64_t plane = (p - step.first_panel) * kernel_.grad_keys * panel;
    ForEachPair(at, step, p, worker, [&](int32_t key, int64_t lane) {
      const int64_t token = at.kv_begin + key;
      const int64_t cell = plane + (key - step.first_key) * panel + lane;
      const int64_t query = at.q_begin + p * panel + lane;
      if (at.keys.IsLeftOut(key)) {
        worker.scores[cell] = sizes_.query_factor * ScalarDot(KeyRow(args_->k, at, token), args_->k.type,
                                                              RowAt(args_->q, at.batch, at.head, query), args_->q.type,
                                                              sizes_.shape.dim_qk);
      }
      if (at.values.IsLeftOut(key)) {
        worker.grads[cell] =
            ScalarDot(KeyRow(args_->v, at, token), args_->v.type, RowAt(args_->dout, at.batch, at.head, query),
                      args_->dout.type, sizes_.shape.dim_v);
      }
    });
  }

  // Products with rows that packing left out, for pairs that see each other.
  void AddNotFinite(const TilePair& at, const StepAt& step, WorkerScratch& worker) {
    const int64_t panel = kernel_.panel;
    for (int64_t p = step.first_panel; p < step.last_panel; ++p) {
      const int64_t plane = (p - step.first_panel) * kernel_.grad_keys * panel;
      ForEachPair(at, step, p, worker, [&](int32_t key, int64_t lane) {
        const int64_t token = at.kv_begin + key;
        const int64_t all_lane = at.lane + p * panel + lane;
        const int64_t query = at.q_begin + p * panel + lane;
        const int64_t cell = plane + (key - step.first_key) * panel + lane;
        if (at.keys.IsLeftOut(key)) {
          const std::byte* from = KeyRow(args_->k, at, token);
          float* to = dq_ + (at.kept + p * panel) * sizes_.dim_qk + lane;
          for (int64_t d = 0; d < sizes_.shape.dim_qk; ++d) {
            to[d * panel] += worker.grads[cell] * ScalarAt(from, args_->k.type, d);
          }
        }
        if (queries_.not_finite[all_lane] != 0) {
          const std::byte* from = RowAt(args_->q, at.batch, at.head, query);
          for (int64_t d = 0; d < sizes_.shape.dim_qk; ++d) {
            worker.dk[key * sizes_.dim_qk + d] += worker.grads[cell] * ScalarAt(from, args_->q.type, d);
          }
        }
        if (douts_.not_finite[all_lane] != 0) {
          const std::byte* from = RowAt(args_->dout, at.batch, at.head, query);
          for (int64_t d = 0; d < sizes_.shape.dim_v; ++d) {
            worker.dv[key * sizes_.dim_v + d] += worker.scores[cell] * ScalarAt(from, args_->dout.type, d);
          }
        }
      });
    }
  }

  const std::byte* KeyRow(const TensorRef& tensor, const TilePair& at, int64_t token) const {
    return RowAt(tensor, at.batch, at.kv_head % sizes_.shape.num_kv_heads, token);
  }

  // Visits the pairs of a panel that see each other and whose query has keys at all.
  template <class Visit>
  void ForEachPair(const TilePair& at, const StepAt& step, int64_t p, const WorkerScratch& worker,
                   const Visit& visit) const {
    const int64_t panel = kernel_.panel;
    for (int32_t key = step.first_key; key < step.last_key; ++key) {
      for (int64_t lane = 0; lane < std::min(panel, at.num_rows - p * panel); ++lane) {
        if (dead_[at.lane + p * panel + lane] == 0 && Sees(worker.masks[p], panel, key, lane)) visit(key, lane);
      }
    }
  }

  void FinishQueryTile(const QueryTile& at) {
    for (int64_t begin = 0; begin < at.num_rows; begin += kernel_.panel) {
      kernel_.finish_panel({.sums = dq_ + (at.kept + begin) * sizes_.dim_qk,
                            .factors = setup_.dq_factors.data(),
                            .num_rows = std::min(kernel_.panel, at.num_rows - begin),
                            .dim = sizes_.shape.dim_qk,
                            .type = args_->dq.type,
                            .to = RowAt(args_->dq, at.batch, at.head, at.q_begin + begin),
                            .to_stride = args_->dq.token_stride});
    }
  }

  void FinishWithoutKeys(const QueryTile& at) {
    ReadStats(at);
    for (int64_t row = 0; row < at.num_rows; ++row) {
      std::memset(RowAt(args_->dq, at.batch, at.head, at.q_begin + row), 0,
                  static_cast<size_t>(sizes_.shape.dim_qk * BytesOf(args_->dq.type)));
    }
  }

  // The sink's value is zero, so only its share of the denominator matters: -p * delta, over every row that has keys.
  void FinishSink(int64_t head) {
    const auto sink = static_cast<double>(args_->sink_logits[static_cast<size_t>(head)]);
    double sum = 0.0;
    for (int64_t n = 0; n < sizes_.shape.batch * plan_.q_len; ++n) {
      const int64_t all_head = n / plan_.q_len * sizes_.shape.num_q_heads + head;
      const int64_t row = n % plan_.q_len;
      const int64_t lane = (all_head * setup_.q_tiles + row / list_.tile_q) * LanesPerTile() + row % list_.tile_q;
      const auto lse = static_cast<double>(args_->lse[static_cast<size_t>(all_head * plan_.q_len + row)]);
      if (dead_[lane] == 0) sum -= WeightOf(sink, LeanLse(lse)) * static_cast<double>(delta_[lane]);
    }
    args_->dsink_logits[static_cast<size_t>(head)] = static_cast<float>(sum);
  }

  const BackwardSetup& setup_;
  const Kernel& kernel_;
  const Sizes& sizes_;
  const PlanView& plan_;
  const Worklist& list_;
  const BackwardArgs* args_ = nullptr;
  Scratch scratch_;
  Turns turns_;
  PackedKeys keys_;  // where they lie, if products can read them there
  PackedKeys values_;
  PackedQueries queries_;
  PackedQueries douts_;
  float* dq_ = nullptr;   // [kept head][query tiles][panels][dim_qk][panel]
  float* lse_ = nullptr;  // [lanes], base 2
  float* delta_ = nullptr;
  uint8_t* dead_ = nullptr;
  std::vector<WorkerScratch> workers_;
};

}  // namespace

BackwardSetup::BackwardSetup(const Kernel& kernel_in, const BindRequest& request, int64_t threads_in)
    : kernel(kernel_in),
      sizes(request.contract, kernel_in),
      plan(request.plan),
      list(request.plan.Of(Direction::kDkv)),
      threads(threads_in),
      q_tiles(CeilDiv(int64_t{plan.q_len}, list.tile_q)),
      panels_per_tile(CeilDiv(std::min<int64_t>(list.tile_q, plan.q_len), kernel.panel)),
      heads(sizes.shape.batch * sizes.shape.num_q_heads),
      num_key_tiles(CountKeyTiles(plan, q_tiles)),
      dq_factors(static_cast<size_t>(kernel.panel), sizes.scale) {
  workspace_bytes = BackwardPass(*this, Scratch()).bytes();
}

int64_t RunBackward(const BackwardSetup& setup, const BackwardArgs& args, const LaneCall& call) {
  return BackwardPass(setup, Scratch(call.workspace)).Run(args, call.tiles_done);
}

}  // namespace tessera::lanes::cpu
