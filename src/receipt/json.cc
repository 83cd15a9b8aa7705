// Receipts as JSON. Reading is strict: every field, no other field, the right type.
#include "receipt/json.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "base/spelling.h"
#include "base/try.h"
#include "io/file.h"
#include "io/tree_reader.h"
#include "receipt/fields.h"
#include "receipt/limits.h"

namespace tessera {
namespace {

using Kind = DocumentValue::Kind;

void Write(JsonWriter& json, int64_t value) { json.Int(value); }
void Write(JsonWriter& json, double value) { json.Real(value); }
void Write(JsonWriter& json, bool value) { json.Bool(value); }
void Write(JsonWriter& json, const std::string& value) { json.Text(value); }
void Write(JsonWriter& json, const std::map<std::string, std::string>& map) {
  json.BeginObject();
  for (const auto& [key, value] : map) json.Key(key).Text(value);
  json.EndObject();
}
void Write(JsonWriter& json, const LaneDecision& d) {
  json.BeginObject().Key("lane").Text(d.lane).Key("step").Text(d.step);
  json.Key("accepted").Bool(d.decision.accepted).Key("reason").Text(ReasonText(d.decision.reason));
  json.Key("detail").Text(d.decision.detail).EndObject();
}
template <HasFields Group>
void Write(JsonWriter& json, const Group& group);
template <class T>
void Write(JsonWriter& json, const std::vector<T>& values) {
  json.BeginArray();
  for (const T& value : values) Write(json, value);
  json.EndArray();
}
template <HasFields Group>
void Write(JsonWriter& json, const Group& group) {
  json.BeginObject();
  VisitFields(group, [&](const char* name, const auto& field) { Write(json.Key(name), field); });
  json.EndObject();
}

class ReceiptReader : public TreeReader {
 public:
  using TreeReader::Read;

