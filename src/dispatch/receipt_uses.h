// What a receipt says of the ledger it asked and of the request it was padded for, held against the rest of it.
#pragma once

#include <vector>

#include "tessera/receipt.h"

namespace tessera {

std::vector<Violation> CheckLedgerUse(const Receipt& receipt, bool has_selection);
// `shape` is that of the receipt's contract, null where that cannot be read here.
// `contract` is null where contract_text cannot be read.
std::vector<Violation> CheckPicksUse(const PicksUse& use, const Contract* contract);
std::vector<Violation> CheckClassUse(const ClassUse& use, const Shape* shape);

// What went through XLA: all or nothing, and its compiles and hits add up.
std::vector<Violation> CheckXlaUse(const Receipt& receipt);

}  // namespace tessera
