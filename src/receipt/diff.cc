// What two receipts differ in, most important first. Contracts are compared as their canonical text, field by field, so
// that receipts of contracts this version cannot read (a bitmap that is elsewhere) can be compared too.
#include <fmt/format.h>

#include <map>
#include <string_view>

#include "receipt/fields.h"
#include "tessera/receipt.h"

namespace tessera {
namespace {

using Texts = std::map<std::string, std::string>;

// The literals of "[\"a\", \"b\"]"; the text itself when it is no such list.
std::vector<std::string> ListItems(std::string_view text) {
  if (text.size() < 2 || text.front() != '[' || text.back() != ']') return {std::string(text)};
  std::vector<std::string> items(1);
  bool in_string = false;
  for (size_t i = 1; i + 1 < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') in_string = !in_string;
    if (in_string && c == '\\') items.back() += text[i++];
    if (!in_string && c == ',') {
      items.emplace_back();
    } else if (in_string || text[i] != ' ') {
      items.back() += text[i];
    }
  }
  return items;
}

// "mask.expr" -> "\"causal\"": every field of canonical TOML, which has one per line.
Texts FieldsOf(std::string_view toml) {
  Texts fields;
  std::string section;
  while (!toml.empty()) {
    const size_t end = std::min(toml.find('\n'), toml.size());
    const std::string_view line = toml.substr(0, end);
    toml.remove_prefix(std::min(end + 1, toml.size()));
    if (line.size() > 2 && line.front() == '[' && line.back() == ']') {
      section = std::string(line.substr(1, line.size() - 2)) + ".";
      continue;
    }
    const size_t equals = line.find(" = ");
    if (equals == std::string_view::npos) continue;
    const std::string name = section + std::string(line.substr(0, equals));
    const std::vector<std::string> items = ListItems(line.substr(equals + 3));
    for (size_t i = 0; i < items.size(); ++i) {
      fields[items.size() == 1 ? name : fmt::format("{}[{}]", name, i)] = items[i];
    }
  }
  return fields;
}

Texts DecisionsOf(const Receipt& receipt) {
  Texts decisions;
  for (const LaneDecision& d : receipt.decisions) {
    decisions[fmt::format("decision of {} on the {}", d.lane, d.step)] =
        d.decision.accepted ? "yes" : fmt::format("no, {}", ReasonText(d.decision.reason));
  }
  return decisions;
}

// "programs[0].pass" -> "forward": each field of each.
Texts ProgramsOf(const Receipt& receipt) {
  Texts fields;
  for (size_t i = 0; i < receipt.programs.size(); ++i) {
    VisitFields(receipt.programs[i], [&](const char* name, const auto& value) {
      fields[fmt::format("programs[{}].{}", i, name)] = fmt::format("{}", value);
    });
  }
  return fields;
}

// "files[forward.mlir].digest", and of kernels what they take: each field by the name of what has it.
template <class Use>
Texts FieldsByName(const char* list, const std::vector<Use>& uses) {
  Texts fields;
  for (const Use& use : uses) {
    VisitFields(use, [&](const char* name, const auto& value) {
      fields[fmt::format("{}[{}].{}", list, use.name, name)] = fmt::format("{}", value);
    });
  }
  return fields;
}

std::string TimeOf(const Receipt& receipt, const std::string& name) {
  for (const Timing& timing : receipt.timings) {
    if (timing.name == name) return fmt::format("{}", timing.ns);
  }
  return {};
}

class Differ {
 public:
  Differ(const Receipt& before, const Receipt& after) : a_(before), b_(after) {}

  std::vector<ReceiptChange> Diff() {
    CompareMeaning();
    group_ = "batch";
    Compare("batch_digest", a_.batch_digest, b_.batch_digest);
    Compare("batch_source", a_.batch_source, b_.batch_source, false);
    group_ = "inputs";
    Compare("input_digest", a_.input_digest, b_.input_digest);
    Compare("input_source", a_.input_source, b_.input_source, false);
    group_ = "outputs";
    Compare("ok", a_.ok ? "true" : "false", b_.ok ? "true" : "false");
    Compare("failed_at", a_.failed_at, b_.failed_at);
    Compare("error", a_.error, b_.error);
    Compare("output_digest", a_.output_digest, b_.output_digest);
    CompareWhatRan();
    ComparePlan();
    group_ = "options";
    CompareMaps(a_.options, b_.options,
                [](const std::string& name) { return name != "threads" && name != "workers" && name != "check"; });
    group_ = "versions";
    CompareMaps(a_.versions, b_.versions, [](const std::string&) { return true; });
    group_ = "cost";
    Compare("workspace_bytes", a_.workspace_bytes, b_.workspace_bytes, false);
    Compare("compiles", a_.compiles, b_.compiles, false);
    Compare("cache_hits", a_.cache_hits, b_.cache_hits, false);
    // Of the key nothing is left to say that meaning, options and target did not; the rest is the cache's history.
    CompareGroup("cache.", a_.cache, b_.cache, false);
    CompareGroup("crossing.", a_.crossing, b_.crossing, false);
    CompareMaps(ProgramsOf(a_), ProgramsOf(b_), [](const std::string&) { return false; });
    Compare("work.pairs", a_.work.pairs, b_.work.pairs, false);
    group_ = "timings";
    Compare("work.forward_gflops", fmt::format("{:.3f}", a_.work.forward_gflops),
            fmt::format("{:.3f}", b_.work.forward_gflops), false);
    Compare("work.backward_gflops", fmt::format("{:.3f}", a_.work.backward_gflops),
            fmt::format("{:.3f}", b_.work.backward_gflops), false);
    for (const Timing& timing : a_.timings)
      Compare(timing.name, TimeOf(a_, timing.name), TimeOf(b_, timing.name), false);
    for (const Timing& timing : b_.timings) {
      if (TimeOf(a_, timing.name).empty()) Compare(timing.name, "", TimeOf(b_, timing.name), false);
    }
    return std::move(changes_);
  }

