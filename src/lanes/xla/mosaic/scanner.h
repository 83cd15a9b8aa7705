// Reads types and attributes out of a kernel's text. The first error is kept with its place and ends the reading: every
// later call gives an empty value, so that callers check once.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lanes/xla/mosaic/attribute.h"
#include "tessera/error.h"

namespace tessera::mosaic {

class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  bool ok() const { return message_.empty(); }
  Error error() const;  // TSR-M001 with line and column
  void Fail(std::string message);
  bool AtEnd();

  // Blanks and comments before a token are skipped.
  bool Peek(std::string_view token);
  bool Take(std::string_view token);  // where it stands
  void Expect(std::string_view token);

  std::string_view Name();    // of an attribute, or after @, % and ^
  std::string_view Quoted();  // "text", without escapes
  int64_t Integer();          // decimal, with a sign
  Type OneType();
  std::vector<Type> Types();        // (a, b)
  std::vector<Type> ResultTypes();  // a, or (a, b)
  Attributes Dictionary();
  Attribute OneAttribute();

 private:
  void Blanks();
  char Next();  // the next character, or 0 at the end
  Attribute Number(bool in_list);
  Attribute Dense();
  Attribute Integers();
  Attribute List();
  Attribute Dialect();
  bool Enter();
  // Dims of a shaped type up to its element.
  void Shape(Type& type);

  std::string_view text_;
  size_t at_ = 0;
  int depth_ = 0;
  std::string message_;
  size_t failed_at_ = 0;
};

}  // namespace tessera::mosaic
