// The bitmap("file.npy") term: loading, digests that pin the content, and unusable files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <random>
#include <string>

#include "base/test_files.h"
#include "io/bitmap.h"
#include "support/npy_file.h"
#include "support/random_mask.h"
#include "tessera/contract.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class BitmapText : public testing::Test {
 protected:
  BitmapText() { std::filesystem::create_directories(dir_ / "sub"); }

  Result<MaskExpr> Parse(std::string_view text) const { return ParseMaskExpr(text, dir_.string()); }

  std::string Refusal(std::string_view text) const {
    const Result<MaskExpr> expr = Parse(text);
    EXPECT_FALSE(expr) << text;
    if (expr) return {};
    EXPECT_EQ(expr.error().code, ErrorCode::kBitmapInvalid);
    return expr.error().where + ": " + expr.error().message;
  }

  TestFolder folder_;
  const std::filesystem::path dir_ = folder_.path();
};

TEST_F(BitmapText, TwoAndThreeDimensions_Load) {
  WriteBytes(dir_ / "two.npy", NpyBytes("|b1", "(2, 3)", std::string("\1\0\1\0\0\1", 6)));
  WriteBytes(dir_ / "sub/three.npy", NpyBytes("|u1", "(2, 1, 2)", std::string("\1\0\0\1", 4)));
  const Result<MaskExpr> two = Parse("bitmap(\"two.npy\")");
  ASSERT_TRUE(two) << ToText(two.error());
  EXPECT_EQ(two->term.kind, TermKind::kBitmap);
  EXPECT_EQ(two->term.path, "two.npy");
  EXPECT_EQ(two->term.bitmap->heads, 1);
  EXPECT_EQ(two->term.bitmap->q_len, 2);
  EXPECT_EQ(two->term.bitmap->kv_len, 3);
  EXPECT_EQ(two->term.bitmap->cells, (std::vector<uint8_t>{1, 0, 1, 0, 0, 1}));
  const Result<MaskExpr> three = Parse("bitmap('sub/three.npy')");
  ASSERT_TRUE(three) << ToText(three.error());
  EXPECT_EQ(three->term.bitmap->heads, 2);
  EXPECT_EQ(three->term.bitmap->q_len, 1);
  EXPECT_EQ(three->term.bitmap->kv_len, 2);
  const Result<MaskExpr> absolute = Parse("bitmap('" + (dir_ / "two.npy").string() + "')");
  ASSERT_TRUE(absolute) << ToText(absolute.error());
  EXPECT_EQ(absolute->term.bitmap->digest, two->term.bitmap->digest);
}

TEST_F(BitmapText, CanonicalText_CarriesTheDigestAndIsChecked) {
  WriteBytes(dir_ / "m.npy", NpyBytes("|b1", "(2, 3)", std::string("\1\0\1\0\0\1", 6)));
  const Result<MaskExpr> expr = Parse("causal and bitmap('m.npy')");
  ASSERT_TRUE(expr) << ToText(expr.error());
  // Golden: the digest is part of keys, so it may not drift between versions or machines.
  const std::string canonical = "causal and bitmap(\"m.npy\", \"7ecadb66696be561c3f4b013310b79bf\")";
  EXPECT_EQ(ToText(*expr), canonical);
  const Result<MaskExpr> again = Parse(canonical);
  ASSERT_TRUE(again) << ToText(again.error());
  EXPECT_EQ(*again, *expr);

  WriteBytes(dir_ / "m.npy", NpyBytes("|b1", "(2, 3)", std::string("\1\0\1\0\1\1", 6)));
  EXPECT_THAT(Refusal(canonical), AllOf(HasSubstr("column 28: the content of \"m.npy\" has digest"),
                                        HasSubstr("not the one this contract was written for")));
}

TEST_F(BitmapText, Digest_DependsOnShapeAndCellsOnly) {
  Bitmap bitmap{.heads = 1, .q_len = 2, .kv_len = 3, .cells = {1, 0, 1, 0, 0, 1}, .digest = ""};
  const std::string digest = BitmapDigest(bitmap);
  EXPECT_EQ(digest.size(), 32u);
  bitmap.digest = "anything";
  EXPECT_EQ(BitmapDigest(bitmap), digest);
  std::swap(bitmap.q_len, bitmap.kv_len);
  EXPECT_NE(BitmapDigest(bitmap), digest);
  std::swap(bitmap.q_len, bitmap.kv_len);
  bitmap.cells[4] = 1;
  EXPECT_NE(BitmapDigest(bitmap), digest);
}

