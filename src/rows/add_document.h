// What is done with a document between reading and packing: fill in the middle, its chunks cut to a row's table, and
// the rule for documents longer than a row.
#pragma once

#include <optional>

#include "rows/understand.h"
#include "tessera/rows.h"

namespace tessera::rows {

// Adds the document, or its pieces, or an empty place where it is skipped: every document that was read has a source in
// the set, in order. `place` makes the choice of fill in the middle the same whoever reads it.
std::optional<Problem> AddDocument(const Document& document, const DocumentOptions& options, uint64_t place,
                                   DocumentSource source, DocumentSet& set);

}  // namespace tessera::rows
