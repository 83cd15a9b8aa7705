#include "lanes/xla/pjrt/plugin.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <stdlib.h>

#include <filesystem>
#include <map>
#include <mutex>

#include "lanes/xla/pjrt/call.h"
#include "lanes/xla/pjrt/elf.h"
#include "lanes/xla/pjrt/find_plugins.h"

namespace tessera::pjrt {
namespace {

tl::unexpected<Error> Unusable(std::string message, const std::string& path) {
  return Fail(ErrorCode::kPluginUnusable, std::move(message), path);
}

// What plugins read of the environment when they are loaded. What the user has set stays.
void PrepareEnvironment(const std::string& path) {
  // They write notes and warnings to standard error, which is our user's; errors they still write.
  setenv("TF_CPP_MIN_LOG_LEVEL", "2", 0);
  if (!IsTpuPlugin(path) || HasTpu()) return;
  // libtpu asks a cloud's metadata server for its machine, for minutes where there is none, and complains of what it
  // was not told; what it compiles for is the topology's business alone. It takes a lock that is for a TPU's one user,
  // and keeps logs in a folder of everybody's.
  setenv("TPU_SKIP_MDS_QUERY", "1", 0);
  setenv("TPU_WORKER_HOSTNAMES", "localhost", 0);
  setenv("TPU_ACCELERATOR_TYPE", "v6e-1", 0);
  setenv("ALLOW_MULTIPLE_LIBTPU_LOAD", "1", 0);
  setenv("TPU_LOG_DIR", "disabled", 0);
}

// Everything that must hold before the first call into the table, the calls for errors included.
Status CheckTable(const api::Table* table, const std::string& path) {
  if (table == nullptr) return Unusable("its GetPjrtApi gave no function table", path);
  if (table->struct_size < offsetof(api::Table, slots)) {
    return Unusable(fmt::format("its function table has {} bytes, too few to hold its version", table->struct_size),
                    path);
  }
  const api::Version& version = table->pjrt_api_version;
  if (version.major_version != kApiMajor) {
    return Unusable(fmt::format("it speaks PJRT {}.{}; this program speaks PJRT {}, whose structs are others",
                                version.major_version, version.minor_version, kApiMajor),
                    path);
  }
  if (version.minor_version < kOldestApiMinor) {
    return Unusable(fmt::format("it speaks PJRT {}.{}; the oldest supported is {}.{}, since older plugins read other "
                                "structs when a program is run",
                                version.major_version, version.minor_version, kApiMajor, kOldestApiMinor),
                    path);
  }
  // What every use needs. The rest is checked at each call.
  for (const int slot : {0, 1, 2, 3, 4, 5, 8}) {
    if (!HasSlot(*table, slot)) {
      return Unusable(fmt::format("its function table of {} bytes lacks slot {}, which PJRT {}.{} has",
                                  table->struct_size, slot, version.major_version, version.minor_version),
                      path);
    }
  }
  return {};
}

std::string AttributeText(const api::NamedValue& value) {
  switch (value.type) {
    case api::kString:
      return std::string(value.string_value, value.value_size);
    case api::kInt64:
      return fmt::format("{}", value.int64_value);
    case api::kInt64List: {
      std::string text;
      for (size_t i = 0; i < value.value_size; ++i) {
        text += fmt::format("{}{}", i == 0 ? "" : ".", value.int64_array_value[i]);
      }
      return text;
    }
    case api::kFloat:
      return fmt::format("{}", value.float_value);
    case api::kBool:
      return value.bool_value ? "true" : "false";
  }
  return "";
}

Status ReadAttributes(const api::Table& table, PluginInfo& info) {
  api::PluginAttributesArgs args;
  if (Status ok = Call(table, args); !ok) return ok;
  for (size_t i = 0; i < args.num_attributes; ++i) {
    const api::NamedValue& value = args.attributes[i];
    const std::string_view name(value.name, value.name_size);
    if (name == "xla_version") info.xla_version = AttributeText(value);
    if (name == "stablehlo_current_version") info.stablehlo_version = AttributeText(value);
    if (name == "stablehlo_minimum_version") info.stablehlo_minimum = AttributeText(value);
  }
  return {};
}

}  // namespace

Result<const Plugin*> Plugin::LoadFile(const std::string& path, const ProbeSettings& probe) {
  if (Status ok = CheckSharedObject(path); !ok) return tl::unexpected(ok.error());
  Result<std::string> identity = ContentName(path);
  if (!identity) return tl::unexpected(identity.error());
  PrepareEnvironment(path);
  if (Status ok = ProbePlugin(path, probe); !ok) return tl::unexpected(ok.error());
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* text = dlerror();
    return Unusable(fmt::format("the loader refuses it: {}", text == nullptr ? "no reason given" : text), path);
  }
  using GetApi = const api::Table* (*)();
  const GetApi get_api = reinterpret_cast<GetApi>(dlsym(library, "GetPjrtApi"));
  if (get_api == nullptr) {
    dlclose(library);
    return Unusable("a shared library, but no PJRT plugin: it has no GetPjrtApi", path);
  }
  const api::Table* table = get_api();
  if (Status ok = CheckTable(table, path); !ok) return tl::unexpected(ok.error());
  PluginInfo info;
  info.path = path;
  info.api_major = table->pjrt_api_version.major_version;
  info.api_minor = table->pjrt_api_version.minor_version;
  info.identity = std::move(*identity);
  api::PluginInitializeArgs initialize;
  Status ok = Call(*table, initialize);
  if (ok) ok = ReadAttributes(*table, info);
  if (!ok) return Unusable(fmt::format("{}: {}", ok.error().where, ok.error().message), path);
  return new Plugin(table, std::move(info));
}

Result<const Plugin*> Plugin::Load(const std::string& path, const ProbeSettings& probe) {
  if (path.empty()) return Unusable("no path of a plugin was given", "plugin");
  std::error_code error;
  const std::filesystem::path real = std::filesystem::canonical(path, error);
  if (error) return Unusable(fmt::format("no such plugin: {}", error.message()), path);
  // Never destroyed: the plugins' threads may outlive main.
  static std::mutex* const kMutex = new std::mutex;
  static auto* const kLoaded = new std::map<std::string, const Plugin*>;
  const std::lock_guard<std::mutex> lock(*kMutex);
  if (const auto at = kLoaded->find(real.string()); at != kLoaded->end()) return at->second;
  Result<const Plugin*> plugin = LoadFile(real.string(), probe);
  if (plugin) kLoaded->emplace(real.string(), *plugin);
  return plugin;
}

}  // namespace tessera::pjrt
