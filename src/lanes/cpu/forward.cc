// Forward. Keys and values that do not lie as products read them are packed once; then each unit of work is one
// worklist row of one head: its queries in panels, against the row's tiles in order, with a running softmax. Long rows
// of small problems come in parts, whose results are combined in the parts' order. Nothing here depends on how many
// threads there are.
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "lanes/cpu/operands.h"
#include "lanes/cpu/passes.h"
#include "lanes/cpu/units.h"
#include "lanes/workers.h"

namespace tessera::lanes::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr double kLn2 = 0.6931471805599453;

// The running softmax of a row's queries.
struct RowState {
  float* row_max = nullptr;  // [panels * panel], base 2
  float* row_sum = nullptr;
  uint32_t* row_nan = nullptr;  // a logit was NaN
  uint8_t* seen = nullptr;      // the query may see some key
  float* out = nullptr;         // [panels][dim_v][panel]
};

struct WorkerScratch {
  RowState state;
  std::byte* queries = nullptr;  // [panels][dim_qk][panel]
  float* scores = nullptr;       // [key_block][panel]
  std::byte* operand = nullptr;  // the same, where operands are narrower
  PackedKeys values;             // of one tile that is not finite
  TileMasks masks;
  float* factors = nullptr;  // [panel]
  int64_t num_tiles = 0;     // walked so far
};

// The queries of one unit of work.
struct QueryRows {
  int64_t batch = 0;
  int64_t head = 0;
  int64_t kv_head = 0;  // of all batch rows
  int64_t q_begin = 0;
  int64_t num_rows = 0;
  int64_t num_panels = 0;
};

class ForwardPass {
 public:
  ForwardPass(const ForwardSetup& setup, Scratch scratch)
      : setup_(setup),
        kernel_(setup.kernel),
        sizes_(setup.sizes),
        plan_(setup.plan),
        list_(setup.list),
        work_(setup.work),
        scratch_(scratch) {
    keys_ = TakeKeys(scratch_, kernel_, sizes_, sizes_.shape.dim_qk, {.rows = true});
    values_ = TakeKeys(scratch_, kernel_, sizes_, sizes_.shape.dim_v, {.columns = true, .flags = true});
    known_finite_ = scratch_.Take<std::atomic<bool>>(NumKeyTiles());
    partials_.resize(static_cast<size_t>(work_.num_partials));
    for (RowState& state : partials_) state = TakeState();
    workers_.resize(static_cast<size_t>(setup_.threads));
    for (WorkerScratch& worker : workers_) worker = TakeWorker();
  }

  int64_t bytes() const { return scratch_.bytes(); }

  int64_t Run(const ForwardArgs& args, std::atomic<int64_t>* done) {
    args_ = &args;
    const std::array<KeysToPack, 2> tensors = {{{&args.k, &keys_}, {&args.v, &values_}}};
    PackAll(PackRunOf(), tensors);
    std::uninitialized_value_construct_n(known_finite_, NumKeyTiles());
    const auto run_row = [&](int64_t unit, int64_t worker) {
      Metered(done, workers_[static_cast<size_t>(worker)],
              [&](auto& own) { RunRow(work_.units[static_cast<size_t>(unit)], own); });
    };
    RunUnits(setup_.threads, static_cast<int64_t>(work_.units.size()), run_row, {kernel_.enter, kernel_.leave});
    RunUnits(setup_.threads, static_cast<int64_t>(work_.splits.size()), [&](int64_t split, int64_t worker) {
      Combine(work_.splits[static_cast<size_t>(split)], workers_[static_cast<size_t>(worker)]);
    });
    int64_t num_tiles = 0;
    for (const WorkerScratch& worker : workers_) num_tiles += worker.num_tiles;
    return num_tiles;
  }

 private:
  PackRun PackRunOf() const { return {&kernel_, &sizes_, list_.tile_kv, setup_.threads}; }
  int64_t KeyTilesPerHead() const { return RoundUp(plan_.kv_len, list_.tile_kv) / list_.tile_kv; }
  int64_t NumKeyTiles() const { return sizes_.shape.batch * sizes_.shape.num_kv_heads * KeyTilesPerHead(); }

