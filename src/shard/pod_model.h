// What attention over a context axis would cost on pods of chips that are not here: arithmetic on published figures of
// a chip and on what each exchange carries. A model and no measurement: latency, contention of links, and what overlaps
// are not in it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/chip_figures.h"
#include "tessera/contract.h"

namespace tessera::shard {

// Of the chip that has most, of a forward. Bytes go over links to neighbours in a slice; what comes from other slices
// goes through the data centre's network.
struct Arrival {
  double bytes = 0;    // that the chip receives
  double seconds = 0;  // of links and network, one after the other
};
struct PodCost {
  int64_t chips = 0;
  int64_t slices = 1;  // of as many chips as links join
  int64_t tokens = 0;  // of the whole row
  double compute_s = 0;
  Arrival allgather = {};
  std::optional<Arrival> heads = {};  // nothing: key heads do not divide by the chips
  Arrival sparse = {};
  double LeastSeconds() const;  // of the three
};
struct PodQuestion {
  Shape shape = {};       // q_len: tokens of one chip
  int64_t window = 0;     // tokens that a query sees before itself, contiguous; 0: all, causal and zigzag
  double efficiency = 1;  // of the chip's products that kernels reach: an assumption of whoever asks
};
// For each number of chips, as many tokens on each.
std::vector<PodCost> ModelPods(const ChipFigures& chip, const PodQuestion& question, const std::vector<int64_t>& chips);

}  // namespace tessera::shard
