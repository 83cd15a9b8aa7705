#include "io/tree_reader.h"

#include <algorithm>
#include <cmath>

#include "base/spelling.h"

namespace tessera {

using Kind = DocumentValue::Kind;

void TreeReader::Read(const DocumentValue& value, const std::string& at, int64_t& out) {
  if (value.kind != Kind::kInteger) return Violate(at, "an integer expected");
  out = value.integer;
}

void TreeReader::Read(const DocumentValue& value, const std::string& at, double& out) {
  const bool is_number = value.kind == Kind::kInteger || (value.kind == Kind::kReal && std::isfinite(value.real));
  if (!is_number) return Violate(at, "a number expected");
  out = value.kind == Kind::kInteger ? static_cast<double>(value.integer) : value.real;
}

void TreeReader::Read(const DocumentValue& value, const std::string& at, bool& out) {
  if (value.kind != Kind::kBool) return Violate(at, "true or false expected");
  out = value.boolean;
}

void TreeReader::Read(const DocumentValue& value, const std::string& at, std::string& out) {
  if (value.kind != Kind::kString) return Violate(at, "a string expected");
  out = value.text;
}

void TreeReader::Read(const DocumentValue& value, const std::string& at, std::map<std::string, std::string>& out) {
  if (!IsTable(value, at)) return;
  for (size_t i = 0; i < value.keys.size(); ++i) Read(value.items[i], Place(at, value.keys[i]), out[value.keys[i]]);
}

bool TreeReader::IsTable(const DocumentValue& value, const std::string& at) {
  if (value.kind != Kind::kTable) Violate(at, "an object expected");
  return value.kind == Kind::kTable;
}

bool TreeReader::IsArray(const DocumentValue& value, const std::string& at) {
  if (value.kind != Kind::kArray) Violate(at, "an array expected");
  return value.kind == Kind::kArray;
}

const DocumentValue* TreeReader::Find(const DocumentValue& table, const std::string& at, const char* name) {
  const DocumentValue* value = table.Find(name);
  if (value == nullptr) Violate(Place(at, name), "missing");
  return value;
}

void TreeReader::RefuseOthers(const DocumentValue& table, const std::string& at,
                              const std::vector<std::string>& known) {
  for (const std::string& key : table.keys) {
    if (std::find(known.begin(), known.end(), key) == known.end())
      Violate(Place(at, Shorten(key, 80)), "no such field");
  }
}

}  // namespace tessera
