// A plugin at work: its devices, and everything made on them, which must be gone before it is.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "lanes/xla/pjrt/buffer.h"
#include "lanes/xla/pjrt/compile_options.h"
#include "lanes/xla/pjrt/executable.h"
#include "lanes/xla/pjrt/plugin.h"

namespace tessera::pjrt {

struct DeviceInfo {
  int64_t id = 0;  // the plugin's, as in CompileOptions
  std::string kind;
  bool operator==(const DeviceInfo&) const = default;
};

struct ClientOptions {
  // The CPU plugin makes this many devices of the one machine; others have those that are there. A device runs one
  // program at a time, so there are as many as cores, up to what a plugin was seen to take.
  int64_t cpu_devices = std::clamp<int64_t>(std::thread::hardware_concurrency(), 2, 32);
  bool operator==(const ClientOptions&) const = default;
};

class Client {
 public:
  static Result<std::unique_ptr<Client>> Create(const Plugin& plugin, const ClientOptions& options = {});
  ~Client();

  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  const Plugin& plugin() const { return *plugin_; }
  const std::string& platform() const { return platform_; }  // "cpu", "cuda", "tpu"
  const std::string& platform_version() const { return platform_version_; }
  std::span<const DeviceInfo> devices() const { return devices_; }

  // The program is StableHLO text. options.inputs says what it takes.
  Result<Executable> Compile(std::string_view mlir, const CompileOptions& options);
  // Bytes of Executable::Serialize, from the same plugin and kind of machine, with the options they were compiled with.
  Result<Executable> Deserialize(std::span<const std::byte> bytes, const CompileOptions& options);

  // The data may go when it returns. `device` is an index into devices().
  Result<Buffer> Upload(const TensorType& type, std::span<const std::byte> dense, int64_t device = 0);
  // The same from strided data: element (i, j, ..) lies byte_strides[0] * i + byte_strides[1] * j + .. bytes from its
  // start. Strides are not negative.
  Result<Buffer> Upload(const TensorType& type, std::span<const std::byte> data, std::span<const int64_t> byte_strides,
                        int64_t device = 0);
  // The same for data that stays as it is while the buffer lives: a CPU may then use it where it lies, if that is
  // dense.
  Result<LentBuffer> Lend(const TensorType& type, std::span<const std::byte> dense, int64_t device = 0);
  Result<LentBuffer> Lend(const TensorType& type, std::span<const std::byte> data,
                          std::span<const int64_t> byte_strides, int64_t device = 0);

  // For Executable: the plugin's device, and the index of one of them (-1: not ours).
  api::Device* raw_device(int64_t device) const { return raw_devices_[device]; }
  int64_t IndexOf(const api::Device* device) const;

 private:
  Client(const Plugin& plugin, api::Client* raw) : plugin_(&plugin), raw_(raw) {}
  Status ReadFacts();
  Status CheckOptions(const CompileOptions& options) const;
  Status CheckDevice(int64_t device, const char* where) const;
  struct HostData {
    const std::byte* data = nullptr;
    std::span<const int64_t> byte_strides;  // empty: dense
    int32_t semantics = 0;
  };
  Result<LentBuffer> ToDevice(const TensorType& type, const HostData& host, int64_t device);

  const Plugin* plugin_;
  api::Client* raw_;
  std::string platform_;
  std::string platform_version_;
  std::vector<DeviceInfo> devices_;
  std::vector<api::Device*> raw_devices_;
};

}  // namespace tessera::pjrt
