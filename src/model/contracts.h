// The attention contract of a model's layers with one mask.
#pragma once

#include <string>
#include <vector>

#include "tessera/contract.h"
#include "tessera/model.h"

namespace tessera::model {

// In the order of their first layer.
std::vector<std::string> DistinctMasks(const ModelSpec& spec);

Result<Contract> ContractOf(const ModelSpec& spec, const std::string& mask);

}  // namespace tessera::model
