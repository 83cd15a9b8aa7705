// How a run asks a ledger. The one list of an entry's fields is here too, for reading and writing.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/lane.h"
#include "tessera/ledger.h"

namespace tessera {

// Calls visit("name", field) for every field; EntryType is LedgerEntry or const LedgerEntry. The shape's dtype is not
// among them: it has no plain type.
template <class EntryType, class Visit>
void VisitEntryFields(EntryType& e, Visit&& visit) {
  visit("custom_lane", e.custom_lane);
  visit("default_lane", e.default_lane);
  visit("target", e.target);
  visit("kind", e.kind);
  visit("batch", e.shape.batch);
  visit("q_len", e.shape.q_len);
  visit("kv_len", e.shape.kv_len);
  visit("num_q_heads", e.shape.num_q_heads);
  visit("num_kv_heads", e.shape.num_kv_heads);
  visit("dim_qk", e.shape.dim_qk);
  visit("dim_v", e.shape.dim_v);
  visit("dynamic_shapes", e.dynamic_shapes);
  visit("backward", e.backward);
  visit("custom_ns", e.custom_ns);
  visit("default_ns", e.default_ns);
  visit("machine", e.machine);
  visit("software", e.software);
  visit("mask_digest", e.mask_digest);
  visit("date", e.date);
}
template <class ProofType, class Visit>
void VisitProofFields(ProofType& p, Visit&& visit) {
  visit("date", p.date);
  visit("machine", p.machine);
  visit("software", p.software);
  visit("check", p.check);
  visit("output_digest", p.output_digest);
  visit("custom_ns", p.custom_ns);
  visit("default_ns", p.default_ns);
}

// What is wrong with an entry, each with its field after `at`: what does not follow from its receipts, and a proof that
// is not of them.
std::vector<Violation> CheckEntry(const LedgerEntry& entry, const std::string& at);

// The time a receipt is evidence of: its forward, and its backward where it has one.
int64_t MeasuredNs(const Receipt& receipt);

// What a run knows when it has to choose.
struct LedgerAsk {
  const Contract& contract;
  const Target& target;
  std::string_view file;       // the ledger; empty = none was asked for
  std::string_view requested;  // "auto", or a lane's name, and then there is nothing to choose
  bool backward = false;
  bool experimental = false;
  std::string_view table_lane;              // what the target's table names
  std::span<const LaneDecision> decisions;  // of every lane on the contract
};

// Reads the ledger and says what it makes of the table's choice. Never fails: a ledger that cannot be
// read chooses nothing. Both lanes of a choice have accepted the contract.
LedgerUse ConsultLedger(const LedgerAsk& ask);

// "cpu: any contract -> cpu; ledger: promoted -> reference".
std::string RuleWithLedger(const std::string& rule, const LedgerUse& use);

// The verdicts a receipt may show, beside those of LedgerVerdict: the ledger could not be read, or there was no choice
// to make (a lane was asked for by name, or the table's lane refused).
inline constexpr std::string_view kLedgerUnusable = "unusable";
inline constexpr std::string_view kLedgerNotAsked = "not_asked";
bool IsLedgerVerdict(std::string_view text);

}  // namespace tessera
