// Ledger files: any text gives an error or a ledger that its JSON reproduces; deciding by it never fails.
#include "fuzz.h"
#include "tessera/tessera.h"

namespace tessera {

bool FuzzLedger(const uint8_t* data, size_t size) {
  static const auto contract =
      ParseContract("version = 1\n[shape]\nq_len = 12\ndim_qk = 4\n[mask]\nexpr = \"causal\"\n");
  static const auto target = FindTarget("cpu");
  Require(contract.has_value() && target.has_value(), "the fixed contract is good");
  const auto ledger = ParseLedger(AsText(data, size));
  if (!ledger) {
    Require(!ToText(ledger.error()).empty(), "an error has a text");
    return false;
  }
  const auto again = ParseLedger(ToJson(*ledger));
  Require(again && *again == *ledger, "JSON round trip");
  const auto decision = DecideByLedger(
      *ledger, {.contract = *contract, .target = *target, .custom_lane = "reference", .default_lane = "cpu"});
  Require(decision.has_value() && !decision->note.empty(), "a decision with a reason");
  return true;
}

}  // namespace tessera
