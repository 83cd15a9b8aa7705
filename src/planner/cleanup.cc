#include "planner/cleanup.h"

#include <algorithm>

#include "plan/layout.h"

namespace tessera::planner {
namespace {

constexpr int32_t kMixed = -2;
constexpr size_t kNoSlab = SIZE_MAX;
constexpr size_t kUnknownSlab = SIZE_MAX - 1;

// The document that all tokens of a tile share, tile by tile; tokens outside every segment are in document -1.
std::vector<int32_t> UniformDocuments(const std::vector<Segment>& segments, int64_t len, int64_t tile) {
  if (segments.empty()) return {};
  std::vector<int32_t> docs(static_cast<size_t>((len + tile - 1) / tile), kMixed);
  size_t at = 0;
  for (size_t t = 0; t < docs.size(); ++t) {
    const int64_t begin = static_cast<int64_t>(t) * tile;
    const int64_t end = std::min(begin + tile, len);
    while (at + 1 < segments.size() && segments[at].end <= begin) ++at;
    if (segments[at].begin <= begin && segments[at].end >= end) docs[t] = segments[at].doc;
  }
  return docs;
}

struct RowStretch {
  int64_t begin = 0;
  int64_t end = 0;
};

bool HasBit(std::span<const uint64_t> words, int64_t bit) { return (words[bit / 64] >> (bit % 64) & 1U) != 0; }

// The first stretch of set rows at or after `from`, below `to`; empty, at `to`, when there is none.
RowStretch NextStretch(std::span<const uint64_t> rows, int64_t from, int64_t to) {
  while (from < to && !HasBit(rows, from)) ++from;
  int64_t end = from;
  while (end < to && HasBit(rows, end)) ++end;
  return {from, end};
}

}  // namespace

CleanupWriter::CleanupWriter(const Resolved& resolved, const ResolvedMask& mask, TileSize tile)
    : resolved_(resolved),
      facts_(resolved.rows[mask.batch_row]),
      terms_(resolved.class_terms[mask.head_class]),
      tile_(tile),
      may_store_bits_(resolved.class_may_store_bits[mask.head_class]),
      row_words_((tile.q + 63) / 64),
      blocks_bits_(plan::BlocksBits(resolved.conditions)),
      slabs_(terms_.size(), 0),
      q_doc_(UniformDocuments(facts_.q_segments, resolved.q_len, tile.q)),
      kv_doc_(tile.q == tile.kv && facts_.q_segments == facts_.kv_segments
                  ? q_doc_
                  : UniformDocuments(facts_.kv_segments, resolved.kv_len, tile.kv)),
      may_repeat_(tile.q == tile.kv && !may_store_bits_ && !resolved.picks),
      passing_(terms_.size(), kUnknownSlab),
      is_diagonal_(terms_.size(), false) {
  if (!resolved.picks) return;
  picks_ = &resolved.picks->lists[mask.batch_row * resolved.picks->num_kv_heads + mask.kv_head];
  block_tokens_ = resolved.picks->block_tokens;
}

void CleanupWriter::BeginRow(uint32_t tile_row) {
  tile_row_ = tile_row;
  row_begin_ = tile_row * tile_.q;
  row_end_ = std::min(row_begin_ + tile_.q, resolved_.q_len);
  has_pieces_ = false;
  is_repeating_ = may_repeat_ && row_end_ - row_begin_ == tile_.q && FindsDiagonalsOnly();
}

// Whether each term has one slab over all of this row of tiles, with diagonals for edges, or none in it.
bool CleanupWriter::FindsDiagonalsOnly() {
  bool are_all = true;
  for (size_t t = 0; t < terms_.size(); ++t) {
    const RowSet& set = terms_[t].set;
    const std::span<const Slab> slabs = set.slabs();
    size_t& at = slabs_[t];
    while (at < slabs.size() && slabs[at].q_end <= row_begin_) ++at;
    const bool is_none = at == slabs.size() || slabs[at].q_begin >= row_end_;
    const bool is_cut = !is_none && (slabs[at].q_begin > row_begin_ || slabs[at].q_end < row_end_);
    const size_t slab = is_none ? kNoSlab : is_cut ? kUnknownSlab : at;
    if (slab != passing_[t]) {
      passing_[t] = slab;
      ++generation_;
      is_diagonal_[t] =
          is_none || (!is_cut && std::ranges::all_of(set.Intervals(slabs[at]), [](const Interval& interval) {
            return interval.lo.diagonal != 0 && interval.hi.diagonal != 0;
          }));
    }
    are_all = are_all && is_diagonal_[t];
  }
  return are_all;
}

void CleanupWriter::GatherPieces() {
  has_pieces_ = true;
  pieces_.clear();
  for (size_t t = 0; t < terms_.size(); ++t) AddPieces(terms_[t], slabs_[t]);
  if (picks_ != nullptr) GatherPicks();
}

// Turns "which blocks did each query pick" around, for the queries of this row of tiles.
void CleanupWriter::GatherPicks() {
  row_of_block_.clear();
  picked_rows_.clear();
  for (int64_t query = row_begin_; query < row_end_; ++query) {
    for (const int32_t block : picks_->Of(query)) {
      const size_t at = row_of_block_.try_emplace(block, picked_rows_.size()).first->second;
      if (at == picked_rows_.size()) picked_rows_.resize(at + static_cast<size_t>(row_words_), 0);
      const int64_t row = query - row_begin_;
      picked_rows_[at + static_cast<size_t>(row / 64)] |= uint64_t{1} << (row % 64);
    }
  }
}

void CleanupWriter::AddPieces(const ConditionalSet& term, size_t& slab) {
  const std::span<const Slab> slabs = term.set.slabs();
  while (slab < slabs.size() && slabs[slab].q_end <= row_begin_) ++slab;
  previous_.clear();
  for (size_t i = slab; i < slabs.size() && slabs[i].q_begin < row_end_; ++i) {
    const std::span<const Interval> intervals = term.set.Intervals(slabs[i]);
    current_.clear();
    for (size_t n = 0; n < intervals.size(); ++n) {
      const auto& [lo, hi] = intervals[n];
      // Written in its place: a copy would wait for each of its fields.
      Piece& piece = pieces_.emplace_back();
      piece.conditions = term.conditions;
      piece.q_begin = std::max<int64_t>(slabs[i].q_begin, row_begin_) - row_begin_;
      piece.q_end = std::min<int64_t>(slabs[i].q_end, row_end_) - row_begin_;
      (lo.diagonal != 0 ? piece.diag_begin : piece.kv_begin) = lo.offset + (lo.diagonal != 0 ? row_begin_ : 0);
      (hi.diagonal != 0 ? piece.diag_end : piece.kv_end) = hi.offset + (hi.diagonal != 0 ? row_begin_ : 0);
      if (previous_.size() == intervals.size() && TryChain(pieces_[previous_[n]], piece)) {
        current_.push_back(previous_[n]);
        pieces_.pop_back();
      } else {
        current_.push_back(pieces_.size() - 1);
      }
    }
    previous_.swap(current_);
  }
}

// Joins two stretches, one right below the other, when max/min of their edges says exactly both: a lower edge that
// turns from constant to diagonal, an upper edge that turns from diagonal to constant.
bool CleanupWriter::TryChain(Piece& piece, const Piece& next) {
  constexpr int64_t kNone = MaskRun::kNone;
  const int64_t seam = piece.q_end;  // first row of `next`
  if (next.q_begin != seam) return false;
  Piece joined = piece;
  joined.q_end = next.q_end;
  if (next.diag_begin != -kNone) {
    if (piece.diag_begin == -kNone) {
      joined.diag_begin = next.diag_begin;
      if (seam - 1 + next.diag_begin > piece.kv_begin) return false;
    } else if (piece.diag_begin != next.diag_begin) {
      return false;
    }
    if (seam + next.diag_begin < piece.kv_begin) return false;
  } else if (piece.diag_begin != -kNone || piece.kv_begin != next.kv_begin) {
    return false;
  }
  if (next.kv_end != kNone) {
    if (piece.kv_end == kNone) {
      joined.kv_end = next.kv_end;
      if (seam - 1 + piece.diag_end > next.kv_end) return false;
    } else if (piece.kv_end != next.kv_end) {
      return false;
    }
    if (piece.diag_end != kNone && seam + piece.diag_end < next.kv_end) return false;
  } else if (piece.kv_end != kNone || piece.diag_end != next.diag_end) {
    return false;
  }
  piece = joined;
  return true;
}

// Writes a piece in tile coordinates, with every bound that does not matter inside the tile left out, so that tiles
// with the same work get the same item.
bool CleanupWriter::CutToTile(const Piece& piece, uint32_t column, CleanupItem& item) const {
  constexpr int64_t kNone = MaskRun::kNone;
  const int64_t key0 = column * tile_.kv;
  int64_t kv_begin = std::clamp<int64_t>(piece.kv_begin - key0, 0, tile_.kv);
  int64_t kv_end = std::clamp<int64_t>(piece.kv_end - key0, 0, tile_.kv);
  int64_t diag_begin = piece.diag_begin == -kNone ? -kNone : piece.diag_begin - key0;
  int64_t diag_end = piece.diag_end == kNone ? kNone : piece.diag_end - key0;
  const int64_t q_begin = std::max(piece.q_begin, kv_begin - diag_end + 1);
  const int64_t q_end = std::min(piece.q_end, kv_end - diag_begin);
  if (kv_begin >= kv_end || q_begin >= q_end) return false;
  if (q_end - 1 + diag_begin <= kv_begin) diag_begin = -kNone;
  if (q_begin + diag_end >= kv_end) diag_end = kNone;
  if (diag_begin != -kNone && q_begin + diag_begin >= kv_begin) kv_begin = 0;
  if (diag_end != kNone && q_end - 1 + diag_end <= kv_end) kv_end = tile_.kv;
  item.kind = ItemKind::kBand;
  item.q_begin = static_cast<int32_t>(q_begin);
  item.q_end = static_cast<int32_t>(q_end);
  item.kv_begin = static_cast<int32_t>(kv_begin);
  item.kv_end = static_cast<int32_t>(kv_end);
  item.diag_begin = diag_begin == -kNone ? kNoDiagBegin : static_cast<int32_t>(diag_begin);
  item.diag_end = diag_end == kNone ? kNoDiagEnd : static_cast<int32_t>(diag_end);
  item.bits = 0;
  return true;
}

CleanupWriter::Truth CleanupWriter::TruthInTile(const Condition& condition, uint32_t column) const {
  switch (condition.kind) {
    case ConditionKind::kValid: {
      const int64_t q_valid = facts_.q_valid.value_or(resolved_.q_len);
      const int64_t kv_valid = facts_.kv_valid.value_or(resolved_.kv_len);
      const int64_t key0 = column * tile_.kv;
      if (row_begin_ >= q_valid || key0 >= kv_valid) return Truth::kNowhere;
      const int64_t key_end = std::min(key0 + tile_.kv, resolved_.kv_len);
      return row_end_ <= q_valid && key_end <= kv_valid ? Truth::kEverywhere : Truth::kSomewhere;
    }
    case ConditionKind::kDocuments:
    case ConditionKind::kSinkDocument: {
      const int32_t q_doc = q_doc_.empty() ? -1 : q_doc_[tile_row_];
      const int32_t kv_doc = kv_doc_.empty() ? -1 : kv_doc_[column];
      // Where documents end is what no processor can guess: no branch depends on it.
      const bool is_mixed = (q_doc == kMixed) | (kv_doc == kMixed);
      const bool is_nowhere = (q_doc == -1) | (kv_doc == -1) | (!is_mixed & (q_doc != kv_doc));
      const bool is_everywhere = (condition.kind == ConditionKind::kDocuments) & !is_mixed & !is_nowhere;
      return static_cast<Truth>(1 - static_cast<int>(is_nowhere) + static_cast<int>(is_everywhere));
    }
    case ConditionKind::kBlocks:
      return picks_ == nullptr ? Truth::kNowhere : Truth::kSomewhere;
  }
  return Truth::kSomewhere;
}

// A piece that holds for rows that picked its block, block by block: rows that lie together narrow the piece, others
// are stored as a set of rows.
void CleanupWriter::WritePicked(const Piece& piece, uint32_t column, const Output& out) const {
  const int64_t key0 = column * tile_.kv;
  const int64_t key_end = std::min(key0 + tile_.kv, resolved_.kv_len);
  const auto last = row_of_block_.upper_bound(static_cast<int32_t>((key_end - 1) / block_tokens_));
  for (auto at = row_of_block_.lower_bound(static_cast<int32_t>(key0 / block_tokens_)); at != last;) {
    const auto rows = std::span(picked_rows_).subspan(at->second, static_cast<size_t>(row_words_));
    Piece cut = piece;
    cut.kv_begin = std::max(cut.kv_begin, at->first * block_tokens_);
    int64_t block_end = (at->first + 1) * block_tokens_;
    // Neighbouring blocks that the same rows picked are one item.
    for (++at; at != last && at->first * block_tokens_ == block_end; ++at) {
      if (!std::ranges::equal(rows, std::span(picked_rows_).subspan(at->second, rows.size()))) break;
      block_end += block_tokens_;
    }
    cut.kv_end = std::min(cut.kv_end, block_end);
    const RowStretch first = NextStretch(rows, piece.q_begin, piece.q_end);
    const bool is_one = NextStretch(rows, first.end, piece.q_end).begin == piece.q_end;
    if (is_one) {
      cut.q_begin = first.begin;
      cut.q_end = first.end;
    }
    CleanupItem item;
    if (!CutToTile(cut, column, item)) continue;
    item.conditions = cut.conditions;
    if (!is_one) {
      item.kind = ItemKind::kRows;
      item.bits = static_cast<uint32_t>(out.row_words->size() / rows.size());
      out.row_words->insert(out.row_words->end(), rows.begin(), rows.end());
    }
    out.items->push_back(item);
  }
}

CleanupWriter::Truths CleanupWriter::TruthsIn(uint32_t column) const {
  Truths truths;
  for (size_t c = 0; c < resolved_.conditions.size(); ++c) {
    const Truth truth = TruthInTile(resolved_.conditions[c], column);
    truths.everywhere |= static_cast<uint32_t>(truth == Truth::kEverywhere) << c;
    truths.nowhere |= static_cast<uint32_t>(truth == Truth::kNowhere) << c;
  }
  return truths;
}

void CleanupWriter::WriteAs(uint32_t column, const Truths& truths, const Output& out) {
  if (!has_pieces_) GatherPieces();
  const size_t first = out.items->size();
  const auto [everywhere, nowhere] = truths;
  for (const Piece& piece : pieces_) {
    if ((piece.conditions & nowhere) != 0) continue;
    if ((piece.conditions & blocks_bits_) != 0) {
      Piece without = piece;
      without.conditions = static_cast<uint16_t>(piece.conditions & ~everywhere & ~blocks_bits_);
      WritePicked(without, column, out);
      continue;
    }
    // Written in its place: a copy would wait for each of its fields.
    CleanupItem& item = out.items->emplace_back();
    if (CutToTile(piece, column, item)) {
      item.conditions = static_cast<uint16_t>(piece.conditions & ~everywhere);
    } else {
      out.items->pop_back();
    }
  }
  if (may_store_bits_) StoreAsBits(first, out);
}

// A bitmap, or a term of the user's own, can cut a tile into hundreds of bands; when they would take more room than the
// tile's own bits, the bits are stored instead. Only band items that need no condition are joined: the others keep
// their meaning apart.
void CleanupWriter::StoreAsBits(size_t first, const Output& out) const {
  std::vector<CleanupItem>& items = *out.items;
  std::vector<uint64_t>& bit_words = *out.bit_words;
  const int64_t words_per_row = (tile_.kv + 63) / 64;
  const size_t tile_words = static_cast<size_t>(tile_.q * words_per_row);
  const auto begin = items.begin() + static_cast<std::ptrdiff_t>(first);
  std::stable_sort(begin, items.end(),
                   [](const CleanupItem& a, const CleanupItem& b) { return a.conditions < b.conditions; });
  std::vector<CleanupItem> kept;
  for (auto group = begin; group != items.end();) {
    const auto group_end =
        std::find_if(group, items.end(), [&](const CleanupItem& item) { return item.conditions != group->conditions; });
    const auto group_bytes = static_cast<size_t>(group_end - group) * sizeof(CleanupItem);
    if (group_bytes <= tile_words * sizeof(uint64_t)) {
      kept.insert(kept.end(), group, group_end);
    } else {
      CleanupItem stored;
      stored.kind = ItemKind::kBits;
      stored.conditions = group->conditions;
      stored.q_end = static_cast<int32_t>(tile_.q);
      stored.kv_end = static_cast<int32_t>(tile_.kv);
      stored.bits = static_cast<uint32_t>(bit_words.size() / tile_words);
      const size_t base = bit_words.size();
      bit_words.resize(base + tile_words, 0);
      for (auto item = group; item != group_end; ++item) {
        const std::span<const uint64_t> rows =
            item->kind == ItemKind::kRows
                ? std::span(*out.row_words)
                      .subspan(item->bits * static_cast<size_t>(row_words_), static_cast<size_t>(row_words_))
                : std::span<uint64_t>();
        for (int32_t row = item->q_begin; row < item->q_end; ++row) {
          if (!rows.empty() && !HasBit(rows, row)) continue;
          const int32_t lo = std::max(item->kv_begin, row + item->diag_begin);
          const int32_t hi = std::min(item->kv_end, row + item->diag_end);
          for (int32_t key = lo; key < hi; ++key) {
            bit_words[base + static_cast<size_t>(row * words_per_row + key / 64)] |= uint64_t{1} << (key % 64);
          }
        }
      }
      kept.push_back(stored);
    }
    group = group_end;
  }
  items.erase(begin, items.end());
  items.insert(items.end(), kept.begin(), kept.end());
}

}  // namespace tessera::planner
