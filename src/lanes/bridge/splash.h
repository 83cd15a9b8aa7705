// JAX's own Splash kernel, asked through the bridge.
#pragma once

#include <cstdint>
#include <string>

#include "tessera/error.h"
#include "tessera/lane.h"

namespace tessera::lanes::bridge {

struct SplashAnswer {
  CrossingUse use;
  double difference = 0.0;
  bool has_nan = false;
  int64_t ns = 0;
};
// TSR-L002 with the reason where `python` cannot be opened.
Result<SplashAnswer> AskSplash(const std::string& python);

}  // namespace tessera::lanes::bridge
