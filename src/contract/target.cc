// The targets the planner knows, from targets.def. Only `cpu` depends on where it runs, and only in its workers.
#include "tessera/target.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

namespace tessera {
namespace {

std::vector<Target> MakeTargets() {
  const int64_t here = std::max<int64_t>(1, std::thread::hardware_concurrency());
  std::vector<Target> targets;
  const auto add = [&](Target target, TileSize tile) {
    target.forward = target.dq = target.dkv = tile;
    if (target.workers == 0) target.workers = here;
    targets.push_back(std::move(target));
  };
#define TESSERA_TARGET(name_text, kind_name, text, tile_q, tile_kv, worker_count, fast, scalar, topology_name) \
  add({.name = name_text,                                                                                      \
       .kind = TargetKind::kind_name,                                                                          \
       .description = text,                                                                                    \
       .workers = worker_count,                                                                                \
       .fast_bytes = fast,                                                                                     \
       .scalar_bytes = scalar,                                                                                 \
       .topology = topology_name},                                                                             \
      {tile_q, tile_kv});
#include "contract/targets.def"
#undef TESSERA_TARGET
  return targets;
}

}  // namespace

std::string_view ToText(TargetKind kind) {
  switch (kind) {
    case TargetKind::kCpu:
      return "cpu";
    case TargetKind::kGpu:
      return "gpu";
    case TargetKind::kTpu:
      return "tpu";
  }
  return "";
}

const std::vector<Target>& Targets() {
  static const std::vector<Target> kTargets = MakeTargets();
  return kTargets;
}

Result<Target> FindTarget(std::string_view name) {
  std::string names;
  for (const Target& target : Targets()) {
    if (target.name == name) return target;
    names += (names.empty() ? "" : ", ") + target.name;
  }
  return Fail(ErrorCode::kTargetUnknown, fmt::format("no target is named \"{}\"; there are {}", name, names));
}

}  // namespace tessera
