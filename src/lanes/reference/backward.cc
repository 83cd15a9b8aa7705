// Backward: dQ by query rows, then dK and dV by key rows, each with its own worklist and in one fixed order (heads of a
// group ascending, then queries ascending). Probabilities are recomputed from the log-sum-exp.
#include <algorithm>
#include <cmath>
#include <limits>

#include "lanes/reference/walk.h"
#include "lanes/scratch.h"
#include "lanes/weights.h"

namespace tessera::lanes::reference {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

struct BackwardScratch {
  std::span<double> q, k, grad_qk;
  std::span<double> v, dout, grad_v;
  std::span<double> delta;  // [num_q_heads, q_len] of the batch row at hand
};

BackwardScratch Carve(const Shape& shape, Scratch& scratch) {
  BackwardScratch out;
  out.q = scratch.TakeSpan<double>(shape.dim_qk);
  out.k = scratch.TakeSpan<double>(shape.dim_qk);
  out.grad_qk = scratch.TakeSpan<double>(shape.dim_qk);
  out.v = scratch.TakeSpan<double>(shape.dim_v);
  out.dout = scratch.TakeSpan<double>(shape.dim_v);
  out.grad_v = scratch.TakeSpan<double>(shape.dim_v);
  out.delta = scratch.TakeSpan<double>(shape.num_q_heads * shape.q_len);
  return out;
}

void Clear(std::span<double> row) { std::fill(row.begin(), row.end(), 0.0); }

void AddScaled(std::span<double> to, double factor, std::span<const double> row) {
  for (size_t d = 0; d < to.size(); ++d) to[d] += factor * row[d];
}

class BackwardPass {
 public:
  BackwardPass(const Contract& contract, const PlanView& plan, const BackwardArgs& args, const LaneCall& call)
      : contract_(contract), shape_(contract.shape), plan_(plan), args_(args), call_(call) {
    Scratch memory(call.workspace);
    scratch_ = Carve(shape_, memory);
  }

  int64_t Run() {
    int64_t tiles = 0;
    if (call_.tiles_done != nullptr) tiles_all_ = TilesOf(Direction::kDkv);
    if (call_.tiles_done != nullptr) walks_all_ = tiles_all_ + TilesOf(Direction::kDq);
    for (int64_t b = 0; b < shape_.batch; ++b) {
      const TokenFacts facts = SpreadTokenFacts(plan_, b);
      for (int64_t h = 0; h < shape_.num_q_heads; ++h) FillDelta(b, h);
      for (int64_t h = 0; h < shape_.num_q_heads; ++h) RunQueries(facts, b, h);
      for (int64_t h = 0; h < shape_.num_kv_heads; ++h) tiles += RunKeys(facts, b, h);
    }
    for (int64_t h = 0; h < static_cast<int64_t>(args_.dsink_logits.size()); ++h) RunSink(h);
    return tiles;
  }

 private:
  double Lse(int64_t b, int64_t h, int64_t q) const {
    return static_cast<double>(args_.lse[static_cast<size_t>((b * shape_.num_q_heads + h) * shape_.q_len + q)]);
  }
  // An empty row: its output and its `do` are never read.
  bool IsEmpty(int64_t b, int64_t h, int64_t q) const { return Lse(b, h, q) == -kInf; }

  double ComputeDelta(int64_t b, int64_t h, int64_t q) {
    if (!args_.delta.empty()) {
      return static_cast<double>(args_.delta[static_cast<size_t>((b * shape_.num_q_heads + h) * shape_.q_len + q)]);
    }
    LoadRow(args_.o, {b, h, q}, scratch_.v);
    LoadRow(args_.dout, {b, h, q}, scratch_.dout);
    return Dot(scratch_.v, scratch_.dout);
  }
  double& Delta(int64_t h, int64_t q) { return scratch_.delta[static_cast<size_t>(h * shape_.q_len + q)]; }

  void FillDelta(int64_t b, int64_t h) {
    for (int64_t q = 0; q < shape_.q_len; ++q) Delta(h, q) = IsEmpty(b, h, q) ? 0.0 : ComputeDelta(b, h, q);
  }

  // The probability of a pair and the gradient of its score, scale included; the rows must be loaded.
  struct PairGradient {
    double p = 0.0;
    double score = 0.0;
  };
  PairGradient GradientOf(double lse, double delta) const {
    const Logit logit = LogitOf(contract_.score, Dot(scratch_.q, scratch_.k));
    const double p = WeightOf(logit.value, LeanLse(lse));
    const double dp = Dot(scratch_.dout, scratch_.v);
    return {p, p * (dp - delta) * logit.slope * contract_.score.scale};
  }

  void RunQueries(const TokenFacts& facts, int64_t b, int64_t h) {
    const Worklist& list = plan_.Of(Direction::kDq);
    const uint32_t mask = MaskOf(b, h);
    const int64_t kv_head = KvHead(shape_, h);
    for (int64_t row = 0; row < list.rows_per_mask; ++row) {
      const TileRow tiles = TileRowOf(plan_, Direction::kDq, mask, row);
      for (int64_t q = tiles.begin; q < tiles.end; ++q) {
        Clear(scratch_.grad_qk);
        if (!IsEmpty(b, h, q)) {
          LoadRow(args_.q, {b, h, q}, scratch_.q);
          LoadRow(args_.dout, {b, h, q}, scratch_.dout);
          const double lse = Lse(b, h, q);
          const double delta = Delta(h, q);
          ForEachKey(plan_, list, tiles.slots, facts, q, [&](int64_t k) {
            LoadRow(args_.k, {b, kv_head, k}, scratch_.k);
            LoadRow(args_.v, {b, kv_head, k}, scratch_.v);
            AddScaled(scratch_.grad_qk, GradientOf(lse, delta).score, scratch_.k);
          });
        }
        StoreRow(args_.dq, {b, h, q}, scratch_.grad_qk);
      }
      CountWalked(static_cast<int64_t>(tiles.slots.size()));
    }
  }

