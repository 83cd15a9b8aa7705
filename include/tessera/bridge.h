// What there is to ask of the bridge to JAX beside running it (docs/bridge.md): `tessera bridge` shows it.
#pragma once

#include <cstdint>
#include <string>

#include "tessera/engine.h"

#pragma GCC visibility push(default)
namespace tessera {

// JAX's own Splash kernel, interpreted, beside the plain attention that call_jax runs, forward and backward, in the
// interpreter that call_jax uses.
struct SplashReport {
  CrossingUse use = {};     // what answered
  double difference = 0.0;  // the largest of o, dq, dk and dv
  bool has_nan = false;     // in either
  int64_t ns = 0;           // of Splash alone
};
// TSR-L002 with the reason where there is no interpreter, no JAX, or no bridge in this build; TSR-L013 where JAX fails.
Result<SplashReport> CompareSplash(const Engine& engine);

}  // namespace tessera
#pragma GCC visibility pop
