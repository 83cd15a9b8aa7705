// What a program of several devices reads in place of a mask. See context_program.h.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <memory>

#include "base/try.h"
#include "lanes/xla/operands.h"
#include "lanes/xla/stablehlo/context_ragged.h"
#include "lanes/xla/stablehlo/tiles.h"
#include "shard/clipped_items.h"
#include "shard/context_program.h"
#include "shard/exchange.h"

namespace tessera::shard {
namespace {

using stablehlo::ContextKind;
using stablehlo::ContextSpec;

stablehlo::ProgramSpec WholeSpec(const ContextPlan& plan) {
  return stablehlo::SpecOf(plan.contract, plan.plan->view(), TargetKind::kTpu);  // a device walks its rows in one part
}

using stablehlo::DevicePairs;

// Which way a ring's program goes: its first hop is to a neighbour.
bool IsRight(const ContextSpec& spec) {
  if (spec.kind != ContextKind::kRing || spec.steps.empty()) return true;
  const auto [source, target] = spec.steps.front().front();
  return target == (source + 1) % spec.devices;
}

// The pairs of every hop, and those of what is given back.
void SetRing(const RingWay& way, ContextSpec& spec) {
  for (int64_t hop = 1; hop <= way.Hops(); ++hop) {
    DevicePairs& pairs = spec.steps.emplace_back();
    DevicePairs& back = spec.returns.emplace_back();
    for (int64_t source = 0; source < way.shards(); ++source) {
      if (way.reach[static_cast<size_t>(source)] < hop) continue;
      const auto device = static_cast<int32_t>(way.DeviceOf(source, hop));
      pairs.emplace_back(static_cast<int32_t>(way.DeviceOf(source, hop - 1)), device);
      back.emplace_back(device, static_cast<int32_t>(source));
    }
  }
}

class Tables {
 public:
  Tables(const ContextSpec& spec, const ContextPlan& plan, const std::vector<Direction>& directions)
      : spec_(spec),
        plan_(plan),
        directions_(directions),
        view_(plan.plan->view()),
        tiles_(plan.shards * plan.tiles_per_shard),
        way_{.is_right = IsRight(spec), .reach = std::vector<int64_t>(static_cast<size_t>(plan.shards), 0)} {
    stablehlo::ProgramSpec whole = WholeSpec(plan);
    whole.items = spec.local.items;  // with room for those of ends
    whole.words = spec.local.words;
    whole_ = lanes::xla::MakeTables(whole, view_, stablehlo::CommonInputs(whole, directions));
    items_ = std::make_unique<ClippedItems>(view_, whole_.at("items"));
    place_.resize(plan.rows.size());
    for (size_t b = 0; b < plan.rows.size(); ++b) {
      std::vector<int32_t> filled(static_cast<size_t>(plan.shards), 0);
      for (const uint32_t shard : plan.rows[b].shard_of) place_[b].push_back(filled[shard]++);
    }
    NumberMasks();
  }

  Result<DeviceTables> Make() {
    DeviceTables devices(static_cast<size_t>(spec_.devices));
    for (size_t d = 0; d < devices.size(); ++d) {
      for (size_t b = 0; spec_.kind == ContextKind::kSparse && b < plan_.rows.size(); ++b) TESSERA_TRY(CheckRoom(d, b));
      FillDevice(d, devices[d]);
    }
    if (!items_->fits()) {
      return Fail(ErrorCode::kContextMismatch, "the batch has more ends of tokens than the program has room for",
                  "items");
    }
    for (auto& device : devices) device["items"] = items_->rows();  // every device's the same
    if (spec_.kind == ContextKind::kSparse && spec_.is_ragged) {
      FillRagged(devices);
    } else if (spec_.kind == ContextKind::kSparse) {
      FillRounds({"", plan_.needs, spec_.rounds, spec_.received}, devices);
    }
    if (spec_.kind == ContextKind::kSparse && spec_.brings_rows) {
      FillRounds({"row_", plan_.row_needs, spec_.row_rounds, spec_.row_received}, devices);
    }
    return devices;
  }

