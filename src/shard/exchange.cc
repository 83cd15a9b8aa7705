// See exchange.h.
#include "shard/exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "tessera/dtype.h"

namespace tessera {
namespace {

using Pairs = std::vector<std::pair<int32_t, int32_t>>;

// What a tile costs, and a round beside its tiles, which is little: a step of several pairs runs on for the one that
// needs most as long as that is cheaper than to serve it alone.
constexpr int64_t kTileCost = 4;
constexpr int64_t kRoundCost = 1;

int64_t CountOf(const shard::Needs& needs, const std::pair<int32_t, int32_t>& pair) {
  return static_cast<int64_t>(needs[static_cast<size_t>(pair.second)][static_cast<size_t>(pair.first)].size());
}

// Rounds that all pairs of a step take together; the rest of each pair is served alone.
int64_t SharedTrips(const std::vector<int64_t>& counts, bool has_singles) {
  const int64_t most = counts.empty() ? 0 : *std::max_element(counts.begin(), counts.end());
  if (!has_singles) return most;
  const auto cost = [&](int64_t trips) {
    int64_t sum = trips * (static_cast<int64_t>(counts.size()) * kTileCost + kRoundCost);
    for (const int64_t count : counts) sum += std::max<int64_t>(0, count - trips) * (kTileCost + kRoundCost);
    return sum;
  };
  int64_t best = 0;
  for (const int64_t count : counts) {
    if (cost(count) < cost(best) || (cost(count) == cost(best) && count > best)) best = count;
  }
  return best;
}

bool HasSingles(size_t shards) { return static_cast<int64_t>(shards) <= kMaxSinglePairs; }

}  // namespace

std::vector<Pairs> SparsePairs(int64_t shards) {
  std::vector<Pairs> steps;
  for (const bool is_right : {true, false}) {
    for (int64_t distance = 1; distance < shards; ++distance) {
      Pairs& pairs = steps.emplace_back();
      for (int64_t i = 0; i + distance < shards; ++i) {
        const auto low = static_cast<int32_t>(i);
        const auto high = static_cast<int32_t>(i + distance);
        pairs.push_back(is_right ? std::pair{low, high} : std::pair{high, low});
      }
    }
  }
  if (!HasSingles(static_cast<size_t>(shards))) return steps;
  const size_t together = steps.size();
  for (size_t step = 0; step < together; ++step) {
    if (steps[step].size() < 2) continue;
    for (size_t i = 0; i < steps[step].size(); ++i) {
      const Pairs alone = {steps[step][i]};
      steps.push_back(alone);
    }
  }
  return steps;
}

SparseSteps MakeSparseSteps(const shard::Needs& needs) {
  const size_t n = needs.size();
  SparseSteps steps;
  steps.pairs = SparsePairs(static_cast<int64_t>(n));
  steps.rounds.resize(n);
  // How much of each pair's list is served already.
  std::vector<std::vector<int64_t>> served(n, std::vector<int64_t>(n, 0));
  size_t num_rounds = 0;
  for (const Pairs& pairs : steps.pairs) {
    std::vector<int64_t> left;
    for (const auto& pair : pairs) {
      left.push_back(CountOf(needs, pair) - served[static_cast<size_t>(pair.second)][static_cast<size_t>(pair.first)]);
    }
    const int64_t trips = pairs.size() == 1 ? left[0] : SharedTrips(left, HasSingles(n));
    steps.trips.push_back(static_cast<int32_t>(trips));
    for (std::vector<Round>& rounds : steps.rounds) rounds.resize(num_rounds + static_cast<size_t>(trips));
    for (const auto& [source, target] : pairs) {
      const std::vector<int32_t>& tiles = needs[static_cast<size_t>(target)][static_cast<size_t>(source)];
      int64_t& at = served[static_cast<size_t>(target)][static_cast<size_t>(source)];
      for (int64_t r = 0; r < trips && at < static_cast<int64_t>(tiles.size()); ++r, ++at) {
        const size_t round = num_rounds + static_cast<size_t>(r);
        steps.rounds[static_cast<size_t>(source)][round].send = tiles[static_cast<size_t>(at)];
        steps.rounds[static_cast<size_t>(target)][round].receive = tiles[static_cast<size_t>(at)];
      }
    }
    num_rounds += static_cast<size_t>(trips);
  }
  return steps;
}

int64_t SparseSteps::TilesCarried() const {
  int64_t tiles = 0;
  for (size_t step = 0; step < pairs.size(); ++step) tiles += static_cast<int64_t>(pairs[step].size()) * trips[step];
  return tiles;
}

namespace shard {
namespace {

ExchangeBytes AllGather(const CutSize& size, int64_t row_bytes) {
  const int64_t received = (size.shards - 1) * size.tiles_each * row_bytes;
  return {.exchange = Exchange::kAllGather, .total = received * size.shards, .largest = received, .trips = 1};
}

// Tokens against heads: q, k and v go, o comes back; row statistics stay with their heads.
ExchangeBytes Heads(const Shape& shape, const CutSize& size) {
  ExchangeBytes out{.exchange = Exchange::kHeads, .trips = 4};
  if (shape.num_kv_heads % size.shards != 0) {
    out.is_possible = false;
    out.why = fmt::format("{} key heads do not divide by {} shards", shape.num_kv_heads, size.shards);
    return out;
  }
  const int64_t token = (shape.num_q_heads + shape.num_kv_heads) * (shape.dim_qk + shape.dim_v) * BytesOf(shape.dtype);
  const int64_t local = shape.batch * size.tiles_each * size.tile * token;  // divides by shards, as heads do
  out.largest = local / size.shards * (size.shards - 1);
  out.total = out.largest * size.shards;
  return out;
}

// Whole shards go around as far as somebody needs them, to whichever side is shorter over all.
ExchangeBytes Ring(const CutSize& size, const Needs& needs, int64_t row_bytes) {
  const RingWay way = FindRingWay(needs);
  ExchangeBytes out{.exchange = Exchange::kRing, .trips = way.Hops()};
  std::vector<int64_t> received(needs.size(), 0);
  for (int64_t source = 0; source < way.shards(); ++source) {
    for (int64_t hops = 1; hops <= way.reach[static_cast<size_t>(source)]; ++hops) {
      received[static_cast<size_t>(way.DeviceOf(source, hops))] += size.tiles_each * row_bytes;
    }
  }
  for (const int64_t bytes : received) out.total += bytes;
  out.largest = *std::max_element(received.begin(), received.end());
  return out;
}

ExchangeBytes Sparse(const CutSize& size, const Needs& needs, int64_t tile_bytes) {
  const SparseSteps steps = MakeSparseSteps(needs);
  ExchangeBytes out{.exchange = Exchange::kSparse, .total = steps.TilesCarried() * tile_bytes};
  std::vector<int64_t> received(static_cast<size_t>(size.shards), 0);
  for (size_t step = 0; step < steps.pairs.size(); ++step) {
    out.trips += steps.trips[step];
    for (const auto& pair : steps.pairs[step]) received[static_cast<size_t>(pair.second)] += steps.trips[step];
  }
  out.largest = *std::max_element(received.begin(), received.end()) * tile_bytes;
  return out;
}

// dK and dV go back in f32 along the ways that keys and values came.
void CountReturn(const Shape& shape, ExchangeBytes& bytes) {
  bytes.backward = bytes.total + bytes.total / BytesOf(shape.dtype) * 4;
}

// All of q, k, v, do and what a row is known by to heads; dq, dk and dv in f32 back to tokens.
void CountHeadsBack(const Shape& s, const CutSize& size, ExchangeBytes& bytes) {
  constexpr int64_t kF32 = 4;
  const int64_t there = (s.num_q_heads + s.num_kv_heads) * (s.dim_qk + s.dim_v) * BytesOf(s.dtype);
  const int64_t rows = s.num_q_heads * 2 * kF32;
  const int64_t back = (s.num_q_heads * s.dim_qk + s.num_kv_heads * (s.dim_qk + s.dim_v)) * kF32;
  const int64_t local = s.batch * size.tiles_each * size.tile * (there + rows + back);
  if (bytes.is_possible) bytes.backward = local / size.shards * (size.shards - 1) * size.shards;
}

}  // namespace

int64_t RingWay::Hops() const { return reach.empty() ? 0 : *std::max_element(reach.begin(), reach.end()); }
int64_t RingWay::DeviceOf(int64_t source, int64_t hops) const {
  return (source + (is_right ? hops : shards() - hops)) % shards();
}
int64_t RingWay::SourceOf(int64_t device, int64_t hops) const {
  return (device + (is_right ? shards() - hops : hops)) % shards();
}

RingWay FindRingWay(const Needs& needs) {
  const auto shards = static_cast<int64_t>(needs.size());
  const auto way_of = [&](bool is_right) {
    RingWay way{.is_right = is_right, .reach = std::vector<int64_t>(needs.size(), 0)};
    for (int64_t source = 0; source < shards; ++source) {
      for (int64_t hops = 1; hops < shards; ++hops) {
        const auto device = static_cast<size_t>(way.DeviceOf(source, hops));
        if (!needs[device][static_cast<size_t>(source)].empty()) way.reach[static_cast<size_t>(source)] = hops;
      }
    }
    return way;
  };
  const auto total = [](const RingWay& way) { return std::accumulate(way.reach.begin(), way.reach.end(), int64_t{0}); };
  RingWay right = way_of(true);
  RingWay left = way_of(false);
  return total(left) < total(right) ? left : right;
}

int64_t KeyTileBytes(const Shape& shape, int64_t tile) {
  return tile * shape.num_kv_heads * (shape.dim_qk + shape.dim_v) * BytesOf(shape.dtype);
}

int64_t QueryTileBytes(const Shape& shape, int64_t tile) {
  const int64_t known = 2 * static_cast<int64_t>(sizeof(float));  // lse and delta
  return tile * shape.num_q_heads * ((shape.dim_qk + shape.dim_v) * BytesOf(shape.dtype) + known);
}

std::vector<ExchangeBytes> CountExchanges(const Shape& shape, const CutSize& size, const Needs& needs,
                                          const Needs& row_needs) {
  const int64_t tile_bytes = KeyTileBytes(shape, size.tile);
  const int64_t row_bytes = QueryTileBytes(shape, size.tile);
  ExchangeBytes all = AllGather(size, shape.batch * tile_bytes);
  ExchangeBytes heads = Heads(shape, size);
  ExchangeBytes ring = Ring(size, needs, shape.batch * tile_bytes);
  ExchangeBytes sparse = Sparse(size, needs, tile_bytes);
  for (ExchangeBytes* bytes : {&all, &ring, &sparse}) CountReturn(shape, *bytes);
  CountHeadsBack(shape, size, heads);
  all.backward_by_rows = all.total + AllGather(size, shape.batch * row_bytes).total;
  sparse.backward_by_rows = sparse.total + Sparse(size, row_needs, row_bytes).total;
  return {std::move(all), std::move(heads), std::move(ring), std::move(sparse)};
}

double ExchangeCost(const std::vector<ExchangeBytes>& exchanges, Exchange which) {
  const int64_t all = exchanges[static_cast<size_t>(Exchange::kAllGather)].total;
  if (all == 0) return 0;
  const double share = static_cast<double>(exchanges[static_cast<size_t>(which)].total) / static_cast<double>(all);
  return which == Exchange::kSparse ? share / kSmallShare : share;
}

ExchangeChoice ChooseExchange(const std::vector<ExchangeBytes>& exchanges) {
  const auto of = [&](Exchange which) -> const ExchangeBytes& { return exchanges[static_cast<size_t>(which)]; };
  const auto share = [&](Exchange which) {
    const int64_t all = of(Exchange::kAllGather).total;
    return all == 0 ? 0.0 : static_cast<double>(of(which).total) / static_cast<double>(all);
  };
  ExchangeChoice choice{Exchange::kSparse, {}};  // of those that cost the same the first here
  std::string compared;
  for (const Exchange which : {Exchange::kSparse, Exchange::kHeads, Exchange::kAllGather}) {
    compared += compared.empty() ? "" : ", ";
    if (!of(which).is_possible) {
      compared += fmt::format("{} not possible ({})", ToText(which), of(which).why);
      continue;
    }
    const double cost = ExchangeCost(exchanges, which);
    compared += fmt::format("{} {:.4f}", ToText(which), cost);
    if (which == Exchange::kSparse) compared += fmt::format(" ({:.4f} of the bytes, tile by tile)", share(which));
    if (cost < ExchangeCost(exchanges, choice.exchange)) choice.exchange = which;
  }
  choice.reason = fmt::format(
      "{}: least cost of {}; ring ({:.4f} of the bytes) only where asked for, as its sums are "
      "rounded otherwise",
      ToText(choice.exchange), compared, share(Exchange::kRing));
  return choice;
}

Result<GradientChoice> ChooseGradients(const ExchangeBytes& taken, std::optional<GradientWay> asked) {
  if (taken.backward_by_rows < 0) {
    const char* why = taken.exchange == Exchange::kHeads
                          ? "every device has all rows of its heads, and nothing is left to bring"
                          : "a ring gives back what it has of a shard's keys after each hop";
    if (asked == GradientWay::kRows) {
      return Fail(ErrorCode::kContextCut, fmt::format("rows are not brought with {}: {}", ToText(taken.exchange), why),
                  "gradients");
    }
    return GradientChoice{GradientWay::kReturned, fmt::format("returned: {}", why)};
  }
  if (asked) return GradientChoice{*asked, fmt::format("{}: asked for", ToText(*asked))};
  const GradientWay way = taken.backward_by_rows < taken.backward ? GradientWay::kRows : GradientWay::kReturned;
  return GradientChoice{
      way, fmt::format("{}: least bytes of returned {}, rows {}", ToText(way), taken.backward, taken.backward_by_rows)};
}

}  // namespace shard
}  // namespace tessera
