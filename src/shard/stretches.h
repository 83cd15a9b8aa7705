// Stretches of tokens that lie together both in a batch row as given and in a shard.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tessera/context.h"

namespace tessera::shard {

// Calls visit(given token, token in the shard, count) for every stretch of a shard's tokens.
template <class Visit>
void ForStretches(const RowCut& row, size_t shard, const Visit& visit) {
  for (const Piece& mine : row.rows[shard]) {
    for (const Piece& piece : row.order) {
      const int64_t begin = std::max(mine.start, piece.offset);
      const int64_t end = std::min(mine.start + mine.count, piece.offset + piece.count);
      if (begin < end) visit(piece.start + begin - piece.offset, mine.offset + begin - mine.start, end - begin);
    }
  }
}

}  // namespace tessera::shard
