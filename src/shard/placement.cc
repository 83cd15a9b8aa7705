// See placement.h. Documents with more work than half a shard's come first in the row, where their tiles can be given
// to any shard; the others follow, shard by shard. What a tile executes above what the same tokens of other documents
// would is its excess: shards that have equal excess of the large documents can be filled up with the others alike.
#include "shard/placement.h"

#include <algorithm>
#include <numeric>

#include "base/math.h"
#include "shard/cut.h"
#include "shard/placement_bins.h"

namespace tessera::shard {
namespace {

struct Locality {
  bool is_shifted_alike = false;  // depends on distances and documents alone
  bool is_local = false;          // and no pair is of two documents
};
Locality LocalityOf(const MaskExpr& expr) {
  if (expr.op == MaskExpr::Op::kTerm) {
    switch (expr.term.kind) {
      case TermKind::kDocuments:
      case TermKind::kSinkDocument:
        return {true, true};
      case TermKind::kFull:
      case TermKind::kCausal:
      case TermKind::kWindow:
        return {true, false};
      default:
        return {};
    }
  }
  const bool is_and = expr.op == MaskExpr::Op::kAnd;
  Locality out{true, !is_and};
  for (const MaskExpr& child : expr.children) {
    const Locality one = LocalityOf(child);
    out.is_shifted_alike = out.is_shifted_alike && one.is_shifted_alike;
    out.is_local = is_and ? out.is_local || one.is_local : out.is_local && one.is_local;
  }
  return out;
}

struct Document {
  PlacedItem item;
  int64_t work = 0;  // tile costs times tokens
  int64_t tokens() const { return item.end - item.begin; }
};

class Placer {
 public:
  Placer(const PlacementInput& input, const PlacementTrial& trial, const std::vector<int64_t>& bias)
      : in_(input),
        trial_(trial),
        bias_(bias),
        tiles_(static_cast<int64_t>(input.tile_costs.size())),
        tiles_each_(tiles_ / input.shards),
        shards_(static_cast<size_t>(input.shards)) {}

  Placement Place() {
    ReadDocuments();
    SplitLarge();
    return PlaceOthers();
  }

 private:
  int64_t CostOfToken(int64_t token) const { return in_.tile_costs[static_cast<size_t>(token / in_.tile)]; }
  int64_t WorkOf(int64_t begin, int64_t end) const {
    int64_t work = 0;
    for (int64_t at = begin; at < end;) {
      const int64_t next = std::min(end, (at / in_.tile + 1) * in_.tile);
      work += CostOfToken(at) * (next - at);
      at = next;
    }
    return work;
  }

  // Stretches without a document may be taken apart anywhere: a tile each.
  void ReadDocuments() {
    for (const Segment& segment : in_.segments) {
      const int64_t step = segment.doc < 0 ? in_.tile : segment.end - segment.begin;
      for (int64_t at = segment.begin; at < segment.end; at += step) {
        const int64_t end = std::min<int64_t>(segment.end, at + step);
        const int64_t work = WorkOf(at, end);
        total_ += work;
        documents_.push_back({{at, end, segment.doc}, work});
      }
    }
    share_ = total_ / in_.shards;
    for (const Document& document : documents_) {
      (document.item.doc >= 0 && document.work > share_ / trial_.share_parts ? large_ : others_).push_back(document);
    }
    const auto heavier = [](const Document& a, const Document& b) { return a.work > b.work; };
    std::stable_sort(large_.begin(), large_.end(), heavier);
  }

  // ---- documents that may be cut: their tiles in the new order, and who takes which

  struct Range {
    int64_t begin = 0;  // tiles in the order in which they are dealt
    int64_t end = 0;
    int64_t excess = 0;
  };
  int64_t ExcessOf(int64_t begin, int64_t end) const {
    return excess_[static_cast<size_t>(end)] - excess_[static_cast<size_t>(begin)];
  }

