// What a cut's devices are held against: the same plan walked by one device, with the chunked lane's own program.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shard/context_program.h"

namespace tessera::shard {

// On the client's first device, tensors and outputs in the order of the batch as given.
Result<ContextOutputs> ForwardOnOne(pjrt::Client& client, const ContextPlan& plan, const WholeTensors& whole,
                                    std::span<const float> sink_logits,
                                    const std::map<std::string, pjrt::OptionValue>& flags);
Result<ContextGradients> BackwardOnOne(pjrt::Client& client, const ContextPlan& plan, const WholeTensors& whole,
                                       std::span<const float> sink_logits,
                                       const std::map<std::string, pjrt::OptionValue>& flags);

// The backward compiled once, for several runs of one plan.
class BackwardOfOne {
 public:
  static Result<BackwardOfOne> Make(pjrt::Client& client, const ContextPlan& plan,
                                    const std::map<std::string, pjrt::OptionValue>& flags);
  Result<ContextGradients> Run(const WholeTensors& whole, std::span<const float> sink_logits) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// Rounded once to a type, as a program of several devices gives its outputs.
std::vector<std::byte> Rounded(std::span<const float> values, DType dtype);
std::vector<float> ToFloats(std::span<const std::byte> bytes, DType dtype);

}  // namespace tessera::shard
