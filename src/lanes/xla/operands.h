// The plan as operands of fixed shape: what a program of the class reads in place of a mask.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lanes/xla/stablehlo/program.h"

namespace tessera::lanes::xla {

// By operand name; each has as many elements as the program declares. Unsigned words are kept by their bits.
using PlanTables = std::map<std::string, std::vector<int32_t>>;

PlanTables MakeTables(const stablehlo::ProgramSpec& spec, const PlanView& plan,
                      const std::vector<stablehlo::NamedType>& inputs);

}  // namespace tessera::lanes::xla