 private:
  // A mask of the plan may stand for several batch rows, whose tiles lie elsewhere.
  void NumberMasks() {
    for (int64_t b = 0; b < view_.batch; ++b) {
      for (int64_t h = 0; h < view_.num_q_heads; ++h) {
        const std::pair key{b, view_.mask_of[static_cast<size_t>(b * view_.num_q_heads + h)]};
        const auto found = std::find(masks_.begin(), masks_.end(), key);
        mask_of_.push_back(static_cast<int32_t>(found - masks_.begin()));
        if (found == masks_.end()) masks_.push_back(key);
      }
    }
  }

  // The tiles whose rows a device walks, in order.
  std::vector<int64_t> RowTiles(size_t device, size_t b) const {
    std::vector<int64_t> out;
    const std::vector<uint32_t>& shard_of = plan_.rows[b].shard_of;
    const auto append = [&](size_t shard) {
      for (size_t t = 0; t < shard_of.size(); ++t) {
        if (shard_of[t] == shard) out.push_back(static_cast<int64_t>(t));
      }
    };
    if (spec_.kind != ContextKind::kHeads) {
      append(device);
    } else {
      for (size_t shard = 0; shard < static_cast<size_t>(spec_.devices); ++shard) append(shard);
    }
    return out;
  }
  // The tiles whose rows it has, in order: its own, and behind them those that were brought.
  std::vector<int64_t> HeldRowTiles(size_t device, size_t b) const {
    std::vector<int64_t> out = RowTiles(device, b);
    if (!spec_.brings_rows) return out;
    const auto own = static_cast<int64_t>(out.size());
    if (spec_.kind == ContextKind::kSparse) {
      const std::vector<int64_t> came = Came(plan_.row_needs, device, b);
      out.insert(out.end(), came.begin(), came.end());
      out.resize(static_cast<size_t>(own + spec_.row_received + 1), -1);
      return out;
    }
    AppendAll(b, out);
    return out;
  }
  // Of all devices in their order, as a gather has them.
  void AppendAll(size_t b, std::vector<int64_t>& out) const {
    const std::vector<uint32_t>& shard_of = plan_.rows[b].shard_of;
    for (size_t shard = 0; shard < static_cast<size_t>(spec_.devices); ++shard) {
      for (size_t t = 0; t < shard_of.size(); ++t) {
        if (shard_of[t] == shard) out.push_back(static_cast<int64_t>(t));
      }
    }
  }
  // The tiles whose keys it has, in order: its own, and then what came; -1 for room that is empty.
  std::vector<int64_t> KeyTiles(size_t device, size_t b, int64_t hop) const {
    std::vector<int64_t> out;
    const std::vector<uint32_t>& shard_of = plan_.rows[b].shard_of;
    const auto append = [&](size_t shard) {
      for (size_t t = 0; t < shard_of.size(); ++t) {
        if (shard_of[t] == shard) out.push_back(static_cast<int64_t>(t));
      }
    };
    if (spec_.kind == ContextKind::kRing) {
      if (hop == 0 || HasSource(device, hop))
        append(static_cast<size_t>(way_.SourceOf(static_cast<int64_t>(device), hop)));
      out.resize(static_cast<size_t>(plan_.tiles_per_shard), -1);
      return out;
    }
    if (spec_.kind != ContextKind::kSparse) {
      if (spec_.brings_rows) append(device);
      AppendAll(b, out);
      return out;
    }
    append(device);
    const std::vector<int64_t> came = Came(plan_.needs, device, b);
    out.insert(out.end(), came.begin(), came.end());
    out.resize(static_cast<size_t>(plan_.tiles_per_shard + spec_.received + 1), -1);
    return out;
  }
  // Whether somebody's keys come to a device with a hop.
  bool HasSource(size_t device, int64_t hop) const {
    const DevicePairs& pairs = spec_.steps[static_cast<size_t>(hop) - 1];
    return std::any_of(pairs.begin(), pairs.end(),
                       [&](const auto& pair) { return static_cast<size_t>(pair.second) == device; });
  }
  // Ascending.
  std::vector<int64_t> Came(const Needs& needs, size_t device, size_t b) const {
    std::vector<int64_t> out;
    for (const std::vector<int32_t>& from : needs[device]) {
      for (const int32_t id : from) {
        if (id / tiles_ == static_cast<int64_t>(b)) out.push_back(id % tiles_);
      }
    }
    std::sort(out.begin(), out.end());
    return out;
  }

