// What bounds a tile's scores, as the programs around our kernels compute it: for the interpreter, which has no
// program.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lanes/xla/kernels/attention.h"

namespace tessera::lanes::xla {

// Of bf16, [heads, tokens, dim] each, a number for each tile of each head (kernels/attention.h); infinity for NaN.
std::vector<float> QueryBounds(std::span<const uint16_t> q, const kernels::AttentionSpec& spec, double scale);
std::vector<float> KeyBounds(std::span<const uint16_t> k, std::span<const uint16_t> v,
                             const kernels::AttentionSpec& spec);

}  // namespace tessera::lanes::xla
