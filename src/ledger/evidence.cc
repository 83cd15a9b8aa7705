// Where an entry's values come from: two receipts, the contract, this machine and this build. The same function makes
// an entry and judges one that was read.
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <ctime>
#include <thread>

#include "base/hash.h"
#include "base/host.h"
#include "ledger/ledger.h"
#include "ledger/limits.h"

namespace tessera {
namespace {

std::string OptionOf(const Receipt& receipt, const char* name) {
  const auto found = receipt.options.find(name);
  return found == receipt.options.end() ? std::string() : found->second;
}

void CompareRuns(const Receipt& custom_run, const Receipt& default_run, std::vector<Violation>& violations) {
  const auto same = [&](std::string field, const std::string& a, const std::string& b) {
    if (a != b) violations.push_back({std::move(field), fmt::format("the same in both, got \"{}\" and \"{}\"", a, b)});
  };
  same("contract_key", custom_run.contract_key, default_run.contract_key);
  same("batch_digest", custom_run.batch_digest, default_run.batch_digest);
  same("input_digest", custom_run.input_digest, default_run.input_digest);
  same("mask_digest", custom_run.mask_digest, default_run.mask_digest);
  same("target", custom_run.target, default_run.target);
  same("ledger.machine", custom_run.ledger.machine, default_run.ledger.machine);
  for (const char* option : {"backward", "forward", "threads"}) {
    same(fmt::format("options.{}", option), OptionOf(custom_run, option), OptionOf(default_run, option));
  }
  for (const auto& [name, version] : custom_run.versions) {
    const auto other = default_run.versions.find(name);
    same("versions." + name, version, other == default_run.versions.end() ? "" : other->second);
  }
  if (custom_run.executed == default_run.executed) {
    violations.push_back({"executed", fmt::format("two lanes, got {} twice", custom_run.executed)});
  }
}

// A run again against the run it repeats.
void CompareAgain(const std::string& name, const Receipt& run, const Receipt& again,
                  std::vector<Violation>& violations) {
  const auto same = [&](const char* field, const std::string& then, const std::string& now) {
    if (then == now) return;
    violations.push_back({name + "." + field, fmt::format("the same again, got \"{}\" and then \"{}\"", then, now)});
  };
  for (const Violation& v : CheckReceipt(again))
    violations.push_back({fmt::format("{}.{}", name, v.field), v.expected});
  same("ok", run.ok ? "true" : "false", again.ok ? "true" : "false");
  same("contract_key", run.contract_key, again.contract_key);
  same("batch_digest", run.batch_digest, again.batch_digest);
  same("input_digest", run.input_digest, again.input_digest);
  same("mask_digest", run.mask_digest, again.mask_digest);
  same("output_digest", run.output_digest, again.output_digest);
  same("executed", run.executed, again.executed);
  same("ran_on", run.ran_on, again.ran_on);
  same("ledger.machine", run.ledger.machine, again.ledger.machine);
  for (const char* option : {"backward", "forward", "threads"}) {
    same(option, OptionOf(run, option), OptionOf(again, option));
  }
}

std::string SoftwareOf(const std::map<std::string, std::string>& versions) {
  const auto get = [&](const char* name) {
    const auto found = versions.find(name);
    return found == versions.end() ? std::string("unknown") : found->second;
  };
  return fmt::format("tessera {}, {}", get("tessera"), get("compiler"));
}

// A day that exists, as 2026-01-31.
bool IsDate(std::string_view text) {
  if (text.size() != 10 || text[4] != '-' || text[7] != '-') return false;
  std::array<unsigned, 3> parts{};  // year, month, day
  size_t part = 0;
  for (const char c : text) {
    if (c == '-') {
      if (++part == parts.size()) return false;
      continue;
    }
    if (c < '0' || c > '9') return false;
    parts[part] = parts[part] * 10 + static_cast<unsigned>(c - '0');
  }
  const std::chrono::year year(static_cast<int>(parts[0]));
  return std::chrono::year_month_day(year, std::chrono::month(parts[1]), std::chrono::day(parts[2])).ok();
}

}  // namespace

int64_t MeasuredNs(const Receipt& receipt) {
  const bool backward = OptionOf(receipt, "backward") == "true";
  int64_t ns = 0;
  for (const Timing& timing : receipt.timings) {
    if (timing.name == "forward" || (backward && timing.name == "backward")) ns += timing.ns;
  }
  return ns;
}

std::vector<Violation> CheckEntry(const LedgerEntry& e, const std::string& at) {
  std::vector<Violation> violations;
  const auto expect = [&](bool holds, std::string_view field, std::string expected) {
    if (!holds) violations.push_back({fmt::format("{}{}{}", at, at.empty() ? "" : ".", field), std::move(expected)});
  };
  expect(IsDate(e.date), "date", "a date as 2026-01-31");
  const Result<LedgerEntry> derived = EntryFromReceipts(
      {.custom_run = e.custom_run, .default_run = e.default_run, .dynamic_shapes = e.dynamic_shapes, .date = e.date});
  if (!derived) {
    for (const Violation& v : derived.error().violations) expect(false, v.field, v.expected);
    expect(!derived.error().violations.empty(), "custom_run", derived.error().message);
    return violations;
  }
  std::vector<std::string> texts;
  VisitEntryFields(*derived, [&](const char*, const auto& value) { texts.push_back(fmt::format("{}", value)); });
  size_t next = 0;
  VisitEntryFields(e, [&](const char* name, const auto& value) {
    const std::string text = fmt::format("{}", value);
    const std::string& made = texts[next++];
    expect(text == made, name, fmt::format("{}, by its receipts, got {}", made, text));
  });
  expect(e.shape.dtype == derived->shape.dtype, "dtype",
         fmt::format("{}, by its receipts", ToText(derived->shape.dtype)));
  if (e.proof == LedgerProof{}) return violations;
  expect(IsDate(e.proof.date), "proof.date", "a date as 2026-01-31");
  expect(e.proof.machine == e.machine, "proof.machine", "the machine it was measured on");
  expect(e.proof.software == e.software, "proof.software", "the version it was measured with");
  expect(e.proof.check.rfind("passed", 0) == 0, "proof.check", "passed");
  expect(e.proof.output_digest == e.custom_run.output_digest, "proof.output_digest", "that of custom_run");
  for (const auto& [name, ns] : {std::pair<const char*, int64_t>{"proof.custom_ns", e.proof.custom_ns},
                                 {"proof.default_ns", e.proof.default_ns}}) {
    expect(ns >= 1 && ns <= kMaxLedgerNs, name, fmt::format("1 to {}, got {}", kMaxLedgerNs, ns));
  }
  return violations;
}

std::string MachineId() {
  static const std::string kId =
      fmt::format("{}, {}, {} workers", Architecture(), HostProcessor(), std::thread::hardware_concurrency());
  return kId;
}

std::string SoftwareId() { return SoftwareOf(Versions()); }

std::string Today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  return fmt::format("{:04}-{:02}-{:02}", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday);
}

