// See context_tiles.h.
#include "lanes/xla/stablehlo/context_tiles.h"

#include "lanes/xla/stablehlo/tiles.h"

namespace tessera::stablehlo {

TileRounds RoundsOf(const Builder& b) { return {b.Input("sends"), b.Input("receives"), b.Input("bounds")}; }

// One loop for each step, which begins where the one before ended. Keys and values of a tile go together, and come to
// lie behind a device's own at once: what is brought may be most of its memory, and is written once.
std::pair<Value, Value> TileExchange::Bring(const Value& k, const Value& v) {
  const Shape& s = spec_.shape;
  const int64_t tokens = spec_.tokens + (spec_.received + 1) * spec_.tile;  // the last tile is for what nobody needs
  Values got = {PadTokens(b_, k, tokens), PadTokens(b_, v, tokens)};
  for (size_t step = 0; step < spec_.steps.size(); ++step) {
    const auto number = static_cast<int64_t>(step);
    got = b_.For(Entry(rounds_.bounds, b_.Int(number)), Entry(rounds_.bounds, b_.Int(number + 1)), got,
                 [&](const Value& round, const Values& carried) {
                   const std::vector<Value> from = SentAt(round);
                   const auto tile = [&](const Value& own, int64_t dim) {
                     return b_.SliceAt(own, from, {1, s.num_kv_heads, spec_.tile, dim});
                   };
                   const Value sent = b_.Concatenate({tile(k, s.dim_qk), tile(v, s.dim_v)}, 3);
                   const Value came = b_.Permute(sent, spec_.steps[step]);
                   std::vector<Value> to = ReceivedAt(round, spec_.received + 1);
                   to[2] = b_.Add(to[2], b_.Int(spec_.tokens));
                   const int64_t begin[] = {0, 0, 0, 0};
                   const int64_t middle[] = {0, 0, 0, s.dim_qk};
                   const int64_t end_of_keys[] = {1, s.num_kv_heads, spec_.tile, s.dim_qk};
                   const Value keys = b_.Slice(came, begin, end_of_keys);
                   const Value values = b_.Slice(came, middle, came.type.dims);
                   return Values{b_.UpdateAt(carried[0], keys, to), b_.UpdateAt(carried[1], values, to)};
                 });
  }
  return {got[0], got[1]};
}

// q and do of a tile go together, and lse and delta, which are f32 whatever the others are.
Values TileExchange::BringRows(const Values& own) {
  const Shape& s = spec_.shape;
  const int64_t tokens = spec_.tokens + (spec_.row_received + 1) * spec_.tile;
  Values got;
  for (const Value& one : own) got.push_back(PadTokens(b_, one, tokens));
  const std::vector<int64_t> stats = {1, s.num_q_heads, spec_.tile};
  const auto tile = [&](int64_t dim) { return std::vector<int64_t>{1, s.num_q_heads, spec_.tile, dim}; };
  // With an axis more than keys: who reads the compiled program knows what is brought by it.
  const auto travel = [&](const Value& x, const DevicePairs& pairs) {
    std::vector<int64_t> dims = x.type.dims;
    dims.insert(dims.begin(), 1);
    return b_.Reshape(b_.Permute(b_.Reshape(x, dims), pairs), x.type.dims);
  };
  const auto part = [&](const Value& x, int64_t begin, int64_t end) {
    const std::vector<int64_t> from = {0, 0, 0, begin};
    std::vector<int64_t> to = x.type.dims;
    to[3] = end;
    return b_.Slice(x, from, to);
  };
  for (size_t step = 0; step < spec_.steps.size(); ++step) {
    const auto number = static_cast<int64_t>(step);
    got =
        b_.For(Entry(rounds_.bounds, b_.Int(number)), Entry(rounds_.bounds, b_.Int(number + 1)), got,
               [&](const Value& round, const Values& carried) {
                 const std::vector<Value> from = SentAt(round);
                 const std::vector<Value> from_stats(from.begin(), from.begin() + 3);
                 std::vector<Value> to = ReceivedAt(round, spec_.row_received + 1);
                 to[2] = b_.Add(to[2], b_.Int(spec_.tokens));
                 const std::vector<Value> to_stats(to.begin(), to.begin() + 3);
                 const Value rows = b_.Concatenate(
                     {b_.SliceAt(own[0], from, tile(s.dim_qk)), b_.SliceAt(own[1], from, tile(s.dim_v))}, 3);
                 const auto stat = [&](size_t i) { return b_.Reshape(b_.SliceAt(own[i], from_stats, stats), tile(1)); };
                 const Value known = b_.Concatenate({stat(2), stat(3)}, 3);
                 const Value came = travel(rows, spec_.steps[step]);
                 const Value came_known = travel(known, spec_.steps[step]);
                 return Values{b_.UpdateAt(carried[0], part(came, 0, s.dim_qk), to),
                               b_.UpdateAt(carried[1], part(came, s.dim_qk, s.dim_qk + s.dim_v), to),
                               b_.UpdateAt(carried[2], b_.Reshape(part(came_known, 0, 1), stats), to_stats),
                               b_.UpdateAt(carried[3], b_.Reshape(part(came_known, 1, 2), stats), to_stats)};
               });
  }
  return got;
}

// The rounds of Bring once more, along pairs turned round: what came into a slot goes back, and is added where it was
// sent from. A slot that nobody needed has gradients of zero, which is what its round adds.
std::pair<Value, Value> TileExchange::GiveBack(const Value& dk, const Value& dv) {
  const Shape& s = spec_.shape;
  const Value both = b_.Concatenate({dk, dv}, 3);
  const int64_t dim = s.dim_qk + s.dim_v;
  const auto part = [&](const Value& x, std::vector<int64_t> begin, std::vector<int64_t> end) {
    return b_.Slice(x, begin, end);
  };
  const Value brought = part(both, {0, 0, spec_.tokens, 0}, both.type.dims);
  Value own = part(both, {0, 0, 0, 0}, {s.batch, s.num_kv_heads, spec_.tokens, dim});
  for (size_t step = 0; step < spec_.steps.size(); ++step) {
    const auto number = static_cast<int64_t>(step);
    DevicePairs turned;
    for (const auto& [source, target] : spec_.steps[step]) turned.emplace_back(target, source);
    own = b_.For(Entry(rounds_.bounds, b_.Int(number)), Entry(rounds_.bounds, b_.Int(number + 1)), {own},
                 [&](const Value& round, const Values& carried) {
                   const std::vector<int64_t> sizes = {1, s.num_kv_heads, spec_.tile, dim};
                   const std::vector<Value> from = ReceivedAt(round, spec_.received + 1);
                   // Without the batch's axis: who reads the compiled program knows what is given back by it.
                   const Value sent = b_.Reshape(b_.SliceAt(brought, from, sizes), {s.num_kv_heads, spec_.tile, dim});
                   const Value came = b_.Reshape(b_.Permute(sent, turned), sizes);
                   const std::vector<Value> to = SentAt(round);
                   return Values{b_.UpdateAt(carried[0], b_.Add(b_.SliceAt(carried[0], to, sizes), came), to)};
                 })[0];
  }
  return {part(own, {0, 0, 0, 0}, {s.batch, s.num_kv_heads, spec_.tokens, s.dim_qk}),
          part(own, {0, 0, 0, s.dim_qk}, {s.batch, s.num_kv_heads, spec_.tokens, dim})};
}

Value TileExchange::Entry(const Value& table, const Value& at) {
  const Value place[] = {at};
  return b_.Reshape(b_.SliceAt(table, place, {1}), {});
}

// Where the tile of a round is sent from, and where the one that comes goes.
std::vector<Value> TileExchange::SentAt(const Value& round) {
  return At(Entry(rounds_.sends, round), spec_.tokens / spec_.tile);
}
std::vector<Value> TileExchange::ReceivedAt(const Value& round, int64_t room) {
  return At(Entry(rounds_.receives, round), room);
}
std::vector<Value> TileExchange::At(const Value& tile, int64_t tiles_of_row) {
  const Value each = b_.Int(tiles_of_row);
  return {b_.Div(tile, each), b_.Int(0), b_.Mul(b_.Rem(tile, each), b_.Int(spec_.tile)), b_.Int(0)};
}

}  // namespace tessera::stablehlo
