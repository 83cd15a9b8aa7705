// The question to the bridge that no run asks.
#include "tessera/bridge.h"

#include <fmt/format.h>

#if TESSERA_HAS_LANE_CALL_JAX
#include "lanes/bridge/splash.h"
#endif

namespace tessera {

#if TESSERA_HAS_LANE_CALL_JAX
Result<SplashReport> CompareSplash(const Engine& engine) {
  Result<lanes::bridge::SplashAnswer> answer = lanes::bridge::AskSplash(engine.options().python);
  if (!answer) return tl::unexpected(std::move(answer.error()));
  return SplashReport{answer->use, answer->difference, answer->has_nan, answer->ns};
}
#else
Result<SplashReport> CompareSplash(const Engine&) {
  return Fail(ErrorCode::kLaneRefused, fmt::format("call_jax: {} ({})", ReasonText(ReasonCode::kBridgeNotBuilt),
                                                   ReasonMeaning(ReasonCode::kBridgeNotBuilt)));
}
#endif

}  // namespace tessera
