// The rule that turns measurements into a choice, and how a run asks for it. What is a win is decided in integers.
#include "ledger/ledger.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace tessera {
namespace {

// It was measured twice, for the receipts and when it was added: a win is one that was seen both times.
bool IsWin(int64_t custom_ns, int64_t default_ns) { return 100 * custom_ns < (100 - kTiePercent) * default_ns; }
bool IsWin(const LedgerEntry& e) {
  return IsWin(e.custom_ns, e.default_ns) && IsWin(e.proof.custom_ns, e.proof.default_ns);
}
bool IsSlower(int64_t custom_ns, int64_t default_ns) { return 100 * custom_ns > (100 + kTiePercent) * default_ns; }
bool IsSlower(const LedgerEntry& e) {
  return IsSlower(e.custom_ns, e.default_ns) || IsSlower(e.proof.custom_ns, e.proof.default_ns);
}
double SpeedupOf(const LedgerEntry& e) {
  const auto speedup = [](int64_t custom_ns, int64_t default_ns) {
    return static_cast<double>(default_ns) / static_cast<double>(custom_ns);
  };
  return std::min(speedup(e.custom_ns, e.default_ns), speedup(e.proof.custom_ns, e.proof.default_ns));
}
// Whether a's custom lane did better against its default than b's.
bool IsBetter(const LedgerEntry& a, const LedgerEntry& b) { return SpeedupOf(a) > SpeedupOf(b); }

// Why an entry does not count, or nothing.
std::string WhyNot(const LedgerEntry& e) {
  if (e.dynamic_shapes) return "measured with lengths that change from step to step";
  if (e.machine != MachineId()) return fmt::format("of another machine: {}", e.machine);
  if (e.software != SoftwareId()) return fmt::format("of another version: {}", e.software);
  if (e.proof == LedgerProof{})
    return "no proof: it was not run again and compared with the reference when it was added";
  // An entry that was read is good; one that a program made up is not believed either.
  if (const std::vector<Violation> bad = CheckEntry(e, ""); !bad.empty()) {
    return fmt::format("it does not follow from its receipts: {}", bad.front().field);
  }
  return {};
}

std::string Count(size_t n, std::string_view what) { return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s"); }

class Decider {
 public:
  Decider(const Ledger& ledger, const LedgerQuestion& question, std::string kind)
      : question_(question), kind_(std::move(kind)) {
    std::map<std::string, LedgerEntry> by_shape;  // the last one of a shape counts
    for (const LedgerEntry& entry : ledger.entries) {
      if (!IsOfQuestion(entry)) continue;
      std::string why = WhyNot(entry);
      if (why.empty()) {
        by_shape[ShapeText(entry.shape)] = entry;
      } else {
        has_dynamic_ |= entry.dynamic_shapes;
        out_.uncounted.push_back({entry, std::move(why)});
      }
    }
    for (auto& [shape, entry] : by_shape) out_.counted.push_back(std::move(entry));
  }

  LedgerDecision Decide() {
    if (question_.dynamic_shapes) {
      return Say(LedgerVerdict::kDynamic, "lengths that change from step to step stay with the default lane");
    }
    if (out_.counted.empty()) return SayNothingCounts();
    const LedgerEntry* here = nullptr;  // measured at this contract's shape
    const LedgerEntry* best = &out_.counted.front();
    const LedgerEntry* weakest_win = nullptr;
    std::vector<const LedgerEntry*> wins;
    for (const LedgerEntry& entry : out_.counted) {
      if (entry.shape == question_.contract.shape) here = &entry;
      if (IsBetter(entry, *best)) best = &entry;
      if (!IsWin(entry)) continue;
      wins.push_back(&entry);
      if (weakest_win == nullptr || IsBetter(*weakest_win, entry)) weakest_win = &entry;
    }
    if (here != nullptr && !IsWin(*here)) return SayTied(*here);
    if (wins.empty()) return SayTied(*best);
    if (wins.size() == out_.counted.size() && NumLengths(wins) >= static_cast<size_t>(kPromotedLengths)) {
      if (!IsWithin(wins)) {
        return Say(LedgerVerdict::kNoEvidence,
                   "it won at every measured shape, but this contract is shorter or longer "
                   "than all of them");
      }
      return Say(LedgerVerdict::kPromoted,
                 fmt::format("it won at {} of {}, by {:.2f} times or more", Count(wins.size(), "shape"),
                             Count(NumLengths(wins), "length"), SpeedupOf(*weakest_win)),
                 weakest_win);
    }
    if (here == nullptr) {
      return Say(LedgerVerdict::kNoEvidence, fmt::format("it won at {} of {} and was not measured at this one",
                                                         wins.size(), Count(out_.counted.size(), "shape")));
    }
    return Say(LedgerVerdict::kExperimental,
               fmt::format("it won at this shape by {:.2f} times, but at {} of {} measured, of {}; {} are needed",
                           SpeedupOf(*here), wins.size(), Count(out_.counted.size(), "shape"),
                           Count(NumLengths(wins), "length"), kPromotedLengths),
               here);
  }

 private:
  bool IsOfQuestion(const LedgerEntry& e) const {
    return e.custom_lane == question_.custom_lane && e.default_lane == question_.default_lane &&
           e.target == question_.target.name && e.kind == kind_ && e.backward == question_.backward &&
           e.shape.dtype == question_.contract.shape.dtype;
  }

  static size_t NumLengths(const std::vector<const LedgerEntry*>& entries) {
    std::set<std::pair<int64_t, int64_t>> lengths;
    for (const LedgerEntry* entry : entries) lengths.emplace(entry->shape.q_len, entry->shape.kv_len);
    return lengths.size();
  }

  // A win says something of lengths between those it was measured at, and nothing of others.
  bool IsWithin(const std::vector<const LedgerEntry*>& entries) const {
    const auto is_between = [&](int64_t Shape::*length) {
      const auto [low, high] = std::minmax_element(
          entries.begin(), entries.end(),
          [&](const LedgerEntry* a, const LedgerEntry* b) { return a->shape.*length < b->shape.*length; });
      const int64_t own = question_.contract.shape.*length;
      return (*low)->shape.*length <= own && own <= (*high)->shape.*length;
    };
    return is_between(&Shape::q_len) && is_between(&Shape::kv_len);
  }

  LedgerDecision SayNothingCounts() {
    if (out_.uncounted.empty()) {
      return Say(
          LedgerVerdict::kNoEvidence,
          fmt::format("no entry has {} against {} for {} {} on {}", question_.custom_lane, question_.default_lane,
                      kind_, ToText(question_.contract.shape.dtype), question_.target.name));
    }
    std::set<std::string> reasons;
    for (const UncountedEntry& entry : out_.uncounted) reasons.insert(entry.why);
    return Say(has_dynamic_ ? LedgerVerdict::kDynamic : LedgerVerdict::kNoEvidence,
               fmt::format("{} of it, none counts: {}", Count(out_.uncounted.size(), "measurement"), *reasons.begin()));
  }

  LedgerDecision SayTied(const LedgerEntry& entry) {
    const std::string at = entry.shape == question_.contract.shape ? "at this shape" : "at its best shape";
    return Say(LedgerVerdict::kTied,
               fmt::format("{} it is {} the default ({:.2f} times)", at,
                           IsSlower(entry) ? "slower than" : fmt::format("within {} percent of", kTiePercent),
                           SpeedupOf(entry)),
               &entry);
  }

  LedgerDecision Say(LedgerVerdict verdict, std::string note, const LedgerEntry* entry = nullptr) {
    out_.verdict = verdict;
    out_.note = std::move(note);
    if (entry != nullptr) out_.entry = EntryId(*entry);
    if (entry != nullptr) out_.speedup = SpeedupOf(*entry);
    return std::move(out_);
  }

  const LedgerQuestion& question_;
  const std::string kind_;
  bool has_dynamic_ = false;
  LedgerDecision out_;
};

bool HasAccepted(const LedgerAsk& ask, std::string_view lane) {
  return std::any_of(ask.decisions.begin(), ask.decisions.end(), [&](const LaneDecision& d) {
    return d.lane == lane && d.step == "contract" && d.decision.accepted;
  });
}

// One of the pairs of lanes that a run could choose between.
struct Duel {
  std::string challenger;  // the lane beside the table's
  LedgerDecision decision;
  bool is_custom = true;  // the challenger is the custom lane, else the table's is
  bool wins = false;      // the challenger is to be used
  // What matters most first: a choice, then how much was measured, then by how much it won.
  auto Rank() const { return std::tuple(wins, decision.verdict, decision.speedup); }
};

std::vector<Duel> DuelsOf(const Ledger& ledger, const LedgerAsk& ask) {
  const std::string table_lane(ask.table_lane);
  std::vector<Duel> duels;
  for (const LaneDecision& d : ask.decisions) {
    if (d.step != "contract" || d.lane == table_lane || !d.decision.accepted) continue;
    LedgerQuestion question{.contract = ask.contract,
                            .target = ask.target,
                            .custom_lane = d.lane,
                            .default_lane = table_lane,
                            .backward = ask.backward};
    // The other lane as the custom one, then as the default of a table that names a custom lane itself: only a tie
    // can unseat that.
    for (const bool is_custom : {true, false}) {
      if (!is_custom) std::swap(question.custom_lane, question.default_lane);
      Result<LedgerDecision> decision = DecideByLedger(ledger, question);
      if (!decision) continue;
      const bool wins = is_custom ? decision->Prefers(ask.experimental) : decision->verdict == LedgerVerdict::kTied;
      duels.push_back({d.lane, std::move(*decision), is_custom, wins});
    }
  }
  return duels;
}

}  // namespace

std::string_view ToText(LedgerVerdict verdict) {
  switch (verdict) {
    case LedgerVerdict::kNoEvidence:
      return "no_evidence";
    case LedgerVerdict::kDynamic:
      return "dynamic";
    case LedgerVerdict::kTied:
      return "tied";
    case LedgerVerdict::kExperimental:
      return "experimental";
    case LedgerVerdict::kPromoted:
      return "promoted";
  }
  return "";
}

bool IsLedgerVerdict(std::string_view text) {
  if (text == kLedgerUnusable || text == kLedgerNotAsked) return true;
  for (const LedgerVerdict verdict : {LedgerVerdict::kNoEvidence, LedgerVerdict::kDynamic, LedgerVerdict::kTied,
                                      LedgerVerdict::kExperimental, LedgerVerdict::kPromoted}) {
    if (text == ToText(verdict)) return true;
  }
  return false;
}

Result<LedgerDecision> DecideByLedger(const Ledger& ledger, const LedgerQuestion& question) {
  Result<std::string> kind = LedgerKind(question.contract);
  if (!kind) return tl::unexpected(kind.error());
  return Decider(ledger, question, std::move(*kind)).Decide();
}

Result<KernelCase> KernelCaseOf(const Contract& contract, bool dynamic_shapes) {
  const Result<MaskFacts> facts = DescribeMask(contract);
  if (!facts) return tl::unexpected(facts.error());
  return KernelCase{.dynamic_shapes = dynamic_shapes,
                    .explicit_tiling = !contract.tiles_reason.empty(),
                    .avoids_dense_mask = !facts->is_full && !facts->is_causal};
}

KernelAdvice AdviseKernel(const KernelCase& facts) {
  if (facts.dynamic_shapes) return {"stay_in_default", "lengths change from step to step"};
  std::vector<std::string_view> reasons;
  if (facts.explicit_tiling) reasons.push_back("it controls its tiles");
  if (facts.avoids_dense_mask) reasons.push_back("it avoids a dense mask");
  if (reasons.empty()) return {"stay_in_default", "plain tiles and a plain mask: there is nothing to be better at"};
  return {"custom_kernel", fmt::format("{}", fmt::join(reasons, ", and "))};
}

LedgerUse ConsultLedger(const LedgerAsk& ask) {
  LedgerUse use{.file = std::string(ask.file), .machine = MachineId()};
  if (use.file.empty()) return use;
  if (ask.requested != "auto") {
    use.verdict = kLedgerNotAsked;
    use.note = "a lane was asked for by name";
    return use;
  }
  const Result<Ledger> ledger = ReadLedger(use.file);
  if (!ledger) {
    use.verdict = kLedgerUnusable;
    const std::string text = ToText(ledger.error());
    use.note = text.substr(0, text.find('\n'));
    return use;
  }
  if (!HasAccepted(ask, ask.table_lane)) {
    use.verdict = kLedgerNotAsked;
    use.note = fmt::format("{}, which the table names, refused the contract", ask.table_lane);
    return use;
  }
  const std::vector<Duel> duels = DuelsOf(*ledger, ask);
  const auto strongest =
      std::max_element(duels.begin(), duels.end(), [](const Duel& a, const Duel& b) { return a.Rank() < b.Rank(); });
  if (strongest == duels.end()) {
    use.verdict = ToText(LedgerVerdict::kNoEvidence);
    use.note = fmt::format("no lane but {} accepted the contract", ask.table_lane);
    return use;
  }
  const Duel& duel = *strongest;
  use.verdict = ToText(duel.decision.verdict);
  use.entry = duel.decision.entry;
  const std::string_view challenger = duel.challenger;
  use.note = fmt::format("{} against {}: {}", duel.is_custom ? challenger : ask.table_lane,
                         duel.is_custom ? ask.table_lane : challenger, duel.decision.note);
  if (duel.wins) {
    use.chose = duel.challenger;
    use.over = ask.table_lane;
  } else if (duel.is_custom && duel.decision.verdict == LedgerVerdict::kExperimental) {
    use.note += "; experimental lanes were not asked for";
  }
  return use;
}

std::string RuleWithLedger(const std::string& rule, const LedgerUse& use) {
  return use.chose.empty() ? rule : fmt::format("{}; ledger: {} -> {}", rule, use.verdict, use.chose);
}

}  // namespace tessera
