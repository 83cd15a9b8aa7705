// A plan decompressed to a dense mask, as a NumPy file: what `explain --dense` writes, and what `bitmap("file.npy")`
// reads back.
#pragma once

#include <string>

#include "tessera/error.h"
#include "tessera/plan.h"

namespace tessera::program {

// [q_len, kv_len] booleans of one (batch row, head).
Status WriteDenseNpy(const std::string& path, const PlanView& plan, int64_t batch_row, int64_t head);

}  // namespace tessera::program
