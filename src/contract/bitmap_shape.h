// Whether a bitmap is of a contract's lengths and heads: a rule of Validate, and the one whose breach is the bitmap
// file's fault, so that reading a contract can say so.
#pragma once

#include <string>
#include <vector>

#include "tessera/contract.h"

namespace tessera {

// What is wrong with a loaded bitmap beside this shape, one sentence each; mostly nothing.
std::vector<std::string> BitmapShapeProblems(const Shape& shape, const MaskTerm& term);

}  // namespace tessera