 private:
  void Compare(std::string field, const std::string& before, const std::string& after, bool matters = true) {
    if (before != after) changes_.push_back({group_, std::move(field), before, after, matters});
  }
  void Compare(std::string field, int64_t before, int64_t after, bool matters = true) {
    Compare(std::move(field), fmt::format("{}", before), fmt::format("{}", after), matters);
  }
  // Each field of a group, after `prefix`.
  template <HasFields Group>
  void CompareGroup(const std::string& prefix, const Group& before, const Group& after, bool matters = true) {
    std::vector<std::string> texts;
    const auto text_of = [](const auto& value) { return fmt::format("{}", value); };
    VisitFields(before, [&](const char*, const auto& value) { texts.push_back(text_of(value)); });
    size_t at = 0;
    VisitFields(after, [&](const char* name, const auto& value) {
      Compare(prefix + name, texts[at++], text_of(value), matters);
    });
  }

  template <class Matters>
  void CompareMaps(const Texts& before, const Texts& after, const Matters& matters) {
    const auto get = [](const Texts& texts, const std::string& name) {
      const auto found = texts.find(name);
      return found == texts.end() ? std::string() : found->second;
    };
    for (const auto& [name, text] : before) Compare(name, text, get(after, name), matters(name));
    for (const auto& [name, text] : after) {
      if (before.count(name) == 0) Compare(name, "", text, matters(name));
    }
  }

  void CompareMeaning() {
    group_ = "meaning";
    const bool is_same_key = a_.contract_key == b_.contract_key;
    Compare("contract_key", a_.contract_key, b_.contract_key);
    // With one key, two spellings of a mask are one mask; why a tile is small never was a part of the meaning.
    CompareMaps(FieldsOf(a_.contract_text), FieldsOf(b_.contract_text), [&](const std::string& name) {
      return name != "tiles.reason" && !(is_same_key && name.rfind("mask.", 0) == 0);
    });
    Compare("contract_source", a_.contract_source, b_.contract_source, false);
  }

  void CompareWhatRan() {
    group_ = "what ran";
    Compare("requested", a_.requested, b_.requested);
    Compare("selected", a_.selected, b_.selected);
    Compare("selection_rule", a_.selection_rule, b_.selection_rule);
    Compare("ledger.verdict", a_.ledger.verdict, b_.ledger.verdict, false);
    Compare("ledger.chose", a_.ledger.chose, b_.ledger.chose);
    Compare("ledger.over", a_.ledger.over, b_.ledger.over);
    Compare("ledger.entry", a_.ledger.entry, b_.ledger.entry, false);
    Compare("ledger.note", a_.ledger.note, b_.ledger.note, false);
    Compare("ledger.file", a_.ledger.file, b_.ledger.file, false);
    Compare("ledger.machine", a_.ledger.machine, b_.ledger.machine, false);
    Compare("executed", a_.executed, b_.executed);
    Compare("runtime_mode", a_.runtime_mode, b_.runtime_mode);
    Compare("owner", a_.owner, b_.owner);
    Compare("fallback_reason", a_.fallback_reason, b_.fallback_reason);
    Compare("target", a_.target, b_.target);
    Compare("kernel", a_.kernel, b_.kernel);
    Compare("isa", a_.isa, b_.isa);
    Compare("ran_on", a_.ran_on, b_.ran_on);
    CompareGroup("device.", a_.device, b_.device);
    Compare("determinism", a_.determinism, b_.determinism);
    CompareMaps(DecisionsOf(a_), DecisionsOf(b_), [](const std::string&) { return true; });
    const auto matters = [](const std::string&) { return true; };
    CompareMaps(FieldsByName("kernels", a_.kernels), FieldsByName("kernels", b_.kernels), matters);
    CompareMaps(FieldsByName("files", a_.files), FieldsByName("files", b_.files), matters);
  }

  void ComparePlan() {
    group_ = "plan";
    Compare("class_key", a_.class_key, b_.class_key);
    CompareGroup("picks.", a_.picks, b_.picks);
    CompareGroup("class_request.", a_.class_request, b_.class_request);
    Compare("mask_digest", a_.mask_digest, b_.mask_digest);
    Compare("plan_fingerprint", a_.plan_fingerprint, b_.plan_fingerprint);
    CompareGroup("tiles.", a_.tiles, b_.tiles);
    Compare("tiles_executed", a_.tiles_executed, b_.tiles_executed);
    CompareGroup("tiles_backward.", a_.tiles_backward, b_.tiles_backward);
    Compare("tiles_executed_backward", a_.tiles_executed_backward, b_.tiles_executed_backward);
    Compare("plan_bytes", a_.plan_bytes, b_.plan_bytes);
    Compare("metadata_bytes", a_.metadata_bytes, b_.metadata_bytes);
    Compare("metadata_limit", a_.metadata_limit, b_.metadata_limit);
  }

  const Receipt& a_;
  const Receipt& b_;
  std::string group_;
  std::vector<ReceiptChange> changes_;
};

}  // namespace

std::vector<ReceiptChange> DiffReceipts(const Receipt& before, const Receipt& after) {
  return Differ(before, after).Diff();
}

}  // namespace tessera