  void SplitLarge() {
    placement_.shard_of.assign(static_cast<size_t>(tiles_), kNobody);
    taken_tiles_.assign(shards_, 0);
    taken_work_.assign(shards_, 0);
    for (const Document& document : large_) {
      placement_.order.push_back(document.item);
      large_tokens_ += document.tokens();
    }
    large_tiles_ = CeilDiv(large_tokens_, in_.tile);
    if (large_tiles_ == 0) return;
    MeasureLarge();
    std::vector<Range> ranges = LargeRanges();
    const int64_t goal = excess_.back() / in_.shards;
    for (size_t shard = 0; shard < shards_ && !ranges.empty(); ++shard) FillShard(shard, goal, ranges);
    // Rounding may leave something: whoever has room takes it.
    for (const Range& range : ranges) {
      for (int64_t t = range.begin; t < range.end; ++t) {
        Give(t, t + 1,
             static_cast<size_t>(std::min_element(taken_tiles_.begin(), taken_tiles_.end()) - taken_tiles_.begin()));
      }
    }
  }

  // Work of each tile of the new order, and what of it is above what other documents would make of its tokens.
  void MeasureLarge() {
    int64_t other_work = 0;
    int64_t other_tokens = 0;
    for (const Document& document : others_) {
      other_work += document.work;
      other_tokens += document.tokens();
    }
    tile_work_.assign(static_cast<size_t>(large_tiles_), 0);
    std::vector<int64_t> tokens(static_cast<size_t>(large_tiles_), 0);
    int64_t at = 0;
    for (const Document& document : large_) {
      for (int64_t token = document.item.begin; token < document.item.end;) {
        const int64_t count = std::min({document.item.end - token, (token / in_.tile + 1) * in_.tile - token,
                                        (at / in_.tile + 1) * in_.tile - at});
        tile_work_[static_cast<size_t>(at / in_.tile)] += CostOfToken(token) * count;
        tokens[static_cast<size_t>(at / in_.tile)] += count;
        token += count;
        at += count;
      }
    }
    std::vector<int64_t> excess(tile_work_.size());
    for (size_t t = 0; t < excess.size(); ++t) {
      excess[t] = tile_work_[t] - (other_tokens > 0 ? other_work / other_tokens * tokens[t] : 0);
    }
    tile_at_.resize(excess.size());
    std::iota(tile_at_.begin(), tile_at_.end(), size_t{0});
    if (trial_.by_cost) {
      std::stable_sort(tile_at_.begin(), tile_at_.end(), [&](size_t a, size_t b) { return excess[a] < excess[b]; });
    }
    excess_.assign(1, 0);
    for (const size_t t : tile_at_) excess_.push_back(excess_.back() + excess[t]);
  }

  // A document's tiles; one that two share is the earlier one's.
  std::vector<Range> LargeRanges() const {
    if (trial_.by_cost) return {{0, large_tiles_, excess_.back()}};
    std::vector<Range> ranges;
    int64_t at = 0;
    int64_t begin = 0;
    for (const Document& document : large_) {
      at += document.tokens();
      const int64_t end = CeilDiv(at, in_.tile);
      if (end > begin) ranges.push_back({begin, end, ExcessOf(begin, end)});
      begin = end;
    }
    return ranges;
  }

  void Give(int64_t begin, int64_t end, size_t shard) {
    for (int64_t t = begin; t < end; ++t) {
      const size_t tile = tile_at_[static_cast<size_t>(t)];
      placement_.shard_of[tile] = static_cast<uint32_t>(shard);
      taken_work_[shard] += tile_work_[tile];
    }
    taken_tiles_[shard] += end - begin;
  }

