// Registered mask terms as text, and the sets they amount to.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "contract/row_set.h"
#include "tessera/contract.h"
#include "tessera/mask_term.h"

namespace tessera {

// "dilated@1(64, 2)".
std::string RegisteredText(const MaskTermSpec& spec, const std::vector<int64_t>& parameters);

// "1 to 2 parameters", "no parameters": how many the term takes.
std::string ParameterCountText(const MaskTermSpec& spec);

// What is wrong with these parameters, or empty.
std::string ParametersProblem(const MaskTermSpec& spec, const std::vector<int64_t>& parameters);

// The pairs of a registered term for one head of the contract, whose lengths and offset must be within limits. The
// error is kMaskTermInvalid and names the term and the first bad row. Sets are kept: asking again is cheap, and gives
// the same set.
Result<std::shared_ptr<const RowSet>> RegisteredSet(const Contract& contract, const MaskTerm& term, int64_t head);

}  // namespace tessera