  RowState TakeState() {
    const int64_t lanes = setup_.most_panels * kernel_.panel;
    RowState state;
    state.row_max = scratch_.Take<float>(lanes);
    state.row_sum = scratch_.Take<float>(lanes);
    state.row_nan = scratch_.Take<uint32_t>(lanes);
    state.seen = scratch_.Take<uint8_t>(lanes);
    state.out = scratch_.Take<float>(lanes * sizes_.dim_v);
    return state;
  }

  WorkerScratch TakeWorker() {
    const int64_t lanes = setup_.most_panels * kernel_.panel;
    WorkerScratch worker;
    worker.state = TakeState();
    worker.queries = scratch_.TakeBytes(lanes * sizes_.dim_qk * kernel_.operand_bytes);
    const int64_t step = kernel_.key_block * kernel_.panel;
    worker.scores = scratch_.Take<float>(step);
    if (kernel_.operand_bytes != 4) worker.operand = scratch_.TakeBytes(step * kernel_.operand_bytes);
    if (kernel_.operand_bytes == 4) {
      worker.values =
          TakeTile(scratch_, kernel_, sizes_, sizes_.shape.dim_v, list_.tile_kv, {.columns = true, .flags = true});
    }
    worker.masks = TileMasks(scratch_, setup_.most_panels, kernel_.panel, TileKeysOf(list_, plan_));
    worker.factors = scratch_.Take<float>(kernel_.panel);
    return worker;
  }

  QueryRows At(uint32_t row, uint32_t head) const {
    QueryRows at;
    at.batch = head / sizes_.shape.num_q_heads;
    at.head = head % sizes_.shape.num_q_heads;
    at.kv_head = at.batch * sizes_.shape.num_kv_heads + at.head / sizes_.group;
    at.q_begin = int64_t{row} * list_.tile_q;
    at.num_rows = std::min<int64_t>(list_.tile_q, plan_.q_len - at.q_begin);
    at.num_panels = RoundUp(at.num_rows, kernel_.panel) / kernel_.panel;
    return at;
  }

  void RunRow(const RowUnit& unit, WorkerScratch& worker) {
    const QueryRows at = At(unit.row, unit.head);
    const bool is_whole = unit.partial == kWholeRow;
    const RowState& state = is_whole ? worker.state : partials_[static_cast<size_t>(unit.partial)];
    const int64_t lanes = at.num_panels * kernel_.panel;
    std::fill_n(state.row_max, lanes, -kInf);
    std::fill_n(state.row_sum, lanes, 0.0F);
    std::fill_n(state.row_nan, lanes, 0U);
    std::fill_n(state.seen, lanes, uint8_t{0});
    std::fill_n(state.out, lanes * sizes_.dim_v, 0.0F);
    for (int64_t p = 0; p < at.num_panels; ++p) PackQueries(at, p, worker);
    const RowFacts facts = FactsOf(plan_, at.batch);
    for (uint32_t slot = unit.slot_begin; slot < unit.slot_end; ++slot) {
      RunTile(at, facts, list_.slots[slot], state, worker);
    }
    if (is_whole) Finish(at, state, worker);
  }

  std::byte* Queries(const WorkerScratch& worker, int64_t panel) const {
    return worker.queries + panel * kernel_.panel * sizes_.dim_qk * kernel_.operand_bytes;
  }
  float* Out(const RowState& state, int64_t panel) const { return state.out + panel * kernel_.panel * sizes_.dim_v; }

  void PackQueries(const QueryRows& at, int64_t panel, WorkerScratch& worker) {
    const int64_t begin = panel * kernel_.panel;
    kernel_.pack_panel({.type = args_->q.type,
                        .from = RowAt(args_->q, at.batch, at.head, at.q_begin + begin),
                        .from_stride = args_->q.token_stride,
                        .num_rows = std::min(kernel_.panel, at.num_rows - begin),
                        .dim = sizes_.shape.dim_qk,
                        .padded_dim = sizes_.dim_qk,
                        .padded_rows = kernel_.panel,
                        .factor = sizes_.query_factor,
                        .to = Queries(worker, panel)});
  }

