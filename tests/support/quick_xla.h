// How tests have XLA's CPU plugin compile what runs a few times: without optimisation, by its older emitters and in one
// part, which takes a third of the time. tests/xla and the program's own tests have what users get.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "lanes/xla/pjrt/compile_options.h"

namespace tessera {

inline const std::map<std::string, pjrt::OptionValue> kQuickly = {{"xla_backend_optimization_level", int64_t{0}},
                                                                  {"xla_cpu_use_fusion_emitters", false},
                                                                  {"xla_cpu_parallel_codegen_split_count", int64_t{1}}};
// The last two in XLA's own words, where the level is the engine's to choose.
inline constexpr const char* kQuickXlaFlags =
    "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1";

}  // namespace tessera
