// The version of the library, and the versions of what it writes. Valid C too.
#pragma once

#define TESSERA_VERSION "0.1.0"
#define TESSERA_VERSION_MAJOR 0
#define TESSERA_VERSION_MINOR 1
#define TESSERA_VERSION_PATCH 0

#ifdef __cplusplus
#pragma GCC visibility push(default)
namespace tessera {

inline constexpr const char* kVersion = TESSERA_VERSION;
inline constexpr int kContractVersion = 1;
inline constexpr int kReceiptVersion = 2;
// Stays 0 until the CPU, XLA, TPU and routed lanes have all used the format.
inline constexpr int kPlanVersion = 0;

}  // namespace tessera
#pragma GCC visibility pop
#endif
