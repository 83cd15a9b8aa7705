#include "lanes/xla/pjrt/topology.h"

#include <fmt/format.h>

#include <algorithm>

namespace tessera::pjrt {

Result<Topology> Topology::Create(const Plugin& plugin, const std::string& name) {
  if (name.empty()) return Fail(ErrorCode::kBadArgument, "a topology needs a name, as v6e:1x1", "topology");
  api::TopologyCreateArgs args{.topology_name = name.data(), .topology_name_size = name.size()};
  if (Status ok = Call(plugin.table(), args); !ok) return tl::unexpected(ok.error());
  NoteClient();
  Topology topology;
  topology.plugin_ = &plugin;
  topology.name_ = name;
  topology.handle_ = {&plugin.table(), args.topology};
  if (Status ok = topology.ReadFacts(); !ok) return tl::unexpected(ok.error());
  return topology;
}

Status Topology::ReadFacts() {
  const api::Table& table = plugin_->table();
  api::TopologyPlatformNameArgs platform{.topology = handle_.get()};
  if (Status ok = Call(table, platform); !ok) return ok;
  platform_.assign(platform.platform_name, platform.platform_name_size);
  api::TopologyDeviceDescriptionsArgs descriptions{.topology = handle_.get()};
  if (Status ok = Call(table, descriptions); !ok) return ok;
  for (size_t i = 0; i < descriptions.num_descriptions; ++i) {
    api::DeviceDescriptionIdArgs id{.device_description = descriptions.descriptions[i]};
    if (Status ok = Call(table, id); !ok) return ok;
    api::DeviceDescriptionKindArgs kind{.device_description = descriptions.descriptions[i]};
    if (Status ok = Call(table, kind); !ok) return ok;
    devices_.push_back({id.id, std::string(kind.device_kind, kind.device_kind_size)});
  }
  return {};
}

Result<CompiledProgram> Topology::Compile(std::string_view mlir, const CompileOptions& options) const {
  if (Status ok = CheckCompileOptions(options); !ok) return tl::unexpected(ok.error());
  // libtpu aborts the process on an id that is not there.
  std::vector<int64_t> ids = options.device_ids;
  if (options.device) ids.push_back(*options.device);
  for (const int64_t id : ids) {
    const auto is_it = [&](const DeviceInfo& device) { return device.id == id; };
    if (std::any_of(devices_.begin(), devices_.end(), is_it)) continue;
    return Fail(ErrorCode::kBadArgument, fmt::format("no device of {} has id {}", name_, id), "device_ids");
  }
  std::string code(mlir);
  constexpr std::string_view kFormat = "mlir";
  CompileOptions bound = options;
  bound.portable = false;  // a word about a client's devices, and there is no client
  const std::string encoded = Encode(bound);
  const api::Program program{
      .code = code.data(), .code_size = code.size(), .format = kFormat.data(), .format_size = kFormat.size()};
  api::CompileArgs args{.topology = handle_.get(),
                        .program = &program,
                        .compile_options = encoded.data(),
                        .compile_options_size = encoded.size()};
  if (Status ok = Call(plugin_->table(), args); !ok) return tl::unexpected(ok.error());
  return CompiledProgram::Adopt(plugin_->table(), args.executable);
}

}  // namespace tessera::pjrt
