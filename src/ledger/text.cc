// Ledgers as JSON files.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "base/hash.h"
#include "base/spelling.h"
#include "base/try.h"
#include "io/file.h"
#include "io/file_lock.h"
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
  Json proof = Json::object();
  VisitProofFields(entry.proof, [&](const char* name, const auto& field) { proof[name] = field; });
  json["proof"] = std::move(proof);
  return json;
}

Json ValueOf(const Receipt& receipt) { return Json::parse(ToJson(receipt), nullptr, /*allow_exceptions=*/false); }

std::string Dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

// Nesting, numbers of values and double keys are refused before a tree is built.
class Walk : public JsonHandler {
 public:
  bool OnInteger(int64_t) override { return Count(); }
  bool OnText(std::string_view) override { return Count(); }
  bool OnOther(std::string_view) override { return Count(); }
  bool OnKey(std::string_view) override { return true; }
  bool OnObjectBegin() override { return Count(); }
  bool OnObjectEnd() override { return true; }
  bool OnArrayBegin() override { return Count(); }
  bool OnArrayEnd() override { return true; }

 private:
  bool Count() {
    return ++values_ <= kMaxLedgerValues || Refuse(fmt::format("it has more than {} values", kMaxLedgerValues));
  }
  int64_t values_ = 0;
};

class Reader {
 public:
  std::vector<Violation> violations;

  void ReadEntry(const Json& json, const std::string& at, LedgerEntry& entry) {
    if (!json.is_object()) return Violate(at, "an object expected");
    const size_t before = violations.size();
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
    known.emplace_back("proof");
    if (const auto proof = json.find("proof"); proof == json.end() || !proof->is_object()) {
      Violate(at + ".proof", "an object expected");
    } else {
      std::vector<std::string> fields;
      VisitProofFields(entry.proof, [&](const char* name, auto& field) {
        fields.emplace_back(name);
        Member(*proof, at + ".proof", name, field);
      });
      RefuseOthers(*proof, at + ".proof", fields);
    }
    for (const auto& [name, receipt] :
         {std::pair<const char*, Receipt*>{"custom_run", &entry.custom_run}, {"default_run", &entry.default_run}}) {
      known.emplace_back(name);
      ReadRun(json, at, name, *receipt);
    }
    known.emplace_back("id");
    std::string id;
    Member(json, at, "id", id);
    RefuseOthers(json, at, known);
    if (violations.size() > before) return;
    for (Violation& violation : CheckEntry(entry, at)) violations.push_back(std::move(violation));
    if (id != EntryId(entry))
      Violate(at + ".id", "that of what the entry says, which was changed after it was written");
  }

