#pragma once
#include <string>
namespace tessera::lanes::xla {
enum class GuardState { kNotNeeded, kActive, kNeeded };
struct CpuGuard { GuardState state = GuardState::kNotNeeded; std::string text = "not needed"; };
inline CpuGuard AskCpuGuard() { return {}; }
}
