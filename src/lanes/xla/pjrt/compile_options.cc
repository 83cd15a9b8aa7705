#include "lanes/xla/pjrt/compile_options.h"

#include <fmt/format.h>

#include <set>

#include "base/checked.h"
#include "lanes/xla/pjrt/wire.h"

namespace tessera::pjrt {
namespace {

// Field numbers of the messages, as XLA's .proto files give them.
namespace options_field {
constexpr uint32_t kBuildOptions = 3;
constexpr uint32_t kPortable = 4;
constexpr uint32_t kOverrides = 7;
}  // namespace options_field

namespace build_field {
constexpr uint32_t kDeviceOrdinal = 1;
constexpr uint32_t kReplicas = 4;
constexpr uint32_t kPartitions = 5;
constexpr uint32_t kUseSpmd = 6;
constexpr uint32_t kDeviceAssignment = 9;
constexpr uint32_t kUseShardy = 19;
}  // namespace build_field

namespace assignment_field {
constexpr uint32_t kReplicas = 1;
constexpr uint32_t kComputations = 2;
constexpr uint32_t kComputationDevices = 3;
constexpr uint32_t kReplicaIds = 1;  // of the message in kComputationDevices
}  // namespace assignment_field

namespace override_field {
constexpr uint32_t kKey = 1;  // of a map's entry
constexpr uint32_t kValue = 2;
constexpr uint32_t kString = 1;  // of its value
constexpr uint32_t kBool = 2;
constexpr uint32_t kInt = 3;
constexpr uint32_t kReal = 4;
}  // namespace override_field

std::string EncodeAssignment(const CompileOptions& options, const std::vector<int64_t>& ids) {
  WireWriter assignment;
  assignment.Int(assignment_field::kReplicas, options.num_replicas);
  assignment.Int(assignment_field::kComputations, options.num_partitions);
  for (int64_t partition = 0; partition < options.num_partitions; ++partition) {
    WireWriter packed;
    for (int64_t replica = 0; replica < options.num_replicas; ++replica) {
      packed.Packed(ids[replica * options.num_partitions + partition]);
    }
    WireWriter devices;
    devices.Bytes(assignment_field::kReplicaIds, packed.bytes());
    assignment.Bytes(assignment_field::kComputationDevices, devices.bytes());
  }
  return assignment.bytes();
}

std::string EncodeOverride(const std::string& name, const OptionValue& value) {
  WireWriter inner;
  if (const auto* text = std::get_if<std::string>(&value)) inner.Bytes(override_field::kString, *text);
  if (const auto* flag = std::get_if<bool>(&value)) inner.Bool(override_field::kBool, *flag);
  if (const auto* number = std::get_if<int64_t>(&value)) inner.Int(override_field::kInt, *number);
  if (const auto* real = std::get_if<double>(&value)) inner.Real(override_field::kReal, *real);
  WireWriter entry;
  entry.Bytes(override_field::kKey, name);
  entry.Bytes(override_field::kValue, inner.bytes());
  return entry.bytes();
}

tl::unexpected<Error> Bad(std::string message) {
  return Fail(ErrorCode::kBadArgument, std::move(message), "compile options");
}

}  // namespace

bool IsPortable(const CompileOptions& options) {
  return options.portable && options.num_replicas == 1 && options.num_partitions == 1 && options.device_ids.empty() &&
         !options.device;
}

Status CheckCompileOptions(const CompileOptions& options) {
  constexpr int64_t kMostDevices = 1 << 20;
  const std::optional<int64_t> devices = CheckedMul(options.num_replicas, options.num_partitions);
  if (options.num_replicas < 1 || options.num_partitions < 1 || !devices || *devices > kMostDevices) {
    return Bad(fmt::format("{} replicas of {} partitions; at least one of each is needed, and at most {} together",
                           options.num_replicas, options.num_partitions, kMostDevices));
  }
  if (!options.device_ids.empty() && static_cast<int64_t>(options.device_ids.size()) != *devices) {
    return Bad(fmt::format("{} device ids were given for {} replicas of {} partitions", options.device_ids.size(),
                           options.num_replicas, options.num_partitions));
  }
  if (options.device && *devices != 1) {
    return Bad(fmt::format("one device was given for {} replicas of {} partitions", options.num_replicas,
                           options.num_partitions));
  }
  if (options.device && !options.device_ids.empty()) return Bad("both a device and device ids were given");
  if (std::set<int64_t>(options.device_ids.begin(), options.device_ids.end()).size() != options.device_ids.size()) {
    return Bad("a device id was given twice");
  }
  for (size_t i = 0; i < options.inputs.size(); ++i) {
    if (Status ok = CheckTensorType(options.inputs[i], fmt::format("declared input {}", i)); !ok) return ok;
  }
  return {};
}

std::string Encode(const CompileOptions& options) {
  WireWriter build;
  // Left out, the ordinal would mean device 0.
  build.Int(build_field::kDeviceOrdinal, -1);
  build.Int(build_field::kReplicas, options.num_replicas);
  build.Int(build_field::kPartitions, options.num_partitions);
  if (options.use_spmd) build.Bool(build_field::kUseSpmd, true);
  if (options.device) {
    build.Bytes(build_field::kDeviceAssignment, EncodeAssignment(options, {*options.device}));
  } else if (!options.device_ids.empty()) {
    build.Bytes(build_field::kDeviceAssignment, EncodeAssignment(options, options.device_ids));
  }
  if (options.use_shardy) build.Bool(build_field::kUseShardy, true);
  WireWriter all;
  all.Bytes(options_field::kBuildOptions, build.bytes());
  if (IsPortable(options)) all.Bool(options_field::kPortable, true);
  for (const auto& [name, value] : options.overrides) {
    all.Bytes(options_field::kOverrides, EncodeOverride(name, value));
  }
  return all.bytes();
}

}  // namespace tessera::pjrt
