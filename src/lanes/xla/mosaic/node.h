// One operation as the machine runs it: its attributes read once. Private to machine*.cc.
#pragma once

#include <string>
#include <vector>

#include "lanes/xla/mosaic/compute.h"
#include "lanes/xla/mosaic/machine.h"

namespace tessera::mosaic {

struct Machine::Node {
  const Op* op = nullptr;
  int64_t count = 0;             // elements of the first result
  Type type;                     // of the first result
  Type operand;                  // of the first operand
  std::vector<int64_t> strides;  // of a source that is read in another order, in words
  int64_t offset = 0;            // of its first word
  int64_t number = 0;            // an axis, a predicate, a multiple
  std::string kind;              // of a reduction
  MatmulShape matmul;
  std::vector<Block> regions;
  std::vector<ValueId> dead;  // values that nothing reads after this
};

}  // namespace tessera::mosaic
