#include "io/json_writer.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "base/spelling.h"

namespace tessera {

std::string JsonQuote(std::string_view text) {
  return Quote(text, [](char c, std::string& out) {
    constexpr std::string_view kShort = "\b\t\n\f\r";
    const size_t at = kShort.find(c);
    if (c == 0x7F) {
      out += c;  // plain text to JSON
    } else {
      out += at == std::string_view::npos ? fmt::format("\\u{:04x}", static_cast<unsigned>(c))
                                          : std::string{'\\', "btnfr"[at]};
    }
  });
}

void JsonWriter::NewLine() {
  if (indent_ == 0) return;
  out_ += '\n';
  out_.append(static_cast<size_t>(indent_ * depth_), ' ');
}

void JsonWriter::Separate() {
  if (std::exchange(after_key_, false)) return;
  if (!std::exchange(is_first_, false)) out_ += ',';
  if (depth_ > 0) NewLine();
}

JsonWriter& JsonWriter::Key(std::string_view key) {
  Separate();
  out_ += JsonQuote(key);
  out_ += indent_ == 0 ? ":" : ": ";
  after_key_ = true;
  return *this;
}

JsonWriter& JsonWriter::Raw(std::string_view json) {
  Separate();
  out_ += json;
  return *this;
}

JsonWriter& JsonWriter::Text(std::string_view value) { return Raw(JsonQuote(value)); }
JsonWriter& JsonWriter::Int(int64_t value) { return Raw(std::to_string(value)); }
JsonWriter& JsonWriter::Bool(bool value) { return Raw(value ? "true" : "false"); }
JsonWriter& JsonWriter::Null() { return Raw("null"); }

JsonWriter& JsonWriter::Real(double value) {
  if (!std::isfinite(value)) return Null();
  std::string text = fmt::format("{}", value);
  // A reader that tells integers from fractions must get a fraction back.
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return Raw(text);
}

JsonWriter& JsonWriter::Ints(const std::vector<int64_t>& values) {
  BeginArray();
  for (const int64_t value : values) Int(value);
  return EndArray();
}

JsonWriter& JsonWriter::Texts(const std::vector<std::string_view>& values) {
  BeginArray();
  for (const std::string_view value : values) Text(value);
  return EndArray();
}

JsonWriter& JsonWriter::Open(char bracket) {
  Separate();
  out_ += bracket;
  ++depth_;
  is_first_ = true;
  return *this;
}

JsonWriter& JsonWriter::Close(char bracket) {
  --depth_;
  if (!is_first_) NewLine();
  out_ += bracket;
  is_first_ = false;
  return *this;
}

}  // namespace tessera
