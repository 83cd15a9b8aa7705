// What the two halves of normalisation share: choosing a class, and writing a request at it.
#pragma once

#include "tessera/contract.h"

namespace tessera {

// `expr and term`, in the parser's form.
MaskExpr AndTerm(MaskExpr expr, TermKind kind);

}  // namespace tessera
