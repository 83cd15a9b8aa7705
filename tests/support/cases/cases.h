// The one list of named cases, shared by tests, benchmarks and `tessera verify CASE`. A name is mask-shape-dtype, and
// the same name and seed give the same contract and batch on every machine.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/batch.h"
#include "tessera/contract.h"
#include "tessera/error.h"

namespace tessera {

struct CaseInfo {
  std::string name;
  std::string about;
};
const std::vector<CaseInfo>& Cases();

struct Case {
  std::string name;
  Contract contract;
  Batch batch;
};
Result<Case> BuildCase(std::string_view name, uint64_t seed = 1);

}  // namespace tessera
