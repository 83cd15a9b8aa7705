// What TOML and JSON have in common: a tree of values. The contract is read from this, so both formats have the same
// fields, the same checks and the same messages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/error.h"

namespace tessera {

struct DocumentValue {
  enum class Kind : uint8_t { kBool, kInteger, kReal, kString, kArray, kTable, kOther };
  Kind kind = Kind::kTable;
  bool boolean = false;
  int64_t integer = 0;
  double real = 0.0;
  std::string text;                  // kString: the content; kReal, kOther: how a message calls it
  std::vector<std::string> keys;     // kTable: in step with `items`, no key twice
  std::vector<DocumentValue> items;  // kArray, kTable

  // Null when the table has no such key.
  const DocumentValue* Find(std::string_view key) const;
  // For messages: "the string \"bf16\"", "the integer 3", "an array".
  std::string Describe() const;
};

// JSON when the first character is `{`, else TOML. Errors are kContractSyntax with `where` "line L, column C".
Result<DocumentValue> ParseDocument(std::string_view text);

// What a JSON text may make its reader build.
struct JsonLimits {
  int max_depth = 0;
  int64_t max_values = INT64_MAX;
};

// Any JSON text as a tree, `null` as kOther; or what is wrong with it.
tl::expected<DocumentValue, std::string> ReadJsonTree(std::string_view text, const JsonLimits& limits);

// The two halves of ParseDocument.
Result<DocumentValue> ParseTomlDocument(std::string_view text);
Result<DocumentValue> ParseJsonDocument(std::string_view text);

}  // namespace tessera
