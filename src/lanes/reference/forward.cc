// Forward: a two-pass softmax per row over its allowed keys, ascending.
#include <cmath>
#include <limits>

#include "lanes/reference/walk.h"
#include "lanes/scratch.h"

namespace tessera::lanes::reference {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

struct ForwardScratch {
  std::span<double> q, k, v, o;
  std::span<double> logits;  // of the row's allowed keys
  std::span<int64_t> keys;
};

ForwardScratch Carve(const Shape& shape, Scratch& scratch) {
  ForwardScratch out;
  out.q = scratch.TakeSpan<double>(shape.dim_qk);
  out.k = scratch.TakeSpan<double>(shape.dim_qk);
  out.v = scratch.TakeSpan<double>(shape.dim_v);
  out.o = scratch.TakeSpan<double>(shape.dim_v);
  out.logits = scratch.TakeSpan<double>(shape.kv_len);
  out.keys = scratch.TakeSpan<int64_t>(shape.kv_len);
  return out;
}

struct RowStats {
  double lse = -kInf;
  double max = -kInf;
};

// `scratch.keys` holds the row's `count` allowed keys. Leaves the output row in `scratch.o`.
RowStats RunRow(const Contract& contract, const ForwardArgs& args, const RowIndex& at, size_t count,
                ForwardScratch& scratch) {
  std::fill(scratch.o.begin(), scratch.o.end(), 0.0);
  RowStats stats;
  if (count == 0) return stats;
  const int64_t kv_head = KvHead(contract.shape, at.head);
  LoadRow(args.q, at, scratch.q);
  bool has_nan = false;
  for (size_t n = 0; n < count; ++n) {
    LoadRow(args.k, {at.batch, kv_head, scratch.keys[n]}, scratch.k);
    scratch.logits[n] = LogitOf(contract.score, Dot(scratch.q, scratch.k)).value;
    has_nan = has_nan || std::isnan(scratch.logits[n]);
    stats.max = std::max(stats.max, scratch.logits[n]);
  }
  // std::max drops a NaN or keeps it, depending on its side; a NaN logit must reach the row it belongs to.
  if (has_nan) stats.max = std::numeric_limits<double>::quiet_NaN();

  double shift = stats.max;
  double sum = 0.0;
  if (!args.sink_logits.empty()) {
    const double sink = static_cast<double>(args.sink_logits[static_cast<size_t>(at.head)]);
    if (std::isnan(sink) || sink > shift) shift = sink;
    sum = std::exp(sink - shift);
  }
  for (size_t n = 0; n < count; ++n) sum += std::exp(scratch.logits[n] - shift);
  for (size_t n = 0; n < count; ++n) {
    const double p = std::exp(scratch.logits[n] - shift) / sum;
    LoadRow(args.v, {at.batch, kv_head, scratch.keys[n]}, scratch.v);
    for (size_t d = 0; d < scratch.v.size(); ++d) scratch.o[d] += p * scratch.v[d];
  }
  stats.lse = shift + std::log(sum);
  return stats;
}

}  // namespace

int64_t ForwardWorkspaceBytes(const Contract& contract) {
  Scratch counting;
  Carve(contract.shape, counting);
  return counting.bytes();
}

int64_t RunForward(const Contract& contract, const PlanView& plan, const ForwardArgs& args, const LaneCall& call) {
  const Shape& shape = contract.shape;
  const Worklist& list = plan.Of(Direction::kForward);
  Scratch memory(call.workspace);
  ForwardScratch scratch = Carve(shape, memory);
  int64_t num_tiles = 0;
  for (int64_t b = 0; b < shape.batch; ++b) {
    const TokenFacts facts = SpreadTokenFacts(plan, b);
    for (int64_t h = 0; h < shape.num_q_heads; ++h) {
      const uint32_t mask = plan.mask_of[static_cast<size_t>(b * shape.num_q_heads + h)];
      for (int64_t row = 0; row < list.rows_per_mask; ++row) {
        const TileRow tiles = TileRowOf(plan, Direction::kForward, mask, row);
        num_tiles += static_cast<int64_t>(tiles.slots.size());
        for (int64_t q = tiles.begin; q < tiles.end; ++q) {
          size_t count = 0;
          ForEachKey(plan, list, tiles.slots, facts, q, [&](int64_t k) { scratch.keys[count++] = k; });
          const RowStats stats = RunRow(contract, args, {b, h, q}, count, scratch);
          StoreRow(args.o, {b, h, q}, scratch.o);
          const size_t stat = static_cast<size_t>((b * shape.num_q_heads + h) * shape.q_len + q);
          if (!args.lse.empty()) args.lse[stat] = static_cast<float>(stats.lse);
          if (!args.row_max.empty()) args.row_max[stat] = static_cast<float>(stats.max);
        }
        if (call.tiles_done != nullptr) *call.tiles_done = num_tiles;
      }
    }
  }
  return num_tiles;
}

}  // namespace tessera::lanes::reference
