// What each exchange carries for a cut, padding included, and which one is taken.
#pragma once

#include <optional>
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

// Of one query tile, what a backward reads of all heads: q, do, lse and delta.
int64_t QueryTileBytes(const Shape& shape, int64_t tile);

// In the order of kExchanges. `row_needs` as CutFacts has it.
std::vector<ExchangeBytes> CountExchanges(const Shape& shape, const CutSize& size, const Needs& needs,
                                          const Needs& row_needs);

struct ExchangeChoice {
  Exchange exchange = Exchange::kAllGather;
  std::string reason;
};
// What bytes of an exchange cost, those of an all-gather costing 1 altogether: a byte that goes in one of many small
// collectives costs more than one of a large one (kSmallShare).
double ExchangeCost(const std::vector<ExchangeBytes>& exchanges, Exchange which);
// From this share of an all-gather's bytes on, as many small collectives are the slower ones.
inline constexpr double kSmallShare = 0.6;
// The one that costs least of those that give the bits of one device. A ring is taken only where it is asked for, since
// it does not.
ExchangeChoice ChooseExchange(const std::vector<ExchangeBytes>& exchanges);

struct GradientChoice {
  GradientWay way = GradientWay::kReturned;
  std::string reason;
};
// By the bytes of a backward of the exchange that is taken. TSR-S020 for rows where there is no such form.
Result<GradientChoice> ChooseGradients(const ExchangeBytes& taken, std::optional<GradientWay> asked);

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
