// The programs of a run as files: PASS.mlir, KERNEL.mosaic, and programs.json, which says what each takes and gives.
#pragma once

#include <string>

#include "tessera/model.h"

namespace tessera::train {

Status WritePrograms(const std::string& folder, const ModelPrograms& model);

}  // namespace tessera::train
