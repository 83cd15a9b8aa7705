// What an engine keeps for the lanes of lowerings.h. Programs go before the clients they belong to.
#pragma once

#include <utility>

#include "lanes/xla/plugins.h"
#include "lanes/xla/programs.h"
#include "lanes/xla/xla.h"

namespace tessera::lanes::xla {

struct State {
  explicit State(XlaSettings settings_in)
      : settings(std::move(settings_in)),
        probe{.seconds = settings.probe_seconds, .folder = settings.folder},
        clients(settings.folder, probe),
        programs(settings) {}
  const XlaSettings settings;
  const pjrt::ProbeSettings probe;
  Clients clients;
  Topologies topologies;
  Programs programs;
};

}  // namespace tessera::lanes::xla
