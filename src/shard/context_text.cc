// A planned cut as JSON and as a table for people.
#include <fmt/format.h>

#include "io/json_writer.h"
#include "tessera/context.h"

namespace tessera {
namespace {

double ShareOf(const ContextPlan& plan, int64_t bytes) {
  const int64_t all = plan.BytesOf(Exchange::kAllGather).total;
  return all == 0 ? 0.0 : static_cast<double>(bytes) / static_cast<double>(all);
}

void WritePieces(JsonWriter& json, const std::vector<Piece>& pieces) {
  json.BeginArray();
  for (const Piece& piece : pieces) json.Ints({piece.start, piece.count, piece.offset});
  json.EndArray();
}

void WriteExchanges(JsonWriter& json, const ContextPlan& plan) {
  json.BeginArray();
  for (const ExchangeBytes& bytes : plan.exchanges) {
    json.BeginObject().Key("exchange").Text(ToText(bytes.exchange));
    if (bytes.is_possible) {
      json.Key("bytes").Int(bytes.total).Key("largest_bytes").Int(bytes.largest).Key("trips").Int(bytes.trips);
      json.Key("of_allgather").Real(ShareOf(plan, bytes.total)).Key("backward_bytes").Int(bytes.backward);
      if (bytes.backward_by_rows >= 0) json.Key("backward_by_rows_bytes").Int(bytes.backward_by_rows);
    } else {
      json.Key("refused").Text(bytes.why);
    }
    json.EndObject();
  }
  json.EndArray();
}

}  // namespace

std::string ToJson(const ContextPlan& plan) {
  JsonWriter json(2);
  json.BeginObject().Key("version").Int(1).Key("shards").Int(plan.shards).Key("cut").Text(ToText(plan.form));
  json.Key("exchange").Text(ToText(plan.exchange)).Key("reason").Text(plan.reason);
  json.Key("gradients").Text(ToText(plan.gradients)).Key("gradients_reason").Text(plan.gradients_reason);
  json.Key("tile").Int(plan.tile).Key("tiles_per_shard").Int(plan.tiles_per_shard);
  json.Key("plan_fingerprint").Text(ToHex(plan.plan->view().fingerprint));
  const std::vector<std::string> keys = ShardKeys(plan).value_or(std::vector<std::string>());
  json.Key("key").Text(CutKey(plan).value_or("")).Key("shard_keys").Texts({keys.begin(), keys.end()});
  json.Key("considered").BeginArray();
  for (const ContextPlan::Considered& one : plan.considered) {
    json.BeginObject().Key("cut").Text(ToText(one.form));
    if (one.is_possible) {
      json.Key("cost").Int(one.cost);
    } else {
      json.Key("refused").Text(one.why);
    }
    json.EndObject();
  }
  json.EndArray();
  json.Key("tile_balance").Real(plan.TileBalance()).Key("pair_balance").Real(plan.PairBalance());
  json.Key("loads").BeginArray();
  for (const ShardLoad& load : plan.loads) {
    json.BeginObject()
        .Key("tiles")
        .Int(load.tiles)
        .Key("pairs")
        .Int(load.pairs)
        .Key("received")
        .Int(load.received)
        .EndObject();
  }
  json.EndArray();
  json.Key("exchanges");
  WriteExchanges(json, plan);
  json.Key("rows").BeginArray();
  for (const RowCut& row : plan.rows) {
    json.BeginObject().Key("order");
    WritePieces(json, row.order);
    json.Key("shards").BeginArray();
    for (const std::vector<Piece>& pieces : row.rows) WritePieces(json, pieces);
    json.EndArray().EndObject();
  }
  json.EndArray().EndObject();
  return json.Take() + "\n";
}

std::string Summary(const ContextPlan& plan) {
  std::string out = fmt::format("{} shards, {} tiles of {} tokens each: {}\n", plan.shards, plan.tiles_per_shard,
                                plan.tile, plan.reason);
  out += fmt::format("key {}\n", CutKey(plan).value_or(""));
  out += fmt::format("largest shard over the mean: {:.4f} in tiles, {:.4f} in pairs\n", plan.TileBalance(),
                     plan.PairBalance());
  for (const ContextPlan::Considered& one : plan.considered) {
    out += fmt::format("cut {:<11} {}\n", ToText(one.form),
                       one.is_possible ? fmt::format("cost {}", one.cost) : "no: " + one.why);
  }
  out += fmt::format("{:<10} {:>16} {:>10} {:>16} {:>8}\n", "exchange", "bytes", "of all", "largest device", "trips");
  for (const ExchangeBytes& bytes : plan.exchanges) {
    if (!bytes.is_possible) {
      out += fmt::format("{:<10} no: {}\n", ToText(bytes.exchange), bytes.why);
      continue;
    }
    out += fmt::format("{:<10} {:>16} {:>10.4f} {:>16} {:>8}\n", ToText(bytes.exchange), bytes.total,
                       ShareOf(plan, bytes.total), bytes.largest, bytes.trips);
  }
  out += fmt::format("gradients of keys {}\n", plan.gradients_reason);
  out += fmt::format("{:<6} {:>10} {:>16} {:>10}  {}\n", "shard", "tiles", "pairs", "received",
                     "pieces of the first row: start+count");
  for (size_t s = 0; s < plan.loads.size(); ++s) {
    std::string pieces;
    for (const Piece& piece : plan.rows[0].rows[s]) pieces += fmt::format(" {}+{}", piece.start, piece.count);
    out += fmt::format("{:<6} {:>10} {:>16} {:>10} {}\n", s, plan.loads[s].tiles, plan.loads[s].pairs,
                       plan.loads[s].received, pieces);
  }
  return out;
}

}  // namespace tessera