  Status CheckRoom(size_t device, size_t b) const {
    const auto came = static_cast<int64_t>(Came(plan_.needs, device, b).size());
    if (came <= spec_.received) return {};
    return Fail(
        ErrorCode::kContextMismatch,
        fmt::format("shard {} needs {} tiles of others, and the program has room for {}", device, came, spec_.received),
        "received");
  }

  void FillDevice(size_t device, std::map<std::string, std::vector<int32_t>>& out) const {
    out["words"] = whole_.at("words");
    out["part"] = {0};
    const Shape& local = spec_.local.shape;
    const auto first_head = spec_.kind == ContextKind::kHeads ? static_cast<int64_t>(device) * local.num_q_heads : 0;
    std::vector<int32_t>& mask_of = out["mask_of"];
    for (int64_t b = 0; b < view_.batch; ++b) {
      for (int64_t h = 0; h < local.num_q_heads; ++h) {
        mask_of.push_back(mask_of_[static_cast<size_t>(b * view_.num_q_heads + first_head + h)]);
      }
    }
    const bool is_ring = spec_.kind == ContextKind::kRing;
    const auto hops = is_ring ? static_cast<int64_t>(spec_.steps.size()) + 1 : 1;
    for (int64_t hop = 0; hop < hops; ++hop) {
      std::map<std::string, std::vector<int32_t>> tables;
      for (const Direction direction : directions_) {
        const stablehlo::ListShape& list = spec_.local.Of(direction);
        const auto rows = static_cast<size_t>(spec_.local.masks * list.rows);
        tables[stablehlo::ListInput(direction, "counts")].assign(rows, 0);
        tables[stablehlo::ListInput(direction, "slots")].assign(
            rows * static_cast<size_t>(list.width) * stablehlo::kSlotColumns, 0);
        for (size_t mask = 0; mask < masks_.size(); ++mask) FillMask({device, hop}, mask, direction, tables);
      }
      if (spec_.local.has_documents) FillDocuments({device, hop}, tables);
      for (auto& [name, values] : tables) {
        out[is_ring && stablehlo::IsOfHop(name) ? stablehlo::HopInput(name, hop) : name] = std::move(values);
      }
    }
  }

  struct At {
    size_t device = 0;
    int64_t hop = 0;
  };
  // Where each tile of the row stands among a device's; -1 for those that it has not.
  std::vector<int64_t> PlacesOf(const std::vector<int64_t>& tiles) const {
    std::vector<int64_t> places(static_cast<size_t>(tiles_), -1);
    for (size_t i = 0; i < tiles.size(); ++i) {
      if (tiles[i] >= 0) places[static_cast<size_t>(tiles[i])] = static_cast<int64_t>(i);
    }
    return places;
  }

