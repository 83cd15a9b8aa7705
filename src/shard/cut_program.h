// The program of a cut as text, whichever lane's loops or kernels a device runs, and the table of specs of all that it
// takes and gives: what is audited before it is compiled and after.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "lanes/xla/stablehlo/context.h"
#include "shard/audit_program.h"
#include "shard/context_program.h"
#include "tessera/shard.h"
#include "tessera/target.h"

namespace tessera::shard {

// What specs and audits call a program's type. Unsigned words and signed ones are alike: a spec is about places, not
// signs.
ElementType DeclaredType(stablehlo::Element element);

struct CutProgram {
  stablehlo::ContextSpec spec;
  stablehlo::ContextProgram lowered;
};
// `lane` is kXlaChunked or kXlaPallas (TSR-S020 for others); TSR-L002 where kernels have
// no form for the plan or the target.
Result<CutProgram> LowerCut(const ContextPlan& plan, ContextPass pass, std::string_view lane, const Target& target);

// A row for every operand and output, over one axis, audited: see MakeProgramTable.
Result<ShardTable> TableOf(const ContextPlan& plan, ContextPass pass, const stablehlo::ContextProgram& lowered,
                           std::optional<int64_t> max_device_bytes = {});

// The same of a program that brings and no more (LowerContextBring).
Result<ShardTable> TableOfBring(const ContextPlan& plan, const stablehlo::ContextProgram& lowered);

// Of the table, in the program's order.
ProgramTensors TensorsOf(const stablehlo::ContextProgram& lowered);

}  // namespace tessera::shard
