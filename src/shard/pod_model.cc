// See pod_model.h.
#include "shard/pod_model.h"

#include <algorithm>

#include "tessera/dtype.h"

namespace tessera::shard {
namespace {

// `outside` of the bytes come from other slices.
Arrival ArrivalOf(const ChipFigures& chip, double bytes, double outside) {
  return {bytes, bytes / chip.link_bytes + outside / chip.network_bytes};
}

}  // namespace

double PodCost::LeastSeconds() const {
  const double least = std::min(allgather.seconds, sparse.seconds);
  return heads ? std::min(least, heads->seconds) : least;
}

std::vector<PodCost> ModelPods(const ChipFigures& chip, const PodQuestion& question,
                               const std::vector<int64_t>& chips) {
  const Shape& s = question.shape;
  const auto own = static_cast<double>(s.q_len);
  const auto head_count = static_cast<double>(s.num_q_heads);
  const auto element = static_cast<double>(BytesOf(s.dtype));
  const double of_keys = static_cast<double>(s.num_kv_heads * (s.dim_qk + s.dim_v)) * element;
  const double of_queries = head_count * static_cast<double>(s.dim_qk + s.dim_v) * element;  // q there, o back
  std::vector<PodCost> out;
  for (const int64_t n : chips) {
    const auto pods = static_cast<double>(n);
    PodCost cost{.chips = n, .slices = (n + chip.slice_chips - 1) / chip.slice_chips, .tokens = n * s.q_len};
    const double in_slice = static_cast<double>(std::min(n, chip.slice_chips));
    // Pairs of the chip that has most: a window's are all alike, and zigzag makes causal ones so.
    const double pairs = question.window > 0 ? own * static_cast<double>(std::min(question.window + 1, cost.tokens))
                                             : own * (pods * own + 1) / 2;
    const double operations = 2 * pairs * head_count * static_cast<double>(s.dim_qk + s.dim_v);
    cost.compute_s = operations / (chip.flops * question.efficiency);
    // What a slice has not is brought to it once, a part by each of its chips, and spread by its links.
    const double of_others = (pods - in_slice) * own * of_keys / in_slice;
    cost.allgather = ArrivalOf(chip, (pods - 1) * own * of_keys, of_others);
    if (question.window > 0) {
      // The first chip of a slice needs its window of the last one of the slice before.
      const double needed = std::min<double>(static_cast<double>(question.window), (pods - 1) * own) * of_keys;
      cost.sparse = ArrivalOf(chip, needed, cost.slices > 1 ? needed : 0);
    } else {
      // Zigzag: the chip with the last piece needs every token but its own.
      cost.sparse = cost.allgather;
    }
    if (s.num_kv_heads % n == 0) {
      const double traded = own * (of_keys + of_queries) / pods;
      cost.heads = ArrivalOf(chip, traded * (pods - 1), traded * (pods - in_slice));
    }
    out.push_back(cost);
  }
  return out;
}

}  // namespace tessera::shard
