// Ledgers as JSON files, and where an entry's values come from: receipts, the contract, this machine and this build.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/hash.h"
#include "base/host.h"
#include "base/spelling.h"
#include "contract/limits.h"
#include "io/file.h"
#include "io/json_events.h"
#include "ledger/ledger.h"
#include "ledger/limits.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

Json ToValue(const LedgerEntry& entry) {
  Json json = Json::object();
  VisitEntryFields(entry, [&](const char* name, const auto& field) { json[name] = field; });
  json["dtype"] = ToText(entry.shape.dtype);
  return json;
}

// Nesting and double keys are refused before a tree is built; the file's size bounds the rest.
class Walk : public JsonHandler {
 public:
  bool OnInteger(int64_t) override { return true; }
  bool OnText(std::string_view) override { return true; }
  bool OnOther(std::string_view) override { return true; }
  bool OnKey(std::string_view) override { return true; }
  bool OnObjectBegin() override { return true; }
  bool OnObjectEnd() override { return true; }
  bool OnArrayBegin() override { return true; }
  bool OnArrayEnd() override { return true; }
};

class Reader {
 public:
  std::vector<Violation> violations;

  void ReadEntry(const Json& json, const std::string& at, LedgerEntry& entry) {
    if (!json.is_object()) return Violate(at, "an object expected");
    std::vector<std::string> known;
    VisitEntryFields(entry, [&](const char* name, auto& field) {
      known.emplace_back(name);
      Member(json, at, name, field);
    });
    known.emplace_back("dtype");
    std::string dtype;
    Member(json, at, "dtype", dtype);
    bool is_known = false;
    for (const DType type : {DType::kF32, DType::kBf16, DType::kF16}) {
      if (dtype != ToText(type)) continue;
      entry.shape.dtype = type;
      is_known = true;
    }
    if (!is_known) Violate(at + ".dtype", "f32, bf16 or f16 expected");
    RefuseOthers(json, at, known);
  }

  template <class T>
  void Member(const Json& object, const std::string& at, const char* name, T& out) {
    const std::string place = at.empty() ? name : at + "." + name;
    const auto it = object.find(name);
    if (it == object.end()) return Violate(place, "missing");
    Read(*it, place, out);
  }

  void RefuseOthers(const Json& object, const std::string& at, const std::vector<std::string>& known) {
    for (const auto& [key, value] : object.items()) {
      if (std::find(known.begin(), known.end(), key) != known.end()) continue;
      Violate((at.empty() ? "" : at + ".") + Shorten(key, 80), "no such field");
    }
  }

  void Violate(std::string field, std::string expected) {
    violations.push_back({std::move(field), std::move(expected)});
  }

 private:
  void Read(const Json& json, const std::string& at, std::string& out) {
    if (!json.is_string()) return Violate(at, "a string expected");
    out = json.get<std::string>();
  }
  void Read(const Json& json, const std::string& at, bool& out) {
    if (!json.is_boolean()) return Violate(at, "true or false expected");
    out = json.get<bool>();
  }
  void Read(const Json& json, const std::string& at, int64_t& out) {
    // Numbers beyond 63 bits were refused by the walk.
    if (!json.is_number_integer()) return Violate(at, "an integer expected");
    out = json.get<int64_t>();
  }
};

int64_t TimeOf(const Receipt& receipt, bool backward) {
  int64_t ns = 0;
  for (const Timing& timing : receipt.timings) {
    if (timing.name == "forward" || (backward && timing.name == "backward")) ns += timing.ns;
  }
  return ns;
}

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

