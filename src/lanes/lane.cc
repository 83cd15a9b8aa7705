#include "lanes/lane.h"

#include <fmt/format.h>

#include "base/host.h"

namespace tessera {

DeviceUse HostDevice() { return {.kind = "cpu", .name = HostProcessor(), .memory = "host"}; }

Result<ProgramText> Lane::Lower(const BindRequest&, Pass) const {
  return Fail(ErrorCode::kLaneRefused,
              fmt::format("{} has no programs: {} ({})", name(), ReasonText(ReasonCode::kNothingToCompile),
                          ReasonMeaning(ReasonCode::kNothingToCompile)));
}

Result<std::vector<std::byte>> Lane::Image(const BindRequest&) const {
  return Fail(ErrorCode::kLaneRefused, fmt::format("{} reads plans as they are: there is no image of one", name()));
}

}  // namespace tessera
