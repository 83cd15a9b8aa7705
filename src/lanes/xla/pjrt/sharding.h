// How XLA says that a tensor lies on devices (OpSharding), read from bytes and written in XLA's words.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/error.h"

namespace tessera::pjrt {

struct Sharding {
  enum class Kind : uint64_t { kReplicated = 0, kMaximal = 1, kTuple = 2, kTiled = 3, kManual = 4 };  // XLA's numbers
  Kind kind = Kind::kReplicated;
  std::vector<int64_t> tiles = {};    // of each dimension, and of one more where replicate_on_last says so
  std::vector<int64_t> devices = {};  // one for each tile; empty where the next two tell
  std::vector<int64_t> iota = {};
  std::vector<int64_t> permutation = {};
  std::vector<Sharding> tuple = {};
  bool replicate_on_last = false;
};

// Any bytes may be given; what is no sharding is an error (TSR-L009).
Result<Sharding> ReadSharding(std::string_view bytes);
// "{devices=[2,1]<=[2]}", "{replicated}".
std::string ToText(const Sharding& sharding);

// Which tile each of `num_devices` devices holds along each of `rank` dimensions, a vector for each device; all zeros
// where it is whole. An error (TSR-L009) for a sharding of other devices, another rank, or of none of these kinds.
Result<std::vector<std::vector<int64_t>>> TilesOfDevices(const Sharding& sharding, size_t rank, int64_t num_devices);

// `count` numbers from 0, as an array of `dims`, with its dimensions in another order: XLA's short form of a list.
// Empty when the numbers do not go together.
std::vector<int64_t> Iota(const std::vector<int64_t>& dims, const std::vector<int64_t>& permutation, int64_t count);

}  // namespace tessera::pjrt
