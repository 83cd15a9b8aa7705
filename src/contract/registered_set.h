// Asks a term of the user's own for its pairs, and trusts none of the answers.
#pragma once

#include <string>

#include "contract/row_set.h"
#include "tessera/mask_term.h"

namespace tessera {

// The set of pairs, or what is wrong: "row 3: run 7 has keys [8, 20), expected them inside 0..16".
tl::expected<RowSet, std::string> AskTerm(const MaskTermSpec& spec, const MaskTermInput& input);

}  // namespace tessera
