#include "contract/contract_section.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/spelling.h"

namespace tessera {

using Kind = DocumentValue::Kind;

ContractSection::ContractSection(std::string path, const DocumentValue* table, std::vector<Violation>* problems)
    : path_(std::move(path)), table_(table), problems_(problems) {}

const DocumentValue* ContractSection::Any(std::string_view key) {
  known_.push_back(key);
  return table_ == nullptr ? nullptr : table_->Find(key);
}

const DocumentValue* ContractSection::Table(std::string_view key) {
  const DocumentValue* value = Any(key);
  if (value == nullptr || value->kind == Kind::kTable) return value;
  WrongType(key, "a table", *value);
  return nullptr;
}

bool ContractSection::Integer(std::string_view key, int64_t* out) {
  const DocumentValue* value = Any(key);
  if (value == nullptr) return false;
  if (value->kind != Kind::kInteger) {
    WrongType(key, "an integer", *value);
    return false;
  }
  *out = value->integer;
  return true;
}

bool ContractSection::RequiredInteger(std::string_view key, int64_t* out) {
  if (Integer(key, out)) return true;
  if (table_ == nullptr || table_->Find(key) == nullptr) Missing(key, "an integer");
  return false;
}

bool ContractSection::Real(std::string_view key, double* out) {
  const DocumentValue* value = Any(key);
  if (value == nullptr) return false;
  if (value->kind != Kind::kReal && value->kind != Kind::kInteger) {
    WrongType(key, "a number", *value);
    return false;
  }
  *out = value->kind == Kind::kReal ? value->real : static_cast<double>(value->integer);
  if (*out == 0.0) *out = 0.0;  // one zero: -0.0 would print differently and compare equal
  return true;
}

bool ContractSection::Bool(std::string_view key, bool* out) {
  const DocumentValue* value = Any(key);
  if (value == nullptr) return false;
  if (value->kind != Kind::kBool) {
    WrongType(key, "true or false", *value);
    return false;
  }
  *out = value->boolean;
  return true;
}

bool ContractSection::Text(std::string_view key, std::string* out) {
  const DocumentValue* value = Any(key);
  if (value == nullptr) return false;
  if (value->kind != Kind::kString) {
    WrongType(key, "a string", *value);
    return false;
  }
  *out = value->text;
  return true;
}

void ContractSection::Capacity(std::string_view key, Limit* out) {
  const DocumentValue* value = Any(key);
  if (value == nullptr) return;
  if (value->kind == Kind::kString && value->text == "exact") {
    *out = {Limit::Kind::kExact, 0};
  } else if (value->kind == Kind::kString && value->text == "pow2") {
    *out = {Limit::Kind::kPow2, 0};
  } else if (value->kind == Kind::kInteger) {
    *out = {Limit::Kind::kNumber, value->integer};
  } else {
    WrongType(key, "\"exact\", \"pow2\" or a positive integer", *value);
  }
}

void ContractSection::Missing(std::string_view key, std::string_view expected) {
  Problem(key, fmt::format("missing, expected {}", expected));
}

void ContractSection::WrongType(std::string_view key, std::string_view expected, const DocumentValue& found) {
  Problem(key, fmt::format("expected {}, found {}", expected, found.Describe()));
}

void ContractSection::Problem(std::string_view key, std::string expected) {
  problems_->push_back({PathOf(key), std::move(expected)});
}

std::string ContractSection::PathOf(std::string_view key) const {
  if (path_.empty()) return std::string(key);
  return fmt::format("{}.{}", path_, key);
}

void ContractSection::Finish() {
  if (table_ == nullptr) return;
  for (const std::string& key : table_->keys) {
    if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
    // A key can be any text, so the path shows it quoted when it is not a plain name.
    const bool plain = !key.empty() && key.size() <= 64 && std::all_of(key.begin(), key.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
    });
    Problem(plain ? key : Excerpt(key),
            fmt::format("unknown field, expected one of {}{}", fmt::join(known_, ", "), DidYouMean(key, known_)));
  }
}

}  // namespace tessera
