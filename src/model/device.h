// A model's numbers on a device, and the programs that run on them.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/state.h"
#include "lanes/xla/programs.h"
#include "lanes/xla/state.h"

namespace tessera::model {

// Named arrays on the one device that a Trainer has.
class DeviceArrays {
 public:
  DeviceArrays(std::shared_ptr<EngineState> engine, lanes::xla::Session session)
      : engine_(std::move(engine)), session_(session) {}

  Status Put(const stablehlo::NamedType& array, std::span<const std::byte> dense);
  Result<std::vector<std::byte>> Get(const std::string& name) const;
  // Runs a program on arrays of the names of its inputs; what it gives is there under the names of its outputs. What it
  // was allowed to take over is gone also when it fails.
  Status Run(const lanes::xla::CompiledPass& program);

 private:
  std::shared_ptr<EngineState> engine_;  // whose client the buffers belong to
  lanes::xla::Session session_;
  std::map<std::string, pjrt::Buffer, std::less<>> arrays_;
};

}  // namespace tessera::model