  // Keys outermost, so that a block of them stays in the first cache while every panel passes over it.
  void RunTile(const QueryRows& at, const RowFacts& facts, const Slot& slot, const RowState& state,
               WorkerScratch& worker) {
    const TileAt tile{.plan = &plan_,
                      .worklist = &list_,
                      .facts = &facts,
                      .cleanup = slot.cleanup,
                      .q_begin = at.q_begin,
                      .kv_begin = int64_t{slot.index} * list_.tile_kv};
    ++worker.num_tiles;
    worker.masks.Fill(tile, at.num_rows, state.seen);
    int32_t begin = INT32_MAX;
    int32_t end = 0;
    for (int64_t p = 0; p < at.num_panels; ++p) {
      begin = std::min(begin, worker.masks[p].begin);
      end = std::max(end, worker.masks[p].end);
    }
    if (begin >= end) return;
    const TileKeys values = ValuesOf(at.kv_head, slot.index, worker);
    const auto key_block = static_cast<int32_t>(kernel_.key_block);
    for (int32_t block = begin / key_block * key_block; block < end; block += key_block) {
      for (int64_t p = 0; p < at.num_panels; ++p) {
        const auto step = static_cast<int32_t>(kernel_.key_step);
        const PanelMask& mask = worker.masks[p];
        const int32_t first = std::max(block, mask.begin / step * step);
        const int32_t last = std::min(block + key_block, mask.end);
        if (first >= last) continue;
        PrefetchShare(at, tile.kv_begin + block + key_block, p);
        AddProbabilities(at, {tile.kv_begin, first, last}, p, state, worker);
        AddValues(at, {tile.kv_begin, first, last}, values, p, state, worker);
      }
    }
  }

  // Values of a tile. Those that stay where they are must be looked at once, by whoever comes first.
  TileKeys ValuesOf(int64_t kv_head, uint32_t column, WorkerScratch& worker) const {
    const int64_t begin = int64_t{column} * list_.tile_kv;
    std::atomic<bool>& known = known_finite_[kv_head * KeyTilesPerHead() + column];
    if (values_.in_place == nullptr || known.load(std::memory_order_relaxed)) return {&values_, kv_head, begin};
    const TileKeys values = LookAtTile(PackRunOf(), args_->v, values_, worker.values, kv_head, begin);
    if (values.keys == &values_) known.store(true, std::memory_order_relaxed);
    return values;
  }

  // Each panel of a block brings its share of the next block nearer: where documents are short, keys and values come
  // from memory about as often as from a cache.
  void PrefetchShare(const QueryRows& at, int64_t block_begin, int64_t panel) const {
    const int64_t rows = (kernel_.key_block + at.num_panels - 1) / at.num_panels;
    const int64_t begin = block_begin + panel * rows;
    const int64_t end = std::min({begin + rows, block_begin + kernel_.key_block, plan_.kv_len});
    for (int64_t row = begin; row < end; ++row) {
      keys_.PrefetchRow(at.kv_head, row);
      values_.PrefetchRow(at.kv_head, row);
    }
  }

  struct Keys {
    int64_t tile_begin = 0;
    int32_t first = 0;  // of the tile
    int32_t last = 0;
  };
  void* Operand(const WorkerScratch& worker) const {
    return kernel_.operand_bytes == 4 ? static_cast<void*>(worker.scores) : worker.operand;
  }

