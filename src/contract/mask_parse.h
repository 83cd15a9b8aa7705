// The mask language's parser, with bitmaps loaded through a loader that several expressions can share.
#pragma once

#include <string_view>

#include "io/bitmap.h"
#include "tessera/contract.h"

namespace tessera {

// `terms` may be null: the built-in ones alone. Errors are kMaskSyntax, kBitmapInvalid or kMaskTermInvalid; `where` is
// "column N".
Result<MaskExpr> ParseMaskExpr(std::string_view text, BitmapLoader& loader, const MaskTerms* terms);

// How many terms the expression holds.
int64_t CountTerms(const MaskExpr& expr);

}  // namespace tessera
