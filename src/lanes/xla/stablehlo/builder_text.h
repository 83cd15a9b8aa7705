// How a builder writes lists of values and numbers.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "lanes/xla/stablehlo/builder.h"

namespace tessera::stablehlo {

std::string Names(const Values& values);
std::string Types(const Values& values);
std::string List(std::span<const int64_t> numbers);  // "[1, 2]"

}  // namespace tessera::stablehlo
