// The rule of each operation: what its operands, results, attributes and regions must be. Private to the verifier.
#pragma once

#include <initializer_list>
#include <string>

#include "lanes/xla/mosaic/facts.h"
#include "lanes/xla/mosaic/ir.h"

namespace tessera::mosaic {

// Empty, or what is wrong with the operation by itself; values are defined and in range.
struct OpContext {
  const Function& function;
  const Facts& facts;  // of the values before it
  int64_t version;
};
std::string CheckOp(const OpContext& context, const Op& op);
// Those with a shape of their own: verify_vector.cc. Memory and copies: verify_memory.cc. Control: verify_control.cc.
std::string CheckVectorOp(const OpContext& context, const Op& op);
std::string CheckMemoryOp(const OpContext& context, const Op& op);
std::string CheckControlOp(const OpContext& context, const Op& op);

// "wrong" unless the condition holds: rules are lists of these, and the first that fails speaks.
inline const char* Unless(bool condition, const char* wrong) { return condition ? "" : wrong; }

// The first that is not empty.
inline std::string FirstOf(std::initializer_list<const char*> list) {
  for (const char* wrong : list) {
    if (wrong[0] != '\0') return wrong;
  }
  return {};
}

}  // namespace tessera::mosaic
