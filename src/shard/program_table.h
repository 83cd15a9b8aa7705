// The table of specs of an attention program of several devices, from the contract and the cut: what is audited before
// the program is compiled, and after. What a program says of itself counts for the plan's tables alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/context.h"
#include "tessera/shard.h"

namespace tessera::shard {

// An operand or a result, of all devices together.
struct ProgramTensor {
  std::string name;
  ElementType type = ElementType::kF32;
  std::vector<int64_t> dims = {};
  int64_t axis = -1;  // that devices share; -1: each has all of it
};

// The tensors that contract and cut say a program takes and gives: those of the attention itself and its numbers.
struct KnownTensors {
  std::vector<ProgramTensor> inputs;
  std::vector<ProgramTensor> outputs;
};
KnownTensors KnownOfCut(const ContextPlan& plan, bool is_backward);
// Of chips that share heads (model) or rows of the batch (data). Shapes of results are those of rows of tiles, so that
// only their axis is known.
KnownTensors KnownOfAxis(const Contract& contract, std::string_view axis, bool is_backward);

// A row for each tensor that a program declares. TSR-S005 with the full list where it declares a known tensor with
// another type, shape or axis, or not at all, where AuditShards refuses it, or where arguments and results need more
// bytes of a device than the ceiling.
struct DeclaredProgram {
  std::vector<ProgramTensor> inputs;
  std::vector<ProgramTensor> outputs;
};
Result<ShardTable> MakeProgramTable(const Mesh& mesh, const KnownTensors& known, const DeclaredProgram& program,
                                    std::optional<int64_t> max_device_bytes = {});

}  // namespace tessera::shard
