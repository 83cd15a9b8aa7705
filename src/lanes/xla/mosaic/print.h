// The text of a kernel: MLIR's generic form with every operation prefixed, as libtpu takes it with
// `serialization_format: 1`. What was parsed keeps its names, so that parsing and printing gives the same text.
#pragma once

#include <string>

#include "lanes/xla/mosaic/ir.h"

namespace tessera::mosaic {

std::string Print(const Module& module);
// One operation on one line, without its regions: for messages.
std::string Print(const Function& function, const Op& op);

}  // namespace tessera::mosaic
