// The table of lanes with `cuda` on a FakeDriver.
#pragma once

#include <memory>
#include <vector>

#include "cuda/fake_driver.h"
#include "dispatch/lane_table.h"
#include "lanes/cuda/cuda.h"

namespace tessera::lanes::cuda {

inline std::vector<LaneRow> LanesOn(FakeDriver& fake) {
  std::vector<LaneRow> rows(LaneTable().begin(), LaneTable().end());
  for (LaneRow& row : rows) {
    if (row.name != "cuda") continue;
    row.make = [state = MakeCudaState(&fake.driver())](const LaneContext& context) {
      return std::shared_ptr<const Lane>(MakeCudaLane(state, {.memory = context.memory}));
    };
  }
  return rows;
}

}  // namespace tessera::lanes::cuda
