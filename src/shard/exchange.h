// What each exchange carries for a cut, padding included, and which one is taken.
#pragma once

#include <string>
#include <vector>

#include "tessera/context.h"

namespace tessera::shard {

// [target][source]: key tiles.
using Needs = std::vector<std::vector<std::vector<int32_t>>>;

struct CutSize {
  int64_t shards = 0;
  int64_t tile = 0;
  int64_t tiles_each = 0;  // of a batch row, on each shard
};

// Of one key tile, keys and values of all heads.
int64_t KeyTileBytes(const Shape& shape, int64_t tile);

// In the order of kExchanges.
std::vector<ExchangeBytes> CountExchanges(const Shape& shape, const CutSize& size, const Needs& needs);

struct ExchangeChoice {
  Exchange exchange = Exchange::kAllGather;
  std::string reason;
};
// The one with the fewest bytes, of those that give the bits of one device; one collective instead of many where they
// would save little.
ExchangeChoice ChooseExchange(const std::vector<ExchangeBytes>& exchanges);

// How far a shard's keys go around a ring, to the right or to the left, whichever carries less: from device to device,
// as far as somebody needs them.
struct RingWay {
  bool is_right = true;
  std::vector<int64_t> reach;  // [source]: hops

  int64_t shards() const { return static_cast<int64_t>(reach.size()); }
  int64_t Hops() const;
  // Who has a source's keys after so many hops, and whose keys a device has then.
  int64_t DeviceOf(int64_t source, int64_t hops) const;
  int64_t SourceOf(int64_t device, int64_t hops) const;
};
RingWay FindRingWay(const Needs& needs);

}  // namespace tessera::shard
