// shrink: tile runs become compact rows of slots, ascending, and equal cleanups become one table entry.
#include <algorithm>
#include <cstring>

#include "base/hash.h"
#include "planner/stages.h"

namespace tessera::planner {
namespace {

// An open-addressing map from a span of bytes (kept elsewhere) to its number. Grown by doubling; never erased from.
class Interner {
 public:
  Interner() : slots_(64) {}

  // The number of an equal earlier span, or the next one. `equals(i)` compares with span number i.
  template <class Equals>
  std::pair<uint32_t, bool> Intern(uint64_t hash, const Equals& equals) {
    if (size_ * size_t{2} >= slots_.size()) Grow();
    const auto tag = static_cast<uint32_t>(hash);
    size_t at = tag & (slots_.size() - 1);
    for (; slots_[at].number != kEmpty; at = (at + 1) & (slots_.size() - 1)) {
      if (slots_[at].tag == tag && equals(slots_[at].number)) return {slots_[at].number, false};
    }
    slots_[at] = {size_, tag};
    return {size_++, true};
  }

 private:
  static constexpr uint32_t kEmpty = UINT32_MAX;
  // One place holds both: a look-up mostly misses the cache, and should miss it once.
  struct Place {
    uint32_t number = kEmpty;
    uint32_t tag = 0;  // of the hash
  };

  void Grow() {
    std::vector<Place> slots(slots_.size() * 2);
    for (const Place& place : slots_) {
      if (place.number == kEmpty) continue;
      size_t at = place.tag & (slots.size() - 1);
      while (slots[at].number != kEmpty) at = (at + 1) & (slots.size() - 1);
      slots[at] = place;
    }
    slots_ = std::move(slots);
  }

  std::vector<Place> slots_;
  uint32_t size_ = 0;
};

class TableWriter {
 public:
  TableWriter(const Classified& from, CleanupTable& table, bool share) : from_(from), table_(table), share_(share) {
    tile_words_ = static_cast<size_t>(from.tile.q * ((from.tile.kv + 63) / 64));
    row_words_ = static_cast<size_t>((from.tile.q + 63) / 64);
    // What an earlier tile size put into the table is found again.
    for (uint32_t id = 1; id + 1 < table.offsets.size(); ++id) InternItems(ItemsOf(id));
    for (uint32_t tile = 0; tile + 1 < table.bit_tile_offsets.size(); ++tile) InternBits(BitsOf(tile));
  }

  uint32_t CleanupOf(const TileRun& run) {
    std::span<const CleanupItem> items = std::span(from_.items).subspan(run.item_begin, run.item_count);
    if (!from_.bit_words.empty() || !from_.row_words.empty()) items = WithStoredBits(items);
    if (share_) {
      const auto [number, is_new] = InternItems(items);
      if (!is_new) return number + 1;
    }
    table_.items.insert(table_.items.end(), items.begin(), items.end());
    table_.offsets.push_back(static_cast<uint32_t>(table_.items.size()));
    return static_cast<uint32_t>(table_.offsets.size() - 2);
  }

 private:
  std::span<const CleanupItem> WithStoredBits(std::span<const CleanupItem> items) {
    scratch_.assign(items.begin(), items.end());
    for (CleanupItem& item : scratch_) {
      if (item.kind == ItemKind::kBits) item.bits = Store(from_.bit_words, item.bits, tile_words_);
      if (item.kind == ItemKind::kRows) item.bits = Store(from_.row_words, item.bits, row_words_);
    }
    return scratch_;
  }
  std::span<const CleanupItem> ItemsOf(uint32_t id) const {
    return std::span(table_.items).subspan(table_.offsets[id], table_.offsets[id + 1] - table_.offsets[id]);
  }
  std::span<const uint64_t> BitsOf(uint32_t tile) const {
    return std::span(table_.bit_words)
        .subspan(table_.bit_tile_offsets[tile], table_.bit_tile_offsets[tile + 1] - table_.bit_tile_offsets[tile]);
  }
  std::pair<uint32_t, bool> InternItems(std::span<const CleanupItem> items) {
    return cleanups_.Intern(Hash64(items.data(), items.size_bytes()),
                            [&](uint32_t i) { return std::ranges::equal(ItemsOf(i + 1), items); });
  }
  std::pair<uint32_t, bool> InternBits(std::span<const uint64_t> bits) {
    return bit_tiles_.Intern(Hash64(bits.data(), bits.size_bytes()),
                             [&](uint32_t i) { return std::ranges::equal(BitsOf(i), bits); });
  }
  uint32_t Store(const std::vector<uint64_t>& words, uint32_t number_in, size_t num_words) {
    const std::span<const uint64_t> bits = std::span(words).subspan(number_in * num_words, num_words);
    const auto [number, is_new] = InternBits(bits);
    if (is_new) {
      table_.bit_words.insert(table_.bit_words.end(), bits.begin(), bits.end());
      table_.bit_tile_offsets.push_back(table_.bit_words.size());
    }
    return number;
  }

