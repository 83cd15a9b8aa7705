// The one writer and the one reader of JSON: what is written, and that it comes back.
#include <gtest/gtest.h>

#include <limits>

#include "io/document.h"
#include "io/json_writer.h"

namespace tessera {
namespace {

using Kind = DocumentValue::Kind;

TEST(JsonWriter, OneLineAndIndented) {
  const auto write = [](int indent) {
    JsonWriter json(indent);
    json.BeginObject().Key("a").Int(-3).Key("b").BeginArray().Bool(true).Null().EndArray();
    json.Key("empty").BeginObject().EndObject().Key("none").BeginArray().EndArray();
    return json.Key("c").BeginObject().Key("d").Text("x").EndObject().EndObject().Take();
  };
  EXPECT_EQ(write(0), R"({"a":-3,"b":[true,null],"empty":{},"none":[],"c":{"d":"x"}})");
  EXPECT_EQ(write(2), R"({
  "a": -3,
  "b": [
    true,
    null
  ],
  "empty": {},
  "none": [],
  "c": {
    "d": "x"
  }
})");
}

TEST(JsonWriter, NumbersAndLists) {
  JsonWriter json;
  json.BeginArray().Real(0.1).Real(2).Real(1e300).Real(std::numeric_limits<double>::infinity());
  json.Int(std::numeric_limits<int64_t>::min()).Ints({1, 2}).Texts({"a", "b"}).Raw("{}");
  EXPECT_EQ(json.EndArray().Take(), R"([0.1,2.0,1e+300,null,-9223372036854775808,[1,2],["a","b"],{}])");
}

TEST(JsonWriter, QuotesEveryByte) {
  EXPECT_EQ(JsonQuote("a\"b\\c\n\t\r\b\f\x01\x7F"), "\"a\\\"b\\\\c\\n\\t\\r\\b\\f\\u0001\x7F\"");
  EXPECT_EQ(JsonQuote("\xC3\xA9"), "\"\xC3\xA9\"");
  EXPECT_EQ(JsonQuote("a\xFF\xC3"), "\"a\xEF\xBF\xBD\xEF\xBF\xBD\"");
}

TEST(JsonTree, ReadsWhatWasWritten) {
  std::string text;
  for (int byte = 1; byte < 128; ++byte) text += static_cast<char>(byte);
  JsonWriter json(2);
  json.BeginObject().Key("text").Text(text).Key("real").Real(2).Key("int").Int(7).Key("bool").Bool(true);
  json.Key("list").BeginArray().Null().Raw("18446744073709551615").EndArray();
  const auto tree = ReadJsonTree(json.EndObject().Take(), {.max_depth = 2});
  ASSERT_TRUE(tree) << tree.error();
  ASSERT_EQ(tree->keys, (std::vector<std::string>{"text", "real", "int", "bool", "list"}));
  EXPECT_EQ(tree->Find("text")->text, text);
  EXPECT_EQ(tree->Find("real")->kind, Kind::kReal);
  EXPECT_EQ(tree->Find("real")->real, 2.0);
  EXPECT_EQ(tree->Find("int")->integer, 7);
  EXPECT_TRUE(tree->Find("bool")->boolean);
  const DocumentValue& list = *tree->Find("list");
  ASSERT_EQ(list.items.size(), 2u);
  EXPECT_EQ(list.items[0].kind, Kind::kOther);
  EXPECT_EQ(list.items[1].kind, Kind::kReal);  // no int64 holds it
  EXPECT_EQ(list.items[1].text, "18446744073709551615");
}

TEST(JsonTree, HoldsItsLimits) {
  EXPECT_TRUE(ReadJsonTree("[[1]]", {.max_depth = 2, .max_values = 3}));
  EXPECT_EQ(ReadJsonTree("[[1]]", {.max_depth = 1}).error(), "it is nested deeper than 1 levels");
  EXPECT_EQ(ReadJsonTree("[[1]]", {.max_depth = 2, .max_values = 2}).error(), "it has more than 2 values");
  EXPECT_EQ(ReadJsonTree(R"({"a": 1, "a": 1})", {.max_depth = 2}).error(), "\"a\" appears twice");
  EXPECT_TRUE(ReadJsonTree("[1", {.max_depth = 2}).error().starts_with("parse error at line 1, column 3"));
}

}  // namespace
}  // namespace tessera
