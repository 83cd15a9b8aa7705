// Tokens of a row over several devices: the cut that all layers share, batch by batch, and how keys are brought.
#pragma once

#include <string>
#include <vector>

#include "lanes/xla/stablehlo/context.h"
#include "model/attention.h"
#include "tessera/context.h"

namespace tessera::model {

struct Sharing {
  TokenShards shards;
  stablehlo::ContextKind kind = stablehlo::ContextKind::kGather;
  std::string reason;                    // of the cut and of the exchange
  int64_t row_tokens = 0;                // that a device has
  size_t leader = 0;                     // the mask whose work places documents: a layer gives its tokens to the next
  std::vector<ContextPlanner> planners;  // by mask, as the next two
  std::vector<stablehlo::ContextSpec> specs;
  std::vector<stablehlo::ContextSpec> lowered;  // the same with steps between the devices of the mesh
};

// TSR-S020 where rows, masks or heads cannot be shared as asked.
Result<Sharing> MakeSharing(const LayerAttention& layers, const Target& target, const TokenShards& tokens);
// By mask, all with the leader's cut.
Result<std::vector<ContextPlan>> PlanAll(const Sharing& sharing, const LayerAttention& layers, const RowBatch& rows);

// Room for the cleanups of any batch.
void MakeRoom(stablehlo::ProgramSpec& spec);
// Every row one document: what a class is does not depend on the batch.
RowBatch WholeRows(const ModelSpec& spec);

}  // namespace tessera::model
