// The ring among context.h's programs.
#pragma once

#include "lanes/xla/stablehlo/context.h"

namespace tessera::stablehlo {

Result<ContextProgram> LowerRing(const ContextSpec& spec, bool is_backward);

}  // namespace tessera::stablehlo