  void ReadRun(const Json& object, const std::string& at, const char* name, Receipt& receipt) {
    const std::string place = fmt::format("{}.{}", at, name);
    const auto it = object.find(name);
    if (it == object.end()) return Violate(place, "missing");
    Result<Receipt> read = ParseReceiptFields(Dump(*it));
    if (read) {
      receipt = std::move(*read);
    } else if (read.error().violations.empty()) {
      Violate(place, read.error().message);
    } else {
      for (const Violation& v : read.error().violations) Violate(fmt::format("{}.{}", place, v.field), v.expected);
    }
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

}  // namespace

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
  if (ledger.version != 2) {
    return Fail(ErrorCode::kLedgerInvalid,
                std::vector<Violation>{{"version", fmt::format("2 expected, got {}: entries are made again by `tessera "
                                                               "ledger add`, from receipts of this version",
                                                               ledger.version)}});
  }
  const auto entries = json.find("entries");
  if (entries == json.end() || !entries->is_array()) {
    reader.Violate("entries", "an array expected");
  } else if (static_cast<int64_t>(entries->size()) > kMaxLedgerEntries) {
    reader.Violate("entries", fmt::format("at most {}, got {}", kMaxLedgerEntries, entries->size()));
  } else {
    for (const Json& entry : *entries) {
      const std::string at = fmt::format("entries[{}]", ledger.entries.size());
      reader.ReadEntry(entry, at, ledger.entries.emplace_back());
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

// One line for each entry: a file that people can look through and compare.
std::string ToJson(const Ledger& ledger) {
  std::vector<std::string> lines;
  for (const LedgerEntry& entry : ledger.entries) {
    Json json = ToValue(entry);
    json["id"] = EntryId(entry);
    json["custom_run"] = ValueOf(entry.custom_run);
    json["default_run"] = ValueOf(entry.default_run);
    lines.push_back(Dump(json));
  }
  return fmt::format("{{\n\"version\": {},\n\"entries\": [{}{}{}]\n}}", ledger.version, lines.empty() ? "" : "\n",
                     fmt::join(lines, ",\n"), lines.empty() ? "" : "\n");
}

std::string ToJson(const LedgerEntry& entry) {
  Json json = ToValue(entry);
  json["id"] = EntryId(entry);
  json["custom_receipt"] = ReceiptFingerprint(entry.custom_run);
  json["default_receipt"] = ReceiptFingerprint(entry.default_run);
  return Dump(json);
}

Status WriteLedger(const std::string& path, const Ledger& ledger) {
  const std::string text = ToJson(ledger) + "\n";
  if (static_cast<int64_t>(text.size()) > kMaxLedgerBytes) {
    return Fail(ErrorCode::kLedgerInvalid,
                fmt::format("the ledger would have {} bytes, and {} is the limit", text.size(), kMaxLedgerBytes), path);
  }
  return WriteFile(path, text);
}

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

Result<Ledger> AddToLedger(const std::string& path, LedgerEntry entry) {
  const FileLock lock = TESSERA_TRY(FileLock::Take(path));
  Ledger ledger;
  // One that cannot be read is never written over.
  if (std::error_code ignored; std::filesystem::exists(path, ignored)) ledger = TESSERA_TRY(ReadLedger(path));
  TESSERA_TRY(AddEntry(ledger, std::move(entry)));
  TESSERA_TRY(WriteLedger(path, ledger));
  return ledger;
}

std::string EntryId(const LedgerEntry& entry) {
  Hasher hasher;
  hasher.Text("tessera ledger entry 2");
  hasher.Text(Dump(ToValue(entry)));
  hasher.Text(ToJson(entry.custom_run));
  hasher.Text(ToJson(entry.default_run));
  return Hex(hasher.Finish());
}

bool LedgerEntry::operator==(const LedgerEntry& other) const { return EntryId(*this) == EntryId(other); }

std::string ReceiptFingerprint(const Receipt& receipt) {
  Hasher hasher;
  hasher.Text("tessera receipt");
  hasher.Text(ToJson(receipt));
  return Hex(hasher.Finish());
}

Result<Receipt> ReadMeasurement(const std::string& path) {
  const Result<std::string> text = ReadFile(path, kMaxLedgerBytes);
  if (!text) return tl::unexpected(text.error());
  Walk walk;
  const bool is_good = WalkJson(*text, kMaxLedgerNesting, walk).empty();
  const Json json = is_good ? Json::parse(*text, nullptr, /*allow_exceptions=*/false) : Json();
  // Anything but a benchmark is read as a receipt, and is told what is wrong with it as such.
  if (!json.is_object() || !json.contains("receipt") || !json.contains("median_ns")) return ReadReceipt(path);
  Result<Receipt> receipt = ParseReceipt(Dump(json["receipt"]));
  if (!receipt) {
    receipt.error().where = path;
    return receipt;
  }
  const int64_t ns = MeasuredNs(*receipt);
  if (json["median_ns"] != ns) {
    return Fail(ErrorCode::kLedgerEvidence,
                std::vector<Violation>{{"median_ns", fmt::format("{}, the time of its receipt, got {}", ns,
                                                                 Shorten(Dump(json["median_ns"]), 80))}},
                path);
  }
  return receipt;
}

}  // namespace tessera
