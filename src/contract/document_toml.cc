// TOML text to a document, through toml++.
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "contract/document.h"
#include "contract/spelling.h"

// toml++ 3.3 asserts things that malformed text can break ("[$" for one) before it reports them as errors, and with
// NDEBUG under clang tells the optimiser to rely on them. Here its assertions mean nothing, in every build type.
#undef NDEBUG
#define TOML_ASSERT(expr) static_assert(true)
#define TOML_MAX_NESTED_VALUES 64
#include <toml++/toml.h>

namespace tessera {
namespace {

constexpr int kMaxKeyParts = 16;

// toml++ bounds how deep values nest but not how many parts a dotted key has, and frees tables recursively: a key of
// a million parts would overflow the stack. So keys are measured first. Outside strings and comments a dot can only
// be in a key or a number, which makes counting them enough.
class KeyMeter {
 public:
  explicit KeyMeter(std::string_view text) : text_(text) {}

  bool AllShort() {
    int dots = 0;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '"' || c == '\'') {
        SkipString(c);
        continue;
      }
      if (c == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
        continue;
      }
      if (c == '\n' || c == '=' || c == ',') dots = 0;
      if (c == '.' && ++dots >= kMaxKeyParts) return false;
      ++at_;
    }
    return true;
  }

 private:
  void SkipString(char quote) {
    const std::string three(3, quote);
    const bool multi_line = text_.substr(at_, 3) == three;
    at_ += multi_line ? 3 : 1;
    while (at_ < text_.size()) {
      if (multi_line && text_.substr(at_, 3) == three) {
        at_ += 3;
        // Up to two quotes right before the closing three belong to the string.
        for (int extra = 0; extra < 2 && at_ < text_.size() && text_[at_] == quote; ++extra) ++at_;
        return;
      }
      if (!multi_line && (text_[at_] == quote || text_[at_] == '\n')) {
        ++at_;
        return;
      }
      at_ += text_[at_] == '\\' && quote == '"' ? 2 : 1;
    }
  }

  std::string_view text_;
  size_t at_ = 0;
};

// Nesting is bounded by the two limits above, and so is this recursion.
DocumentValue Convert(const toml::node& node) {
  using Kind = DocumentValue::Kind;
  DocumentValue value;
  if (const auto* table = node.as_table()) {
    value.kind = Kind::kTable;
    for (const auto& [key, item] : *table) {
      value.keys.emplace_back(key.str());
      value.items.push_back(Convert(item));
    }
  } else if (const auto* array = node.as_array()) {
    value.kind = Kind::kArray;
    for (const auto& item : *array) value.items.push_back(Convert(item));
  } else if (const auto* text = node.as_string()) {
    value.kind = Kind::kString;
    value.text = text->get();
  } else if (const auto* integer = node.as_integer()) {
    value.kind = Kind::kInteger;
    value.integer = integer->get();
  } else if (const auto* real = node.as_floating_point()) {
    value.kind = Kind::kReal;
    value.real = real->get();
    value.text = fmt::format("{}", value.real);
  } else if (const auto* boolean = node.as_boolean()) {
    value.kind = Kind::kBool;
    value.boolean = boolean->get();
  } else {
    value.kind = Kind::kOther;
    value.text = "a date or time";
  }
  return value;
}

}  // namespace

Result<DocumentValue> ParseTomlDocument(std::string_view text) {
  if (!IsUtf8(text)) return Fail(ErrorCode::kContractSyntax, "the text is not valid UTF-8");
  if (!KeyMeter(text).AllShort()) {
    return Fail(ErrorCode::kContractSyntax, fmt::format("a dotted key has more than {} parts", kMaxKeyParts));
  }
  const toml::parse_result parsed = toml::parse(text);
  if (!parsed) {
    const toml::parse_error& error = parsed.error();
    return Fail(ErrorCode::kContractSyntax, fmt::format("not well-formed TOML: {}", Shorten(error.description(), 200)),
                fmt::format("line {}, column {}", error.source().begin.line, error.source().begin.column));
  }
  return Convert(parsed.table());
}

}  // namespace tessera
