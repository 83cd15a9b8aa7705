// What a contract's mask means, as static sets.
//
// Run-time terms are conditions: what only a batch can tell. Expressions have no `not`, so a mask is exactly: for each
// consistent set of conditions that hold, one static RowSet. Keys hash these sets; the planner cuts its cleanups
// from them. Conditions that never change any set are dropped: meaning decides, not spelling.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "contract/row_set.h"
#include "tessera/contract.h"

namespace tessera {

// `sink(n, document)` implies the same with a larger n, and implies `documents`.
struct MaskCondition {
  TermKind kind = TermKind::kDocuments;  // kDocuments, kValid, kBlocks or kSinkDocument
  int64_t count = 0;                     // kSinkDocument only
  bool operator==(const MaskCondition&) const = default;
};

using ConditionSet = uint32_t;  // bit i = conditions[i] holds

// The masks of all heads that mean the same. `holding[s]` is what may be attended when exactly the conditions in s
// hold; sets s that are not consistent are left empty.
struct HeadClass {
  std::vector<RowSet> holding;
  bool uses_conditions = false;
  bool has_bitmap = false;
  bool has_registered = false;
  bool operator==(const HeadClass& other) const { return holding == other.holding; }
};

struct MaskSets {
  std::vector<MaskCondition> conditions;  // documents, valid, blocks, then document sinks by ascending count
  std::vector<ConditionSet> consistent;
  std::vector<HeadClass> classes;  // in order of first appearance
  std::vector<uint32_t> class_of_head;
  bool documents_may_reappear = false;
  bool names_documents = false;  // in the text, whether or not it matters
  bool names_valid = false;
  bool names_blocks = false;
  std::vector<std::string> registered;  // the registered terms in the text, each once, sorted: "dilated@1(64, 2)"

  bool Needs(TermKind kind) const;
};

// Of a contract that Validate accepts. What can still fail is a registered term that changes its mind.
Result<MaskSets> BuildMaskSets(const Contract& contract);

// The run-time needs of a mask; the rest of MaskFacts costs more and is left to DescribeMask.
MaskFacts NeedsOf(const MaskSets& sets);
// DescribeMask of a valid contract whose sets are there already.
Result<MaskFacts> DescribeMaskWith(const Contract& contract, const MaskSets& sets);

// `conditions` a set implies, added to it.
ConditionSet Closure(const std::vector<MaskCondition>& conditions, ConditionSet set);
// The same condition with what others in it imply left out.
ConditionSet Reduce(const std::vector<MaskCondition>& conditions, ConditionSet set);

// The static set of a built-in term that has one: every kind but the run-time ones. RegisteredSet has the others.
RowSet TermSet(const Contract& contract, const MaskTerm& term, int64_t head);

// What the mask is, without the lengths and the rest of the contract.
void AddMask(Hasher& hasher, const MaskSets& sets);
std::string KeyOf(const Contract& contract, const MaskSets& sets);

}  // namespace tessera
