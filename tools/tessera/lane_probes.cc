// See lane_probes.h.
#include "lane_probes.h"

#include <fmt/format.h>

#include <map>

#include "program.h"

namespace tessera::program {
namespace {

bool EndsWith(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

struct Feature {
  const char* term;
  const char* parameter;
};
constexpr Feature kFeatures[] = {
    {"window(7, 0)", "local_window"}, {"documents", "doc_ids"}, {"valid", "valid_token_counts"}};

Result<Contract> WithTerm(Contract contract, const char* term) {
  for (MaskExpr& head : contract.mask.heads) {
    auto with = ParseMaskExpr(fmt::format("({}) and {}", ToText(head), term));
    if (!with) return tl::unexpected(with.error());
    head = std::move(*with);
  }
  return contract;
}

}  // namespace

std::vector<BackendProbe> ProbeLanes(const Selection& selection) {
  std::vector<BackendProbe> probes;
  for (const LaneDecision& d : selection.decisions) {
    const ReasonCode reason = d.decision.reason;
    const bool is_missing = EndsWith(ReasonText(reason), ".not_built") || reason == ReasonCode::kXlaNoPlugin ||
                            reason == ReasonCode::kBridgeNoInterpreter;
    probes.push_back({.name = d.lane, .has_package = !is_missing, .has_device = d.decision.accepted || is_missing});
  }
  return probes;
}

Result<std::vector<LaneSupport>> SupportOfLanes(const Contract& contract, const Target& target) {
  auto selection = TheEngine().Select(contract, target);
  if (!selection) return tl::unexpected(selection.error());
  // Phases 1 and 2 are the planner's own, score and unite, and take the contract whole; phase 3 is the lane.
  std::map<std::string, ClusteredKernel> kernels;
  for (const LaneDecision& d : selection->decisions) {
    kernels[d.lane] = {.is_available = d.decision.accepted,
                       .phase1 = {.names = {"mask_contract"}},
                       .phase2 = {.names = {"mask_contract"}},
                       .phase3 = {.names = {"mask_contract"}}};
  }
  for (const Feature& feature : kFeatures) {
    auto with = WithTerm(contract, feature.term);
    if (!with || !Validate(*with).empty()) continue;
    auto decided = TheEngine().Select(*with, target);
    if (!decided) continue;
    for (const LaneDecision& d : decided->decisions) {
      ClusteredKernel& kernel = kernels[d.lane];
      kernel.phase1.names.emplace_back(feature.parameter);
      if (d.decision.accepted) kernel.phase3.names.emplace_back(feature.parameter);
    }
  }
  std::vector<LaneSupport> supports;
  for (const LaneDecision& d : selection->decisions) {
    if (d.decision.accepted) supports.push_back({d.lane, SupportOf(kernels[d.lane])});
  }
  return supports;
}

}  // namespace tessera::program
