// A cut as one compiled program of several devices, and its runs. Batches of one class share the program: what differs
// between them (rows, tiles to send, how often each step is taken) is data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lanes/xla/pjrt/client.h"
#include "lanes/xla/stablehlo/context.h"
#include "tessera/context.h"
#include "tessera/shard.h"

namespace tessera::shard {

// The class of a cut's program (TSR-S020 for sink logits around a ring and for tiles that do not divide). Room is made
// for every tile that some batch could need, or, of a sparse exchange, for `received` of each batch row. A backward may
// bring rows (ContextPlan::gradients), around no ring and where heads are not traded.
struct SpecChoice {
  std::optional<int64_t> received = {};
  bool brings_rows = false;
};
Result<stablehlo::ContextSpec> ContextSpecOf(const ContextPlan& plan, const SpecChoice& choice = {});

// What each device reads in place of a mask, by operand name, for programs that walk these directions. A plan may have
// fewer cleanups than the class has room for.
using DeviceTables = std::vector<std::map<std::string, std::vector<int32_t>>>;
Result<DeviceTables> MakeDeviceTables(const stablehlo::ContextSpec& spec, const ContextPlan& plan,
                                      const std::vector<Direction>& directions = {Direction::kForward});

// Several cuts in one program, each over a group of its devices, whose sparse exchanges take their rounds at a time:
// every step of all gets as many as the cut that needs most, since devices that count otherwise would wait for each
// other for ever. TSR-S021 where there is no room for them.
Status AgreeOnRounds(const stablehlo::ContextSpec& spec, std::span<DeviceTables* const> cuts);
// The same of tables about to be launched: every device has one list of rounds, in order and within the program's room.
Status CheckRounds(const stablehlo::ContextSpec& spec, const DeviceTables& tables);
// Over the devices of one cut, by the rounds that its steps begin with; padding included.
int64_t TilesCarried(const stablehlo::ContextSpec& spec, const std::vector<int32_t>& bounds);

// The tokens of a shard, batch row after batch row: each one's number in the batch as given
// (batch row * tokens of a row + token), -1 for what only fills up.
std::vector<int64_t> ShardTokens(const ContextPlan& plan, size_t shard);

// One device's tensors, dense: [batch, heads, tokens of the device, dim]. Those of a backward are empty for a forward.
struct ShardTensors {
  std::vector<std::byte> q;
  std::vector<std::byte> k;
  std::vector<std::byte> v;
  std::vector<std::byte> dout;   // the gradient of the output, in its type
  std::vector<std::byte> lse;    // f32 [batch, heads, tokens of the device]
  std::vector<std::byte> delta;  // the same: sum of o * do
};
// Of whole tensors [batch, heads, tokens, dim], in the order of the batch as given.
struct WholeTensors {
  std::span<const std::byte> q;
  std::span<const std::byte> k;
  std::span<const std::byte> v;
  std::span<const std::byte> dout = {};
  std::span<const float> lse = {};
  std::span<const float> delta = {};
};
Result<std::vector<ShardTensors>> CutTensors(const ContextPlan& plan, const WholeTensors& whole);

struct ContextOutputs {
  std::vector<std::byte> o;    // [batch, heads, tokens, dim_v], in the order of the batch as given
  std::vector<float> lse;      // [batch, heads, tokens]
  std::vector<int64_t> tiles;  // [device]: as its program counted them
  int64_t run_ns = 0;          // on the devices alone, from the launch until the last is done
};
struct ContextGradients {
  std::vector<float> dq, dk, dv;    // [batch, heads, tokens, dim], in the order of the batch as given
  std::vector<float> dsink_logits;  // [heads], with sinks: devices' shares added in their order
  std::vector<int64_t> tiles;
  int64_t run_ns = 0;
};
enum class ContextPass : uint8_t { kForward, kBackward };

// What the compiled collectives carried in one run, each times the trips of this batch.
struct CarriedCollective {
  std::string text;
  int64_t bytes_per_trip = 0;
  int64_t trips = 1;
  std::vector<std::pair<int64_t, int64_t>> pairs = {};  // of a permute; of others every device gets as much
  std::vector<int64_t> received = {};                   // of a ragged one: bytes of each device
};
// What each device received of them.
std::vector<int64_t> ReceivedBytes(const std::vector<CarriedCollective>& carried, int64_t devices);

// Of collectives that were read from a compiled program; TSR-S006 for a loop that no step of the cut names
// and for a type whose bytes are not known.
Result<std::vector<CarriedCollective>> CarriedBy(const std::vector<pjrt::Collective>& collectives,
                                                 const stablehlo::ContextSpec& spec, const ContextPlan& plan);

class ContextRunner {
 public:
  // A program of one pass, its operands audited before it is compiled: TSR-S005, also where they need more bytes of a
  // device than `max_device_bytes`. The client must outlive it. `flags` are XLA's, of this program. TSR-S002 where
  // there are too few devices.
  static Result<ContextRunner> Make(pjrt::Client& client, const ContextPlan& plan,
                                    const std::map<std::string, pjrt::OptionValue>& flags = {},
                                    ContextPass pass = ContextPass::kForward,
                                    std::optional<int64_t> max_device_bytes = {});

  // TSR-S021 for a plan of another class or a program of the other pass, TSR-S022 where a shard has no tensors. Sink
  // logits, one for each query head, are given where the contract has them.
  Result<ContextOutputs> Forward(const ContextPlan& plan, std::span<const ShardTensors> shards,
                                 std::span<const float> sink_logits = {}) const;
  Result<ContextGradients> Backward(const ContextPlan& plan, std::span<const ShardTensors> shards,
                                    std::span<const float> sink_logits = {}) const;
  Result<std::vector<CarriedCollective>> Carried(const ContextPlan& plan) const;
  const std::vector<pjrt::Collective>& collectives() const { return collectives_; }
  const stablehlo::ContextSpec& spec() const { return spec_; }
  const stablehlo::ContextProgram& lowered() const { return lowered_; }
  const ShardTable& table() const { return table_; }  // that was audited
  const pjrt::Executable& executable() const { return *executable_; }

 private:
  struct Run {
    std::vector<pjrt::Launched> launched;
    int64_t ns = 0;
  };
  Result<Run> Launch(ContextPass pass, const ContextPlan& plan, std::span<const ShardTensors> shards,
                     std::span<const float> sink_logits) const;
  void PlaceLse(const ContextPlan& plan, size_t device, std::span<const float> from, std::span<float> to) const;

  pjrt::Client* client_ = nullptr;
  ContextPass pass_ = ContextPass::kForward;
  stablehlo::ContextSpec spec_;
  stablehlo::ContextProgram lowered_;
  ShardTable table_;
  std::shared_ptr<const pjrt::Executable> executable_;
  std::vector<pjrt::Collective> collectives_;  // of the compiled program
};

}  // namespace tessera::shard
