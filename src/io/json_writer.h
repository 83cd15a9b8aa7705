// Writes JSON piece by piece into one string: compact, or with each member on a line of its own. No tree is built, and
// whoever uses it includes no JSON library.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// A string literal of JSON. Bytes that are not UTF-8 (a file name may hold any) become U+FFFD.
std::string JsonQuote(std::string_view text);

class JsonWriter {
 public:
  // `indent` spaces per level; 0 is all on one line.
  explicit JsonWriter(int indent = 0) : indent_(indent) {}

  // Inside an object each value follows its key.
  JsonWriter& Key(std::string_view key);

  JsonWriter& Text(std::string_view value);
  JsonWriter& Int(int64_t value);
  JsonWriter& Real(double value);  // null when not finite
  JsonWriter& Bool(bool value);
  JsonWriter& Null();
  JsonWriter& Ints(const std::vector<int64_t>& values);
  JsonWriter& Texts(const std::vector<std::string_view>& values);
  // `json` is a document already.
  JsonWriter& Raw(std::string_view json);

  JsonWriter& BeginObject() { return Open('{'); }
  JsonWriter& EndObject() { return Close('}'); }
  JsonWriter& BeginArray() { return Open('['); }
  JsonWriter& EndArray() { return Close(']'); }

  std::string Take() { return std::move(out_); }

 private:
  JsonWriter& Open(char bracket);
  JsonWriter& Close(char bracket);
  // What stands between the value before and the next one.
  void Separate();
  void NewLine();

  int indent_;
  int depth_ = 0;
  bool is_first_ = true;  // of the innermost open object or array
  bool after_key_ = false;
  std::string out_;
};

}  // namespace tessera