TEST_F(BitmapText, UnusableFiles_AreNamed) {
  EXPECT_THAT(Refusal("causal and bitmap('absent.npy')"),
              AllOf(HasSubstr("column 19"), HasSubstr("\"absent.npy\" is unusable: expected a file at")));
  EXPECT_THAT(Refusal("bitmap('sub')"), HasSubstr("expected a file at"));
  WriteBytes(dir_ / "text.npy", "hello");
  EXPECT_THAT(Refusal("bitmap('text.npy')"), HasSubstr("\"text.npy\" is unusable"));
  WriteBytes(dir_ / "short.npy", NpyBytes("|b1", "(2, 3)", "\1"));
  EXPECT_THAT(Refusal("bitmap('short.npy')"), HasSubstr("is unusable"));
  WriteBytes(dir_ / "real.npy", NpyBytes("<f4", "(1, 1)", "abcd"));
  EXPECT_THAT(Refusal("bitmap('real.npy')"), HasSubstr("is unusable"));
  WriteBytes(dir_ / "seven.npy", NpyBytes("|u1", "(1, 1)", "\7"));
  EXPECT_THAT(Refusal("bitmap('seven.npy')"), HasSubstr("only 0 and 1"));
  WriteBytes(dir_ / "flat.npy", NpyBytes("|b1", "(6,)", std::string("\1\0\1\0\0\1", 6)));
  EXPECT_THAT(Refusal("bitmap('flat.npy')"), HasSubstr("is unusable"));
  WriteBytes(dir_ / "four.npy", NpyBytes("|b1", "(1, 1, 1, 1)", "\1"));
  EXPECT_THAT(Refusal("bitmap('four.npy')"), HasSubstr("is unusable"));
}

TEST_F(BitmapText, PathsWithQuotesAndUnicode_RoundTrip) {
  for (const std::string name : {"it's \"quoted\".npy", "back\\slash.npy", "na\xC3\xAFve.npy", "a, b) or (c.npy"}) {
    WriteBytes(dir_ / name, NpyBytes("|b1", "(1, 1)", "\1"));
    MaskExpr expr;
    expr.term.kind = TermKind::kBitmap;
    expr.term.path = name;
    auto bitmap = std::make_shared<Bitmap>(Bitmap{.heads = 1, .q_len = 1, .kv_len = 1, .cells = {1}, .digest = ""});
    bitmap->digest = BitmapDigest(*bitmap);
    expr.term.bitmap = bitmap;
    const Result<MaskExpr> again = Parse(ToText(expr));
    ASSERT_TRUE(again) << ToText(again.error());
    EXPECT_EQ(*again, expr);
  }
}

TEST_F(BitmapText, OneFileNamedByManyHeads_IsHeldOnce) {
  WriteBytes(dir_ / "m.npy", NpyBytes("|b1", "(2, 2)", std::string("\1\0\1\1", 4)));
  const Result<Contract> contract = ParseContract(
      "version = 1\nshape = { q_len = 2, dim_qk = 4, num_q_heads = 2 }\n"
      "mask = { heads = [\"bitmap('m.npy')\", \"causal or bitmap('m.npy')\"] }\n",
      dir_.string());
  ASSERT_TRUE(contract) << ToText(contract.error());
  EXPECT_EQ(contract->mask.heads[0].term.bitmap, contract->mask.heads[1].children[1].term.bitmap);
}

TEST_F(BitmapText, WrongShapeInAContract_IsAViolation) {
  WriteBytes(dir_ / "m.npy", NpyBytes("|b1", "(2, 2)", std::string("\1\0\1\1", 4)));
  const auto read = [&](const std::string& expr) {
    return ParseContract("version = 1\nshape = { q_len = 4, dim_qk = 4 }\nmask = { expr = \"" + expr + "\" }\n",
                         dir_.string());
  };
  EXPECT_EQ(read("bitmap('m.npy')").error().code, ErrorCode::kBitmapInvalid) << "a file of another shape";
  EXPECT_EQ(read("bitmap('absent.npy')").error().code, ErrorCode::kBitmapInvalid);
}

}  // namespace
}  // namespace tessera
