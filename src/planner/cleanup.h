// Describes what a partial tile still has to test, from the conditional sets of its head class: band items cut to the
// tile, with the conditions that the batch does not already settle for the whole tile.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "planner/stages.h"

namespace tessera::planner {

class CleanupWriter {
 public:
  CleanupWriter(const Resolved& resolved, const ResolvedMask& mask, TileSize tile);

  // Called for ascending rows of tiles, before that row's partial tiles.
  void BeginRow(uint32_t tile_row);
  // Appends the items of the partial tile at `column` to `items`, and what they store to `bit_words` and `row_words`.
  struct Output {
    std::vector<CleanupItem>* items = nullptr;
    std::vector<uint64_t>* bit_words = nullptr;
    std::vector<uint64_t>* row_words = nullptr;
  };
  void Write(uint32_t column, const Output& out) { WriteAs(column, TruthsIn(column), out); }

  // Conditions that hold in all of a tile, and in none of it, as bits.
  struct Truths {
    uint32_t everywhere = 0;
    uint32_t nowhere = 0;
  };
  // As for a batch in which just these do.
  void WriteAs(uint32_t column, const Truths& truths, const Output& out);

  // Tiles with equal keys have equal items. Most rows lie where only diagonals pass through them, and then a tile's
  // work depends on its distance from the diagonal and on which conditions hold: such tiles are written once.
  struct Key {
    uint32_t pieces = 0;  // which diagonals pass; 0: nothing can be said of this tile
    uint32_t truths = 0;
    int64_t distance = 0;
    bool operator==(const Key&) const = default;
  };
  Key KeyOf(uint32_t column) const { return is_repeating_ ? KeyOf(column, TruthsIn(column)) : Key(); }
  Key KeyOf(uint32_t column, const Truths& truths) const {
    if (!is_repeating_) return {};
    return {generation_, truths.everywhere << 16 | truths.nowhere, int64_t{tile_row_} - int64_t{column}};
  }

 private:
  // One stretch of a conditional set inside the current row of tiles. Rows are relative to it, keys absolute:
  // key in [max(kv_begin, row + diag_begin), min(kv_end, row + diag_end)).
  struct Piece {
    uint16_t conditions = 0;
    int64_t q_begin = 0;
    int64_t q_end = 0;
    int64_t kv_begin = -MaskRun::kNone;
    int64_t kv_end = MaskRun::kNone;
    int64_t diag_begin = -MaskRun::kNone;
    int64_t diag_end = MaskRun::kNone;
  };
  enum class Truth : uint8_t { kNowhere = 0, kSomewhere = 1, kEverywhere = 2 };

  Truths TruthsIn(uint32_t column) const;
  bool FindsDiagonalsOnly();
  void GatherPieces();
  void AddPieces(const ConditionalSet& term, size_t& slab);
  static bool TryChain(Piece& piece, const Piece& next);
  bool CutToTile(const Piece& piece, uint32_t column, CleanupItem& item) const;
  Truth TruthInTile(const Condition& condition, uint32_t column) const;
  void GatherPicks();
  void WritePicked(const Piece& piece, uint32_t column, const Output& out) const;
  void StoreAsBits(size_t first, const Output& out) const;

  const Resolved& resolved_;
  const BatchRow& facts_;
  const std::vector<ConditionalSet>& terms_;
  const TileSize tile_;
  const bool may_store_bits_;
  const int64_t row_words_;     // of a set of the tile's rows
  const uint32_t blocks_bits_;  // of conditions
  const QueryPicks* picks_ = nullptr;
  int64_t block_tokens_ = 0;
  std::map<int32_t, size_t> row_of_block_;  // block -> place in picked_rows_, of this row of tiles
  std::vector<uint64_t> picked_rows_;       // [block][row_words_]
  std::vector<size_t> slabs_;               // [term]: first slab that can meet the current row
  std::vector<int32_t> q_doc_;              // [q tile]: the document all its tokens share, or kMixed
  std::vector<int32_t> kv_doc_;             // [kv tile]
  std::vector<Piece> pieces_;
  std::vector<size_t> previous_;  // pieces of the slab above, to chain with
  std::vector<size_t> current_;
  const bool may_repeat_;          // by what the mask and the tile are
  bool is_repeating_ = false;      // this row of tiles has diagonals only
  bool has_pieces_ = false;        // of this row of tiles
  uint32_t generation_ = 1;        // changes with `passing_`
  std::vector<size_t> passing_;    // [term]: the slab that covers the row of tiles, or kNoSlab
  std::vector<bool> is_diagonal_;  // [term]: whether all its edges are
  int64_t row_begin_ = 0;
  int64_t row_end_ = 0;
  uint32_t tile_row_ = 0;
};

}  // namespace tessera::planner
