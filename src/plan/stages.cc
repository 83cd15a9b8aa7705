// The names of the stages of routing and planning, in order, and the options that name them.
#include "tessera/stages.h"

#include <fmt/format.h>

#include <algorithm>

#include "plan/runner.h"

namespace tessera {

const std::vector<StageInfo>& Stages() {
  static const std::vector<StageInfo> kStages = {
      {"score", "routing: which blocks, or meta-blocks, of keys matter to each query, by the means of their keys",
       false},
      {"expand", "routing: the kept meta-blocks become blocks, scored one by one", false},
      {"unite", "picks: what each tile of queries needs, and each pick's place in it", false},
      {"legalise", "picks: those without a legal key disappear, each for a counted reason", false},
      {"resolve", "static masks and run-time facts become one exact run set per distinct mask", false},
      {"classify", "every surviving tile is partial or full; a partial tile names what it must still test", false},
      {"shrink", "compact rows of slots; equal cleanups become one (disabled: every partial run keeps its own)", true},
      {"transpose", "the same pairs by key column, for dK and dV (disabled: a forward-only plan)", true},
      {"balance", "longest rows first, long rows in parts (disabled: one part per row, in row order)", true},
      {"pack", "one versioned buffer with offsets and a fingerprint", false},
  };
  return kStages;
}

Status plan::CheckOptions(const PlanOptions& options) {
  for (const std::string& name : options.disable) {
    const auto stage =
        std::find_if(Stages().begin(), Stages().end(), [&](const StageInfo& info) { return info.name == name; });
    if (stage == Stages().end()) {
      std::string known;
      for (const StageInfo& info : Stages()) known += (known.empty() ? "" : ", ") + info.name;
      return Fail(ErrorCode::kStageUnknown, fmt::format("no stage is named '{}'; stages: {}", name, known), "disable");
    }
    if (!stage->can_disable) {
      return Fail(ErrorCode::kStageUnknown,
                  fmt::format("stage '{}' cannot be disabled: without it there is no exact plan", name), "disable");
    }
  }
  return {};
}

}  // namespace tessera
