// The mask language: what parses, to which tree, how it prints, and what each mistake is told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "support/proves.h"
#include "support/random_mask.h"
#include "support/seed.h"
#include "tessera/contract.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

MaskExpr Term(TermKind kind, int64_t first = 0, int64_t second = 0) {
  MaskExpr expr;
  expr.term.kind = kind;
  expr.term.first = first;
  expr.term.second = second;
  return expr;
}

MaskExpr And(std::vector<MaskExpr> children) {
  MaskExpr expr;
  expr.op = MaskExpr::Op::kAnd;
  expr.children = std::move(children);
  return expr;
}

MaskExpr Or(std::vector<MaskExpr> children) {
  MaskExpr expr = And(std::move(children));
  expr.op = MaskExpr::Op::kOr;
  return expr;
}

MaskExpr Parsed(std::string_view text) {
  const Result<MaskExpr> expr = ParseMaskExpr(text);
  EXPECT_TRUE(expr) << text << ": " << ToText(expr.error());
  return expr.value_or(MaskExpr());
}

// "column N: message", so that a test can ask for both.
std::string Refusal(std::string_view text) {
  const Result<MaskExpr> expr = ParseMaskExpr(text);
  EXPECT_FALSE(expr) << text << " parsed as " << ToText(expr.value_or(MaskExpr()));
  if (expr) return {};
  EXPECT_EQ(expr.error().code, ErrorCode::kMaskSyntax);
  return expr.error().where + ": " + expr.error().message;
}

TEST(MaskText, EveryTerm_ParsesToItsKindAndNumbers) {
  EXPECT_EQ(Parsed("full"), Term(TermKind::kFull));
  EXPECT_EQ(Parsed("causal"), Term(TermKind::kCausal));
  EXPECT_EQ(Parsed("window(1023, 0)"), Term(TermKind::kWindow, 1023, 0));
  EXPECT_EQ(Parsed("window(-1,7)"), Term(TermKind::kWindow, -1, 7));
  EXPECT_EQ(Parsed("chunk(512)"), Term(TermKind::kChunk, 512));
  EXPECT_EQ(Parsed("prefix(0)"), Term(TermKind::kPrefix, 0));
  EXPECT_EQ(Parsed("sink(4)"), Term(TermKind::kSink, 4));
  EXPECT_EQ(Parsed("sink(4, document)"), Term(TermKind::kSinkDocument, 4));
  EXPECT_EQ(Parsed("documents"), Term(TermKind::kDocuments));
  EXPECT_EQ(Parsed("documents(equal)"), Term(TermKind::kDocumentsEqual));
  EXPECT_EQ(Parsed("valid"), Term(TermKind::kValid));
  EXPECT_EQ(Parsed("blocks"), Term(TermKind::kBlocks));
  EXPECT_EQ(Parsed(" \t\nchunk \r\n( +8 ) "), Term(TermKind::kChunk, 8));
}

TEST(MaskText, WindowOfZero_StaysAWindow) {
  Proves("B29");
  EXPECT_EQ(Parsed("window(0, 0)"), Term(TermKind::kWindow, 0, 0));
  EXPECT_EQ(ToText(Parsed("window(0, 0)")), "window(0, 0)");
  EXPECT_NE(Parsed("window(0, 0)"), Parsed("window(-1, -1)"));
  EXPECT_NE(Parsed("window(0, 0)"), Parsed("full"));
}

TEST(MaskText, And_BindsTighterThanOr) {
  const MaskExpr causal = Term(TermKind::kCausal);
  const MaskExpr window = Term(TermKind::kWindow, 1023, 0);
  const MaskExpr documents = Term(TermKind::kDocuments);
  const MaskExpr sink = Term(TermKind::kSink, 4);
  EXPECT_EQ(Parsed("causal and window(1023, 0) and documents or sink(4)"),
            Or({And({causal, window, documents}), sink}));
  EXPECT_EQ(Parsed("sink(4) or causal and documents"), Or({sink, And({causal, documents})}));
  EXPECT_EQ(Parsed("causal and (documents or sink(4))"), And({causal, Or({documents, sink})}));
}

TEST(MaskText, SameOperatorNests_AreFlattened) {
  const MaskExpr a = Term(TermKind::kCausal);
  const MaskExpr b = Term(TermKind::kValid);
  const MaskExpr c = Term(TermKind::kSink, 1);
  EXPECT_EQ(Parsed("causal and (valid and sink(1))"), And({a, b, c}));
  EXPECT_EQ(Parsed("(causal and valid) and sink(1)"), And({a, b, c}));
  EXPECT_EQ(Parsed("((causal or ((valid or sink(1)))))"), Or({a, b, c}));
  EXPECT_EQ(Parsed("(((causal)))"), a);
}

