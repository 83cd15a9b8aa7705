// What libtpu writes of a kernel's final schedule, read: bundles as a tree of loops and branches, and which of them a
// tile of our kernels takes. A schedule and no time: waits for memory are not in it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/error.h"

namespace tessera::program {

struct Bundle {
  bool multiplies = false;
  bool raises = false;  // a power of two
  int stores = 0;
};

// A loop or a branch's body: bundles [begin, end), and the parts inside of it.
struct SchedulePart {
  int64_t begin = 0;
  int64_t end = 0;
  bool is_loop = false;
  std::vector<SchedulePart> parts = {};
  int64_t size() const { return end - begin; }
  int64_t own() const;
};

struct Schedule {
  std::vector<Bundle> bundles;
  SchedulePart root;
};
Result<Schedule> ReadSchedule(std::string_view text);

// What a kernel of ours is, as far as its schedule must be read by it.
struct ScheduledKernel {
  bool walks_by_two = false;
  bool has_range = false;
  int64_t general_parts = 1;                  // of a tile whose mask is of any kind
  std::vector<int64_t> chunk_registers = {};  // what is stored where a chunk of keys begins: dK, dV, or both
};
// Bundles of a round of the walk by what it finds ("full", "range", "span", "general", and of two tiles "two full",
// "full and span", "two span"; "round" is beside a tile of a round that takes its two one by one), of a "row" of tiles
// beside its tiles, and of a "chunk" of keys.
using KernelBundles = std::map<std::string, int64_t, std::less<>>;
Result<KernelBundles> CountBundles(const Schedule& schedule, const ScheduledKernel& kernel);

}  // namespace tessera::program