std::vector<Violation> CheckEntry(const LedgerEntry& e, const std::string& at) {
  std::vector<Violation> violations;
  const auto expect = [&](bool holds, std::string_view field, std::string expected) {
    if (!holds) violations.push_back({fmt::format("{}{}{}", at, at.empty() ? "" : ".", field), std::move(expected)});
  };
  for (const auto& [field, text] : {std::pair<const char*, const std::string&>{"custom_lane", e.custom_lane},
                                    {"default_lane", e.default_lane},
                                    {"target", e.target},
                                    {"kind", e.kind},
                                    {"machine", e.machine},
                                    {"software", e.software}}) {
    expect(!text.empty() && text.size() <= 256, field, "text of 1 to 256 bytes");
  }
  expect(e.custom_lane != e.default_lane, "default_lane", "another lane than the custom one");
  const auto in_range = [&](std::string_view field, int64_t value, int64_t high) {
    expect(value >= 1 && value <= high, field, fmt::format("1 to {}, got {}", high, value));
  };
  in_range("batch", e.shape.batch, kMaxBatch);
  in_range("q_len", e.shape.q_len, kMaxLength);
  in_range("kv_len", e.shape.kv_len, kMaxLength);
  in_range("num_q_heads", e.shape.num_q_heads, kMaxHeads);
  in_range("num_kv_heads", e.shape.num_kv_heads, kMaxHeads);
  in_range("dim_qk", e.shape.dim_qk, kMaxDim);
  in_range("dim_v", e.shape.dim_v, kMaxDim);
  in_range("custom_ns", e.custom_ns, kMaxLedgerNs);
  in_range("default_ns", e.default_ns, kMaxLedgerNs);
  expect(e.mask_digest.empty() || IsHex(e.mask_digest), "mask_digest", "nothing, or 32 lower-case hex digits");
  expect(e.receipt.empty() || IsHex(e.receipt), "receipt", "nothing, or 32 lower-case hex digits");
  expect(IsDate(e.date), "date", "a date as 2026-01-31");
  return violations;
}

Result<Ledger> ParseLedger(std::string_view text) {
  if (static_cast<int64_t>(text.size()) > kMaxLedgerBytes) {
    return Fail(ErrorCode::kLedgerInvalid, fmt::format("the ledger has more than {} bytes", kMaxLedgerBytes));
  }
  Walk walk;
  if (const std::string problem = WalkJson(text, kMaxLedgerNesting, walk); !problem.empty()) {
    return Fail(ErrorCode::kLedgerInvalid, "the ledger is not well-formed JSON: " + problem);
  }
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return Fail(ErrorCode::kLedgerInvalid, "the ledger must be one JSON object");
  Ledger ledger;
  Reader reader;
  reader.RefuseOthers(json, "", {"version", "entries"});
  reader.Member(json, "", "version", ledger.version);
  if (ledger.version != 1) reader.Violate("version", fmt::format("1 expected, got {}", ledger.version));
  const auto entries = json.find("entries");
  if (entries == json.end() || !entries->is_array()) {
    reader.Violate("entries", "an array expected");
  } else if (static_cast<int64_t>(entries->size()) > kMaxLedgerEntries) {
    reader.Violate("entries", fmt::format("at most {}, got {}", kMaxLedgerEntries, entries->size()));
  } else {
    for (const Json& entry : *entries) {
      const std::string at = fmt::format("entries[{}]", ledger.entries.size());
      const size_t before = reader.violations.size();
      reader.ReadEntry(entry, at, ledger.entries.emplace_back());
      if (reader.violations.size() > before) continue;
      for (Violation& violation : CheckEntry(ledger.entries.back(), at)) {
        reader.violations.push_back(std::move(violation));
      }
    }
  }
  if (!reader.violations.empty()) return Fail(ErrorCode::kLedgerInvalid, std::move(reader.violations));
  return ledger;
}

Result<Ledger> ReadLedger(const std::string& path) {
  const Result<std::string> text = ReadFile(path, kMaxLedgerBytes);
  if (!text) return tl::unexpected(text.error());
  Result<Ledger> ledger = ParseLedger(*text);
  if (!ledger) ledger.error().where = path;
  return ledger;
}