  int64_t RunKeys(const TokenFacts& facts, int64_t b, int64_t kv_head) {
    const Worklist& list = plan_.Of(Direction::kDkv);
    const int64_t group = shape_.num_q_heads / shape_.num_kv_heads;
    int64_t tiles_executed = 0;
    for (int64_t row = 0; row < list.rows_per_mask; ++row) {
      const int64_t before = tiles_executed;
      int64_t begin = 0;
      int64_t end = 0;
      for (int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
        const TileRow tiles = TileRowOf(plan_, Direction::kDkv, MaskOf(b, h), row);
        tiles_executed += static_cast<int64_t>(tiles.slots.size());
        begin = tiles.begin;
        end = tiles.end;
      }
      for (int64_t k = begin; k < end; ++k) RunKey(facts, {b, kv_head, k}, row);
      CountWalked(tiles_executed - before);
    }
    return tiles_executed;
  }

  void RunKey(const TokenFacts& facts, const RowIndex& at, int64_t row) {
    const Worklist& list = plan_.Of(Direction::kDkv);
    const int64_t group = shape_.num_q_heads / shape_.num_kv_heads;
    Clear(scratch_.grad_qk);
    Clear(scratch_.grad_v);
    bool is_loaded = false;  // a key that no row sees is never read
    for (int64_t h = at.head * group; h < (at.head + 1) * group; ++h) {
      const TileRow tiles = TileRowOf(plan_, Direction::kDkv, MaskOf(at.batch, h), row);
      ForEachQuery(plan_, list, tiles.slots, facts, at.token, [&](int64_t q) {
        if (IsEmpty(at.batch, h, q)) return;
        if (!is_loaded) {
          LoadRow(args_.k, at, scratch_.k);
          LoadRow(args_.v, at, scratch_.v);
          is_loaded = true;
        }
        LoadRow(args_.q, {at.batch, h, q}, scratch_.q);
        LoadRow(args_.dout, {at.batch, h, q}, scratch_.dout);
        const PairGradient grad = GradientOf(Lse(at.batch, h, q), Delta(h, q));
        AddScaled(scratch_.grad_qk, grad.score, scratch_.q);
        AddScaled(scratch_.grad_v, grad.p, scratch_.dout);
      });
    }
    StoreRow(args_.dk, at, scratch_.grad_qk);
    StoreRow(args_.dv, at, scratch_.grad_v);
  }

  // The sink's value is zero, so only its share of the denominator matters: -p * delta, over every row that has keys.
  void RunSink(int64_t h) {
    const double sink = static_cast<double>(args_.sink_logits[static_cast<size_t>(h)]);
    double sum = 0.0;
    for (int64_t b = 0; b < shape_.batch; ++b) {
      for (int64_t q = 0; q < shape_.q_len; ++q) {
        if (!IsEmpty(b, h, q)) sum -= WeightOf(sink, LeanLse(Lse(b, h, q))) * ComputeDelta(b, h, q);
      }
    }
    args_.dsink_logits[static_cast<size_t>(h)] = static_cast<float>(sum);
  }

  int64_t TilesOf(Direction direction) const {
    const TileCounts counts = CountTiles(plan_, direction);
    return counts.full + counts.partial;
  }

  // Who watches hears of a pass's tiles once, and dQ and then dK and dV walk them: each walk is its share of them.
  void CountWalked(int64_t tiles) {
    if (call_.tiles_done == nullptr) return;
    walked_ += tiles;
    const double share = static_cast<double>(walked_) / static_cast<double>(std::max<int64_t>(walks_all_, 1));
    *call_.tiles_done =
        walked_ == walks_all_ ? tiles_all_ : static_cast<int64_t>(share * static_cast<double>(tiles_all_));
  }

  uint32_t MaskOf(int64_t b, int64_t h) const { return plan_.mask_of[static_cast<size_t>(b * shape_.num_q_heads + h)]; }

  const Contract& contract_;
  const Shape& shape_;
  const PlanView& plan_;
  const BackwardArgs& args_;
  const LaneCall& call_;
  BackwardScratch scratch_;
  int64_t tiles_all_ = 0;
  int64_t walks_all_ = 0;
  int64_t walked_ = 0;
};

}  // namespace

int64_t BackwardWorkspaceBytes(const Contract& contract) {
  Scratch counting;
  Carve(contract.shape, counting);
  return counting.bytes();
}

int64_t RunBackward(const Contract& contract, const PlanView& plan, const BackwardArgs& args, const LaneCall& call) {
  // Counted over the transposed worklist: dQ walks the same pairs again.
  return BackwardPass(contract, plan, args, call).Run();
}

}  // namespace tessera::lanes::reference