Result<std::string> LedgerKind(const Contract& contract) {
  const Result<MaskFacts> facts = DescribeMask(contract);
  if (!facts) return tl::unexpected(facts.error());
  std::vector<std::string_view> words;
  if (facts->is_full) words.push_back("full");
  if (facts->is_causal) words.push_back("causal");
  if (facts->has_window) words.push_back("window");
  if (facts->needs_documents) words.push_back("documents");
  if (facts->needs_valid) words.push_back("valid");
  if (contract.routing) words.push_back("routed");
  if (!contract.routing && facts->needs_blocks) words.push_back("blocks");
  if (facts->has_bitmap) words.push_back("bitmap");
  if (words.empty()) words.push_back("static");
  if (contract.score.softcap > 0) words.push_back("softcap");
  if (contract.score.sink_logits) words.push_back("sinks");
  return fmt::format("{}", fmt::join(words, "-"));
}

Result<LedgerEntry> EntryFromReceipts(const Evidence& evidence) {
  const Receipt& run = evidence.custom_run;
  std::vector<Violation> violations;
  const auto expect = [&](bool holds, std::string field, std::string expected) {
    if (!holds) violations.push_back({std::move(field), std::move(expected)});
  };
  for (const auto& [name, receipt] : {std::pair<std::string, const Receipt&>{"custom_run", evidence.custom_run},
                                      {"default_run", evidence.default_run}}) {
    for (const Violation& v : CheckReceipt(receipt, evidence.terms))
      expect(false, fmt::format("{}.{}", name, v.field), v.expected);
    expect(receipt.ok, name + ".ok", fmt::format("a good run, got one that failed at {}", receipt.failed_at));
    expect(receipt.fallback_reason.empty(), name + ".fallback_reason",
           "nothing: the selected lane, on its own machine");
    expect(OptionOf(receipt, "forward") != "false", name + ".options.forward", "a run with a forward");
    for (const auto& [field, digest] :
         {std::pair<const char*, const std::string&>{"input_digest", receipt.input_digest},
          {"batch_digest", receipt.batch_digest},
          {"output_digest", receipt.output_digest}}) {
      expect(IsHex(digest), fmt::format("{}.{}", name, field), "a digest that was taken");
    }
    const int64_t ns = MeasuredNs(receipt);
    expect(ns >= 1 && ns <= kMaxLedgerNs, name + ".timings", fmt::format("1 to {} ns, got {}", kMaxLedgerNs, ns));
  }
  if (violations.empty()) CompareRuns(evidence.custom_run, evidence.default_run, violations);
  const Result<Contract> contract = ParseContract(run.contract_text, ".", evidence.terms);
  const Result<MaskFacts> facts = contract ? DescribeMask(*contract) : tl::unexpected(contract.error());
  const Result<std::string> kind = contract ? LedgerKind(*contract) : tl::unexpected(contract.error());
  expect(kind.has_value(), "custom_run.contract_text",
         kind ? "" : fmt::format("a contract that can be read here: {}", kind.error().message));
  expect(!facts || !facts->has_bitmap, "custom_run.contract_text",
         "a contract whose text says all: a bitmap is a file of its own");
  if (!violations.empty()) return Fail(ErrorCode::kLedgerEvidence, std::move(violations));
  const bool backward = OptionOf(run, "backward") == "true";
  LedgerEntry entry{.custom_lane = run.executed,
                    .default_lane = evidence.default_run.executed,
                    .target = run.target,
                    .kind = *kind,
                    .shape = contract->shape,
                    .dynamic_shapes = evidence.dynamic_shapes,
                    .backward = backward,
                    .custom_ns = MeasuredNs(run),
                    .default_ns = MeasuredNs(evidence.default_run),
                    .machine = run.ledger.machine,
                    .software = SoftwareOf(run.versions),
                    .mask_digest = run.mask_digest,
                    .date = evidence.date.empty() ? Today() : evidence.date};
  entry.custom_run = run;
  entry.default_run = evidence.default_run;
  return entry;
}

Result<LedgerEntry> ProveEntry(LedgerEntry entry, const Receipt& custom_again, const Receipt& default_again) {
  std::vector<Violation> violations = CheckEntry(entry, "");
  CompareAgain("custom_again", entry.custom_run, custom_again, violations);
  CompareAgain("default_again", entry.default_run, default_again, violations);
  const std::string check = OptionOf(custom_again, "check");
  if (check.rfind("passed", 0) != 0) {
    violations.push_back({"custom_again.options.check", "outputs that were checked against the contract, and passed"});
  }
  if (!violations.empty()) return Fail(ErrorCode::kLedgerEvidence, std::move(violations));
  entry.proof = {.date = Today(),
                 .machine = custom_again.ledger.machine,
                 .software = SoftwareOf(custom_again.versions),
                 .check = check,
                 .output_digest = custom_again.output_digest,
                 .custom_ns = MeasuredNs(custom_again),
                 .default_ns = MeasuredNs(default_again)};
  violations = CheckEntry(entry, "");
  if (!violations.empty()) return Fail(ErrorCode::kLedgerEvidence, std::move(violations));
  return entry;
}

}  // namespace tessera