  // The rows of one direction's worklist that are a device's: of its queries, or for dkv of the keys that it has, and
  // then of those only the slots of its own queries.
  void FillMask(const At& at_device, size_t mask, Direction direction,
                std::map<std::string, std::vector<int32_t>>& out) const {
    const auto [b, plan_mask] = masks_[mask];
    const bool is_dkv = direction == Direction::kDkv;
    const stablehlo::ListShape& shape = spec_.local.Of(direction);
    const Worklist& list = view_.Of(direction);
    const int64_t row_parts = spec_.tile / (is_dkv ? shape.tile_kv : shape.tile_q);
    const int64_t column_parts = spec_.tile / (is_dkv ? shape.tile_q : shape.tile_kv);
    const auto row = static_cast<size_t>(b);
    const bool walks_own = spec_.brings_rows;  // own keys alone, with every row that touches them
    const std::vector<int64_t> queries = is_dkv ? HeldRowTiles(at_device.device, row) : RowTiles(at_device.device, row);
    const std::vector<int64_t> keys =
        is_dkv && walks_own ? RowTiles(at_device.device, row) : KeyTiles(at_device.device, row, at_device.hop);
    const std::vector<int64_t> column_place = PlacesOf(is_dkv ? queries : keys);
    std::vector<int32_t>& counts = out[stablehlo::ListInput(direction, "counts")];
    std::vector<int32_t>& slots = out[stablehlo::ListInput(direction, "slots")];
    int64_t place_of_row = static_cast<int64_t>(mask) * shape.rows;
    for (const int64_t tile : is_dkv ? keys : queries) {
      for (int64_t part = 0; part < row_parts; ++part, ++place_of_row) {
        const int64_t list_row = tile * row_parts + part;
        // Room that is empty, and tokens that only round the row up.
        if (tile < 0 || list_row >= static_cast<int64_t>(list.rows_per_mask)) continue;
        const std::span<const Slot> from =
            list.Row(uint64_t{plan_mask} * list.rows_per_mask + static_cast<uint64_t>(list_row));
        size_t at = static_cast<size_t>(place_of_row * shape.width * stablehlo::kSlotColumns);
        int32_t count = 0;
        ClippedItems::Tile place_of_tile{
            .batch_row = b, .q_begin = 0, .kv_begin = 0, .q_tokens = list.tile_q, .kv_tokens = list.tile_kv};
        for (const Slot& slot : from) {
          const int64_t column = slot.index;
          const int64_t place = column_place[static_cast<size_t>(column / column_parts)];
          if (place < 0) continue;
          place_of_tile.q_begin = (is_dkv ? column : list_row) * place_of_tile.q_tokens;
          place_of_tile.kv_begin = (is_dkv ? list_row : column) * place_of_tile.kv_tokens;
          const auto [begin, end] = items_->Of(place_of_tile, slot.cleanup);
          slots[at++] = static_cast<int32_t>(place * column_parts + column % column_parts);
          slots[at++] = begin;
          slots[at++] = end;
          ++count;
        }
        counts[static_cast<size_t>(place_of_row)] = count;
      }
    }
  }

  void FillDocuments(const At& at_device, std::map<std::string, std::vector<int32_t>>& out) const {
    const auto gather = [&](const char* name, bool is_of_keys, int32_t none) {
      const std::vector<int32_t>& from = whole_.at(name);
      std::vector<int32_t>& to = out[name];
      for (size_t b = 0; b < plan_.rows.size(); ++b) {
        for (const int64_t tile :
             is_of_keys ? KeyTiles(at_device.device, b, at_device.hop) : HeldRowTiles(at_device.device, b)) {
          const int64_t begin = tile * spec_.tile;
          if (tile < 0 || begin >= view_.q_len) {
            to.insert(to.end(), static_cast<size_t>(spec_.tile), none);
            continue;
          }
          const auto at = from.begin() + static_cast<int64_t>(b) * view_.q_len + begin;
          const int64_t count = std::min(spec_.tile, view_.q_len - begin);
          to.insert(to.end(), at, at + count);
          to.insert(to.end(), static_cast<size_t>(spec_.tile - count), none);
        }
      }
    };
    gather("q_documents", false, -1);
    gather("kv_documents", true, -2);
    gather("kv_ranks", true, 0);
  }

