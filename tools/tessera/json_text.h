// Builds the small JSON documents the program prints; the library's own documents come from the library as text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::program {

// A quoted string. Bytes that are not UTF-8 (a file name can hold any) become U+FFFD, so the document stays valid.
std::string JsonString(std::string_view text);
std::string JsonNumber(double number);  // null when not finite
std::string JsonList(const std::vector<std::string>& elements);

class JsonObject {
 public:
  JsonObject& Text(std::string_view key, std::string_view value) { return Raw(key, JsonString(value)); }
  JsonObject& Int(std::string_view key, int64_t value) { return Raw(key, std::to_string(value)); }
  JsonObject& Real(std::string_view key, double value) { return Raw(key, JsonNumber(value)); }
  JsonObject& Bool(std::string_view key, bool value) { return Raw(key, value ? "true" : "false"); }
  // `json` is a document already.
  JsonObject& Raw(std::string_view key, std::string_view json);
  std::string Done() const { return "{" + body_ + "}"; }

 private:
  std::string body_;
};

}  // namespace tessera::program