TEST(MaskText, CanonicalText_IsWhatTheGoldenTextsSay) {
  const std::vector<std::pair<std::string, std::string>> golden = {
      {"causal and window( 1023,0 )and documents or sink(4)", "causal and window(1023, 0) and documents or sink(4)"},
      {"(causal) and ((documents or sink(+4)))", "causal and (documents or sink(4))"},
      {"(causal and valid) or (documents ( equal ) and sink(2,document))",
       "causal and valid or documents(equal) and sink(2, document)"},
      {"full or (prefix(007) or (chunk(3) and (blocks)))", "full or prefix(7) or chunk(3) and blocks"},
  };
  for (const auto& [text, canonical] : golden) {
    EXPECT_EQ(ToText(Parsed(text)), canonical);
    EXPECT_EQ(Parsed(canonical), Parsed(text));
  }
}

TEST(MaskText, RandomExpressions_RoundTripExactly) {
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  RandomMaskOptions options;
  options.documents_equal = true;
  options.blocks = true;
  options.registered = true;
  options.max_depth = 5;
  options.max_children = 4;
  int with_both = 0;
  for (int round = 0; round < 2000; ++round) {
    const MaskExpr expr = RandomMask(rng, options);
    const std::string text = ToText(expr);
    if (text.size() > 8000) continue;  // more than 256 terms is another test's business
    const Result<MaskExpr> again = ParseMaskExpr(text, ".", &TestTerms());
    if (!again) {
      EXPECT_THAT(again.error().message, HasSubstr("more than 256 terms")) << text;
      continue;
    }
    ASSERT_EQ(*again, expr) << text;
    ASSERT_EQ(ToText(*again), text);
    with_both += text.find(" and ") != std::string::npos && text.find(" or ") != std::string::npos ? 1 : 0;
  }
  EXPECT_GT(with_both, 200) << "the generator made too few mixed expressions to prove anything";
}

TEST(MaskText, HandMadeNestOfOneOperator_PrintsFlat) {
  const MaskExpr a = Term(TermKind::kCausal);
  const MaskExpr b = Term(TermKind::kValid);
  EXPECT_EQ(ToText(And({a, And({b, a})})), "causal and valid and causal");
  EXPECT_EQ(ToText(Or({a, And({b, Or({a, b})})})), "causal or valid and (causal or valid)");
}

TEST(MaskText, UnknownWord_NamesPlaceTermsAndGuess) {
  EXPECT_THAT(Refusal("causal and windw(3, 0)"),
              AllOf(HasSubstr("column 12: found \"windw\""), HasSubstr("did you mean window?"),
                    HasSubstr("sink(count, document)"), HasSubstr("bitmap(\"file.npy\")")));
  EXPECT_THAT(Refusal("Causal"), HasSubstr("did you mean causal?"));
  EXPECT_THAT(Refusal("documnets"), HasSubstr("did you mean documents?"));
  EXPECT_THAT(Refusal("attention"), AllOf(HasSubstr("column 1"), Not(HasSubstr("did you mean"))));
  EXPECT_THAT(Refusal("sink(4, documents)"), AllOf(HasSubstr("column 9"), HasSubstr("did you mean document?")));
  EXPECT_THAT(Refusal("documents(equals)"), HasSubstr("did you mean equal?"));
}

TEST(MaskText, OtherOperators_AreToldWhatToWrite) {
  EXPECT_THAT(Refusal("not causal"), AllOf(HasSubstr("column 1"), HasSubstr("there is no `not`")));
  EXPECT_THAT(Refusal("causal and not valid"), AllOf(HasSubstr("column 12"), HasSubstr("there is no `not`")));
  EXPECT_THAT(Refusal("!causal"), HasSubstr("there is no `not`"));
  EXPECT_THAT(Refusal("~causal"), HasSubstr("there is no `not`"));
  EXPECT_THAT(Refusal("causal & valid"), HasSubstr("column 8: found \"&\", expected `and`"));
  EXPECT_THAT(Refusal("causal && valid"), HasSubstr("found \"&&\", expected `and`"));
  EXPECT_THAT(Refusal("causal|valid"), HasSubstr("column 7: found \"|\", expected `or`"));
  EXPECT_THAT(Refusal("causal || valid"), HasSubstr("found \"||\", expected `or`"));
}

