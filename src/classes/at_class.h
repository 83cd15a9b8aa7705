// What the two halves of normalisation share: choosing a class, and writing a request at it.
#pragma once

#include "tessera/batch.h"
#include "tessera/contract.h"
#include "tessera/normalise.h"

namespace tessera {

// `expr and term`, in the parser's form.
MaskExpr AndTerm(MaskExpr expr, TermKind kind);

// Picks that were made at the class, as those of the request: its own rows, queries and heads, which come first.
Picks CropPicks(const Picks& picks, const Contract& contract, const RequestClass& at);

}  // namespace tessera
