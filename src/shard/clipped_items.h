// Cleanup items of a plan for programs whose tiles lie elsewhere than in the row: where a tile reaches over the last
// token, or over a valid count, that bound is written into items of its own, since a program of several devices cannot
// tell it from where the tile lies.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "lanes/xla/stablehlo/program.h"
#include "tessera/plan.h"

namespace tessera::shard {

// Rows of the table that all of a batch's tiles may need.
int64_t ClippedCapacity(const PlanView& plan);

class ClippedItems {
 public:
  // `rows` is the table as one device's program has it (kItemColumns each), the one for a whole tile behind the plan's.
  ClippedItems(const PlanView& plan, std::vector<int32_t> rows);

  struct Tile {
    int64_t batch_row = 0;
    int64_t q_begin = 0;  // tokens of the row
    int64_t kv_begin = 0;
    int64_t q_tokens = 0;
    int64_t kv_tokens = 0;
  };
  // The items [begin, end) of a tile's cleanup; {0, 0} where it is full.
  std::pair<int32_t, int32_t> Of(const Tile& tile, uint32_t cleanup);

  bool fits() const { return fits_; }
  const std::vector<int32_t>& rows() const { return rows_; }

 private:
  int32_t& At(int64_t row, stablehlo::ItemColumn column) {
    return rows_[static_cast<size_t>(row * stablehlo::kItemColumns + static_cast<int64_t>(column))];
  }

  const PlanView& plan_;
  std::vector<int32_t> rows_;
  std::vector<uint8_t> needs_valid_;  // of each row
  int64_t used_ = 0;
  bool fits_ = true;
  // cleanup, and the tokens of its tile that count: by the lengths, and by the valid counts.
  std::map<std::tuple<uint32_t, int64_t, int64_t, int64_t, int64_t>, std::pair<int32_t, int32_t>> made_;
};

}  // namespace tessera::shard