TEST(MaskText, BrokenGrammar_SaysWhatWasFoundAndExpected) {
  EXPECT_THAT(Refusal(""), HasSubstr("column 1: found the end of the expression, expected a mask term"));
  EXPECT_THAT(Refusal("   "), HasSubstr("column 4: found the end"));
  EXPECT_THAT(Refusal("causal and"), HasSubstr("column 11: found the end"));
  EXPECT_THAT(Refusal("and causal"), HasSubstr("column 1: found \"and\""));
  EXPECT_THAT(Refusal("causal or or valid"), HasSubstr("column 11: found \"or\""));
  EXPECT_THAT(Refusal("causal valid"), HasSubstr("column 8: found \"valid\", expected `and`, `or` or the end"));
  EXPECT_THAT(Refusal("(causal"), HasSubstr("expected `and`, `or` or `)`"));
  EXPECT_THAT(Refusal("causal)"), HasSubstr("column 7: found \")\""));
  EXPECT_THAT(Refusal("()"), HasSubstr("column 2: found \")\""));
  EXPECT_THAT(Refusal("causal()"), HasSubstr("causal takes no arguments"));
  EXPECT_THAT(Refusal("documents()"), HasSubstr("expected `equal`"));
  EXPECT_THAT(Refusal("window"), HasSubstr("expected `(`, as in window(left, right)"));
  EXPECT_THAT(Refusal("window(1)"), HasSubstr("expected `,`, as in window(left, right)"));
  EXPECT_THAT(Refusal("window(1, 2, 3)"), HasSubstr("expected `)`, as in window(left, right)"));
  EXPECT_THAT(Refusal("sink()"), HasSubstr("expected an integer (count of sink(count))"));
  EXPECT_THAT(Refusal("chunk(causal)"), HasSubstr("found \"causal\", expected an integer (size of chunk(size))"));
  EXPECT_THAT(Refusal("bitmap(file.npy)"), HasSubstr("expected a quoted file name"));
  EXPECT_THAT(Refusal("bitmap(\"\")"), HasSubstr("expected the name of an npy file"));
  EXPECT_THAT(Refusal("bitmap(\"a.npy\", \"12\")"), HasSubstr("expected the content's digest: 32 lower-case hex"));
  EXPECT_THAT(Refusal("bitmap(\"a.npy"), HasSubstr("expected a closing quote"));
  EXPECT_THAT(Refusal("causal @ valid"), HasSubstr("column 8: found \"@\""));
}

TEST(MaskText, Numbers_AreCheckedAndNeverWrapped) {
  EXPECT_THAT(Refusal("window(-2, 0)"), HasSubstr("column 8: expected left of window(left, right) from -1 to "
                                                  "1073741824 (-1 = unlimited), found -2"));
  EXPECT_THAT(Refusal("window(0, 1073741825)"), HasSubstr("found 1073741825"));
  EXPECT_THAT(Refusal("chunk(0)"), HasSubstr("expected size of chunk(size) from 1"));
  EXPECT_THAT(Refusal("prefix(-1)"), HasSubstr("expected count of prefix(count) from 0"));
  EXPECT_THAT(Refusal("sink(-1)"), HasSubstr("found -1"));
  EXPECT_THAT(Refusal("sink(-1, document)"), HasSubstr("found -1"));
  EXPECT_THAT(Refusal("sink(99999999999999999999999999)"), HasSubstr("of at most 1073741824"));
  EXPECT_THAT(Refusal("sink(-99999999999999999999999999)"), HasSubstr("of at most 1073741824"));
  EXPECT_THAT(Refusal("sink(1.5)"), HasSubstr("found \"1.5\", expected an integer"));
  EXPECT_THAT(Refusal("sink(4k)"), HasSubstr("found \"4k\", expected an integer"));
  EXPECT_THAT(Refusal("sink(1_000)"), HasSubstr("expected an integer"));
  EXPECT_THAT(Refusal("sink(1e3)"), HasSubstr("expected an integer"));
  EXPECT_THAT(Refusal("sink(0x10)"), HasSubstr("expected an integer"));
  EXPECT_THAT(Refusal("sink(- 1)"), HasSubstr("column 6"));
  EXPECT_EQ(Parsed("window(1073741824, 1073741824)"), Term(TermKind::kWindow, 1073741824, 1073741824));
}

TEST(MaskText, Columns_CountCharactersNotBytes) {
  EXPECT_THAT(Refusal("causal \xC3\xA9 valid"), HasSubstr("column 8: found \"\xC3\xA9\""));
  EXPECT_THAT(Refusal("\xC3\xA9\xC3\xA9"), HasSubstr("column 1"));
}

