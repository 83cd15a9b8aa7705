// See attribute.h.
#include "lanes/xla/mosaic/attribute.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace tessera::mosaic {
namespace {

template <class Range>
std::string Joined(const Range& range) {
  std::string text;
  for (const auto& item : range) {
    if (!text.empty()) text += ", ";
    text += ToText(item);
  }
  return text;
}

std::string Joined(const std::vector<int64_t>& values) { return fmt::format("{}", fmt::join(values, ", ")); }

std::string IntegerText(const Attribute& attribute) {
  return fmt::format("{} : {}{}", attribute.integer, attribute.is_signed ? "s" : "", ToText(attribute.element));
}

// In a list, integers of 64 bits need no type.
std::string ItemText(const Attribute& item) {
  if (item.kind == AttributeKind::kInteger && item.element == Element::kI64) return std::to_string(item.integer);
  return ToText(item);
}

std::string SplatText(const Attribute& attribute) {
  const Type& type = attribute.types.front();
  std::string value;
  if (IsFloat(type.element)) {
    value = FloatText(attribute.real, type.element);
  } else if (type.element == Element::kI1) {
    value = attribute.integer != 0 ? "true" : "false";
  } else {
    value = std::to_string(attribute.integer);
  }
  return fmt::format("dense<{}> : {}", value, ToText(type));
}

std::string ListText(const Attribute& attribute) {
  std::string text = "[";
  for (const Attribute& item : attribute.items) {
    if (text.size() > 1) text += ", ";
    text += ItemText(item);
  }
  return text + "]";
}

std::string DictionaryText(const Attribute& attribute) {
  std::string text = "{";
  for (const NamedAttribute& entry : attribute.entries) {
    if (text.size() > 1) text += ", ";
    text += entry.name + " = " + ToText(entry.value);
  }
  return text + "}";
}

// One result stands without parentheses.
std::string ResultsText(const std::vector<Type>& results) {
  return results.size() == 1 ? ToText(results.front()) : "(" + Joined(results) + ")";
}

}  // namespace

bool Attribute::operator==(const Attribute& other) const = default;

Attribute BoolAttribute(bool value) { return {.kind = AttributeKind::kBool, .integer = value ? 1 : 0}; }
Attribute IntegerAttribute(int64_t value, Element element) {
  return {.kind = AttributeKind::kInteger, .element = element, .integer = value};
}
Attribute RealAttribute(double value, Element element) {
  return {.kind = AttributeKind::kReal, .element = element, .real = value};
}
Attribute TextAttribute(std::string text) { return {.kind = AttributeKind::kText, .text = std::move(text)}; }
Attribute SymbolAttribute(std::string name) { return {.kind = AttributeKind::kSymbol, .text = std::move(name)}; }
Attribute DialectAttribute(std::string text) { return {.kind = AttributeKind::kDialect, .text = std::move(text)}; }
Attribute ListAttribute(std::vector<Attribute> items) {
  return {.kind = AttributeKind::kList, .items = std::move(items)};
}
Attribute IntegersAttribute(std::vector<int64_t> values, Element element) {
  return {.kind = AttributeKind::kIntegers, .element = element, .integers = std::move(values)};
}
Attribute SplatAttribute(double value, const Type& type) {
  Attribute splat{.kind = AttributeKind::kSplat, .types = {type}};
  if (IsFloat(type.element)) {
    splat.real = value;
  } else {
    splat.integer = static_cast<int64_t>(value);
  }
  return splat;
}
Attribute DictionaryAttribute(Attributes entries) {
  return {.kind = AttributeKind::kDictionary, .entries = std::move(entries)};
}
Attribute FunctionTypeAttribute(std::vector<Type> types, std::vector<Type> results) {
  return {.kind = AttributeKind::kFunctionType, .types = std::move(types), .results = std::move(results)};
}

const Attribute* Find(const Attributes& attributes, std::string_view name) {
  const auto it = std::ranges::find(attributes, name, &NamedAttribute::name);
  return it == attributes.end() ? nullptr : &it->value;
}

void Set(Attributes& attributes, std::string name, Attribute value) {
  const auto it = std::ranges::lower_bound(attributes, name, {}, &NamedAttribute::name);
  if (it != attributes.end() && it->name == name) {
    it->value = std::move(value);
  } else {
    attributes.insert(it, {std::move(name), std::move(value)});
  }
}

void Remove(Attributes& attributes, std::string_view name) {
  std::erase_if(attributes, [&](const NamedAttribute& attribute) { return attribute.name == name; });
}

std::string ToText(const Attribute& attribute) {
  switch (attribute.kind) {
    case AttributeKind::kBool:
      return attribute.integer != 0 ? "true" : "false";
    case AttributeKind::kInteger:
      return IntegerText(attribute);
    case AttributeKind::kReal:
      return fmt::format("{} : {}", FloatText(attribute.real, attribute.element), ToText(attribute.element));
    case AttributeKind::kText:
      return '"' + attribute.text + '"';
    case AttributeKind::kSymbol:
      return "@" + attribute.text;
    case AttributeKind::kDialect:
      return "#" + attribute.text;
    case AttributeKind::kList:
      return ListText(attribute);
    case AttributeKind::kIntegers:
      return fmt::format("array<{}{}>", ToText(attribute.element),
                         attribute.integers.empty() ? "" : ": " + Joined(attribute.integers));
    case AttributeKind::kSplat:
      return SplatText(attribute);
    case AttributeKind::kDictionary:
      return DictionaryText(attribute);
    case AttributeKind::kFunctionType:
      return "(" + Joined(attribute.types) + ") -> " + ResultsText(attribute.results);
  }
  return "";
}

}  // namespace tessera::mosaic
