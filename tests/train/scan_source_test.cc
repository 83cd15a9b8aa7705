// The scanner: known texts, and for any text that it never looks ahead.
#include "train/scan_source.h"

#include <gtest/gtest.h>

#include <random>

#include "support/proves.h"
#include "support/seed.h"

namespace tessera::train {
namespace {

const std::vector<int32_t>& Column(const Document& document, TokenColumn column) {
  return document.columns[static_cast<size_t>(column)];
}

// The category of the first byte of a piece of the text, by name.
std::string_view CategoryAt(const Document& document, std::string_view text, std::string_view piece) {
  const size_t at = text.find(piece);
  EXPECT_NE(at, std::string_view::npos) << piece;
  return StructureCategories()[static_cast<size_t>(Column(document, TokenColumn::kStructureIds)[at])];
}
int32_t DepthAt(const Document& document, std::string_view text, std::string_view piece) {
  return Column(document, TokenColumn::kAstDepth)[text.find(piece)];
}

TEST(ScanSource, OfC_KnowsItsParts) {
  constexpr std::string_view kText =
      "// About it.\n#include <map>\nnamespace a {\nusing Map = int;\nclass Thing {\n public:\n  int value = 1;\n};\n"
      "int Add(int x, int y) {\n  const char* s = \"} // no\";\n  return x + y;\n}\n}\n/* end; { */\n";
  const Document document = ScanSource(kText, Language::kC);
  ASSERT_EQ(document.tokens.size(), kText.size());
  EXPECT_EQ(document.tokens[0], '/');
  EXPECT_EQ(CategoryAt(document, kText, "About"), "comment");
  EXPECT_EQ(CategoryAt(document, kText, "include"), "preamble");
  EXPECT_EQ(CategoryAt(document, kText, "a {"), "namespace");
  EXPECT_EQ(CategoryAt(document, kText, "Map ="), "typedef");
  EXPECT_EQ(CategoryAt(document, kText, "Thing"), "class_decl");
  EXPECT_EQ(CategoryAt(document, kText, "value"), "class_member");
  EXPECT_EQ(CategoryAt(document, kText, "int y"), "func_signature");
  EXPECT_EQ(CategoryAt(document, kText, "return"), "func_body");
  EXPECT_EQ(CategoryAt(document, kText, "end;"), "comment");
  EXPECT_EQ(DepthAt(document, kText, "namespace"), 0);
  EXPECT_EQ(DepthAt(document, kText, "return"), 2);
  EXPECT_EQ(DepthAt(document, kText, "end;"), 0) << "the brace of the string does not count";
}

TEST(ScanSource, OfPython_KnowsItsParts) {
  constexpr std::string_view kText =
      "import os\n\n# About it.\nclass Thing:\n    size = 1\n\n    def add(self, x):\n        \"\"\"Says 'so'.\n\n"
      "  back: here\"\"\"\n        return x\n\ntop = 2\n";
  const Document document = ScanSource(kText, Language::kPython);
  EXPECT_EQ(CategoryAt(document, kText, " os"), "preamble");
  EXPECT_EQ(CategoryAt(document, kText, "About"), "comment");
  EXPECT_EQ(CategoryAt(document, kText, "Thing"), "class_decl");
  EXPECT_EQ(CategoryAt(document, kText, "self"), "func_signature");
  EXPECT_EQ(CategoryAt(document, kText, "return"), "func_body");
  EXPECT_EQ(CategoryAt(document, kText, "top"), "other");
  EXPECT_EQ(DepthAt(document, kText, "size"), 1);
  EXPECT_EQ(DepthAt(document, kText, "return"), 2);
  EXPECT_EQ(DepthAt(document, kText, "top"), 0);
}

// A column that knew of later bytes would tell a model what it is to predict.
TEST(ScanSource, OfAnyText_NeverLooksAhead_AndStaysInRange) {
  Proves("B21");
  std::mt19937_64 random(PrintedSeed());
  const std::vector<std::string> words = {"class ", "def f(x):\n",  "{",      "}",    "(",  ")",  "\"", "'",
                                          "\\",     "\n",           "// x\n", "/*",   "*/", "#",  ";",  "\"\"\"",
                                          "    ",   "namespace n ", "int a",  "\xff", ":",  "0'1"};
  for (int round = 0; round < 60; ++round) {
    std::string text;
    for (size_t i = random() % 80; i > 0; --i) text += words[random() % words.size()];
    for (const Language language : {Language::kC, Language::kPython}) {
      const Document whole = ScanSource(text, language);
      const size_t cut = text.empty() ? 0 : random() % text.size();
      const Document prefix = ScanSource(std::string_view(text).substr(0, cut), language);
      for (size_t c = 0; c < kNumTokenColumns; ++c) {
        const std::vector<int32_t>& all = whole.columns[c];
        ASSERT_EQ(std::vector<int32_t>(all.begin(), all.begin() + static_cast<int64_t>(all.empty() ? 0 : cut)),
                  prefix.columns[c])
            << text;
        ASSERT_TRUE(all.empty() || all.size() == text.size());
        for (const int32_t value : all) ASSERT_TRUE(value >= 0 && value <= kMaxDepth) << value;
      }
      for (const int32_t category : Column(whole, TokenColumn::kStructureIds))
        ASSERT_LT(category, static_cast<int32_t>(StructureCategories().size()));
    }
  }
  const Document other = ScanSource("a", Language::kOther);
  EXPECT_TRUE(Column(other, TokenColumn::kAstDepth).empty()) << "absent, and not zero";
}

TEST(ScanSource, LanguageOf_GoesByTheEnding) {
  EXPECT_EQ(LanguageOf("src/a.cc"), Language::kC);
  EXPECT_EQ(LanguageOf("a.py"), Language::kPython);
  EXPECT_EQ(LanguageOf("a.md"), Language::kOther);
}

}  // namespace
}  // namespace tessera::train
