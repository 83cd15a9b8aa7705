#include <nlohmann/json.hpp>

#include "cpu/results.h"

namespace tessera::bench {
namespace {

using Json = nlohmann::ordered_json;

Json Number(double value) { return value > 0 ? Json(value) : Json(); }

template <class T>
Json Maybe(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

Json ToValue(const Roof& roof) { return {{"instructions", roof.instructions}, {"gflops", Number(roof.gflops)}}; }

Json ToValue(const Verdict& verdict) {
  Json value{{"rule", verdict.text.empty() ? Json() : Json(verdict.text)}, {"held", Maybe(verdict.held)}};
  if (!verdict.held) value["not_judged"] = verdict.not_judged;
  return value;
}

Json ToValue(const PeerFigure& figure, double ours) {
  Json value{{"name", figure.peer}};
  if (!figure.skipped.empty()) {
    value["skipped"] = figure.skipped;
    return value;
  }
  value["how"] = figure.how;
  value["seconds"] = figure.seconds;
  value["gflops"] = figure.gflops;
  value["ours_over_theirs"] = ours / figure.gflops;
  if (const auto& difference = figure.difference) {
    value["difference"] = {{"tensor", difference->tensor},
                           {"largest", difference->largest},
                           {"tolerance", difference->tolerance},
                           {"agrees", difference->agrees}};
  }
  return value;
}

Json ToValue(const TableRow& row) {
  Json peers = Json::array();
  for (const PeerFigure& figure : row.peers) peers.push_back(ToValue(figure, row.gflops));
  return {{"case", row.shape.name},
          {"mode", ToText(row.mode)},
          {"tokens", row.shape.tokens},
          {"heads", row.shape.heads},
          {"kv_heads", row.shape.kv_heads},
          {"dim", row.shape.dim},
          {"dtype", ToText(row.shape.dtype)},
          {"pairs", row.pairs},
          {"seconds", row.seconds},
          {"gflops", row.gflops},
          {"roof_share", Number(row.roof_share)},
          {"own_causal_ratio", Maybe(row.causal_ratio)},
          {"peers", std::move(peers)},
          {"must_reach", ToValue(row.must)},
          {"goal", ToValue(row.goal)},
          {"lane", row.lane},
          {"kernel", row.kernel},
          {"isa", row.isa}};
}

Json ToValue(const ScalingRow& row) {
  return {{"case", row.name},       {"mode", ToText(row.mode)}, {"threads", row.threads},
          {"seconds", row.seconds}, {"gflops", row.gflops},     {"efficiency", row.efficiency}};
}

Json ToValue(const SparsityRow& row) {
  return {{"mode", ToText(row.mode)},
          {"percent", row.percent},
          {"tiles", row.tiles},
          {"seconds", row.seconds},
          {"relative_time_per_tile", row.relative}};
}

Json ToValue(const OverheadRow& row) {
  Json goals = Json::array();
  for (const Verdict& goal : row.goals) goals.push_back(ToValue(goal));
  return {{"case", row.name},       {"call", row.call},
          {"isa", row.isa},         {"workspace_bytes", row.workspace_bytes},
          {"lane_s", row.lane_s},   {"call_s", row.call_s},
          {"more_s", row.more_s()}, {"goals", std::move(goals)}};
}

template <class Row>
Json ToArray(const std::vector<Row>& rows) {
  Json array = Json::array();
  for (const Row& row : rows) array.push_back(ToValue(row));
  return array;
}

}  // namespace

std::string ToJson(const Results& results) {
  Json peers = Json::array();
  for (const PeerInfo& peer : results.peers) {
    Json value{{"name", peer.name}, {"title", peer.title}};
    value[peer.missing.empty() ? "version" : "missing"] = peer.missing.empty() ? peer.version : peer.missing;
    peers.push_back(std::move(value));
  }
  const Settings& settings = results.settings;
  const Json document{
      {"benchmark", "cpu"},
      {"date", results.date},
      {"machine", results.machine},
      {"threads", settings.threads},
      {"repeats", settings.repeats},
      {"lane", settings.lane},
      {"isa", settings.isa},
      {"seed", settings.seed},
      {"roof", {{"f32", ToValue(results.f32_roof)}, {"bf16", ToValue(results.bf16_roof)}}},
      {"torch_matmul_gflops", {{"f32", Number(results.f32_matmul)}, {"bf16", Number(results.bf16_matmul)}}},
      {"peers", std::move(peers)},
      {"table", ToArray(results.table)},
      {"scaling", ToArray(results.scaling)},
      {"sparsity", ToArray(results.sparsity)},
      {"overhead", ToArray(results.overhead)},
  };
  return document.dump(2) + "\n";
}

}  // namespace tessera::bench
