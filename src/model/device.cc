// See device.h.
#include "model/device.h"

#include <fmt/format.h>

#include "base/try.h"

namespace tessera::model {

Status DeviceArrays::Put(const stablehlo::NamedType& array, std::span<const std::byte> dense) {
  for (int64_t device = 0; device < num_devices_; ++device) TESSERA_TRY(PutOn(device, array, dense));
  return {};
}

Status DeviceArrays::PutOn(int64_t device, const stablehlo::NamedType& array, std::span<const std::byte> dense) {
  const int64_t at = num_devices_ == 1 ? session_.device : device;
  pjrt::Buffer buffer = TESSERA_TRY(session_.client->Upload(lanes::xla::ToTensorType(array.type), dense, at));
  std::vector<pjrt::Buffer>& buffers = arrays_[array.name];
  buffers.resize(static_cast<size_t>(num_devices_));
  buffers[static_cast<size_t>(device)] = std::move(buffer);
  return {};
}

Result<std::vector<std::byte>> DeviceArrays::Get(const std::string& name, int64_t device) const {
  const auto at = arrays_.find(name);
  if (at == arrays_.end()) return Fail(ErrorCode::kProgramMismatch, "no such array on the device", name);
  const pjrt::Buffer& buffer = at->second[static_cast<size_t>(device)];
  std::vector<std::byte> bytes(static_cast<size_t>(buffer.type().bytes()));
  TESSERA_TRY(buffer.Download(bytes));
  return bytes;
}

Status DeviceArrays::Run(const lanes::xla::CompiledPass& program) {
  std::vector<std::vector<const pjrt::Buffer*>> operands(static_cast<size_t>(num_devices_));
  for (const stablehlo::NamedType& input : program.inputs) {
    const auto at = arrays_.find(input.name);
    if (at == arrays_.end()) return Fail(ErrorCode::kProgramMismatch, "no such array on the device", input.name);
    for (size_t d = 0; d < operands.size(); ++d) operands[d].push_back(&at->second[d]);
  }
  if (num_devices_ > 1) return RunOnAll(program, operands);
  std::vector<pjrt::Buffer> outputs = TESSERA_TRY(program.executable.Execute(operands[0], {.device = session_.device}));
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    std::vector<pjrt::Buffer>& buffers = arrays_[program.outputs[i].name];
    buffers.resize(1);
    buffers[0] = std::move(outputs[i]);
  }
  return arrays_.at(program.outputs.back().name)[0].Await();
}

Status DeviceArrays::RunOnAll(const lanes::xla::CompiledPass& program,
                              std::span<const std::vector<const pjrt::Buffer*>> operands) {
  std::vector<pjrt::Launched> launched = TESSERA_TRY(program.executable.ExecuteOnAll(operands));
  // All of them are waited for: a device that failed leaves no other's numbers in place of its own.
  Status failed;
  for (const pjrt::Launched& one : launched) {
    if (Status done = one.done.Await(); !done && failed) failed = std::move(done);
  }
  TESSERA_TRY(std::move(failed));
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    std::vector<pjrt::Buffer> buffers;
    for (pjrt::Launched& one : launched) buffers.push_back(std::move(one.outputs[i]));
    arrays_.insert_or_assign(program.outputs[i].name, std::move(buffers));
  }
  return {};
}

}  // namespace tessera::model
