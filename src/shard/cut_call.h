// Forwards of one cut, call after call, on the CPU's devices: one program brings what shards need of each other, and
// then the rows of all shards are walked by the lane's own program, in parts, as many at once as there are threads. A
// program of several devices has one loop for each of them, and a device runs one program at a time; so each thread
// walks on a device of its own, which is lent what the row's shard holds, and more cores than shards have work. Every
// bit is that of the one program (context_program.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lanes/xla/pjrt/client.h"
#include "shard/context_program.h"

namespace tessera::shard {

// In the order of the batch as given: o [batch, heads, tokens, dim_v] in its type, lse [batch, heads, tokens].
struct CutOutputs {
  std::span<std::byte> o;
  std::span<float> lse;
};

class CutCall {
 public:
  // Room is made for what this plan brings, rounded up to a power of two, so that plans of like needs share programs.
  // What all devices run is audited before it is compiled and after. Rows are walked on the devices of `walker`, where
  // one is given: XLA has a thread for each device of a client, and with more of them than cores they wait for each
  // other. Both clients must outlive it. TSR-S020 around a ring, TSR-S002 where there are too few devices.
  static Result<CutCall> Make(pjrt::Client& client, std::shared_ptr<const ContextPlan> plan, int64_t threads,
                              const std::map<std::string, pjrt::OptionValue>& flags = {},
                              pjrt::Client* walker = nullptr);
  CutCall(CutCall&&) noexcept;
  CutCall& operator=(CutCall&&) noexcept;
  ~CutCall();

  // Calls take turns: a shard's tensors are laid out in memory that is kept.
  Status Forward(const WholeTensors& whole, std::span<const float> sink_logits, const CutOutputs& into) const;
  // What the compiled exchange carries of this plan.
  Result<std::vector<CarriedCollective>> Carried() const;
  int64_t parts() const;
  const ContextPlan& plan() const;

 private:
  struct State;
  explicit CutCall(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace tessera::shard