  const Classified& from_;
  CleanupTable& table_;
  const bool share_;
  size_t tile_words_ = 0;
  size_t row_words_ = 0;
  Interner cleanups_;
  Interner bit_tiles_;
  std::vector<CleanupItem> scratch_;
};

constexpr uint32_t kUnknown = UINT32_MAX;

}  // namespace

CompactRows Shrink(const Classified& classified, CleanupTable& table, bool share) {
  CompactRows out;
  out.tile = classified.tile;
  out.q_tiles = classified.q_tiles;
  out.kv_tiles = classified.kv_tiles;
  // Rows of a few slots each end where no processor can guess it, so slots are written four at a time, some of them
  // past the end of their run: the next run writes over them.
  constexpr uint32_t kAtOnce = 4;
  out.slots.resize(static_cast<size_t>(classified.num_tiles) + kAtOnce);
  out.row_offsets.resize(classified.row_offsets.size());
  TableWriter writer(classified, table, share);
  // Runs share items: the cleanup by first item plus 1, and none, for full tiles, at 0.
  std::vector<uint32_t> cleanup_of(classified.items.size() + 1, kUnknown);
  cleanup_of[0] = 0;
  // Kept at hand: a slot that is written might be any of these numbers, for all a compiler knows.
  Slot* slot = out.slots.data();
  const TileRun* run = classified.runs.data();
  const TileRun* const runs = run;
  const uint64_t* const run_offsets = classified.row_offsets.data();
  uint32_t* const cleanups = cleanup_of.data();
  const size_t num_rows = classified.row_offsets.size() - 1;
  for (size_t row = 0; row < num_rows; ++row) {
    for (const TileRun* const row_end = runs + run_offsets[row + 1]; run != row_end; ++run) {
      const TileRun tiles = *run;
      uint32_t& known = cleanups[tiles.item_count == 0 ? 0 : tiles.item_begin + size_t{1}];
      if (known == kUnknown || (!share && tiles.item_count > 0)) known = writer.CleanupOf(tiles);
      const uint32_t cleanup = known;
      for (uint32_t column = tiles.begin; column < tiles.end; column += kAtOnce) {
        for (uint32_t i = 0; i < kAtOnce; ++i) slot[column - tiles.begin + i] = {column + i, cleanup};
      }
      slot += tiles.end - tiles.begin;
    }
    out.row_offsets[row + 1] = static_cast<uint64_t>(slot - out.slots.data());
    out.widest = std::max(out.widest, static_cast<int64_t>(out.row_offsets[row + 1] - out.row_offsets[row]));
  }
  out.slots.resize(static_cast<size_t>(classified.num_tiles));
  out.num_cleanups = table.Size();
  return out;
}

Status VerifyCompactRows(const Classified& classified, const CompactRows& rows, const CleanupTable& table) {
  const auto fail = [](std::string message) { return Fail(ErrorCode::kStageInvariant, std::move(message), "shrink"); };
  if (rows.slots.size() != static_cast<uint64_t>(classified.num_tiles))
    return fail("slots are not the surviving tiles");
  for (size_t row = 0; row + 1 < rows.row_offsets.size(); ++row) {
    uint64_t slot = rows.row_offsets[row];
    for (uint64_t run = classified.row_offsets[row]; run < classified.row_offsets[row + 1]; ++run) {
      const TileRun& tiles = classified.runs[run];
      for (uint32_t column = tiles.begin; column < tiles.end; ++column, ++slot) {
        const Slot& got = rows.slots[slot];
        if (got.index != column || (got.cleanup == 0) != (tiles.item_count == 0)) return fail("a slot is out of place");
        if (got.cleanup + size_t{1} >= table.offsets.size() ||
            table.offsets[got.cleanup + 1] - table.offsets[got.cleanup] != tiles.item_count) {
          return fail("a slot names the wrong cleanup");
        }
      }
    }
    if (slot != rows.row_offsets[row + 1]) return fail("a row ends in the wrong place");
  }
  return {};
}

}  // namespace tessera::planner
