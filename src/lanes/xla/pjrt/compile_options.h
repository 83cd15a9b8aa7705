// How a program is compiled, and the protobuf bytes (CompileOptionsProto) that say it to a plugin.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "lanes/xla/pjrt/tensor_type.h"

namespace tessera::pjrt {

using OptionValue = std::variant<std::string, bool, int64_t, double>;

struct CompileOptions {
  int64_t num_replicas = 1;
  int64_t num_partitions = 1;
  bool use_spmd = false;
  bool use_shardy = false;
  // Ids (DeviceInfo::id) of a program that runs on several devices at once, replica by replica and within it partition
  // by partition: num_replicas * num_partitions of them. Empty: the plugin chooses.
  std::vector<int64_t> device_ids = {};
  // The id of the one device a program is bound to.
  std::optional<int64_t> device = {};
  // A program of one replica and partition that names no device is compiled so that it runs on any of the client's.
  bool portable = true;
  // XLA flags of this program alone: {"xla_backend_optimization_level", 0}.
  std::map<std::string, OptionValue> overrides = {};
  // What the program takes, in order; on each device, for a partitioned one. Ours alone, no part of the bytes: a plugin
  // accepts a buffer of another type with the same size in silence, so every run is checked against these.
  std::vector<TensorType> inputs = {};

  bool operator==(const CompileOptions&) const = default;
};

// Whether one compilation serves every device of the client.
bool IsPortable(const CompileOptions& options);

// Counts below one, ids that do not fit the counts, both a device and a list. A plugin aborts on some of these.
Status CheckCompileOptions(const CompileOptions& options);

// Always at least the two counts: plugins abort the process on empty options.
std::string Encode(const CompileOptions& options);

}  // namespace tessera::pjrt
