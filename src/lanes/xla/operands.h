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

// What the plan does not fill is `padding`: slots past a row's count, rows of masks that are not there, items and words
// past the last. Programs must not depend on it, and a test gives other values.
PlanTables MakeTables(const stablehlo::ProgramSpec& spec, const PlanView& plan,
                      const std::vector<stablehlo::NamedType>& inputs, int32_t padding = 0);

}  // namespace tessera::lanes::xla
