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

Attribute OfKind(AttributeKind kind) {
  Attribute attribute;
  attribute.kind = kind;
  return attribute;
}

Attribute OfText(AttributeKind kind, std::string text) {
  Attribute attribute = OfKind(kind);
  attribute.text = std::move(text);
  return attribute;
}

}  // namespace

Attribute BoolAttribute(bool value) {
  Attribute attribute = OfKind(AttributeKind::kBool);
  attribute.integer = value ? 1 : 0;
  return attribute;
}
Attribute IntegerAttribute(int64_t value, Element element) {
  Attribute attribute = OfKind(AttributeKind::kInteger);
  attribute.element = element;
  attribute.integer = value;
  return attribute;
}
Attribute RealAttribute(double value, Element element) {
  Attribute attribute = OfKind(AttributeKind::kReal);
  attribute.element = element;
  attribute.real = value;
  return attribute;
}
Attribute TextAttribute(std::string text) { return OfText(AttributeKind::kText, std::move(text)); }
Attribute SymbolAttribute(std::string name) { return OfText(AttributeKind::kSymbol, std::move(name)); }
Attribute DialectAttribute(std::string text) { return OfText(AttributeKind::kDialect, std::move(text)); }
Attribute ListAttribute(std::vector<Attribute> items) {
  Attribute attribute = OfKind(AttributeKind::kList);
  attribute.items = std::move(items);
  return attribute;
}
Attribute IntegersAttribute(std::vector<int64_t> values, Element element) {
  Attribute attribute = OfKind(AttributeKind::kIntegers);
  attribute.element = element;
  attribute.integers = std::move(values);
  return attribute;
}
Attribute SplatAttribute(double value, const Type& type) {
  Attribute attribute = OfKind(AttributeKind::kSplat);
  attribute.types = {type};
  if (IsFloat(type.element)) {
    attribute.real = value;
  } else {
    attribute.integer = static_cast<int64_t>(value);
  }
  return attribute;
}
Attribute DictionaryAttribute(Attributes entries) {
  Attribute attribute = OfKind(AttributeKind::kDictionary);
  attribute.entries = std::move(entries);
  return attribute;
}
Attribute FunctionTypeAttribute(std::vector<Type> types, std::vector<Type> results) {
  Attribute attribute = OfKind(AttributeKind::kFunctionType);
  attribute.types = std::move(types);
  attribute.results = std::move(results);
  return attribute;
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
