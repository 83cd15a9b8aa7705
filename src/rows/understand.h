// From what a line says to a document: character columns become token columns, chunks are sorted and cut to tokens,
// edges renumbered, everything checked.
#pragma once

#include <optional>

#include "rows/raw_document.h"

namespace tessera::rows {

// What is wrong, or nothing: then `document` is the line's, of valid tokens only. What the line says is used up.
std::optional<Problem> Understand(RawDocument& raw, const DocumentOptions& options, Document& document,
                                  DocumentCounts& counts);

// The checks that do not depend on how a document was written: tokens within the vocabulary, required columns, values
// of columns and platform ids that have a range.
std::optional<Problem> CheckDocument(const Document& document, const DocumentOptions& options);

}  // namespace tessera::rows
