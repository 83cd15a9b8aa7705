#include "routing/rows.h"

#include <fmt/format.h>

namespace tessera::routing {
namespace {

// Picks are indexed and allocated as one array.
constexpr int64_t kMaxPicks = int64_t{1} << 33;

bool IsFloat(ElementType type) {
  return type == ElementType::kF32 || type == ElementType::kBf16 || type == ElementType::kF16;
}

}  // namespace

Status CheckRoutingInput(const RoutingInput& input, NeedsTensors needs, const char* stage) {
  if (input.contract == nullptr || input.rows == nullptr || input.legal == nullptr ||
      (needs == NeedsTensors::kYes && !input.contract->routing)) {
    return Fail(ErrorCode::kStageInvariant, "routing needs a contract with a [routing] table, rows and legal sets",
                stage);
  }
  const Shape& shape = input.contract->shape;
  if (static_cast<int64_t>(input.rows->size()) != shape.batch ||
      static_cast<int64_t>(input.legal->size()) != shape.batch * shape.num_kv_heads) {
    return Fail(ErrorCode::kStageInvariant,
                fmt::format("{} rows and {} legal sets for a batch of {} with {} KV heads", input.rows->size(),
                            input.legal->size(), shape.batch, shape.num_kv_heads),
                stage);
  }
  if (needs == NeedsTensors::kNo) return {};
  if (input.q.data == nullptr || input.k.data == nullptr || !IsFloat(input.q.type) || !IsFloat(input.k.type)) {
    return Fail(ErrorCode::kTensorMismatch, "routing reads q and k: both must be given, as F32, BF16 or F16", stage);
  }
  const Routing& routing = *input.contract->routing;
  const int64_t per_query = routing.hierarchical ? std::max(routing.top_n, routing.meta_keep) : routing.top_n;
  if (shape.q_len * shape.num_kv_heads > kMaxPicks / shape.batch / per_query) {
    return Fail(ErrorCode::kPlanTooLarge,
                fmt::format("{} picks for each of {} x {} queries and {} KV heads: at most {} are held", per_query,
                            shape.batch, shape.q_len, shape.num_kv_heads, kMaxPicks),
                stage);
  }
  return {};
}

}  // namespace tessera::routing
