// Which order the documents of a row are put in, and whose each tile is then: whole documents on one shard, as many
// tokens and as much work on each, and only a document with more work than half a shard's cut.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/context.h"

namespace tessera::shard {

// Why documents of this mask may not change places; empty: they may. They may where every pair is of one document and
// depends on how far its tokens are apart alone.
std::string WhyNotReorder(const Contract& contract, const MaskFacts& facts);

struct PlacementInput {
  std::vector<Segment> segments;    // of the row, in order; stretches without a document too
  std::vector<int64_t> tile_costs;  // of the row in the given order
  int64_t tokens = 0;
  int64_t tile = 0;
  int64_t shards = 0;
};

// A stretch of the row as given that stays together.
struct PlacedItem {
  int64_t begin = 0;
  int64_t end = 0;
  int32_t doc = -1;
};

struct Placement {
  std::vector<PlacedItem> order;  // of the whole row
  std::vector<uint32_t> shard_of;
};

struct PlacementTrial {
  int64_t share_parts = 2;    // a document with more work than one such part of a shard's may be cut
  bool tokens_first = false;  // as in placement_bins.h
  // Their tiles are dealt by what each executes, whichever document it is of: level where little else is there to fill
  // shards up with, for more bytes.
  bool by_cost = false;
};

// `bias` is what each shard was found to execute above the mean when it was placed before, in the unit of tile_costs:
// it gets that much less. Zero at first.
Placement PlaceDocuments(const PlacementInput& input, const PlacementTrial& trial, const std::vector<int64_t>& bias);

}  // namespace tessera::shard