  // What a device sends to each other in the order of the devices, and what comes in the order of those it comes from.
  void FillRagged(DeviceTables& devices) const {
    using stablehlo::RaggedRow;
    const auto n = devices.size();
    const auto batch = static_cast<int64_t>(plan_.rows.size());
    const auto rows = static_cast<size_t>(batch * spec_.received);
    const auto entry = [&](RaggedRow row, size_t device) { return static_cast<size_t>(row) * n + device; };
    for (auto& device : devices) {
      device["sends"].assign(rows, 0);
      device["arrivals"].assign(rows, 0);
      device["slots"].assign(static_cast<size_t>(batch * (spec_.received + 1)), 0);
      device["trades"].assign(static_cast<size_t>(stablehlo::kRaggedRows) * n, 0);
    }
    std::vector<int32_t> sent(n, 0);
    for (size_t target = 0; target < n; ++target) {
      std::vector<std::vector<int64_t>> came;
      for (int64_t b = 0; b < batch; ++b) came.push_back(Came(plan_.needs, target, static_cast<size_t>(b)));
      std::vector<int32_t>& there = devices[target].at("trades");
      int32_t arrived = 0;
      for (size_t source = 0; source < n; ++source) {
        std::vector<int32_t>& here = devices[source].at("trades");
        const std::vector<int32_t>& tiles = plan_.needs[target][source];
        const auto count = static_cast<int32_t>(tiles.size());
        here[entry(RaggedRow::kSendAt, target)] = there[entry(RaggedRow::kReturnAt, source)] = sent[source];
        here[entry(RaggedRow::kPutAt, target)] = there[entry(RaggedRow::kComeAt, source)] = arrived;
        here[entry(RaggedRow::kSendCount, target)] = there[entry(RaggedRow::kComeCount, source)] = count;
        for (const int32_t id : tiles) {
          const auto b = static_cast<size_t>(id / tiles_);
          const auto at = std::lower_bound(came[b].begin(), came[b].end(), id % tiles_) - came[b].begin();
          const int64_t slot = static_cast<int64_t>(b) * (spec_.received + 1) + at;
          devices[source].at("sends")[static_cast<size_t>(sent[source]++)] = static_cast<int32_t>(
              static_cast<int64_t>(b) * plan_.tiles_per_shard + place_[b][static_cast<size_t>(id % tiles_)]);
          devices[target].at("slots")[static_cast<size_t>(slot)] = arrived;
          devices[target].at("arrivals")[static_cast<size_t>(arrived++)] = static_cast<int32_t>(slot);
        }
      }
    }
  }

  struct Rounds {
    const char* prefix;  // of the tables' names
    const Needs& needs;
    int64_t rounds;
    int64_t received;
  };
  void FillRounds(const Rounds& of, DeviceTables& devices) const {
    const SparseSteps steps = MakeSparseSteps(of.needs);
    const auto name = [&](const char* table) { return of.prefix + std::string(table); };
    std::vector<int32_t> bounds = {0};
    for (const int32_t trips : steps.trips) bounds.push_back(bounds.back() + trips);
    for (size_t d = 0; d < devices.size(); ++d) {
      std::vector<int32_t>& sends = devices[d][name("sends")];
      std::vector<int32_t>& receives = devices[d][name("receives")];
      sends.assign(static_cast<size_t>(of.rounds), 0);
      receives.assign(static_cast<size_t>(of.rounds), static_cast<int32_t>(of.received));
      std::vector<std::vector<int64_t>> came;
      for (size_t b = 0; b < plan_.rows.size(); ++b) came.push_back(Came(of.needs, d, b));
      for (size_t r = 0; r < steps.rounds[d].size(); ++r) {
        const Round& round = steps.rounds[d][r];
        if (round.send >= 0) {
          const auto b = static_cast<size_t>(round.send / tiles_);
          sends[r] = static_cast<int32_t>(static_cast<int64_t>(b) * plan_.tiles_per_shard +
                                          place_[b][static_cast<size_t>(round.send % tiles_)]);
        }
        if (round.receive >= 0) {
          const auto b = static_cast<size_t>(round.receive / tiles_);
          const auto at = std::lower_bound(came[b].begin(), came[b].end(), round.receive % tiles_);
          receives[r] = static_cast<int32_t>(static_cast<int64_t>(b) * (of.received + 1) + (at - came[b].begin()));
        }
      }
      devices[d][name("bounds")] = bounds;
    }
  }

