// Context parallelism: the tokens of a sequence over several devices. A mask's rows become pieces, shards own whole
// tiles, and each receives only the key tiles that its rows touch. docs/context_parallel.md explains it.
//
// Goals: planning in integers alone, exact against the resolved mask, in time proportional to the tiles that survive.
// Not a goal: a runtime of our own; XLA's collectives carry what is planned here.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/batch.h"
#include "tessera/contract.h"
#include "tessera/error.h"
#include "tessera/plan.h"
#include "tessera/planner.h"
#include "tessera/target.h"

#pragma GCC visibility push(default)
namespace tessera {

// `count` tokens from token `start` on, which stand from `offset` on where the pieces are put together.
struct Piece {
  int64_t start = 0;
  int64_t count = 0;
  int64_t offset = 0;
  bool operator==(const Piece&) const = default;
};

// contiguous: in order, equal counts. zigzag: 2 N pieces, shard i has pieces i and 2 N - 1 - i. reordered: whole
// documents in another order, so that shards have equal tiles; a document with more work than half a shard's may be
// cut.
enum class CutForm : uint8_t { kContiguous, kZigzag, kReordered };
inline constexpr std::array kCutForms = {CutForm::kContiguous, CutForm::kZigzag, CutForm::kReordered};
std::string_view ToText(CutForm form);
Result<CutForm> ParseCutForm(std::string_view text);

// How a shard comes by what its rows need of other shards.
enum class Exchange : uint8_t { kAllGather, kHeads, kRing, kSparse };
inline constexpr std::array kExchanges = {Exchange::kAllGather, Exchange::kHeads, Exchange::kRing, Exchange::kSparse};
std::string_view ToText(Exchange exchange);
Result<Exchange> ParseExchange(std::string_view text);

// What a backward makes of dK and dV. returned: each shard computes the share of its own queries and gives it back in
// f32, to be added where the keys are. rows: q, do, lse and delta of the rows that touch a shard's keys are brought to
// it, and nothing is left to add, so that every bit is one device's.
enum class GradientWay : uint8_t { kReturned, kRows };
inline constexpr std::array kGradientWays = {GradientWay::kReturned, GradientWay::kRows};
std::string_view ToText(GradientWay way);
Result<GradientWay> ParseGradientWay(std::string_view text);

inline constexpr int64_t kMaxShards = 256;

// One batch row over the shards. Tiles are those of the row's own order, `tile` tokens each, the last one padded.
struct RowCut {
  std::vector<Piece> order;              // the row's tokens: start = in the batch as given, offset = in this order
  std::vector<uint32_t> shard_of;        // [tiles]: whose each tile is
  std::vector<std::vector<Piece>> rows;  // [shard]: start = in this order, offset = in the shard; tiles ascending
  bool operator==(const RowCut&) const = default;
};

// A forward's bytes over all devices, padding included, and what the device that receives most receives.
struct ExchangeBytes {
  Exchange exchange = Exchange::kAllGather;
  bool is_possible = true;
  int64_t total = 0;
  int64_t largest = 0;  // received by one device
  int64_t trips = 0;    // collectives one after the other
  // A backward's, in which keys and values are brought once more and dK and dV go back in f32; and in which q, do, lse
  // and delta are brought to who has the keys in their place, where nothing is left to add: -1 where there is no such
  // form.
  int64_t backward = 0;
  int64_t backward_by_rows = -1;
  std::string why = {};  // not possible: why
};

// What one device does in one round of a sparse exchange: the tile it sends and the one that comes, by number over all
// batch rows (batch row * tiles of a row + tile); -1: none, and what moves all the same is padding.
struct Round {
  int32_t send = -1;
  int32_t receive = -1;
  bool operator==(const Round&) const = default;
};

// A sparse exchange as rounds of one-tile permutes. A step is a loop: each of its `trips` rounds moves one tile along
// every one of its pairs. Pairs are fixed when a program is compiled; trips are data, the same for every device.
struct SparseSteps {
  std::vector<std::vector<std::pair<int32_t, int32_t>>> pairs;  // [step]: source, target
  std::vector<int32_t> trips;                                   // [step]
  std::vector<std::vector<Round>> rounds;                       // [device][round], steps in order
  int64_t TilesCarried() const;
};
// The pairs of every step there is for so many shards: each distance to the right and to the left, and, up to
// kMaxSinglePairs shards, each pair alone.
inline constexpr int64_t kMaxSinglePairs = 16;
std::vector<std::vector<std::pair<int32_t, int32_t>>> SparsePairs(int64_t shards);

struct ShardLoad {
  int64_t tiles = 0;     // executed, over heads
  int64_t pairs = 0;     // allowed, over heads
  int64_t received = 0;  // key tiles of others that its rows touch, over batch rows
};

struct ContextOptions {
  int64_t shards = 2;
  std::optional<CutForm> form = {};           // absent: the cheapest of those that the mask allows
  std::optional<Exchange> exchange = {};      // absent: the cheapest
  std::optional<GradientWay> gradients = {};  // absent: the one of fewer bytes
  PlanOptions plan = {};
  // What it costs to move a key tile of all heads, in tiles of one head executed; what forms are compared by.
  int64_t move_cost = 8;
  bool count_pairs = true;
  int64_t tiles_per_shard = 0;  // that there is room for: forms that need more are left out; 0: any
};

// What was chosen, and what else there was.
struct ContextPlan {
  Contract contract;
  Batch batch;                       // documents in this order
  std::shared_ptr<const Plan> plan;  // of one device, in this order
  CutForm form = CutForm::kContiguous;
  Exchange exchange = Exchange::kAllGather;
  std::string reason;  // of both choices
  GradientWay gradients = GradientWay::kReturned;
  std::string gradients_reason;
  int64_t shards = 0;
  int64_t tile = 0;
  int64_t tiles_per_shard = 0;
  std::vector<RowCut> rows;      // [batch]
  std::vector<ShardLoad> loads;  // [shard]
  // [target][source]: the key tiles that the target's rows touch, ascending, by number over all batch rows.
  std::vector<std::vector<std::vector<int32_t>>> needs;
  std::vector<std::vector<std::vector<int32_t>>> row_needs;  // the same of query tiles, by the shard of the keys
  std::vector<ExchangeBytes> exchanges;                      // of this cut, in the order of kExchanges
  struct Considered {
    CutForm form = CutForm::kContiguous;
    bool is_possible = true;
    int64_t cost = 0;
    std::string why = {};
  };
  std::vector<Considered> considered;