TEST(MaskText, HostileInput_IsRefusedWithinLimits) {
  const auto repeat = [](std::string_view piece, int times) {
    std::string out;
    for (int i = 0; i < times; ++i) out += piece;
    return out;
  };
  EXPECT_EQ(Parsed(repeat("(", 64) + "causal" + repeat(")", 64)), Term(TermKind::kCausal));
  EXPECT_THAT(Refusal(repeat("(", 65) + "causal" + repeat(")", 65)), HasSubstr("column 65: more than 64 nested"));
  EXPECT_THAT(Refusal(repeat("(", 60000)), HasSubstr("more than 64 nested"));
  EXPECT_EQ(Parsed(repeat("valid or ", 255) + "full").children.size(), 256u);
  EXPECT_THAT(Refusal(repeat("valid or ", 256) + "full"), HasSubstr("more than 256 terms"));
  EXPECT_THAT(Refusal(std::string(64 * 1024 + 1, ' ')), HasSubstr("65537 bytes, expected at most 65536"));
  EXPECT_THAT(Refusal(std::string("causal\0 and valid", 17)), HasSubstr("column 7: found \"\\u0000\""));
  EXPECT_THAT(Refusal("causal \xFF\xFE"), HasSubstr("column 8"));
  EXPECT_THAT(Refusal("bitmap(\"\xFF.npy\")"), HasSubstr("UTF-8 text without control characters"));
  EXPECT_THAT(Refusal(std::string("bitmap(\"a\0b\")", 13)), HasSubstr("UTF-8 text without control characters"));
  EXPECT_THAT(Refusal(std::string(60000, 'x')), Not(HasSubstr(std::string(100, 'x'))));
  EXPECT_THAT(Refusal("sink(" + std::string(60000, '9') + ")"), HasSubstr("column 6"));
}

TEST(MaskText, DeepestParsedExpression_RoundTrips) {
  std::string deep = "causal or valid and full";
  for (int i = 0; i < 64; ++i) deep = "causal or valid and (" + deep + ")";
  const MaskExpr expr = Parsed(deep);
  EXPECT_EQ(Parsed(ToText(expr)), expr);
  EXPECT_EQ(ToText(expr), deep);
}

TEST(MaskText, RandomBytes_NeverCrash) {
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  const std::vector<std::string> pieces = {"causal", "and",    "or", "(",  ")",    ",",   "window",
                                           "sink",   "-1",     "7",  " ",  "\"",   "not", "\x80",
                                           "\xF0",   "bitmap", "'",  "\\", "equal"};
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (int64_t n = RandomInt(rng, 0, 12); n > 0; --n) {
      text +=
          RandomInt(rng, 0, 9) == 0 ? std::string(1, static_cast<char>(rng() & 0xFF)) : pieces[rng() % pieces.size()];
      if (RandomInt(rng, 0, 1) == 0) text += ' ';
    }
    const Result<MaskExpr> expr = ParseMaskExpr(text);
    if (expr) {
      const Result<MaskExpr> again = ParseMaskExpr(ToText(*expr));
      ASSERT_TRUE(again) << text;
      ASSERT_EQ(*again, *expr) << text;
    } else {
      ASSERT_FALSE(expr.error().message.empty());
      ASSERT_THAT(expr.error().where, HasSubstr("column ")) << text;
    }
  }
}

TEST(MaskText, Equality_LooksAtEveryPart) {
  EXPECT_NE(Term(TermKind::kSink, 4), Term(TermKind::kSink, 5));
  EXPECT_NE(Term(TermKind::kSink, 4), Term(TermKind::kSinkDocument, 4));
  EXPECT_NE(Term(TermKind::kWindow, 4, 1), Term(TermKind::kWindow, 4, 2));
  EXPECT_NE(Parsed("causal or valid"), Parsed("causal and valid"));
  EXPECT_NE(Parsed("causal or valid"), Parsed("valid or causal"));

  std::mt19937_64 rng(1);
  MaskTerm bitmap;
  bitmap.kind = TermKind::kBitmap;
  bitmap.path = "a.npy";
  bitmap.bitmap = RandomBitmap(rng, 1, 8, 8);
  MaskTerm other = bitmap;
  EXPECT_EQ(other, bitmap);
  other.bitmap = std::make_shared<Bitmap>(*bitmap.bitmap);
  EXPECT_EQ(other, bitmap) << "content decides, not the pointer";
  Bitmap flipped = *bitmap.bitmap;
  flipped.cells[3] ^= 1;
  flipped.digest = BitmapDigest(flipped);
  other.bitmap = std::make_shared<Bitmap>(flipped);
  EXPECT_NE(other, bitmap);
  other.bitmap = nullptr;
  EXPECT_NE(other, bitmap);
  other = bitmap;
  other.path = "b.npy";
  EXPECT_NE(other, bitmap);
}

}  // namespace
}  // namespace tessera