  // Scores become probabilities, and the running maxima and sums take them in.
  void AddProbabilities(const QueryRows& at, const Keys& keys, int64_t p, const RowState& state,
                        WorkerScratch& worker) {
    const int64_t panel = kernel_.panel;
    const int64_t num_keys = RoundUp(keys.last - keys.first, kernel_.key_step);
    const int64_t lane = p * panel;
    kernel_.multiply({.a = keys_.Row(at.kv_head, keys.tile_begin + keys.first),
                      .a_stride = keys_.row_stride(),
                      .b = Queries(worker, p),
                      .b_stride = panel,
                      .c = worker.scores,
                      .c_stride = panel,
                      .num_a = num_keys,
                      .num_k = sizes_.dim_qk,
                      .width = panel});
    kernel_.softmax({.score = sizes_.score,
                     .mask = worker.masks[p].From(keys.first),
                     .num_keys = static_cast<int32_t>(num_keys),
                     .scores = worker.scores,
                     .operand = Operand(worker),
                     .row_max = state.row_max + lane,
                     .row_sum = state.row_sum + lane,
                     .row_nan = args_->row_max.empty() ? nullptr : state.row_nan + lane,
                     .out = Out(state, p),
                     .out_rows = sizes_.dim_v});
  }

  void AddValues(const QueryRows& at, const Keys& keys, const TileKeys& values, int64_t p, const RowState& state,
                 WorkerScratch& worker) {
    const int64_t num_keys = RoundUp(keys.last - keys.first, kernel_.key_step);
    kernel_.multiply_columns({.a = values.Column(keys.first),
                              .a_stride = values.keys->column_stride(),
                              .b = Operand(worker),
                              .b_stride = kernel_.panel,
                              .c = Out(state, p),
                              .c_stride = kernel_.panel,
                              .num_a = sizes_.dim_v,
                              .num_k = num_keys,
                              .width = kernel_.panel,
                              .accumulate = true});
    if (values.IsLeftOut(keys.first, num_keys)) AddNotFinite(at, keys, values, p, state, worker);
  }

  // Values that packing left out, for the queries that see them.
  void AddNotFinite(const QueryRows& at, const Keys& keys, const TileKeys& values, int64_t p, const RowState& state,
                    WorkerScratch& worker) {
    const int64_t panel = kernel_.panel;
    const int64_t kv_head = at.kv_head % sizes_.shape.num_kv_heads;
    for (int32_t key = keys.first; key < keys.last; ++key) {
      if (!values.IsLeftOut(key)) continue;
      const std::byte* value = RowAt(args_->v, at.batch, kv_head, keys.tile_begin + key);
      for (int64_t lane = 0; lane < std::min(panel, at.num_rows - p * panel); ++lane) {
        if (!Sees(worker.masks[p], panel, key, lane)) continue;
        const float weight = worker.scores[(key - keys.first) * panel + lane];
        for (int64_t d = 0; d < sizes_.shape.dim_v; ++d) {
          Out(state, p)[d * panel + lane] += weight * ScalarAt(value, args_->v.type, d);
        }
      }
    }
  }

  // Sums of parts on one scale, in the parts' order, into the first of them.
  void Combine(const SplitRow& split, WorkerScratch& worker) {
    const QueryRows at = At(split.row, split.head);
    const RowState& first = partials_[static_cast<size_t>(split.first_partial)];
    for (int64_t i = 1; i < split.num_parts; ++i) {
      const RowState& next = partials_[static_cast<size_t>(split.first_partial + i)];
      for (int64_t lane = 0; lane < at.num_panels * kernel_.panel; ++lane) {
        const float top = std::max(first.row_max[lane], next.row_max[lane]);
        const float shift = top == -kInf ? 0.0F : top;
        const float a = std::exp2(first.row_max[lane] - shift);
        const float b = std::exp2(next.row_max[lane] - shift);
        first.row_max[lane] = top;
        first.row_sum[lane] = first.row_sum[lane] * a + next.row_sum[lane] * b;
        first.row_nan[lane] |= next.row_nan[lane];
        first.seen[lane] |= next.seen[lane];
        const int64_t at_lane = lane / kernel_.panel * kernel_.panel * sizes_.dim_v + lane % kernel_.panel;
        for (int64_t d = 0; d < sizes_.dim_v; ++d) {
          float& sum = first.out[at_lane + d * kernel_.panel];
          sum = sum * a + next.out[at_lane + d * kernel_.panel] * b;
        }
      }
    }
    Finish(at, first, worker);
  }

