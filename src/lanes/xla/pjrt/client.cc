#include "lanes/xla/pjrt/client.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "base/checked.h"

namespace tessera::pjrt {
namespace {

constexpr int64_t kMostCpuDevices = 1024;

api::NamedValue IntOption(std::string_view name, int64_t value) {
  api::NamedValue option;
  option.name = name.data();
  option.name_size = name.size();
  option.type = api::kInt64;
  option.int64_value = value;
  option.value_size = 1;
  return option;
}

api::NamedValue BoolOption(std::string_view name, bool value) {
  api::NamedValue option;
  option.name = name.data();
  option.name_size = name.size();
  option.type = api::kBool;
  option.bool_value = value;
  option.value_size = 1;
  return option;
}

// A plugin tells its platform only through a client, and refuses options it does not know, before it does anything
// else. So the options of each platform are offered in turn: devices on the CPU; on a GPU, leaving the memory that is
// not used to others; nothing.
Result<api::Client*> CreateRaw(const Plugin& plugin, const ClientOptions& options) {
  const std::string& path = plugin.info().path;
  std::vector<std::vector<api::NamedValue>> offers;
  const bool is_tpu = path.find("libtpu") != std::string::npos;
  const bool is_gpu = path.find("cuda") != std::string::npos || path.find("gpu") != std::string::npos;
  if (!is_tpu && !is_gpu) offers.push_back({IntOption("cpu_device_count", options.cpu_devices)});
  if (!is_tpu) offers.push_back({BoolOption("preallocate", false)});
  offers.emplace_back();
  Status failed;
  for (const std::vector<api::NamedValue>& offer : offers) {
    api::ClientCreateArgs args{.create_options = offer.data(), .num_options = offer.size()};
    failed = Call(plugin.table(), args);
    if (failed) return args.client;
    const bool is_unknown_option = !offer.empty() && failed.error().message.find(std::string(
                                                         offer[0].name, offer[0].name_size)) != std::string::npos;
    if (!is_unknown_option) break;
  }
  return tl::unexpected(failed.error());
}

// The bytes that strided data reaches over, from its first element on.
std::optional<int64_t> ReachOf(const TensorType& type, std::span<const int64_t> byte_strides) {
  if (type.bytes() == 0) return 0;
  int64_t last = 0;
  for (size_t i = 0; i < type.dims.size(); ++i) {
    const std::optional<int64_t> step = CheckedMul(type.dims[i] - 1, byte_strides[i]);
    if (byte_strides[i] < 0 || !step || __builtin_add_overflow(last, *step, &last)) return std::nullopt;
  }
  int64_t reach = 0;
  if (__builtin_add_overflow(last, BytesOf(type.type), &reach)) return std::nullopt;
  return reach;
}

Status CheckDense(const TensorType& type, std::span<const std::byte> dense) {
  if (Status ok = CheckTensorType(type, "upload"); !ok) return ok;
  if (static_cast<int64_t>(dense.size()) == type.bytes()) return {};
  return Fail(ErrorCode::kProgramMismatch,
              fmt::format("{} has {} bytes; {} were given", ToText(type), type.bytes(), dense.size()), "upload");
}

Status CheckStrided(const TensorType& type, std::span<const std::byte> data, std::span<const int64_t> byte_strides) {
  if (Status ok = CheckTensorType(type, "upload"); !ok) return ok;
  if (byte_strides.size() != type.dims.size()) {
    return Fail(ErrorCode::kProgramMismatch,
                fmt::format("{} needs {} strides; {} were given", ToText(type), type.dims.size(), byte_strides.size()),
                "upload");
  }
  const std::optional<int64_t> reach = ReachOf(type, byte_strides);
  if (reach && *reach <= static_cast<int64_t>(data.size())) return {};
  return Fail(
      ErrorCode::kProgramMismatch,
      fmt::format("the strides of {} are negative or reach beyond the {} bytes given", ToText(type), data.size()),
      "upload");
}

}  // namespace

Result<std::unique_ptr<Client>> Client::Create(const Plugin& plugin, const ClientOptions& options) {
  if (IsForkedChild()) return FailForked("client");
  if (options.cpu_devices < 1 || options.cpu_devices > kMostCpuDevices) {
    return Fail(ErrorCode::kBadArgument,
                fmt::format("{} CPU devices; 1 to {} can be had", options.cpu_devices, kMostCpuDevices), "client");
  }
  NoteClient();
  const Result<api::Client*> raw = CreateRaw(plugin, options);
  if (!raw) return tl::unexpected(raw.error());
  std::unique_ptr<Client> client(new Client(plugin, *raw));
  if (Status ok = client->ReadFacts(); !ok) return tl::unexpected(ok.error());
  return client;
}

// In a forked child the plugin's threads are not there to be waited for, and Call refuses.
Client::~Client() {
  api::ClientDestroyArgs args{.client = raw_};
  (void)Call(plugin_->table(), args);  // nobody is left to tell of a failure
}

Status Client::ReadFacts() {
  const api::Table& table = plugin_->table();
  api::ClientPlatformNameArgs name{.client = raw_};
  if (Status ok = Call(table, name); !ok) return ok;
  platform_.assign(name.platform_name, name.platform_name_size);
  api::ClientPlatformVersionArgs version{.client = raw_};
  if (Status ok = Call(table, version); !ok) return ok;
  platform_version_.assign(version.platform_version, version.platform_version_size);
  api::ClientAddressableDevicesArgs devices{.client = raw_};
  if (Status ok = Call(table, devices); !ok) return ok;
  for (size_t i = 0; i < devices.num_addressable_devices; ++i) {
    api::DeviceGetDescriptionArgs description{.device = devices.addressable_devices[i]};
    if (Status ok = Call(table, description); !ok) return ok;
    api::DeviceDescriptionIdArgs id{.device_description = description.device_description};
    if (Status ok = Call(table, id); !ok) return ok;
    api::DeviceDescriptionKindArgs kind{.device_description = description.device_description};
    if (Status ok = Call(table, kind); !ok) return ok;
    devices_.push_back({id.id, std::string(kind.device_kind, kind.device_kind_size)});
    raw_devices_.push_back(devices.addressable_devices[i]);
  }
  if (devices_.empty()) return Fail(ErrorCode::kPluginFailed, "the plugin has no device", plugin_->info().path);
  return {};
}

int64_t Client::IndexOf(const api::Device* device) const {
  for (size_t i = 0; i < raw_devices_.size(); ++i) {
    if (raw_devices_[i] == device) return static_cast<int64_t>(i);
  }
  return -1;
}

Status Client::CheckDevice(int64_t device, const char* where) const {
  if (device >= 0 && device < static_cast<int64_t>(devices_.size())) return {};
  return Fail(ErrorCode::kProgramMismatch, fmt::format("device {} of {}", device, devices_.size()), where);
}

Status Client::CheckOptions(const CompileOptions& options) const {
  if (Status ok = CheckCompileOptions(options); !ok) return ok;
  const int64_t needed = options.num_replicas * options.num_partitions;
  if (needed > static_cast<int64_t>(devices_.size())) {
    return Fail(ErrorCode::kBadArgument,
                fmt::format("{} replicas of {} partitions; this client has {} devices", options.num_replicas,
                            options.num_partitions, devices_.size()),
                "compile options");
  }
  std::vector<int64_t> ids = options.device_ids;
  if (options.device) ids.push_back(*options.device);
  for (const int64_t id : ids) {
    const bool is_ours = std::any_of(devices_.begin(), devices_.end(), [&](const DeviceInfo& d) { return d.id == id; });
    if (!is_ours) {
      return Fail(ErrorCode::kBadArgument, fmt::format("no device of this client has id {}", id), "compile options");
    }
  }
  return {};
}

Result<Executable> Client::Compile(std::string_view mlir, const CompileOptions& options) {
  if (Status ok = CheckOptions(options); !ok) return tl::unexpected(ok.error());
  std::string code(mlir);  // the interface wants it writable, though it only reads
  constexpr std::string_view kFormat = "mlir";
  const std::string encoded = Encode(options);
  const api::Program program{
      .code = code.data(), .code_size = code.size(), .format = kFormat.data(), .format_size = kFormat.size()};
  api::ClientCompileArgs args{
      .client = raw_, .program = &program, .compile_options = encoded.data(), .compile_options_size = encoded.size()};
  if (Status ok = Call(plugin_->table(), args); !ok) return tl::unexpected(ok.error());
  return Executable::Adopt(*this, args.executable, options);
}

Result<Executable> Client::Deserialize(std::span<const std::byte> bytes, const CompileOptions& options) {
  if (Status ok = CheckOptions(options); !ok) return tl::unexpected(ok.error());
  if (bytes.empty()) return Fail(ErrorCode::kPluginFailed, "no bytes of a program", api::DeserializeArgs::kName);
  api::DeserializeArgs args{.client = raw_,
                            .serialized_executable = reinterpret_cast<const char*>(bytes.data()),
                            .serialized_executable_size = bytes.size()};
  if (Status ok = Call(plugin_->table(), args); !ok) return tl::unexpected(ok.error());
  return Executable::Adopt(*this, args.loaded_executable, options);
}

Result<Buffer> Client::Upload(const TensorType& type, std::span<const std::byte> dense, int64_t device) {
  if (Status ok = CheckDense(type, dense); !ok) return tl::unexpected(ok.error());
  return ToDevice(type, {dense.data(), {}, api::kOnlyDuringCall}, device).map([](LentBuffer&& lent) {
    return std::move(lent.buffer);
  });
}

Result<Buffer> Client::Upload(const TensorType& type, std::span<const std::byte> data,
                              std::span<const int64_t> byte_strides, int64_t device) {
  if (Status ok = CheckStrided(type, data, byte_strides); !ok) return tl::unexpected(ok.error());
  return ToDevice(type, {data.data(), byte_strides, api::kOnlyDuringCall}, device).map([](LentBuffer&& lent) {
    return std::move(lent.buffer);
  });
}

Result<LentBuffer> Client::Lend(const TensorType& type, std::span<const std::byte> dense, int64_t device) {
  if (Status ok = CheckDense(type, dense); !ok) return tl::unexpected(ok.error());
  return ToDevice(type, {dense.data(), {}, api::kZeroCopy}, device);
}

Result<LentBuffer> Client::Lend(const TensorType& type, std::span<const std::byte> data,
                                std::span<const int64_t> byte_strides, int64_t device) {
  if (Status ok = CheckStrided(type, data, byte_strides); !ok) return tl::unexpected(ok.error());
  return ToDevice(type, {data.data(), byte_strides, api::kZeroCopy}, device);
}

Result<LentBuffer> Client::ToDevice(const TensorType& type, const HostData& host, int64_t device) {
  if (Status ok = CheckDevice(device, "upload"); !ok) return tl::unexpected(ok.error());
  static constexpr std::byte kNothing{};
  api::BufferFromHostArgs args{.client = raw_,
                               .data = host.data == nullptr ? &kNothing : host.data,
                               .type = static_cast<int32_t>(type.type),
                               .dims = type.dims.data(),
                               .num_dims = type.dims.size(),
                               .byte_strides = host.byte_strides.empty() ? nullptr : host.byte_strides.data(),
                               .num_byte_strides = host.byte_strides.size(),
                               .host_buffer_semantics = host.semantics,
                               .device = raw_devices_[device]};
  if (Status ok = Call(plugin_->table(), args); !ok) return tl::unexpected(ok.error());
  // Data of a call alone has been read already.
  const auto on_drop = host.semantics == api::kOnlyDuringCall ? Event::OnDrop::kLeave : Event::OnDrop::kAwait;
  Event released(plugin_->table(), args.done_with_host_buffer, on_drop);
  Result<Buffer> buffer = Buffer::Adopt(plugin_->table(), args.buffer, device);
  if (!buffer) return tl::unexpected(buffer.error());
  return LentBuffer(std::move(released), std::move(*buffer));
}

}  // namespace tessera::pjrt
