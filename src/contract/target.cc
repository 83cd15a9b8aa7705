// The one table of targets. Only `cpu` depends on where it runs, and only in its workers.
#include "tessera/target.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <thread>

namespace tessera {
namespace {

constexpr int64_t kKib = int64_t{1} << 10;
constexpr int64_t kMib = int64_t{1} << 20;

struct TargetRow {
  std::string_view name;
  TargetKind kind;
  std::string_view description;
  TileSize tile;                   // in every direction; 0 = the contract's. That of a TPU is its matrix unit
  int64_t workers;                 // 0 = the hardware threads of this machine
  int64_t fast_bytes;              // per worker
  int64_t scalar_bytes;            // per worker; 0 = not limited
  int64_t vector_bytes = 0;        // of a kernel, unless libtpu is told otherwise
  std::string_view topology = {};  // how a compiler calls its smallest machine
  std::span<const DimTiles> tiles_by_dim = {};
  bool heads_apart = false;
};
// Those of the CUDA kernels (src/lanes/cuda/abi.h); a test holds the two together.
constexpr DimTiles kHopperTiles[] = {{128, {128, 128}, {128, 64}, {64, 128}},
                                     {192, {128, 128}, {128, 64}, {64, 64}},
                                     {256, {128, 64}, {128, 64}, {64, 64}}};
constexpr TargetRow kTargetRows[] = {
    {"cpu", TargetKind::kCpu, "this machine's processor", {0, 0}, 0, kMib, 0},
    {"h200",
     TargetKind::kGpu,
     "NVIDIA H200: 132 SMs, 227 KiB of shared memory each",
     {128, 128},
     132,
     227 * kKib,
     0,
     0,
     {},
     kHopperTiles,
     true},
    {"v6e",
     TargetKind::kTpu,
     "TPU v6e: one core, 256x256 matrix unit",
     {256, 256},
     1,
     128 * kMib,
     kMib,
     32 * kMib,
     "v6e:1x1"},
    {"v5e",
     TargetKind::kTpu,
     "TPU v5e: one core, 128x128 matrix unit",
     {128, 128},
     1,
     128 * kMib,
     kMib,
     16 * kMib,
     "v5e:2x2"},
    {"v5p",
     TargetKind::kTpu,
     "TPU v5p: two cores, 128x128 matrix unit",
     {128, 128},
     2,
     64 * kMib,
     kMib,
     16 * kMib,
     "v5p:2x2x1"},
};

std::vector<Target> MakeTargets() {
  const int64_t here = std::max<int64_t>(1, std::thread::hardware_concurrency());
  std::vector<Target> targets;
  for (const TargetRow& row : kTargetRows) {
    targets.push_back({.name = std::string(row.name),
                       .kind = row.kind,
                       .description = std::string(row.description),
                       .forward = row.tile,
                       .dq = row.tile,
                       .dkv = row.tile,
                       .workers = row.workers == 0 ? here : row.workers,
                       .fast_bytes = row.fast_bytes,
                       .scalar_bytes = row.scalar_bytes,
                       .vector_bytes = row.vector_bytes,
                       .topology = std::string(row.topology),
                       .tiles_by_dim = {row.tiles_by_dim.begin(), row.tiles_by_dim.end()},
                       .heads_apart = row.heads_apart});
  }
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