  struct RowResult {
    float factor = 0.0F;  // what sums are multiplied by
    float lse = -kInf;
    float max = -kInf;
  };
  RowResult ResultOf(const RowState& state, int64_t lane, int64_t head) const {
    RowResult result;
    if (state.seen[lane] == 0) return result;
    const double top = static_cast<double>(state.row_max[lane]);
    double shift = top;
    double sum = static_cast<double>(state.row_sum[lane]);
    if (top == -std::numeric_limits<double>::infinity()) sum = std::numeric_limits<double>::quiet_NaN();
    double scale = 1.0;
    if (!args_->sink_logits.empty()) {
      const double sink = static_cast<double>(args_->sink_logits[static_cast<size_t>(head)]) * kLog2E;
      if (std::isnan(sink) || sink > shift) shift = sink;
      scale = std::exp2(top - shift);
      sum = sum * scale + std::exp2(sink - shift);
    }
    result.factor = static_cast<float>(scale / sum);
    result.lse = static_cast<float>((shift + std::log2(sum)) * kLn2);
    result.max = state.row_nan[lane] != 0 ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(top * kLn2);
    return result;
  }

  void Finish(const QueryRows& at, const RowState& state, WorkerScratch& worker) {
    const size_t stats =
        static_cast<size_t>((at.batch * sizes_.shape.num_q_heads + at.head) * plan_.q_len + at.q_begin);
    for (int64_t p = 0; p < at.num_panels; ++p) {
      const int64_t begin = p * kernel_.panel;
      const int64_t num_rows = std::min(kernel_.panel, at.num_rows - begin);
      std::fill_n(worker.factors, kernel_.panel, 0.0F);
      for (int64_t lane = 0; lane < num_rows; ++lane) {
        const RowResult result = ResultOf(state, begin + lane, at.head);
        worker.factors[lane] = result.factor;
        if (!args_->lse.empty()) args_->lse[stats + static_cast<size_t>(begin + lane)] = result.lse;
        if (!args_->row_max.empty()) args_->row_max[stats + static_cast<size_t>(begin + lane)] = result.max;
      }
      kernel_.finish_panel({.sums = Out(state, p),
                            .factors = worker.factors,
                            .num_rows = num_rows,
                            .dim = sizes_.shape.dim_v,
                            .type = args_->o.type,
                            .to = RowAt(args_->o, at.batch, at.head, at.q_begin + begin),
                            .to_stride = args_->o.token_stride});
    }
  }

  const ForwardSetup& setup_;
  const Kernel& kernel_;
  const Sizes& sizes_;
  const PlanView& plan_;
  const Worklist& list_;
  const RowUnits& work_;
  const ForwardArgs* args_ = nullptr;
  Scratch scratch_;
  PackedKeys keys_;
  PackedKeys values_;
  std::atomic<bool>* known_finite_ = nullptr;  // [batch, key head][key tile]: values that stay where they are
  std::vector<RowState> partials_;
  std::vector<WorkerScratch> workers_;
};

}  // namespace

ForwardSetup::ForwardSetup(const Kernel& kernel_in, const BindRequest& request, int64_t threads_in)
    : kernel(kernel_in),
      sizes(request.contract, kernel_in),
      plan(request.plan),
      list(request.plan.Of(Direction::kForward)),
      threads(threads_in),
      most_panels(CeilDiv(std::min<int64_t>(list.tile_q, plan.q_len), kernel.panel)),
      work(MakeRowUnits(plan, list, static_cast<uint32_t>(sizes.group))) {
  workspace_bytes = ForwardPass(*this, Scratch()).bytes();
}

int64_t RunForward(const ForwardSetup& setup, const ForwardArgs& args, const LaneCall& call) {
  return ForwardPass(setup, Scratch(call.workspace)).Run(args, call.tiles_done);
}

}  // namespace tessera::lanes::cpu
