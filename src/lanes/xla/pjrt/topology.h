// Compiling for devices that are not here: a topology names them, and what comes out can be looked at and kept but not
// run.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lanes/xla/pjrt/client.h"
#include "lanes/xla/pjrt/compile_options.h"
#include "lanes/xla/pjrt/plugin.h"
#include "lanes/xla/pjrt/program.h"

namespace tessera::pjrt {

class Topology {
 public:
  // "v6e:1x1". An empty name is refused: libtpu takes it for a TPU v2 without a word.
  static Result<Topology> Create(const Plugin& plugin, const std::string& name);

  const Plugin& plugin() const { return *plugin_; }
  const std::string& name() const { return name_; }
  const std::string& platform() const { return platform_; }
  std::span<const DeviceInfo> devices() const { return devices_; }

  // The program is StableHLO text.
  Result<CompiledProgram> Compile(std::string_view mlir, const CompileOptions& options) const;

 private:
  Status ReadFacts();

  const Plugin* plugin_ = nullptr;
  std::string name_;
  std::string platform_;
  std::vector<DeviceInfo> devices_;
  Handle<api::Topology, api::TopologyDestroyArgs, &api::TopologyDestroyArgs::topology> handle_;
};

}  // namespace tessera::pjrt
