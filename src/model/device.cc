// See device.h.
#include "model/device.h"

#include <fmt/format.h>

#include "base/try.h"

namespace tessera::model {

Status DeviceArrays::Put(const stablehlo::NamedType& array, std::span<const std::byte> dense) {
  pjrt::Buffer buffer =
      TESSERA_TRY(session_.client->Upload(lanes::xla::ToTensorType(array.type), dense, session_.device));
  arrays_.insert_or_assign(array.name, std::move(buffer));
  return {};
}

Result<std::vector<std::byte>> DeviceArrays::Get(const std::string& name) const {
  const auto at = arrays_.find(name);
  if (at == arrays_.end()) return Fail(ErrorCode::kProgramMismatch, "no such array on the device", name);
  std::vector<std::byte> bytes(static_cast<size_t>(at->second.type().bytes()));
  TESSERA_TRY(at->second.Download(bytes));
  return bytes;
}

Status DeviceArrays::Run(const lanes::xla::CompiledPass& program) {
  std::vector<const pjrt::Buffer*> operands;
  for (const stablehlo::NamedType& input : program.inputs) {
    const auto at = arrays_.find(input.name);
    if (at == arrays_.end()) return Fail(ErrorCode::kProgramMismatch, "no such array on the device", input.name);
    operands.push_back(&at->second);
  }
  std::vector<pjrt::Buffer> outputs = TESSERA_TRY(program.executable.Execute(operands, {.device = session_.device}));
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    arrays_.insert_or_assign(program.outputs[i].name, std::move(outputs[i]));
  }
  return arrays_.at(program.outputs.back().name).Await();
}

}  // namespace tessera::model
