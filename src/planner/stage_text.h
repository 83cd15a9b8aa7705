// What each stage did, in words, and its result as text: for `explain`, `--dump` and tests.
#pragma once

#include <string>

#include "planner/stages.h"

namespace tessera {

// In the namespace of what they describe, where the runner looks for them.
std::string Describe(const std::vector<Part>& parts);
std::string Describe(const Plan& plan);
std::string Dump(const std::vector<Part>& parts);
std::string Dump(const Plan& plan);

}  // namespace tessera

namespace tessera::planner {

std::string Describe(const Resolved& resolved);
std::string Describe(const Classified& classified);
std::string Describe(const CompactRows& rows);
std::string Describe(const CompactColumns& columns);

std::string Dump(const Resolved& resolved);
std::string Dump(const Classified& classified);
std::string Dump(const CompactRows& rows);
std::string Dump(const CompactColumns& columns);

}  // namespace tessera::planner
