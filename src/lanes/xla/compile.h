// Compiling without running: with the plugin's client where its devices are, and for a TPU that is not here with a
// topology, which names one.
#pragma once

#include "lanes/lane.h"

namespace tessera::lanes::xla {

const Compiler& XlaCompiler();

}  // namespace tessera::lanes::xla
