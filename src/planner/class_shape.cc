// The class: every size a lane compiles for, from the contract and the target alone. "exact" is the static mask with
// every run-time condition at its widest, so any batch of the contract fits it.
#include <algorithm>
#include <bit>
#include <cmath>
#include <initializer_list>

#include "base/checked.h"
#include "base/hash.h"
#include "plan/tile_widths.h"
#include "planner/stages.h"
#include "tessera/planner.h"

namespace tessera::planner {
namespace {

struct Widths {
  int64_t row = 0;     // most surviving tiles in a row
  int64_t column = 0;  // and in a column
  int64_t total = 0;
};

Widths WidestOf(const RowSet& set, TileSize tile, int64_t q_len, int64_t kv_len) {
  const plan::TileWidths of = plan::WidthsOf(set, tile, q_len, kv_len);
  Widths widths;
  for (const int64_t slots : of.rows) {
    widths.row = std::max(widths.row, slots);
    widths.total += slots;
  }
  for (const int64_t slots : of.columns) widths.column = std::max(widths.column, slots);
  return widths;
}

int64_t Apply(const Limit& limit, int64_t exact) {
  exact = std::max<int64_t>(exact, 1);  // an all-empty row still holds one slot in a padded view
  switch (limit.kind) {
    case Limit::Kind::kExact:
      return exact;
    case Limit::Kind::kPow2:
      return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(exact)));
    case Limit::Kind::kNumber:
      return limit.number;
  }
  return exact;
}

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Capacities of absurd shapes stop at a number no plan reaches, instead of wrapping.
int64_t Product(std::initializer_list<int64_t> factors) {
  const std::optional<int64_t> product = CheckedProduct(std::span(factors.begin(), factors.size()));
  return std::min(product.value_or(INT64_MAX), int64_t{1} << 40);
}

// Slots of a part where workers take rows of a mask, all heads at once. About eight parts per worker if every row were
// as wide as it may be; short parts are not worth their overhead.
int64_t PartOfMask(const ClassShape& shape, size_t d, const Target& target) {
  constexpr int64_t kPartsPerWorker = 8;
  constexpr int64_t kShortest = 16;
  const int64_t all = Product({shape.masks, shape.rows[d], shape.width[d]});
  return std::clamp(all / (std::max<int64_t>(target.workers, 1) * kPartsPerWorker), kShortest,
                    std::max(shape.width[d], kShortest));
}

// Slots of a part where workers take rows of heads. A row is cut only where whole rows would leave workers idle: a part
// costs what it takes to write its sums, about as much as kPartTokens streamed past, and one more launch puts the rows
// together. Times are in slots: `share` is each worker's, and half of the longest piece is about what all wait for the
// last one.
int64_t PartOfHead(const ClassShape& shape, Direction direction, const Contract& contract, const Target& target) {
  constexpr double kPartTokens = 512;
  constexpr double kPiecesPerWorker = 4;  // more would only cost memory
  constexpr double kWorthwhile = 0.9;
  const auto d = static_cast<size_t>(direction);
  const bool is_dkv = direction == Direction::kDkv;
  const Shape& s = contract.shape;
  const int64_t group = is_dkv ? s.num_q_heads / s.num_kv_heads : 1;  // whose rows a key head's row has
  const int64_t whole = Product({group, shape.width[d]});
  const double cost = kPartTokens / static_cast<double>(is_dkv ? shape.tiles[d].q : shape.tiles[d].kv);
  const double share = static_cast<double>(Product({s.batch, s.num_q_heads, shape.slots[d]})) /
                       static_cast<double>(std::max<int64_t>(target.workers, 1));
  const double part = std::max({std::sqrt(2 * cost * share), share / kPiecesPerWorker, cost});
  const double cut = share + cost * share / part + part / 2 + cost;
  if (cut > kWorthwhile * (share + static_cast<double>(whole) / 2)) return whole;
  return std::min(static_cast<int64_t>(std::ceil(part)), whole);
}

// The widest of every head class at one tile; `total` is the largest of any.
Widths WidestOfClasses(const Resolved& resolved, TileSize tile) {
  Widths widest;
  for (const RowSet& set : resolved.class_widest) {
    const Widths widths = WidestOf(set, tile, resolved.q_len, resolved.kv_len);
    widest.row = std::max(widest.row, widths.row);
    widest.column = std::max(widest.column, widths.column);
    widest.total = std::max(widest.total, widths.total);
  }
  return widest;
}

}  // namespace

