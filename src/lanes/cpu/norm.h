// Norms of all rows of a matrix, shared among threads; the same bits for any number of them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lanes/cpu/kernel.h"

namespace tessera::lanes::cpu {

void Normalise(const Kernel& kernel, const NormRows& rows, int64_t threads);

// `dweight` is set, not added to. What blocks of rows come to waits in `scratch`, [NormBlocks(num_rows), width].
int64_t NormBlocks(int64_t num_rows);
void NormaliseBack(const Kernel& kernel, const NormGradient& rows, float* scratch, int64_t threads);

}  // namespace tessera::lanes::cpu
