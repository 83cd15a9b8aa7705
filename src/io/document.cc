#include "io/document.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/spelling.h"

namespace tessera {

const DocumentValue* DocumentValue::Find(std::string_view key) const {
  const auto found = std::find(keys.begin(), keys.end(), key);
  return found == keys.end() ? nullptr : &items[static_cast<size_t>(found - keys.begin())];
}

std::string DocumentValue::Describe() const {
  switch (kind) {
    case Kind::kBool:
      return boolean ? "true" : "false";
    case Kind::kInteger:
      return fmt::format("the integer {}", integer);
    case Kind::kReal:
      return fmt::format("the number {}", text);
    case Kind::kString:
      return fmt::format("the string {}", Excerpt(text));
    case Kind::kArray:
      return "an array";
    case Kind::kTable:
      return "a table";
    case Kind::kOther:
      break;
  }
  return text;
}

Result<DocumentValue> ParseDocument(std::string_view text) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  const size_t begin = text.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
  const size_t first = text.find_first_not_of(" \t\r\n", begin);
  const bool is_json = first != std::string_view::npos && text[first] == '{';
  return is_json ? ParseJsonDocument(text) : ParseTomlDocument(text);
}

}  // namespace tessera