  template <HasFields Group>
  void Read(const DocumentValue& value, const std::string& at, Group& out) {
    if (!IsTable(value, at)) return;
    std::vector<std::string> known;
    VisitFields(out, [&](const char* name, const auto&) { known.push_back(name); });
    RefuseOthers(value, at, known);
    VisitFields(out, [&](const char* name, auto& field) { Member(value, at, name, field); });
  }
  void Read(const DocumentValue& value, const std::string& at, LaneDecision& out) {
    if (!IsTable(value, at)) return;
    RefuseOthers(value, at, {"lane", "step", "accepted", "reason", "detail"});
    Member(value, at, "lane", out.lane);
    Member(value, at, "step", out.step);
    Member(value, at, "accepted", out.decision.accepted);
    Member(value, at, "detail", out.decision.detail);
    std::string reason;
    Member(value, at, "reason", reason);
    if (std::optional<ReasonCode> code = FindReason(reason)) {
      out.decision.reason = *code;
    } else {
      Violate(at + ".reason", fmt::format("a catalogued reason expected, got \"{}\"", Shorten(reason, 80)));
    }
  }
  template <class T>
  void Read(const DocumentValue& value, const std::string& at, std::vector<T>& out) {
    if (!IsArray(value, at)) return;
    out.resize(value.items.size());
    for (size_t i = 0; i < out.size(); ++i) Read(value.items[i], fmt::format("{}[{}]", at, i), out[i]);
  }
  template <class T>
  void Member(const DocumentValue& table, const std::string& at, const char* name, T& out) {
    if (const DocumentValue* value = Find(table, at, name)) Read(*value, Place(at, name), out);
  }
};

// A tree of what this version writes for a value.
template <class T>
DocumentValue TreeOf(const T& value) {
  JsonWriter json;
  Write(json, value);
  return ReadJsonTree(json.Take(), {.max_depth = kMaxReceiptNesting}).value();
}

void Put(DocumentValue& table, const std::string& key, DocumentValue value) {
  for (size_t i = 0; i < table.keys.size(); ++i) {
    if (table.keys[i] != key) continue;
    table.items[i] = std::move(value);
    return;
  }
  table.keys.push_back(key);
  table.items.push_back(std::move(value));
}

// Takes a member out of a table; an empty table where it is none.
DocumentValue TakeTable(DocumentValue& table, const std::string& key) {
  for (size_t i = 0; i < table.keys.size(); ++i) {
    if (table.keys[i] != key) continue;
    DocumentValue value = std::move(table.items[i]);
    table.keys.erase(table.keys.begin() + static_cast<int64_t>(i));
    table.items.erase(table.items.begin() + static_cast<int64_t>(i));
    return value.kind == Kind::kTable ? std::move(value) : DocumentValue{};
  }
  return {};
}

// Version 1 had one group for the plugin and one for each pass's program. What it did not say stays empty.
void ReadAsVersion1(DocumentValue& tree) {
  DocumentValue device = TreeOf(DeviceUse{});
  DocumentValue xla = TakeTable(tree, "xla");
  for (size_t i = 0; i < xla.keys.size(); ++i) {
    const std::string& name = xla.keys[i];
    Put(device, name == "device" ? "ordinal" : name == "device_kind" ? "name" : name, std::move(xla.items[i]));
  }
  DocumentValue programs;
  programs.kind = Kind::kArray;
  for (const std::string pass : {"forward", "backward"}) {
    DocumentValue program = TakeTable(tree, "xla_" + pass);
    const DocumentValue* source = program.Find("source");
    if (source == nullptr || (source->kind == Kind::kString && source->text.empty())) continue;
    Put(program, "pass", TreeOf(pass));
    programs.items.push_back(std::move(program));
  }
  Put(tree, "ran_on", TreeOf(std::string()));
  Put(tree, "device", std::move(device));
  Put(tree, "programs", std::move(programs));
  Put(tree, "work", TreeOf(WorkUse{}));
}

// A receipt from before there was a bridge says neither whose a kernel was nor what crossed; one from before there were
// receipts of emitted programs, nothing of kernels and files.
void AddWhatCameLater(DocumentValue& tree) {
  if (tree.Find("owner") == nullptr) Put(tree, "owner", TreeOf(std::string()));
  if (tree.Find("crossing") == nullptr) Put(tree, "crossing", TreeOf(CrossingUse{}));
  if (tree.Find("kernels") == nullptr) Put(tree, "kernels", TreeOf(std::vector<KernelUse>()));
  if (tree.Find("files") == nullptr) Put(tree, "files", TreeOf(std::vector<FileUse>()));
}

}  // namespace

void WriteReceipt(const Receipt& receipt, JsonWriter& json) {
  json.BeginObject();
  VisitFields(receipt, [&](const char* name, const auto& field) { Write(json.Key(name), field); });
  json.EndObject();
}

std::string ToJson(const Receipt& receipt) {
  JsonWriter json(2);
  WriteReceipt(receipt, json);
  return json.Take();
}

Result<Receipt> ReadReceiptTree(DocumentValue tree) {
  if (tree.kind != Kind::kTable) return Fail(ErrorCode::kReceiptInvalid, "the receipt must be one JSON object");
  const DocumentValue* version = tree.Find("version");
  if (version != nullptr && version->kind == Kind::kInteger && version->integer == 1) ReadAsVersion1(tree);
  AddWhatCameLater(tree);
  Receipt receipt;
  ReceiptReader reader;
  std::vector<std::string> known;
  VisitFields(receipt, [&](const char* name, auto& field) {
    known.push_back(name);
    reader.Member(tree, "", name, field);
  });
  reader.RefuseOthers(tree, "", known);
  if (!reader.violations.empty()) return Fail(ErrorCode::kReceiptInvalid, std::move(reader.violations));
  return receipt;
}

Result<Receipt> ParseReceiptFields(std::string_view text) {
  auto tree = ReadJsonTree(text, {.max_depth = kMaxReceiptNesting, .max_values = kMaxReceiptValues});
  if (!tree) return Fail(ErrorCode::kReceiptInvalid, "the receipt is not well-formed JSON: " + tree.error());
  return ReadReceiptTree(std::move(*tree));
}

Result<Receipt> ParseReceipt(std::string_view text, const MaskTerms* terms) {
  Result<Receipt> receipt = ParseReceiptFields(text);
  if (!receipt) return receipt;
  std::vector<Violation> violations = CheckReceipt(*receipt, terms);
  if (!violations.empty()) return Fail(ErrorCode::kReceiptInvalid, std::move(violations));
  return receipt;
}

Result<Receipt> ReadReceipt(const std::string& path, bool is_strict, const MaskTerms* terms) {
  Result<std::string> text = ReadFile(path, kMaxReceiptBytes);
  if (!text) return tl::unexpected(text.error());
  Result<Receipt> receipt = ParseReceiptFields(*text);
  if (receipt && (is_strict || receipt->versions == Versions())) {
    std::vector<Violation> violations = CheckReceipt(*receipt, terms);
    if (!violations.empty()) return Fail(ErrorCode::kReceiptInvalid, std::move(violations), path);
  }
  if (!receipt) receipt.error().where = path;
  return receipt;
}

}  // namespace tessera
