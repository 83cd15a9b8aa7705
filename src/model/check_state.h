// Whether tensors are the whole state of a model, and good.
#pragma once

#include "tessera/model.h"

namespace tessera::model {

// TSR-T003 with every violation.
Status CheckState(const ModelSpec& spec, const TensorMap& state);

}  // namespace tessera::model
