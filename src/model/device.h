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

// Named arrays on the one device that a Trainer has, or on each of a mesh.
class DeviceArrays {
 public:
  DeviceArrays(std::shared_ptr<EngineState> engine, lanes::xla::Session session, int64_t num_devices = 1)
      : engine_(std::move(engine)), session_(session), num_devices_(num_devices) {}

  int64_t num_devices() const { return num_devices_; }
  // The same on every device, or one device's own.
  Status Put(const stablehlo::NamedType& array, std::span<const std::byte> dense);
  Status PutOn(int64_t device, const stablehlo::NamedType& array, std::span<const std::byte> dense);
  Result<std::vector<std::byte>> Get(const std::string& name, int64_t device = 0) const;
  // Runs a program on arrays of the names of its inputs; what it gives is there under the names of its outputs. What it
  // was allowed to take over is gone also when it fails.
  Status Run(const lanes::xla::CompiledPass& program);

 private:
  Status RunOnAll(const lanes::xla::CompiledPass& program, std::span<const std::vector<const pjrt::Buffer*>> operands);

  std::shared_ptr<EngineState> engine_;  // whose client the buffers belong to
  lanes::xla::Session session_;
  int64_t num_devices_;
  std::map<std::string, std::vector<pjrt::Buffer>, std::less<>> arrays_;  // by device
};

}  // namespace tessera::model
