// What a program takes and gives, for people who run it in a runtime of their own: names, types, where each comes from,
// and the bytes of what is known before a call.
#pragma once

#include <vector>

#include "lanes/lane.h"
#include "lanes/xla/operands.h"
#include "lanes/xla/stablehlo/program.h"

namespace tessera::lanes::xla {

// Name, type and shape.
ProgramOperand OperandOf(const stablehlo::NamedType& named);
std::vector<ProgramOperand> OperandList(const stablehlo::Program& program, const PlanTables& tables,
                                        const Score& score);
std::vector<ProgramOperand> ResultList(const stablehlo::Program& program);

}  // namespace tessera::lanes::xla