std::string ToJson(const Ledger& ledger) {
  Json json = Json{{"version", ledger.version}, {"entries", Json::array()}};
  for (const LedgerEntry& entry : ledger.entries) json["entries"].push_back(ToValue(entry));
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

std::string ToJson(const LedgerEntry& entry) {
  return ToValue(entry).dump(-1, ' ', false, Json::error_handler_t::replace);
}

Status WriteLedger(const std::string& path, const Ledger& ledger) { return WriteFile(path, ToJson(ledger) + "\n"); }

Status AddEntry(Ledger& ledger, LedgerEntry entry) {
  if (std::vector<Violation> violations = CheckEntry(entry, ""); !violations.empty()) {
    return Fail(ErrorCode::kLedgerEvidence, std::move(violations));
  }
  const auto is_same = [&](const LedgerEntry& e) {
    return e.custom_lane == entry.custom_lane && e.default_lane == entry.default_lane && e.target == entry.target &&
           e.kind == entry.kind && e.shape == entry.shape && e.dynamic_shapes == entry.dynamic_shapes &&
           e.backward == entry.backward && e.machine == entry.machine && e.software == entry.software;
  };
  ledger.entries.erase(std::remove_if(ledger.entries.begin(), ledger.entries.end(), is_same), ledger.entries.end());
  if (static_cast<int64_t>(ledger.entries.size()) >= kMaxLedgerEntries) {
    return Fail(ErrorCode::kLedgerInvalid,
                fmt::format("the ledger has {} entries and takes no more: begin another, or remove those of machines "
                            "and versions that are gone",
                            ledger.entries.size()));
  }
  ledger.entries.push_back(std::move(entry));
  return {};
}

std::string EntryId(const LedgerEntry& entry) {
  Hasher hasher;
  hasher.Text("tessera ledger entry 1");
  hasher.Text(ToJson(entry));
  return Hex(hasher.Finish());
}

std::string ReceiptFingerprint(const Receipt& receipt) {
  Hasher hasher;
  hasher.Text("tessera receipt");
  hasher.Text(ToJson(receipt));
  return Hex(hasher.Finish());
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
  for (const auto& [name, receipt] :
       {std::pair<std::string, const Receipt&>{"custom", evidence.custom_run}, {"default", evidence.default_run}}) {
    expect(receipt.ok, name + ".ok", fmt::format("a good run, got one that failed at {}", receipt.failed_at));
    expect(receipt.executed == receipt.selected, name + ".executed", "the selected lane, not a fallback");
    expect(OptionOf(receipt, "forward") != "false", name + ".options.forward", "a run with a forward");
  }
  if (violations.empty()) CompareRuns(evidence.custom_run, evidence.default_run, violations);
  expect(OptionOf(run, "check").rfind("passed", 0) == 0, "custom.options.check",
         "a run that --check compared with the oracle, and passed");
  const Result<Contract> contract = ParseContract(run.contract_text, ".", evidence.terms);
  const Result<std::string> kind = contract ? LedgerKind(*contract) : tl::unexpected(contract.error());
  expect(kind.has_value(), "custom.contract_text",
         kind ? "" : fmt::format("a contract that can be read here: {}", kind.error().message));
  if (!violations.empty()) return Fail(ErrorCode::kLedgerEvidence, std::move(violations));
  const bool backward = OptionOf(run, "backward") == "true";
  LedgerEntry entry{.custom_lane = run.executed,
                    .default_lane = evidence.default_run.executed,
                    .target = run.target,
                    .kind = *kind,
                    .shape = contract->shape,
                    .dynamic_shapes = evidence.dynamic_shapes,
                    .backward = backward,
                    .custom_ns = TimeOf(run, backward),
                    .default_ns = TimeOf(evidence.default_run, backward),
                    .machine = run.ledger.machine,
                    .software = SoftwareOf(run.versions),
                    .mask_digest = run.mask_digest,
                    .reference_passed = true,
                    .receipt = ReceiptFingerprint(run),
                    .date = evidence.date.empty() ? Today() : evidence.date};
  if (std::vector<Violation> bad = CheckEntry(entry, ""); !bad.empty()) {
    return Fail(ErrorCode::kLedgerEvidence, std::move(bad));
  }
  return entry;
}

}  // namespace tessera
