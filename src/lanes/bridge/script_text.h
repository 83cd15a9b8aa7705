// bridge.py, which the build turns into text.
#pragma once

namespace tessera::lanes::bridge {

extern const char* const kBridgePy;

}  // namespace tessera::lanes::bridge
