// See place.h.
#include "lanes/xla/place.h"

#include <fmt/format.h>

#include "lanes/xla/pjrt/find_plugins.h"

namespace tessera::lanes::xla {

bool NeedsTopology(const Target& target) { return target.kind == TargetKind::kTpu && !pjrt::HasTpu(); }

Decision OpenPlace(State& state, const PlaceRequest& request, Place* place) {
  const Target& target = request.target;
  if (!request.compile_only || !NeedsTopology(target)) {
    return state.clients.Open(request.options, target.kind, &place->session, request.devices);
  }
  const PluginChoice choice = ChoosePlugin(request.options, state.settings.folder, target.kind, Purpose::kCompile);
  if (!choice.decision.accepted) return choice.decision;
  const Result<const pjrt::Plugin*> plugin = pjrt::Plugin::Load(choice.path, state.probe);
  if (!plugin) return Decision::No(ReasonCode::kXlaPlugin, plugin.error().message);
  const Result<const pjrt::Topology*> topology = state.topologies.Get(**plugin, target.topology);
  if (!topology) return Decision::No(ReasonCode::kXlaPlugin, topology.error().message);
  if (!Fits((*topology)->platform(), target.kind)) {
    return Decision::No(ReasonCode::kXlaPlatform,
                        fmt::format("the plugin {} compiles for \"{}\"", choice.path, (*topology)->platform()));
  }
  const Decision decision = CheckDevice(request.options.device, (*topology)->devices(), (*topology)->name());
  if (decision.accepted) place->topology = *topology;
  return decision;
}

DeviceUse UseOf(const Place& place, int64_t device) {
  return place.topology != nullptr ? UseOf(*place.topology, device) : UseOf(place.session);
}

}  // namespace tessera::lanes::xla
