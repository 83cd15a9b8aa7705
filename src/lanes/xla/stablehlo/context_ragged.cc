// See context_ragged.h.
#include "lanes/xla/stablehlo/context_ragged.h"

namespace tessera::stablehlo {

std::vector<NamedType> RaggedInputs(const ContextSpec& spec) {
  const int64_t batch = spec.shape.batch;
  return {{"sends", {Element::kI32, {batch * spec.received}}},
          {"slots", {Element::kI32, {batch * (spec.received + 1)}}},
          {"arrivals", {Element::kI32, {batch * spec.received}}},
          {"trades", {Element::kI32, {kRaggedRows, spec.devices}}}};
}

std::pair<Value, Value> RaggedExchange::Bring(const Value& k, const Value& v) {
  const Value sent = b_.TakeRows(ToRows(b_.Concatenate({k, v}, 3)), b_.Input("sends"));
  const Builder::Ragged trade{Row(RaggedRow::kSendAt), Row(RaggedRow::kSendCount), Row(RaggedRow::kPutAt),
                              Row(RaggedRow::kComeCount)};
  const Value came = b_.TradeRows(sent, b_.Constant(sent.type, 0.0), trade, OneGroup(spec_.devices));
  const auto [more_k, more_v] = Parts(FromRows(b_.TakeRows(came, b_.Input("slots"))));
  const Value keys = b_.Concatenate({k, more_k}, 2);
  return {keys, b_.Concatenate({v, more_v}, 2)};
}

// What came goes back the same way. A tile's own gradients come first, then those of the devices that had it, in their
// order: how many rows there are is each device's own, and no device waits for another inside the loop.
std::pair<Value, Value> RaggedExchange::GiveBack(const Value& dk, const Value& dv) {
  const Value both = b_.Concatenate({dk, dv}, 3);
  const std::vector<int64_t> zero = {0, 0, 0, 0};
  std::vector<int64_t> begin = zero;
  std::vector<int64_t> end = both.type.dims;
  begin[2] = spec_.tokens;
  const Value brought = ToRows(b_.Slice(both, begin, end));
  end[2] = spec_.tokens;
  const Value own = ToRows(b_.Slice(both, zero, end));
  const Value given = b_.TakeRows(brought, b_.Input("arrivals"));
  const Builder::Ragged trade{Row(RaggedRow::kComeAt), Row(RaggedRow::kComeCount), Row(RaggedRow::kReturnAt),
                              Row(RaggedRow::kSendCount)};
  const Value came = b_.TradeRows(given, b_.Constant(given.type, 0.0), trade, OneGroup(spec_.devices));
  const Value rows = b_.Reduce(Reduction::kAdd, Row(RaggedRow::kSendCount), {0});
  const std::vector<int64_t> sizes = {1, own.type.dims[1]};
  const Value sum = b_.For(b_.Int(0), rows, {own}, [&](const Value& row, const Values& carried) {
    const Value at_row[] = {row};
    const Value tile = b_.Reshape(b_.SliceAt(b_.Input("sends"), at_row, {1}), {});
    const Value to[] = {tile, b_.Int(0)};
    const Value from[] = {row, b_.Int(0)};
    const Value added = b_.Add(b_.SliceAt(carried[0], to, sizes), b_.SliceAt(came, from, sizes));
    return Values{b_.UpdateAt(carried[0], added, to)};
  })[0];
  return Parts(FromRows(sum));
}

Value RaggedExchange::Row(RaggedRow row) {
  const int64_t begin[] = {static_cast<int64_t>(row), 0};
  const int64_t end[] = {static_cast<int64_t>(row) + 1, spec_.devices};
  return b_.Reshape(b_.Slice(b_.Input("trades"), begin, end), {spec_.devices});
}

// [batch, heads, tokens, dim] as a row for each tile of each batch row, and back.
Value RaggedExchange::ToRows(const Value& x) {
  const std::vector<int64_t>& d = x.type.dims;
  const int64_t tiles = d[2] / spec_.tile;
  const Value split = b_.Reshape(x, {d[0], d[1], tiles, spec_.tile, d[3]});
  return b_.Reshape(b_.Transpose(split, {0, 2, 1, 3, 4}), {d[0] * tiles, d[1] * spec_.tile * d[3]});
}
Value RaggedExchange::FromRows(const Value& rows) {
  const Shape& s = spec_.shape;
  const int64_t tiles = rows.type.dims[0] / s.batch;
  const int64_t dim = s.dim_qk + s.dim_v;
  const Value split = b_.Reshape(rows, {s.batch, tiles, s.num_kv_heads, spec_.tile, dim});
  return b_.Reshape(b_.Transpose(split, {0, 2, 1, 3, 4}), {s.batch, s.num_kv_heads, tiles * spec_.tile, dim});
}

std::pair<Value, Value> RaggedExchange::Parts(const Value& both) {
  const std::vector<int64_t>& d = both.type.dims;
  const int64_t dim_qk = spec_.shape.dim_qk;
  const int64_t zero[] = {0, 0, 0, 0};
  const int64_t middle_end[] = {d[0], d[1], d[2], dim_qk};
  const int64_t middle[] = {0, 0, 0, dim_qk};
  const Value keys = b_.Slice(both, zero, middle_end);
  return {keys, b_.Slice(both, middle, d)};
}

}  // namespace tessera::stablehlo
