// What the forward and the backward of the reference lane share: rows in and out of strided tensors, the allowed
// pairs of a worklist row, the logit of a pair, and scratch memory carved from the caller's workspace.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "lanes/lane.h"

namespace tessera::lanes::reference {

// Arguments are checked before; both give the tiles they walked.
int64_t RunForward(const Contract& contract, const PlanView& plan, const ForwardArgs& args, const LaneCall& call);
int64_t RunBackward(const Contract& contract, const PlanView& plan, const BackwardArgs& args, const LaneCall& call);
int64_t ForwardWorkspaceBytes(const Contract& contract);
int64_t BackwardWorkspaceBytes(const Contract& contract);

inline constexpr std::string_view kKernel = "reference_f64";
inline constexpr std::string_view kIsa = "scalar";

struct RowIndex {
  int64_t batch = 0;
  int64_t head = 0;
  int64_t token = 0;
};

void LoadRow(const TensorRef& tensor, const RowIndex& at, std::span<double> row);
void StoreRow(const TensorRef& tensor, const RowIndex& at, std::span<const double> row);

double Dot(std::span<const double> a, std::span<const double> b);

// Scale, then softcap. `slope` is the logit's derivative by the scaled score.
struct Logit {
  double value = 0.0;
  double slope = 1.0;
};
Logit LogitOf(const Score& score, double dot);

inline int64_t KvHead(const Shape& shape, int64_t head) { return head / (shape.num_q_heads / shape.num_kv_heads); }

// One worklist row of one (batch row, head): a stretch of tokens on the row's side, and slots of tiles across from it.
struct TileRow {
  int64_t begin = 0;
  int64_t end = 0;
  std::span<const Slot> slots;
};
TileRow TileRowOf(const PlanView& plan, Direction direction, uint32_t mask, int64_t row);

// Calls visit(k) for every key that query q may see, ascending.
template <class Visit>
void ForEachKey(const PlanView& plan, const Worklist& list, std::span<const Slot> slots, const TokenFacts& facts,
                int64_t q, Visit visit) {
  for (const Slot& slot : slots) {
    const int64_t begin = static_cast<int64_t>(slot.index) * list.tile_kv;
    const int64_t end = std::min(begin + list.tile_kv, plan.kv_len);
    for (int64_t k = begin; k < end; ++k) {
      if (slot.cleanup == 0 || TileAllows(plan, list, slot.cleanup, facts, q, k)) visit(k);
    }
  }
}

// Calls visit(q) for every query that may see key k, ascending; `slots` are those of a transposed row.
template <class Visit>
void ForEachQuery(const PlanView& plan, const Worklist& list, std::span<const Slot> slots, const TokenFacts& facts,
                  int64_t k, Visit visit) {
  for (const Slot& slot : slots) {
    const int64_t begin = static_cast<int64_t>(slot.index) * list.tile_q;
    const int64_t end = std::min(begin + list.tile_q, plan.q_len);
    for (int64_t q = begin; q < end; ++q) {
      if (slot.cleanup == 0 || TileAllows(plan, list, slot.cleanup, facts, q, k)) visit(q);
    }
  }
}

}  // namespace tessera::lanes::reference