  const ContextSpec& spec_;
  const ContextPlan& plan_;
  const std::vector<Direction>& directions_;
  const PlanView& view_;
  const int64_t tiles_;  // of a batch row
  const RingWay way_;    // which way, of a ring
  lanes::xla::PlanTables whole_;
  std::unique_ptr<ClippedItems> items_;
  std::vector<std::vector<int32_t>> place_;          // [batch row][tile]: within its shard
  std::vector<std::pair<int64_t, uint32_t>> masks_;  // batch row, mask of the plan
  std::vector<int32_t> mask_of_;
};

}  // namespace

Result<ContextSpec> ContextSpecOf(const ContextPlan& plan, const SpecChoice& choice) {
  const Shape& shape = plan.contract.shape;
  if (plan.exchange == Exchange::kRing && plan.contract.score.sink_logits) {
    return Fail(ErrorCode::kContextCut, "a ring would count sink logits once for every shard", "score");
  }
  ContextSpec spec;
  spec.kind = plan.exchange == Exchange::kAllGather ? ContextKind::kGather
              : plan.exchange == Exchange::kHeads   ? ContextKind::kHeads
              : plan.exchange == Exchange::kRing    ? ContextKind::kRing
                                                    : ContextKind::kSparse;
  spec.shape = shape;
  spec.devices = plan.shards;
  spec.tile = plan.tile;
  spec.tokens = plan.tiles_per_shard * plan.tile;
  spec.shape.q_len = spec.shape.kv_len = spec.tokens * spec.devices;
  if (spec.kind == ContextKind::kRing) SetRing(FindRingWay(plan.needs), spec);
  if (spec.kind == ContextKind::kSparse) {
    const int64_t others = (plan.shards - 1) * plan.tiles_per_shard;
    spec.received = std::min(choice.received.value_or(others), others);
    spec.rounds = std::max<int64_t>(others * plan.shards * shape.batch, 1);
    spec.steps = SparsePairs(plan.shards);
  }
  if (choice.brings_rows && (spec.kind == ContextKind::kRing || spec.kind == ContextKind::kHeads)) {
    return Fail(ErrorCode::kContextCut, fmt::format("rows are not brought with {}", ToText(plan.exchange)),
                "gradients");
  }
  spec.brings_rows = choice.brings_rows;
  if (spec.brings_rows && spec.kind == ContextKind::kSparse) {
    spec.row_received = (plan.shards - 1) * plan.tiles_per_shard;
    spec.row_rounds = spec.rounds;
  }
  stablehlo::ProgramSpec whole = WholeSpec(plan);
  // Ends of tokens are in the items: no device knows where its tiles lie in the row.
  whole.has_valid = false;
  // A mask that batch rows share is walked by each with tiles of its own.
  whole.masks = std::max(whole.masks, shape.batch * static_cast<int64_t>(plan.contract.mask.heads.size()));
  whole.items = std::max(
      whole.items, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(ClippedCapacity(plan.plan->view())))));
  for (const stablehlo::ListShape& list : whole.lists) {
    if (plan.tile % list.tile_q == 0 && plan.tile % list.tile_kv == 0) continue;
    return Fail(ErrorCode::kContextCut,
                fmt::format("shards of tiles of {} tokens need tiles that divide it in every direction, found {} x {}",
                            plan.tile, list.tile_q, list.tile_kv),
                "tile");
  }
  stablehlo::SetLocalSpec(whole, spec);
  return spec;
}

Result<DeviceTables> MakeDeviceTables(const ContextSpec& spec, const ContextPlan& plan,
                                      const std::vector<Direction>& directions) {
  ContextSpec own = TESSERA_TRY(ContextSpecOf(plan, {.received = spec.received, .brings_rows = spec.brings_rows}));
  if (own.local.items <= spec.local.items) own.local.items = spec.local.items;
  if (own.local.words <= spec.local.words) own.local.words = spec.local.words;
  const bool fits = own.kind == spec.kind && own.shape == spec.shape && own.devices == spec.devices &&
                    own.tokens == spec.tokens && own.tile == spec.tile && own.local == spec.local;
  if (!fits) {
    return Fail(
        ErrorCode::kContextMismatch,
        fmt::format("the program is one of {} devices with {} tokens each and the class {}; the cut is for {} with {} "
                    "and the class {}",
                    spec.devices, spec.tokens, spec.local.class_key, own.devices, own.tokens, own.local.class_key),
        "cut");
  }
  // A ring's hops are compiled: those that a batch needs must be among them.
  for (size_t hop = 0; own.kind == ContextKind::kRing && hop < own.steps.size(); ++hop) {
    for (const auto& pair : own.steps[hop]) {
      const bool is_there = hop < spec.steps.size() &&
                            std::find(spec.steps[hop].begin(), spec.steps[hop].end(), pair) != spec.steps[hop].end();
      if (is_there) continue;
      return Fail(ErrorCode::kContextMismatch,
                  fmt::format("hop {} from device {} to {} is needed, and the program has none", hop + 1, pair.first,
                              pair.second),
                  "ring");
    }
  }
  return Tables(spec, plan, directions).Make();
}

