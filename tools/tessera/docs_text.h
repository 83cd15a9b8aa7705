// Two documents that the program carries, so that `tessera error` explains without the tree at hand.
#pragma once

namespace tessera::program {

extern const char* const kErrorCodesMd;
extern const char* const kReasonsMd;

}  // namespace tessera::program
