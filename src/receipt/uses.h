// What a receipt says of the ledger it asked, of the request it was padded for, of device and programs, held against
// the rest of it.
#pragma once

#include <vector>

#include "tessera/receipt.h"

namespace tessera {

std::vector<Violation> CheckLedgerUse(const Receipt& receipt, bool has_selection);
// `shape` is that of the receipt's contract, null where that cannot be read here.
// `contract` is null where contract_text cannot be read.
std::vector<Violation> CheckPicksUse(const PicksUse& use, const Contract* contract);
std::vector<Violation> CheckClassUse(const ClassUse& use, const Shape* shape);

// Where it ran, or was compiled for: all or nothing, and what a plugin says where there is one.
std::vector<Violation> CheckDeviceUse(const Receipt& receipt);
// What crossed into another runtime, if and only if the run was a bridge's; and whose the kernel was.
std::vector<Violation> CheckCrossing(const Receipt& receipt);
// The compiled programs: compiles and hits add up.
std::vector<Violation> CheckPrograms(const Receipt& receipt);
// What programs that were written take, and where they are: of a receipt of those alone.
std::vector<Violation> CheckEmitted(const Receipt& receipt);
// What was achieved follows from pairs and times. `shape` as above.
std::vector<Violation> CheckWorkUse(const Receipt& receipt, const Shape* shape);

}  // namespace tessera
