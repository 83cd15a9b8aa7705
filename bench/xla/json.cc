#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "xla/results.h"

namespace tessera::bench {

const char* ToText(stablehlo::DenseKind kind) {
  return kind == stablehlo::DenseKind::kForward    ? "forward"
         : kind == stablehlo::DenseKind::kBackward ? "backward"
                                                   : "step";
}

std::vector<XlaGoal> GoalsOf(const XlaResults& results) {
  std::vector<XlaGoal> goals;
  for (const XlaTableRow& row : results.table) {
    if (row.goal == 0) continue;
    goals.push_back({fmt::format("{} {}: {:.1f}x dense", row.name, ToText(row.kind), row.goal),
                     row.ratio() >= row.goal && row.difference.agrees});
  }
  for (const XlaSparsityRow& row : results.sparsity) {
    goals.push_back({fmt::format("{}% of tiles {}: within 20 % of proportional", row.percent, ToText(row.mode)),
                     std::abs(row.relative - 1) <= kSparsityGoal});
  }
  for (const XlaOverheadRow& row : results.overhead) {
    goals.push_back({fmt::format("{} {}: at most 100 us more", row.name, row.pass == Pass::kForward ? "f" : "b"),
                     row.more_s <= kOverheadGoal_s});
  }
  return goals;
}

std::string ToJson(const XlaResults& results) {
  using nlohmann::json;
  json out = {{"tokens", results.settings.tokens},
              {"repeats", results.settings.repeats},
              {"threads", results.settings.threads},
              {"seed", results.settings.seed},
              {"plugin", results.plugin.plugin},
              {"platform", results.plugin.platform},
              {"device", results.plugin.name},
              {"pjrt", results.plugin.pjrt},
              {"stablehlo", results.plugin.stablehlo},
              {"guard", results.plugin.guard},
              {"matmul_gflops", results.matmul_gflops},
              {"table", json::array()},
              {"memory", json::array()},
              {"sparsity", json::array()},
              {"overhead", json::array()},
              {"goals", json::object()}};
  for (const XlaTableRow& row : results.table) {
    out["table"].push_back({{"mask", row.name},
                            {"work", ToText(row.kind)},
                            {"tiles", row.tiles},
                            {"seconds", row.seconds},
                            {"dense_s", row.dense_s},
                            {"ratio", row.ratio()},
                            {"goal", row.goal},
                            {"limit_s", row.limit_s},
                            {"difference", row.difference.largest},
                            {"tolerance", row.difference.tolerance},
                            {"agrees", row.difference.agrees}});
  }
  for (const XlaMemoryRow& row : results.memory) {
    out["memory"].push_back({{"tokens", row.tokens},
                             {"work", ToText(row.kind)},
                             {"temp_bytes", row.chunked},
                             {"dense_temp_bytes", row.dense}});
  }
  for (const XlaSparsityRow& row : results.sparsity) {
    out["sparsity"].push_back({{"mode", ToText(row.mode)},
                               {"percent", row.percent},
                               {"tiles", row.tiles},
                               {"seconds", row.seconds},
                               {"relative", row.relative}});
  }
  for (const XlaOverheadRow& row : results.overhead) {
    out["overhead"].push_back({{"case", row.name},
                               {"pass", row.pass == Pass::kForward ? "forward" : "backward"},
                               {"lane_s", row.lane_s},
                               {"bare_s", row.bare_s},
                               {"more_s", row.more_s}});
  }
  for (const XlaGoal& goal : GoalsOf(results)) out["goals"][goal.text] = goal.holds;
  return out.dump(2) + "\n";
}

}  // namespace tessera::bench