Status AgreeOnRounds(const ContextSpec& spec, std::span<DeviceTables* const> cuts) {
  std::vector<int32_t> bounds = {0};
  for (size_t step = 0; step < spec.steps.size(); ++step) {
    int32_t trips = 0;
    for (const DeviceTables* cut : cuts) {
      const std::vector<int32_t>& own = cut->front().at("bounds");
      trips = std::max(trips, own[step + 1] - own[step]);
    }
    bounds.push_back(bounds.back() + trips);
  }
  if (bounds.back() > spec.rounds) {
    return Fail(ErrorCode::kContextMismatch,
                fmt::format("{} rounds are needed, and the program has room for {}", bounds.back(), spec.rounds),
                "rounds");
  }
  for (DeviceTables* cut : cuts) {
    for (auto& device : *cut) {
      const std::vector<int32_t> own = device.at("bounds");
      const auto spread = [&](std::vector<int32_t>& table, int32_t padding) {
        std::vector<int32_t> wider(static_cast<size_t>(spec.rounds), padding);
        for (size_t step = 0; step < spec.steps.size(); ++step) {
          std::copy(table.begin() + own[step], table.begin() + own[step + 1], wider.begin() + bounds[step]);
        }
        table = std::move(wider);
      };
      spread(device.at("sends"), 0);
      spread(device.at("receives"), static_cast<int32_t>(spec.received));
      device.at("bounds") = bounds;
    }
  }
  return {};
}

namespace {

struct RoundsTable {
  const char* name;
  int64_t rounds;
};
Status CheckRoundsOf(const RoundsTable& of, size_t steps, const DeviceTables& tables) {
  if (tables.empty() || !tables.front().contains(of.name)) return {};
  const std::vector<int32_t>& bounds = tables.front().at(of.name);
  const bool in_order = bounds.size() == steps + 1 && bounds.front() == 0 &&
                        std::is_sorted(bounds.begin(), bounds.end()) && bounds.back() <= of.rounds;
  if (!in_order) {
    return Fail(ErrorCode::kContextMismatch,
                fmt::format("rounds of {} steps from 0 to at most {} expected, found [{}]", steps, of.rounds,
                            fmt::join(bounds, ", ")),
                "rounds");
  }
  for (size_t d = 1; d < tables.size(); ++d) {
    const auto own = tables[d].find(of.name);
    if (own != tables[d].end() && own->second == bounds) continue;
    return Fail(ErrorCode::kContextMismatch,
                fmt::format("device {} has other rounds than device 0: the two would wait for each other for ever", d),
                "rounds");
  }
  return {};
}

}  // namespace

Status CheckRounds(const ContextSpec& spec, const DeviceTables& tables) {
  TESSERA_TRY(CheckRoundsOf({"bounds", spec.rounds}, spec.steps.size(), tables));
  return CheckRoundsOf({"row_bounds", spec.row_rounds}, spec.steps.size(), tables);
}

int64_t TilesCarried(const ContextSpec& spec, const std::vector<int32_t>& bounds) {
  int64_t tiles = 0;
  for (size_t step = 0; step < spec.steps.size(); ++step) {
    tiles += static_cast<int64_t>(spec.steps[step].size()) * (bounds[step + 1] - bounds[step]);
  }
  return tiles;
}

}  // namespace tessera::shard
