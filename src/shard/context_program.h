// A cut as one compiled program of several devices, and its runs. Batches of one class share the program: what differs
// between them (rows, tiles to send, how often each step is taken) is data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lanes/xla/pjrt/client.h"
#include "lanes/xla/stablehlo/context.h"
#include "tessera/context.h"

namespace tessera::shard {

// The class of a cut's program: gather, heads or sparse (TSR-S020 for the others, for lengths that are no whole tiles
// and for valid counts). Room is made for every tile that some batch could need.
Result<stablehlo::ContextSpec> ContextSpecOf(const ContextPlan& plan);

// What each device reads in place of a mask, by operand name, for programs that walk these directions. A plan may have
// fewer cleanups than the class has room for.
using DeviceTables = std::vector<std::map<std::string, std::vector<int32_t>>>;
Result<DeviceTables> MakeDeviceTables(const stablehlo::ContextSpec& spec, const ContextPlan& plan,
                                      const std::vector<Direction>& directions = {Direction::kForward});

// The tokens of a shard, batch row after batch row: each one's number in the batch as given (batch row * tokens of a
// row
// + token), -1 for what only fills up.
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
};
struct ContextGradients {
  std::vector<float> dq, dk, dv;    // [batch, heads, tokens, dim], in the order of the batch as given
  std::vector<float> dsink_logits;  // [heads], with sinks: devices' shares added in their order
  std::vector<int64_t> tiles;
};
enum class ContextPass : uint8_t { kForward, kBackward };

// What the compiled collectives carried in one run, each times the trips of this batch.
struct CarriedCollective {
  std::string text;
  int64_t bytes_per_trip = 0;
  int64_t trips = 1;
};

class ContextRunner {
 public:
  // A program of one pass. The client must outlive it. `flags` are XLA's, of this program. TSR-S002 where there are too
  // few devices.
  static Result<ContextRunner> Make(pjrt::Client& client, const ContextPlan& plan,
                                    const std::map<std::string, pjrt::OptionValue>& flags = {},
                                    ContextPass pass = ContextPass::kForward);

  // TSR-S021 for a plan of another class or a program of the other pass, TSR-S022 where a shard has no tensors. Sink
  // logits, one for each query head, are given where the contract has them.
  Result<ContextOutputs> Forward(const ContextPlan& plan, std::span<const ShardTensors> shards,
                                 std::span<const float> sink_logits = {}) const;
  Result<ContextGradients> Backward(const ContextPlan& plan, std::span<const ShardTensors> shards,
                                    std::span<const float> sink_logits = {}) const;
  Result<std::vector<CarriedCollective>> Carried(const ContextPlan& plan) const;
  const std::vector<pjrt::Collective>& collectives() const { return collectives_; }
  const stablehlo::ContextSpec& spec() const { return spec_; }

 private:
  Result<std::vector<pjrt::Launched>> Launch(ContextPass pass, const ContextPlan& plan,
                                             std::span<const ShardTensors> shards,
                                             std::span<const float> sink_logits) const;
  void PlaceLse(const ContextPlan& plan, size_t device, std::span<const float> from, std::span<float> to) const;

  pjrt::Client* client_ = nullptr;
  ContextPass pass_ = ContextPass::kForward;
  stablehlo::ContextSpec spec_;
  std::vector<stablehlo::NamedType> inputs_;
  std::shared_ptr<const pjrt::Executable> executable_;
  std::vector<pjrt::Collective> collectives_;  // of the compiled program
};

}  // namespace tessera::shard