  // Whole documents while they fit, largest first; then the end of one that is too large, where a row costs most, so
  // that few tokens are cut off.
  void FillShard(size_t shard, int64_t goal, std::vector<Range>& ranges) {
    const auto shards_after = static_cast<int64_t>(shards_ - shard) - 1;
    int64_t wanted = goal - bias_[shard] * in_.tile;
    const int64_t slack = goal / 32;
    while (!ranges.empty() && taken_tiles_[shard] < tiles_each_) {
      int64_t left = 0;
      for (const Range& one : ranges) left += one.end - one.begin;
      // Tiles that would not fit the shards that are left.
      const int64_t must_take = left - shards_after * tiles_each_;
      if (wanted <= slack && must_take <= 0 && shards_after > 0) return;
      const int64_t room = tiles_each_ - taken_tiles_[shard];
      size_t best = ranges.size();
      size_t largest = 0;
      for (size_t i = 0; i < ranges.size(); ++i) {
        if (ranges[i].excess > ranges[largest].excess) largest = i;
        if (ranges[i].excess > wanted + slack || ranges[i].end - ranges[i].begin > room) continue;
        if (best == ranges.size() || ranges[i].excess > ranges[best].excess) best = i;
      }
      const bool is_too_large = ranges[largest].excess > goal + slack;
      if (best < ranges.size() && !is_too_large) {
        wanted -= ranges[best].excess;
        Give(ranges[best].begin, ranges[best].end, shard);
        ranges.erase(ranges.begin() + static_cast<int64_t>(best));
        continue;
      }
      wanted -= Peel(shard, wanted, must_take, is_too_large ? largest : Shortest(ranges, wanted), ranges);
    }
  }

  static size_t Shortest(const std::vector<Range>& ranges, int64_t wanted) {
    size_t best = 0;
    for (size_t i = 1; i < ranges.size(); ++i) {
      const bool is_enough = ranges[i].excess >= wanted;
      const bool best_is_enough = ranges[best].excess >= wanted;
      const int64_t length = ranges[i].end - ranges[i].begin;
      const int64_t best_length = ranges[best].end - ranges[best].begin;
      if (is_enough != best_is_enough ? is_enough : length < best_length) best = i;
    }
    return best;
  }

  // From the end, and from the beginning too where more tiles must go than that: those cost little and fill the shard
  // up. At least one tile goes. Gives their excess.
  int64_t Peel(size_t shard, int64_t wanted, int64_t must_take, size_t which, std::vector<Range>& ranges) {
    const Range range = ranges[which];
    const int64_t most = std::min(tiles_each_ - taken_tiles_[shard], range.end - range.begin);
    int64_t head = 0;
    int64_t tail = 0;
    const auto excess = [&] {
      return ExcessOf(range.begin, range.begin + head) + ExcessOf(range.end - tail, range.end);
    };
    for (;; ++head) {
      tail = 0;
      while (head + tail < most && excess() < wanted) ++tail;
      if (tail > 0) {  // the nearer of the two
        const int64_t with = excess();
        --tail;
        if (with - wanted <= wanted - excess()) ++tail;
      }
      if (head + tail >= std::min(std::max<int64_t>(must_take, 1), most)) break;
    }
    const int64_t taken = excess();
    Give(range.begin, range.begin + head, shard);
    Give(range.end - tail, range.end, shard);
    ranges[which] = {range.begin + head, range.end - tail, ExcessOf(range.begin + head, range.end - tail)};
    if (head + tail == range.end - range.begin) ranges.erase(ranges.begin() + static_cast<int64_t>(which));
    return taken;
  }

  // ---- the others: whole, shard by shard

