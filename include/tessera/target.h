// Machine facts as data. The planner never queries a device: what it must know of one is a Target value.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/contract.h"
#include "tessera/error.h"

#pragma GCC visibility push(default)
namespace tessera {

enum class TargetKind : uint8_t { kCpu, kGpu, kTpu };
std::string_view ToText(TargetKind kind);  // "cpu", "gpu", "tpu"

// The plan's tiles for head dims up to a number.
struct DimTiles {
  int64_t max_dim_qk = 0;
  TileSize forward, dq, dkv;
  bool operator==(const DimTiles&) const = default;
};

struct Target {
  std::string name;
  TargetKind kind = TargetKind::kCpu;
  std::string description;
  // The plan's tile per direction; 0 means the contract's own.
  TileSize forward{0, 0};
  TileSize dq{0, 0};
  TileSize dkv{0, 0};
  int64_t workers = 1;
  int64_t fast_bytes = 0;    // cache, shared memory or VMEM a worker can count on
  int64_t scalar_bytes = 0;  // scalar memory for plan metadata; 0 = not limited
  int64_t vector_bytes = 0;  // vector memory that a TPU's compiler gives one kernel; 0 = not limited
  // How a compiler calls the smallest machine of this kind, "v6e:1x1", for programs made where there is none; empty:
  // programs are made on the machine itself.
  std::string topology = {};
  // Where tiles depend on the head dim: ascending, and the first that reaches a contract's holds in place of the tiles
  // above.
  std::vector<DimTiles> tiles_by_dim = {};
  // A worker takes a row of tiles for one head, so that rows are cut into parts only where rows times heads leave
  // workers idle; else one for all heads of a mask.
  bool heads_apart = false;
  bool operator==(const Target&) const = default;
};

// cpu (this machine), h200, v6e, v5e, v5p.
const std::vector<Target>& Targets();
Result<Target> FindTarget(std::string_view name);

}  // namespace tessera
#pragma GCC visibility pop
