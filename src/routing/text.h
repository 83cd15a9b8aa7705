// What the routing stages did, in words, and their results as text: for `explain`, `--dump` and tests.
#pragma once

#include <string>

#include "routing/routing.h"

namespace tessera::routing {

std::string Describe(const Scored& scored);
std::string Describe(const PickRows& picks);
std::string Describe(const UnionMaps& maps);
std::string Describe(const Legalised& legalised);

std::string Dump(const Scored& scored);
std::string Dump(const PickRows& picks);
std::string Dump(const UnionMaps& maps);
std::string Dump(const Legalised& legalised);

}  // namespace tessera::routing