  Placement PlaceOthers() {
    // The tile in which the large documents end is somebody's already: the others begin with his.
    std::vector<size_t> sequence(shards_);
    std::iota(sequence.begin(), sequence.end(), size_t{0});
    const int64_t gap = large_tiles_ * in_.tile - large_tokens_;
    if (gap > 0) {
      const size_t owner = placement_.shard_of[static_cast<size_t>(large_tiles_ - 1)];
      std::rotate(sequence.begin(), sequence.begin() + static_cast<int64_t>(owner),
                  sequence.begin() + static_cast<int64_t>(owner) + 1);
    }
    std::vector<BinGoal> goals(shards_);
    for (size_t s = 0; s < shards_; ++s) {
      goals[s].tokens = (tiles_each_ - taken_tiles_[s]) * in_.tile;
      goals[s].work = std::max<int64_t>(0, share_ - taken_work_[s] - bias_[s] * in_.tile);
    }
    goals[sequence.front()].tokens += gap;
    TakePadding(sequence, goals);
    std::vector<BinItem> items;
    items.reserve(others_.size());
    for (const Document& document : others_) items.push_back({document.tokens(), document.work});
    const std::vector<uint32_t> bin = FillBins(items, goals, {tiles_each_ * in_.tile, share_, trial_.tokens_first});
    for (const size_t shard : sequence) AppendShard(shard, bin);
    int64_t next = large_tiles_;
    for (const size_t shard : sequence) {
      for (; taken_tiles_[shard] < tiles_each_; ++taken_tiles_[shard]) {
        placement_.shard_of[static_cast<size_t>(next++)] = static_cast<uint32_t>(shard);
      }
    }
    return std::move(placement_);
  }

  // Tokens that only round the row up stand at its end, and so are the last shards'.
  void TakePadding(const std::vector<size_t>& sequence, std::vector<BinGoal>& goals) const {
    int64_t padding = tiles_ * in_.tile - in_.tokens;
    for (auto shard = sequence.rbegin(); shard != sequence.rend() && padding > 0; ++shard) {
      const int64_t here = std::min(padding, goals[*shard].tokens);
      goals[*shard].tokens -= here;
      padding -= here;
    }
  }

  // The shortest stand at both ends, where a document may reach over the edge.
  void AppendShard(size_t shard, const std::vector<uint32_t>& bin) {
    std::vector<size_t> mine;
    for (size_t i = 0; i < others_.size(); ++i) {
      if (bin[i] == shard) mine.push_back(i);
    }
    std::stable_sort(mine.begin(), mine.end(),
                     [&](size_t a, size_t b) { return others_[a].tokens() < others_[b].tokens(); });
    std::vector<PlacedItem> items(mine.size());
    for (size_t i = 0; i < mine.size(); ++i) {
      items[i % 2 == 0 ? i / 2 : mine.size() - 1 - i / 2] = others_[mine[i]].item;
    }
    placement_.order.insert(placement_.order.end(), items.begin(), items.end());
  }

  static constexpr uint32_t kNobody = ~0U;
  const PlacementInput& in_;
  const PlacementTrial& trial_;
  const std::vector<int64_t>& bias_;
  const int64_t tiles_;
  const int64_t tiles_each_;
  const size_t shards_;
  std::vector<Document> documents_;
  std::vector<Document> large_;
  std::vector<Document> others_;
  int64_t total_ = 0;
  int64_t share_ = 0;
  int64_t large_tokens_ = 0;
  int64_t large_tiles_ = 0;
  std::vector<int64_t> tile_work_;  // of the tiles that large documents have in the new order
  std::vector<size_t> tile_at_;     // in the order in which they are dealt
  std::vector<int64_t> excess_;     // before each of them, in that order
  std::vector<int64_t> taken_tiles_;
  std::vector<int64_t> taken_work_;
  Placement placement_;
};

}  // namespace

std::string WhyNotReorder(const Contract& contract, const MaskFacts& facts) {
  if (contract.shape.q_len != contract.shape.kv_len || contract.mask.offset != 0) {
    return "queries and keys are not the same tokens";
  }
  if (!facts.needs_documents) return "the mask has no documents";
  if (facts.documents_may_reappear) return "documents may be in pieces";
  if (facts.needs_valid || facts.needs_blocks) return "valid counts and picks name places";
  for (const MaskExpr& expr : contract.mask.heads) {
    const Locality locality = LocalityOf(expr);
    if (!locality.is_shifted_alike) return "a term of the mask names places: " + ToText(expr);
    if (!locality.is_local) return "the mask reaches over documents: " + ToText(expr);
  }
  return "";
}

Placement PlaceDocuments(const PlacementInput& input, const PlacementTrial& trial, const std::vector<int64_t>& bias) {
  return Placer(input, trial, bias).Place();
}

}  // namespace tessera::shard
