// See scanner.h.
#include "lanes/xla/mosaic/scanner.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "tessera/dtype.h"

namespace tessera::mosaic {
namespace {

constexpr int kMostDepth = 32;        // of attributes in attributes
constexpr size_t kMostEntries = 256;  // of one dictionary or list
constexpr size_t kMostDims = 8;
constexpr int64_t kMostDim = int64_t{1} << 31;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsNameStart(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool IsNameChar(char c) { return IsNameStart(c) || IsDigit(c) || c == '.' || c == '$' || c == '#'; }
bool IsBlank(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

}  // namespace

void Scanner::Fail(std::string message) {
  if (!ok()) return;
  message_ = std::move(message);
  failed_at_ = std::min(at_, text_.size());
  at_ = text_.size();
}

Error Scanner::error() const {
  const std::string_view before = text_.substr(0, failed_at_);
  const auto line = std::ranges::count(before, '\n') + 1;
  const size_t last = before.rfind('\n');
  const size_t column = failed_at_ - (last == std::string_view::npos ? 0 : last + 1) + 1;
  return {ErrorCode::kKernelText, message_, fmt::format("line {}, column {}", line, column)};
}

void Scanner::Blanks() {
  while (at_ < text_.size()) {
    if (IsBlank(text_[at_])) {
      ++at_;
    } else if (text_.substr(at_, 2) == "//") {
      while (at_ < text_.size() && text_[at_] != '\n') ++at_;
    } else {
      return;
    }
  }
}

char Scanner::Next() {
  Blanks();
  return at_ < text_.size() ? text_[at_] : '\0';
}

bool Scanner::AtEnd() { return Next() == '\0'; }

bool Scanner::Peek(std::string_view token) {
  Blanks();
  return text_.substr(at_).starts_with(token);
}

bool Scanner::Take(std::string_view token) {
  if (!ok() || !Peek(token)) return false;
  at_ += token.size();
  return true;
}

void Scanner::Expect(std::string_view token) {
  if (!Take(token)) Fail(fmt::format("expected {}", token));
}

std::string_view Scanner::Name() {
  if (!ok()) return {};
  const size_t begin = at_;
  while (at_ < text_.size() && IsNameChar(text_[at_])) ++at_;
  if (at_ == begin) Fail("expected a name");
  return ok() ? text_.substr(begin, at_ - begin) : std::string_view();
}

std::string_view Scanner::Quoted() {
  Expect("\"");
  const size_t begin = at_;
  while (at_ < text_.size() && text_[at_] != '"') {
    if (text_[at_] < ' ' || text_[at_] > '~' || text_[at_] == '\\') {
      Fail("expected plain text without escapes");
      return {};
    }
    ++at_;
  }
  const size_t end = at_;
  Expect("\"");
  return ok() ? text_.substr(begin, end - begin) : std::string_view();
}

int64_t Scanner::Integer() {
  Blanks();
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
  if (error != std::errc()) {
    Fail("expected an integer of 64 bits");
    return 0;
  }
  at_ = static_cast<size_t>(end - text_.data());
  return value;
}

void Scanner::Shape(Type& type) {
  while (ok() && IsDigit(Next())) {
    const int64_t dim = Integer();
    if (dim < 0 || dim > kMostDim || type.dims.size() == kMostDims) Fail("a shape too large");
    type.dims.push_back(dim);
    Expect("x");
  }
  std::string_view name;
  const size_t begin = at_;
  if (Take("!")) {
    Name();
    name = text_.substr(begin, at_ - begin);
  } else {
    name = Name();
  }
  if (ok() && !ParseElement(name, &type.element)) Fail(fmt::format("{} is no element type we know", name));
}

Type Scanner::OneType() {
  Type type;
  if (Take("vector<")) {
    type.kind = TypeKind::kVector;
    Shape(type);
    Expect(">");
  } else if (Take("memref<")) {
    type.kind = TypeKind::kMemref;
    Shape(type);
    Expect(",");
    Expect("#tpu.memory_space<");
    if (const std::string_view space = Name(); ok() && !ParseSpace(space, &type.space)) {
      Fail(fmt::format("{} is no memory space we know", space));
    }
    Expect(">");
    Expect(">");
  } else {
    Blanks();
    Shape(type);
    if (!type.dims.empty()) Fail("a scalar has no shape");
  }
  return type;
}

std::vector<Type> Scanner::Types() {
  std::vector<Type> types;
  Expect("(");
  if (Take(")")) return types;
  do {
    types.push_back(OneType());
  } while (Take(","));
  Expect(")");
  return types;
}

std::vector<Type> Scanner::ResultTypes() {
  if (Peek("(")) return Types();
  return {OneType()};
}

bool Scanner::Enter() {
  if (++depth_ > kMostDepth) Fail("attributes nest too deep");
  return ok();
}

Attributes Scanner::Dictionary() {
  Attributes entries;
  Expect("{");
  if (Take("}") || !Enter()) return entries;
  do {
    Blanks();
    const std::string name(Name());
    Expect("=");
    if (Find(entries, name) != nullptr) Fail(fmt::format("{} is given twice", name));
    if (entries.size() == kMostEntries) Fail("too many attributes");
    if (ok()) Set(entries, name, OneAttribute());
  } while (Take(","));
  Expect("}");
  --depth_;
  return entries;
}

Attribute Scanner::List() {
  Attribute list = ListAttribute({});
  Expect("[");
  if (Take("]") || !Enter()) return list;
  do {
    const char first = Next();
    list.items.push_back(IsDigit(first) || first == '-' ? Number(true) : OneAttribute());
    if (list.items.size() > kMostEntries) Fail("too long a list");
  } while (Take(","));
  Expect("]");
  --depth_;
  return list;
}

Attribute Scanner::Integers() {
  Attribute integers = IntegersAttribute({}, Element::kI64);
  const std::string_view element = Name();
  if (ok() && (!ParseElement(element, &integers.element) || !IsInteger(integers.element))) {
    Fail(fmt::format("{} is no type of integers", element));
  }
  if (Take(":")) {
    do {
      integers.integers.push_back(Integer());
      if (integers.integers.size() > kMostEntries) Fail("too long an array");
    } while (Take(","));
  }
  Expect(">");
  return integers;
}

// A number and, outside a list, its type. Bits stand for floats that have no digits.
Attribute Scanner::Number(bool in_list) {
  Blanks();
  const size_t begin = at_;
  while (at_ < text_.size() && (IsNameChar(text_[at_]) || text_[at_] == '-' || text_[at_] == '+')) ++at_;
  std::string digits(text_.substr(begin, at_ - begin));
  const bool is_bits = digits.starts_with("0x");
  const bool is_real = !is_bits && digits.find_first_of(".eE") != std::string::npos;
  Attribute number = IntegerAttribute(0, Element::kI64);
  if (Take(":")) {
    number.is_signed = Take("s");
    number.element = OneType().element;
  } else if (!in_list) {
    Fail("expected a type after a number");
  }
  const char* const end = digits.data() + digits.size();
  char* stopped = nullptr;
  if (IsFloat(number.element)) {
    number.kind = AttributeKind::kReal;
    if (is_bits) {
      uint32_t bits = 0;
      const auto [last, error] = std::from_chars(digits.data() + 2, end, bits, 16);
      if (error != std::errc() || last != end) Fail("expected the bits of a float");
      number.real =
          number.element == Element::kBf16 ? Bf16ToF32(static_cast<uint16_t>(bits)) : std::bit_cast<float>(bits);
    } else {
      const auto value = static_cast<float>(std::strtod(digits.c_str(), &stopped));
      number.real = number.element == Element::kBf16 ? Bf16ToF32(F32ToBf16(value)) : value;
      if (stopped != end || !is_real) Fail("expected a float");
    }
    return number;
  }
  const auto [last, error] = std::from_chars(digits.data(), end, number.integer);
  if (error != std::errc() || last != end || !IsInteger(number.element)) Fail("expected an integer and its type");
  return number;
}

Attribute Scanner::Dense() {
  Blanks();
  const size_t begin = at_;
  while (at_ < text_.size() && text_[at_] != '>') ++at_;
  const std::string value(text_.substr(begin, at_ - begin));
  Expect(">");
  Expect(":");
  const Type type = OneType();
  if (!ok()) return {};
  if (!type.IsVector()) Fail("dense is for vectors");
  if (value == "true" || value == "false") {
    if (type.element != Element::kI1) Fail("expected a number");
    return SplatAttribute(value == "true" ? 1 : 0, type);
  }
  Scanner inner(value);
  // Number reads the type after the digits; here it stands after the bracket.
  const std::string typed = value + " : " + std::string(ToText(type.element));
  inner.text_ = typed;
  const Attribute number = inner.Number(false);
  if (!inner.ok() || !inner.AtEnd()) Fail("expected one value for every element");
  Attribute splat = SplatAttribute(0, type);
  splat.integer = number.integer;
  splat.real = number.real;
  return splat;
}

// #tpu.dimension_semantics<parallel>: kept as text, with its brackets in balance.
Attribute Scanner::Dialect() {
  const size_t begin = at_;
  Name();
  int open = 0;
  while (ok() && at_ < text_.size()) {
    const char c = text_[at_];
    if (c < ' ' || c > '~' || c == '"') {
      Fail("expected a dialect's attribute");
      return {};
    }
    if (c == '<') ++open;
    if (c == '>') --open;
    if (open <= 0 && c != '>') break;
    ++at_;
    if (open == 0) break;
  }
  if (open != 0) Fail("a bracket is not closed");
  return DialectAttribute(ok() ? std::string(text_.substr(begin, at_ - begin)) : "");
}

Attribute Scanner::OneAttribute() {
  if (!ok() || !Enter()) return {};
  Attribute attribute;
  const char first = Next();
  if (first == '{') {
    attribute = DictionaryAttribute(Dictionary());
  } else if (first == '[') {
    attribute = List();
  } else if (first == '"') {
    attribute = TextAttribute(std::string(Quoted()));
  } else if (Take("@")) {
    attribute = SymbolAttribute(std::string(Name()));
  } else if (Take("#")) {
    attribute = Dialect();
  } else if (Take("array<")) {
    attribute = Integers();
  } else if (Take("dense<")) {
    attribute = Dense();
  } else if (first == '(') {
    std::vector<Type> types = Types();
    Expect("->");
    attribute = FunctionTypeAttribute(std::move(types), ResultTypes());
  } else if (IsDigit(first) || first == '-') {
    attribute = Number(false);
  } else if (Take("true")) {
    attribute = BoolAttribute(true);
  } else if (Take("false")) {
    attribute = BoolAttribute(false);
  } else {
    Fail("expected an attribute");
  }
  --depth_;
  return attribute;
}

}  // namespace tessera::mosaic
