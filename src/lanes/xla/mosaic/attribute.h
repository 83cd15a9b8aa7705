// Attributes of operations and functions, as much of MLIR's as Mosaic kernels use. A plain value: what its members mean
// is decided by its kind.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lanes/xla/mosaic/type.h"

namespace tessera::mosaic {

enum class AttributeKind : uint8_t {
  kBool,          // true
  kInteger,       // 3 : i32
  kReal,          // 1.000000e+00 : f32
  kText,          // "main"
  kSymbol,        // @transform_0
  kDialect,       // #vector.kind<add>
  kList,          // [0, 1]
  kIntegers,      // array<i64: 1, 128>
  kSplat,         // dense<0.000000e+00> : vector<8x128xf32>
  kDictionary,    // {window_bounds = ...}
  kFunctionType,  // (i32, i32) -> (i32)
};

struct NamedAttribute;

struct Attribute {
  AttributeKind kind = AttributeKind::kBool;
  Element element = Element::kI64;  // of kInteger, kReal and kIntegers
  bool is_signed = false;           // an integer of type si32, which one operation insists on
  int64_t integer = 0;              // of kBool, kInteger, and kSplat of integers
  double real = 0;                  // of kReal, and kSplat of floats
  std::string text;                 // of kText, kSymbol (without @), kDialect (without #)
  std::vector<int64_t> integers;
  std::vector<Attribute> items;
  std::vector<NamedAttribute> entries;
  std::vector<Type> types;    // of kFunctionType: arguments; of kSplat: its one type
  std::vector<Type> results;  // of kFunctionType
};

struct NamedAttribute {
  std::string name;
  Attribute value;
};
using Attributes = std::vector<NamedAttribute>;  // by name, ascending

Attribute BoolAttribute(bool value);
Attribute IntegerAttribute(int64_t value, Element element);
Attribute RealAttribute(double value, Element element);
Attribute TextAttribute(std::string text);
Attribute SymbolAttribute(std::string name);
Attribute DialectAttribute(std::string text);  // "arith.fastmath<none>"
Attribute ListAttribute(std::vector<Attribute> items);
Attribute IntegersAttribute(std::vector<int64_t> values, Element element);
Attribute SplatAttribute(double value, const Type& type);
Attribute DictionaryAttribute(Attributes entries);
Attribute FunctionTypeAttribute(std::vector<Type> types, std::vector<Type> results);

// Null when there is none of that name.
const Attribute* Find(const Attributes& attributes, std::string_view name);
// Keeps the order; an attribute of that name is replaced.
void Set(Attributes& attributes, std::string name, Attribute value);
void Remove(Attributes& attributes, std::string_view name);

std::string ToText(const Attribute& attribute);
// As MLIR writes a float of that element: six digits where they are exact, else as many as it takes, else its bits.
std::string FloatText(double value, Element element);

}  // namespace tessera::mosaic
