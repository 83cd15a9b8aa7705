// Masks, conditions and cleanups in plain English.
#pragma once

#include <string>
#include <vector>

#include "tessera/tessera.h"

namespace tessera::program {

// One line per term, nested by indentation: "all of:", "any of:".
std::string MaskInWords(const MaskExpr& expr, int64_t offset);
std::string TermInWords(const MaskTerm& term, int64_t offset);
// "rows 0..63, keys 0..63, key <= row; documents".
std::string ItemInWords(const PlanView& plan, const CleanupItem& item);
// The conditions of an item, joined by "and"; empty when there are none.
std::string ConditionsInWords(const PlanView& plan, uint16_t conditions);

}  // namespace tessera::program
