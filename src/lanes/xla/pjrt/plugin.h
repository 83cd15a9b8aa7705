// A PJRT plugin: a shared library that brings XLA for one kind of device. Loaded once per file and process and never
// unloaded, since plugins keep threads.
#pragma once

#include <cstdint>
#include <string>

#include "lanes/xla/pjrt/api.h"
#include "lanes/xla/pjrt/probe.h"
#include "tessera/error.h"

namespace tessera::pjrt {

struct PluginInfo {
  std::string path;  // with links resolved
  int64_t api_major = 0;
  int64_t api_minor = 0;
  std::string xla_version;        // as the plugin tells them; empty where it does not
  std::string stablehlo_version;  // "1.13.3"
  std::string stablehlo_minimum;
  std::string identity;  // 32 hex digits of the file's content (ContentName in elf.h)
};

// The oldest PJRT this client has been run with. Plugins keep the order of slots and fields and only add to them, so
// every newer one of the same major version is taken.
inline constexpr int kApiMajor = 0;
inline constexpr int kOldestApiMinor = 81;

class Plugin {
 public:
  // TSR-L008 with the reason for anything that is not a plugin we can call: looked at as a file, met in a child process
  // where it is unknown (probe.h), and only then loaded. Safe from several threads.
  static Result<const Plugin*> Load(const std::string& path, const ProbeSettings& probe = {});

  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;

  const PluginInfo& info() const { return info_; }
  const api::Table& table() const { return *table_; }

 private:
  Plugin(const api::Table* table, PluginInfo info) : table_(table), info_(std::move(info)) {}
  static Result<const Plugin*> LoadFile(const std::string& path, const ProbeSettings& probe);

  const api::Table* table_;
  PluginInfo info_;
};

}  // namespace tessera::pjrt
