// The Python environment with JAX that script/setup --peers makes, for tests of the bridge.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace tessera {

// Its interpreter; empty where there is none, or no JAX in it, or a test that sets TESSERA_PYTHON has no use for it.
inline std::string PeersPython() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  if (!variable("TESSERA_PYTHON").empty()) return {};
  std::string folder = variable("TESSERA_PEERS");
  if (folder.empty()) {
    const std::string cache = variable("XDG_CACHE_HOME");
    folder = (cache.empty() ? variable("HOME") + "/.cache" : cache) + "/tessera/peers";
  }
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder + "/lib", none)) {
    if (std::filesystem::exists(entry.path() / "site-packages/jax/__init__.py", none)) return folder + "/bin/python3";
  }
  return {};
}

inline constexpr const char* kNoPeers = "no environment with JAX is here (script/setup --peers makes one)";

}  // namespace tessera
