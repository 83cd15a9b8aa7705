// The ring among context.h's programs, and how each of them ends.
#pragma once

#include <string>
#include <vector>

#include "lanes/xla/stablehlo/builder.h"
#include "lanes/xla/stablehlo/context.h"

namespace tessera::stablehlo {

// `walk` as LowerContextForward has it: of one shard's keys, its forward's output in f32. Its tables are of each hop.
Result<ContextProgram> LowerRing(const ContextSpec& spec, bool is_backward, const Program* walk);

struct ContextOutput {
  const char* name;
  Value value;
  int64_t axis;  // that devices share
};
struct ContextInputs {
  std::string module;
  const std::vector<NamedType>& inputs;
  std::vector<int64_t> axes;  // along which each is cut
};
Result<ContextProgram> FinishContext(Builder& b, const ContextSpec& spec, ContextInputs given,
                                     const std::vector<ContextOutput>& outputs);

}  // namespace tessera::stablehlo
