// Attention over several devices in one go: planned, audited, compiled, run and held against one device; or compiled
// alone, also for chips that are not here. What `tessera shard run` and `tessera shard compile` do.
// docs/context_parallel.md explains cuts and exchanges, docs/sharding.md has a worked example.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/context.h"
#include "tessera/engine.h"
#include "tessera/error.h"
#include "tessera/lane.h"
#include "tessera/meter.h"
#include "tessera/shard.h"
#include "tessera/tensor.h"
#include "tessera/xla.h"

#pragma GCC visibility push(default)
namespace tessera {

struct ShardRunOptions {
  ContextOptions context = {};  // shards, cut, exchange and tile; shards are the devices of a mesh's context axis
  bool backward = false;        // that pass too
  XlaOptions xla = {};
  // Of arguments, results and what a program needs beside them on each device: TSR-S005 before compiling where the
  // first two alone are more, TSR-S006 after.
  std::optional<int64_t> max_device_bytes = {};
  // A shard whose tensors are withheld, to see that a launch without them is refused (TSR-S022).
  std::optional<int64_t> lost = {};
  RunMeter* meter = nullptr;  // outlives the run
};

// One collective of a compiled program.
struct ShardCollective {
  std::string text = {};
  int64_t trip_bytes = 0;  // over all devices, of one trip
  int64_t trips = 1;       // for this batch
  bool operator==(const ShardCollective&) const = default;
};
struct ShardPass {
  std::string name = {};     // "forward", "backward"
  std::string program = {};  // the module's
  std::string key = {};      // of the text, behind fingerprint and mesh
  int64_t compile_ns = 0;
  int64_t run_ns = 0;         // on all devices; 0: not run
  int64_t one_device_ns = 0;  // the same attention by one device
  // On each device; -1: the plugin does not tell.
  int64_t argument_bytes = -1;
  int64_t output_bytes = -1;
  int64_t temp_bytes = -1;
  int64_t vector_bytes = -1;            // of vector memory, of TPU kernels
  std::string plugin_fingerprint = {};  // of a compile-only program
  std::vector<ShardCollective> collectives = {};
  int64_t carried_bytes = 0;     // of all collectives and trips, over all devices
  int64_t largest_received = 0;  // of them, by the device that receives most
  int64_t allgather_bytes = 0;   // what an all-gather (and, backward, a reduce-scatter in f32) would carry
  double Share() const;          // of an all-gather's
};
// An output of all devices beside one device's.
struct ShardDifference {
  std::string name = {};
  int64_t elements = 0;
  int64_t different = 0;    // in any bit
  bool is_bounded = false;  // each element has a bound of its own; else every bit must be the same
  // Difference and bound of the element that comes nearest to its bound or goes farthest beyond it; with no bounds the
  // largest difference. NaN where one side alone is no number.
  double largest = 0;
  double bound = 0;
  bool is_good = false;
};

struct ShardReceipt {
  std::string mode = {};  // "native" or "compile-only"
  std::string lane = {};  // whose loops or kernels a device runs
  Mesh mesh = {};
  std::string fingerprint = {};  // of the operands' names, types, shapes and specs, forward first
  std::string contract_key = {};
  DeviceUse device = {};
  int64_t cores = 0;  // of this machine
  int64_t plan_ns = 0;
  std::optional<ContextPlan> plan = {};  // over a context axis
  std::vector<ShardPass> passes = {};
  std::vector<ShardDifference> differences = {};
  bool WasCompared() const { return !differences.empty(); }
  bool IsGood() const;  // no difference is one too many; true where nothing was run and compared
};

// Inputs as those of Run: q, k, v, [sink_logits], and with backward do. Devices are those of the target's plugin, which
// for a CPU makes as many as are asked for. TSR-S002 for more shards than devices.
Result<ShardReceipt> RunShards(const Engine& engine, const Contract& contract, const Batch& batch,
                               const TensorMap& inputs, const Target& target, const ShardRunOptions& options);

// Forwards of one contract and batch over several devices of a CPU, bound once for many calls: planned, compiled,
// tables on the devices. What shards need of each other is brought by one program of all devices, and then their rows
// are walked by as many threads as the target has workers. The bits of RunShards, around no ring (TSR-S020).
struct ShardOutputs {
  std::vector<std::byte> o;  // as the inputs lie, in their type
  std::vector<float> lse;    // [batch, heads, tokens]
};
class BoundShards {
 public:
  static Result<BoundShards> Bind(const Engine& engine, const Contract& contract, const Batch& batch,
                                  const Target& target, const ShardRunOptions& options);
  // q, k, v, [sink_logits]. Memory that `into` has is used again. Calls of several threads take turns.
  Status Forward(const TensorMap& inputs, ShardOutputs& into) const;
  const ContextPlan& plan() const;

 private:
  struct State;
  explicit BoundShards(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  std::shared_ptr<const State> state_;
};

struct ShardCompileOptions {
  // Of context, shards are the chips of the topology.
  ShardRunOptions run = {};
  // Along which axis chips share the work: tokens, heads or rows of the batch.
  std::string axis = std::string(kContextAxis);
  // "xla_pallas": our TPU kernels inside the region; "xla_chunked": loops of plain StableHLO, over a context axis.
  std::string lane = "xla_pallas";
};
struct ShardText {
  std::string name;  // of the module
  std::string text;
};
// The programs of a topology's chips (Target::topology, "v6e:2x2"), forward then backward: texts alone, which needs no
// plugin, or compiled by libtpu.
Result<std::vector<ShardText>> LowerShards(const Engine& engine, const Contract& contract, const Batch& batch,
                                           const Target& target, const ShardCompileOptions& options);
Result<ShardReceipt> CompileShards(const Engine& engine, const Contract& contract, const Batch& batch,
                                   const Target& target, const ShardCompileOptions& options);

// How many chips "v6e:4x4" has; TSR-R001 for what names none.
Result<int64_t> ChipsOf(std::string_view topology);

std::string ToJson(const ShardReceipt& receipt);
std::string Summary(const ShardReceipt& receipt);

}  // namespace tessera
#pragma GCC visibility pop