  const ExchangeBytes& BytesOf(Exchange which) const { return exchanges[static_cast<size_t>(which)]; }
  // The largest shard over the mean.
  double TileBalance() const;
  double PairBalance() const;
};

// TSR-S020 where the lengths, tiles or mask cannot be cut as asked.
Result<ContextPlan> PlanContext(const Contract& contract, const Batch& batch, const Target& target,
                                const ContextOptions& options);
// The same for many batches of one contract: what no batch changes is made once.
class ContextPlanner {
 public:
  static Result<ContextPlanner> Make(const Contract& contract, const Target& target, const ContextOptions& options);
  Result<ContextPlan> Plan(const Batch& batch) const;
  // With the order and the shards of another contract's cut of the same batch: what the layers of a model share.
  Result<ContextPlan> PlanAs(const Batch& batch, const ContextPlan& cut) const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

// How the batches of a model were shared over devices, one cut for all layers of each.
struct ContextUse {
  Exchange exchange = Exchange::kAllGather;
  std::string reason = {};                             // of the cut and of the exchange
  std::array<int64_t, kCutForms.size()> batches = {};  // rows of a device that were cut in each form
  double worst_balance = 0.0;                          // the largest shard over the mean, in executed tiles
  int64_t bytes = 0;            // brought for forwards of one layer of each mask over all devices, padding included
  int64_t allgather_bytes = 0;  // what an all-gather would have carried
};

// What is in `order` or a shard's rows, back where it came from: offsets become starts. Ascending by start.
std::vector<Piece> InverseOrder(const std::vector<Piece>& order);
// Every token of the row in exactly one piece of exactly one shard, at tile boundaries, as many tiles each; never
// mutates (TSR-S021).
Status VerifyCut(const RowCut& cut, int64_t tokens, int64_t tile, int64_t shards);

// Every needed tile is brought once.
SparseSteps MakeSparseSteps(const std::vector<std::vector<std::vector<int32_t>>>& needs);

// A shard's rows are a contract of their own: the contract's key with the tokens of the batch that they are, in tiles
// of so many. Equal for cuts of any form that give the shard the same tokens in the same places.
Result<std::vector<std::string>> ShardKeys(const ContextPlan& plan);
// Of all shards, in their order.
Result<std::string> CutKey(const ContextPlan& plan);

std::string ToJson(const ContextPlan& plan);
std::string Summary(const ContextPlan& plan);

}  // namespace tessera
#pragma GCC visibility pop