void SetParts(ClassShape& shape, const Contract& contract, const Target& target) {
  shape.parts = 0;
  for (size_t d = 0; d < kNumDirections; ++d) {
    shape.part_slots[d] = target.heads_apart ? PartOfHead(shape, static_cast<Direction>(d), contract, target)
                                             : PartOfMask(shape, d, target);
    shape.part_slots[d] = std::min<int64_t>(shape.part_slots[d], UINT32_MAX);  // as a plan says it
    shape.parts =
        std::max(shape.parts, Product({shape.masks, shape.rows[d], CeilDiv(shape.width[d], shape.part_slots[d])}));
  }
}

ClassShape MakeShape(const ClassRequest& request) {
  const Resolved& resolved = *request.resolved;
  const Capacity& capacity = request.contract->capacity;
  ClassShape shape;
  shape.tiles = request.tiles;
  shape.masks = resolved.mask_capacity;
  int64_t total = 0;
  std::array<Widths, kNumDirections> widths;
  for (size_t d = 0; d < kNumDirections; ++d) {
    const bool is_dkv = static_cast<Direction>(d) == Direction::kDkv;
    const TileSize tile = shape.tiles[d];
    // Directions mostly share a tile, and then their widths.
    const auto same =
        static_cast<size_t>(std::find(shape.tiles.begin(), shape.tiles.end(), tile) - shape.tiles.begin());
    widths[d] = same < d ? widths[same] : WidestOfClasses(resolved, tile);
    const Widths& widest = widths[d];
    shape.rows[d] = is_dkv ? CeilDiv(resolved.kv_len, tile.kv) : CeilDiv(resolved.q_len, tile.q);
    shape.width[d] = is_dkv ? Apply(capacity.width_transposed, widest.column) : Apply(capacity.width, widest.row);
    shape.slots[d] = widest.total;
    total += widest.total;
  }
  // With run-time conditions each surviving tile might need a cleanup of its own.
  const int64_t bound = resolved.conditions.empty() ? request.static_cleanups : Product({total, shape.masks});
  shape.cleanups = capacity.cleanups.kind == Limit::Kind::kExact ? bound : Apply(capacity.cleanups, bound);
  SetParts(shape, *request.contract, *request.target);
  int64_t largest = shape.cleanups;
  for (size_t d = 0; d < kNumDirections; ++d) {
    largest =
        std::max({largest, CeilDiv(resolved.q_len, shape.tiles[d].q), CeilDiv(resolved.kv_len, shape.tiles[d].kv)});
  }
  shape.index_bytes = largest <= 127 ? 1 : largest <= 32767 ? 2 : 4;
  return shape;
}

std::string ClassKeyOf(const Contract& contract, const MaskSets& sets, const ClassShape& shape) {
  Hasher hasher;
  hasher.Text("tessera class 1");
  const Shape& s = contract.shape;
  for (const int64_t value :
       {s.batch, s.q_len, s.kv_len, s.num_q_heads, s.num_kv_heads, s.dim_qk, s.dim_v, static_cast<int64_t>(s.dtype),
        shape.masks, shape.cleanups, shape.parts, shape.index_bytes}) {
    hasher.Int(value);
  }
  for (size_t d = 0; d < kNumDirections; ++d) {
    for (const int64_t value : {shape.tiles[d].q, shape.tiles[d].kv, shape.rows[d], shape.width[d]}) hasher.Int(value);
  }
  // Operands present. Values (scale, cap, windows, ids, counts) are operands and stay out.
  hasher.Int(contract.score.softcap > 0 ? 1 : 0);
  hasher.Int(contract.score.sink_logits ? 1 : 0);
  hasher.Int(sets.Needs(TermKind::kDocuments) ? 1 : 0);
  hasher.Int(sets.Needs(TermKind::kValid) ? 1 : 0);
  hasher.Int(sets.Needs(TermKind::kBlocks) ? 1 : 0);
  hasher.Int(contract.routing.has_value() ? contract.routing->top_n : 0);
  return Hex(hasher.Finish());
}

}  // namespace tessera::planner

namespace tessera {

Result<std::string> ClassKey(const Contract& contract, const ClassShape& shape) {
  if (std::vector<Violation> violations = Validate(contract); !violations.empty()) {
    return Fail(ErrorCode::kContractInvalid, std::move(violations));
  }
  return BuildMaskSets(contract).map([&](const MaskSets& sets) { return planner::ClassKeyOf(contract, sets, shape); });
}

}  // namespace tessera
