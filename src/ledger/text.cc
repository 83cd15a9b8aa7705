// Ledgers as JSON files.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/hash.h"
#include "base/spelling.h"
#include "base/try.h"
#include "io/file.h"
#include "io/file_lock.h"
#include "io/json_writer.h"
#include "io/tree_reader.h"
#include "ledger/ledger.h"
#include "ledger/limits.h"
#include "receipt/json.h"

namespace tessera {
namespace {

using Kind = DocumentValue::Kind;

constexpr JsonLimits kLimits = {.max_depth = kMaxLedgerNesting, .max_values = kMaxLedgerValues};

void Write(JsonWriter& json, int64_t value) { json.Int(value); }
void Write(JsonWriter& json, bool value) { json.Bool(value); }
void Write(JsonWriter& json, const std::string& value) { json.Text(value); }

// Opens an object and writes what the entry says itself into it.
JsonWriter BeginEntry(const LedgerEntry& entry) {
  JsonWriter json;
  json.BeginObject();
  VisitEntryFields(entry, [&](const char* name, const auto& field) { Write(json.Key(name), field); });
  json.Key("dtype").Text(ToText(entry.shape.dtype));
  json.Key("proof").BeginObject();
  VisitProofFields(entry.proof, [&](const char* name, const auto& field) { Write(json.Key(name), field); });
  json.EndObject();
  return json;
}

class Reader : public TreeReader {
 public:
  void ReadEntry(const DocumentValue& json, const std::string& at, LedgerEntry& entry) {
    if (!IsTable(json, at)) return;
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
    if (const DocumentValue* proof = Find(json, at, "proof"); proof != nullptr && IsTable(*proof, at + ".proof")) {
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

  void ReadRun(const DocumentValue& object, const std::string& at, const char* name, Receipt& receipt) {
    const std::string place = fmt::format("{}.{}", at, name);
    const DocumentValue* value = Find(object, at, name);
    if (value == nullptr) return;
    Result<Receipt> read = ReadReceiptTree(*value);
    if (read) {
      receipt = std::move(*read);
    } else if (read.error().violations.empty()) {
      Violate(place, read.error().message);
    } else {
      for (const Violation& v : read.error().violations) Violate(fmt::format("{}.{}", place, v.field), v.expected);
    }
  }

  template <class T>
  void Member(const DocumentValue& object, const std::string& at, const char* name, T& out) {
    if (const DocumentValue* value = Find(object, at, name)) Read(*value, Place(at, name), out);
  }
};

}  // namespace

Result<Ledger> ParseLedger(std::string_view text) {
  if (static_cast<int64_t>(text.size()) > kMaxLedgerBytes) {
    return Fail(ErrorCode::kLedgerInvalid, fmt::format("the ledger has more than {} bytes", kMaxLedgerBytes));
  }
  auto tree = ReadJsonTree(text, kLimits);
  if (!tree) return Fail(ErrorCode::kLedgerInvalid, "the ledger is not well-formed JSON: " + tree.error());
  const DocumentValue& json = *tree;
  if (json.kind != Kind::kTable) return Fail(ErrorCode::kLedgerInvalid, "the ledger must be one JSON object");
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
  const DocumentValue* entries = json.Find("entries");
  if (entries == nullptr || entries->kind != Kind::kArray) {
    reader.Violate("entries", "an array expected");
  } else if (static_cast<int64_t>(entries->items.size()) > kMaxLedgerEntries) {
    reader.Violate("entries", fmt::format("at most {}, got {}", kMaxLedgerEntries, entries->items.size()));
  } else {
    for (const DocumentValue& entry : entries->items) {
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
    JsonWriter json = BeginEntry(entry);
    json.Key("id").Text(EntryId(entry));
    WriteReceipt(entry.custom_run, json.Key("custom_run"));
    WriteReceipt(entry.default_run, json.Key("default_run"));
    lines.push_back(json.EndObject().Take());
  }
  return fmt::format("{{\n\"version\": {},\n\"entries\": [{}{}{}]\n}}", ledger.version, lines.empty() ? "" : "\n",
                     fmt::join(lines, ",\n"), lines.empty() ? "" : "\n");
}

std::string ToJson(const LedgerEntry& entry) {
  JsonWriter json = BeginEntry(entry);
  json.Key("id").Text(EntryId(entry));
  json.Key("custom_receipt").Text(ReceiptFingerprint(entry.custom_run));
  json.Key("default_receipt").Text(ReceiptFingerprint(entry.default_run));
  return json.EndObject().Take();
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
  hasher.Text(BeginEntry(entry).EndObject().Take());
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
  auto tree = ReadJsonTree(*text, kLimits);
  const DocumentValue* median = tree && tree->kind == Kind::kTable ? tree->Find("median_ns") : nullptr;
  const DocumentValue* run = median != nullptr ? tree->Find("receipt") : nullptr;
  // Anything but a benchmark is read as a receipt, and is told what is wrong with it as such.
  if (run == nullptr) return ReadReceipt(path);
  Result<Receipt> receipt = ReadReceiptTree(*run);
  if (receipt) {
    std::vector<Violation> violations = CheckReceipt(*receipt);
    if (!violations.empty()) receipt = Fail(ErrorCode::kReceiptInvalid, std::move(violations));
  }
  if (!receipt) {
    receipt.error().where = path;
    return receipt;
  }
  const int64_t ns = MeasuredNs(*receipt);
  if (median->kind != Kind::kInteger || median->integer != ns) {
    return Fail(ErrorCode::kLedgerEvidence,
                std::vector<Violation>{{"median_ns", fmt::format("{}, the time of its receipt, got {}", ns,
                                                                 Shorten(median->Describe(), 80))}},
                path);
  }
  return receipt;
}

}  // namespace tessera
