// Where programs are compiled: on a client's device, or for a machine that is not here.
#pragma once

#include "lanes/xla/state.h"
#include "tessera/target.h"

namespace tessera::lanes::xla {

struct Place {
  Session session;
  const pjrt::Topology* topology = nullptr;  // not null: of a machine that is not here
};
struct PlaceRequest {
  const XlaOptions& options;
  const Target& target;
  bool compile_only = false;
  int64_t devices = 1;  // that a program runs on at once
};
// A TPU's client needs the TPU; the other plugins compile with theirs.
bool NeedsTopology(const Target& target);
// Nothing is written to `place` on a refusal.
Decision OpenPlace(State& state, const PlaceRequest& request, Place* place);
DeviceUse UseOf(const Place& place, int64_t device);

}  // namespace tessera::lanes::xla
