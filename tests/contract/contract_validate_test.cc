// Every rule of Validate, one broken at a time and many at once, and the edges that must stay allowed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>

#include "support/proves.h"
#include "support/random_mask.h"
#include "tessera/contract.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

MaskExpr Leaf(TermKind kind, int64_t first = 0, int64_t second = 0) {
  MaskExpr expr;
  expr.term.kind = kind;
  expr.term.first = first;
  expr.term.second = second;
  return expr;
}

Contract Good() {
  Contract contract;
  contract.shape = {
      .batch = 2, .q_len = 512, .kv_len = 4096, .num_q_heads = 8, .num_kv_heads = 2, .dim_qk = 64, .dim_v = 32};
  contract.mask.heads = {Leaf(TermKind::kCausal)};
  contract.score.scale = 0.125;
  return contract;
}

// "field: expected" for each violation after `change`.
std::vector<std::string> After(const std::function<void(Contract&)>& change) {
  Contract contract = Good();
  change(contract);
  std::vector<std::string> lines;
  for (const Violation& violation : Validate(contract)) lines.push_back(violation.field + ": " + violation.expected);
  return lines;
}

TEST(ContractValidate, GoodContract_HasNoViolation) { EXPECT_THAT(Validate(Good()), IsEmpty()); }

TEST(ContractValidate, KvHeadsMustDivideQHeads) {
  Proves("B7");
  EXPECT_THAT(After([](Contract& c) { c.shape.num_kv_heads = 3; }),
              ElementsAre("shape.num_kv_heads: expected a divisor of num_q_heads (8), found 3"));
  EXPECT_THAT(After([](Contract& c) { c.shape.num_kv_heads = 16; }), ElementsAre(HasSubstr("found 16")));
  for (const int64_t heads : {1, 2, 4, 8}) {
    EXPECT_THAT(After([&](Contract& c) { c.shape.num_kv_heads = heads; }), IsEmpty());
  }
}

TEST(ContractValidate, SmallTile_NeedsAReason) {
  Proves("R6");
  EXPECT_EQ(Contract().tiles, (TileSize{256, 256}));
  const std::string wanted = "tiles.reason: expected a reason for a tile smaller than 256";
  EXPECT_THAT(After([](Contract& c) { c.tiles = {255, 256}; }), ElementsAre(HasSubstr(wanted)));
  EXPECT_THAT(After([](Contract& c) { c.tiles = {256, 128}; }), ElementsAre(HasSubstr(wanted)));
  EXPECT_THAT(After([](Contract& c) {
                c.tiles = {128, 512};
                c.tiles_reason = " \t\n";
              }),
              ElementsAre(HasSubstr(wanted)));
  EXPECT_THAT(After([](Contract& c) {
                c.tiles = {1, 65536};
                c.tiles_reason = "short rows";
              }),
              IsEmpty());
  EXPECT_THAT(After([](Contract& c) { c.tiles = {512, 1024}; }), IsEmpty());
}

TEST(ContractValidate, Numbers_HaveRanges) {
  const int64_t limit = int64_t{1} << 30;
  const int64_t least = std::numeric_limits<int64_t>::min();
  const int64_t most = std::numeric_limits<int64_t>::max();
  const auto field = [](const std::string& name) { return ElementsAre(HasSubstr(name + ": expected ")); };
  EXPECT_THAT(After([](Contract& c) { c.version = 2; }), ElementsAre("version: expected 1, found 2"));
  EXPECT_THAT(After([](Contract& c) { c.shape.batch = 0; }), ElementsAre("shape.batch: expected 1 to 65536, found 0"));
  EXPECT_THAT(After([](Contract& c) { c.shape.batch = 65537; }), field("shape.batch"));
  EXPECT_THAT(After([](Contract& c) { c.shape.q_len = 0; }), field("shape.q_len"));
  EXPECT_THAT(After([&](Contract& c) { c.shape.kv_len = limit + 1; }), field("shape.kv_len"));
  EXPECT_THAT(After([&](Contract& c) { c.shape.q_len = c.shape.kv_len = limit; }), IsEmpty());
  EXPECT_THAT(After([&](Contract& c) { c.shape.num_q_heads = least; }), field("shape.num_q_heads"));
  EXPECT_THAT(After([](Contract& c) { c.shape.num_kv_heads = 0; }), field("shape.num_kv_heads"));
  EXPECT_THAT(After([](Contract& c) { c.shape.dim_qk = 0; }), field("shape.dim_qk"));
  EXPECT_THAT(After([&](Contract& c) { c.shape.dim_v = most; }), field("shape.dim_v"));
  EXPECT_THAT(After([](Contract& c) { c.shape.dtype = static_cast<DType>(9); }), field("shape.dtype"));
  EXPECT_THAT(After([&](Contract& c) { c.mask.offset = limit + 1; }), field("mask.offset"));
  EXPECT_THAT(After([&](Contract& c) { c.mask.offset = -limit; }), IsEmpty());
  EXPECT_THAT(After([](Contract& c) { c.tiles.q = 0; }), field("tiles.q"));
  EXPECT_THAT(After([](Contract& c) { c.tiles.kv = 65537; }), field("tiles.kv"));
  EXPECT_THAT(After([](Contract& c) {
                c.shape.batch = 65536;
                c.shape.q_len = int64_t{1} << 30;
              }),
              ElementsAre(HasSubstr("shape: expected at most 281474976710656 elements in a tensor")));
}

TEST(ContractValidate, Score_IsInItsRange) {
  for (const double scale : {0.0, -1.0, std::nan(""), HUGE_VAL, -HUGE_VAL, 1e39, 1e-46, 1e300, 1.1e15, 0.9e-15}) {
    EXPECT_THAT(After([&](Contract& c) { c.score.scale = scale; }),
                ElementsAre(HasSubstr("score.scale: expected 1e-15 to 1e15")))
        << scale;
  }
  for (const double softcap : {-1.0, std::nan(""), HUGE_VAL, 1e39, 1e-300, 2.4e38, 1.1e15, 0.9e-15}) {
    EXPECT_THAT(After([&](Contract& c) { c.score.softcap = softcap; }),
                ElementsAre(HasSubstr("score.softcap: expected 0 (off), or 1e-15 to 1e15")))
        << softcap;
  }
  EXPECT_THAT(After([](Contract& c) { c.score.softcap = 30.0; }), IsEmpty());
}

TEST(ContractValidate, TermNumbers_AreChecked) {
  const auto with = [](const MaskExpr& expr) { return After([&](Contract& c) { c.mask.heads = {expr}; }); };
  EXPECT_THAT(with(Leaf(TermKind::kWindow, -2, 0)), ElementsAre(AllOf(HasSubstr("mask.expr"), HasSubstr("found -2"))));
  EXPECT_THAT(with(Leaf(TermKind::kWindow, 0, -2)), ElementsAre(HasSubstr("right of window")));
  EXPECT_THAT(with(Leaf(TermKind::kWindow, -1, -1)), IsEmpty());
  EXPECT_THAT(with(Leaf(TermKind::kWindow, 0, 0)), IsEmpty());
  EXPECT_THAT(with(Leaf(TermKind::kChunk, 0)), ElementsAre(HasSubstr("size of chunk(size) from 1")));
  EXPECT_THAT(with(Leaf(TermKind::kPrefix, -1)), ElementsAre(HasSubstr("count of prefix(count) from 0")));
  EXPECT_THAT(with(Leaf(TermKind::kSink, -1)), ElementsAre(HasSubstr("count of sink(count) from 0")));
  EXPECT_THAT(with(Leaf(TermKind::kSinkDocument, -1)), ElementsAre(HasSubstr("count of sink(count, document)")));
  EXPECT_THAT(with(Leaf(TermKind::kSink, (int64_t{1} << 30) + 1)), ElementsAre(HasSubstr("to 1073741824")));
  EXPECT_THAT(with(Leaf(TermKind::kCausal, 1)), ElementsAre(HasSubstr("no number beyond those of causal")));
  EXPECT_THAT(with(Leaf(static_cast<TermKind>(99))), ElementsAre(HasSubstr("known kind of term")));
}

TEST(ContractValidate, HandMadeTrees_AreChecked) {
  const auto with = [](const MaskExpr& expr) { return After([&](Contract& c) { c.mask.heads = {expr}; }); };
  MaskExpr lonely;
  lonely.op = MaskExpr::Op::kAnd;
  lonely.children = {Leaf(TermKind::kCausal)};
  EXPECT_THAT(with(lonely), ElementsAre("mask.expr: expected at least 2 sub-expressions of `and`, found 1"));
  MaskExpr crowded = Leaf(TermKind::kCausal);
  crowded.children = {Leaf(TermKind::kFull)};
  EXPECT_THAT(with(crowded), ElementsAre(HasSubstr("expected a term to have no sub-expressions")));
  MaskExpr unknown;
  unknown.op = static_cast<MaskExpr::Op>(7);
  EXPECT_THAT(with(unknown), ElementsAre(HasSubstr("expected a term, `and` or `or`")));

  MaskExpr wide;
  wide.op = MaskExpr::Op::kOr;
  wide.children.assign(256, Leaf(TermKind::kCausal));
  EXPECT_THAT(with(wide), IsEmpty());
  wide.children.push_back(Leaf(TermKind::kCausal));
  EXPECT_THAT(with(wide), ElementsAre("mask.expr: expected at most 256 terms, found 257"));

  // Alternating operators: 64 parentheses parse, 65 do not, and Validate agrees.
  MaskExpr deep = Leaf(TermKind::kCausal);
  for (int level = 0; level < 130; ++level) {
    MaskExpr outer;
    outer.op = level % 2 == 0 ? MaskExpr::Op::kOr : MaskExpr::Op::kAnd;
    outer.children = {Leaf(TermKind::kFull), std::move(deep)};
    deep = std::move(outer);
    const bool parses = ParseMaskExpr(ToText(deep)).has_value();
    EXPECT_EQ(with(deep).empty(), parses) << level;
  }
  EXPECT_THAT(with(deep), ElementsAre("mask.expr: expected at most 64 nested parentheses"));
}

TEST(ContractValidate, Heads_AreOneOrOnePerQueryHead) {
  EXPECT_THAT(After([](Contract& c) { c.mask.heads.clear(); }),
              ElementsAre("mask.heads: expected one expression, or one per query head (8), found 0"));
  EXPECT_THAT(After([](Contract& c) { c.mask.heads.assign(7, Leaf(TermKind::kFull)); }),
              ElementsAre(HasSubstr("found 7")));
  EXPECT_THAT(After([](Contract& c) { c.mask.heads.assign(8, Leaf(TermKind::kFull)); }), IsEmpty());
  EXPECT_THAT(After([](Contract& c) {
                c.mask.heads.assign(8, Leaf(TermKind::kFull));
                c.mask.heads[5] = Leaf(TermKind::kChunk, 0);
              }),
              ElementsAre(HasSubstr("mask.heads[5]: ")));
}

TEST(ContractValidate, RunTimeTerms_AreAtMostSixDistinct) {
  const auto with = [](int sinks) {
    return After([&](Contract& c) {
      MaskExpr expr;
      expr.op = MaskExpr::Op::kOr;
      expr.children = {Leaf(TermKind::kDocuments), Leaf(TermKind::kDocumentsEqual), Leaf(TermKind::kValid),
                       Leaf(TermKind::kBlocks)};
      for (int i = 0; i < sinks; ++i) {
        expr.children.push_back(Leaf(TermKind::kSinkDocument, i));
        expr.children.push_back(Leaf(TermKind::kSinkDocument, i));
      }
      c.mask.heads.assign(8, Leaf(TermKind::kFull));
      c.mask.heads[1] = expr;
      c.mask.heads[2] = expr;
    });
  };
  EXPECT_THAT(with(3), IsEmpty());
  EXPECT_THAT(with(4),
              ElementsAre(AllOf(HasSubstr("mask: expected at most 6 distinct run-time terms"), HasSubstr("found 7"))));
}

TEST(ContractValidate, Bitmaps_MustFitTheShape) {
  std::mt19937_64 rng(7);
  const auto with = [](std::shared_ptr<const Bitmap> bitmap, const std::string& path = "m.npy") {
    return After([&](Contract& c) {
      c.shape.q_len = 3;
      c.shape.kv_len = 5;
      c.mask.heads = {Leaf(TermKind::kBitmap)};
      c.mask.heads[0].term.path = path;
      c.mask.heads[0].term.bitmap = bitmap;
    });
  };
  EXPECT_THAT(with(RandomBitmap(rng, 1, 3, 5)), IsEmpty());
  EXPECT_THAT(with(RandomBitmap(rng, 8, 3, 5)), IsEmpty());
  EXPECT_THAT(with(RandomBitmap(rng, 2, 3, 5)), ElementsAre(HasSubstr("1 or num_q_heads (8) heads, found 2")));
  EXPECT_THAT(with(RandomBitmap(rng, 1, 5, 3)),
              ElementsAre("mask.expr: expected the bitmap \"m.npy\" to be q_len x kv_len (3 x 5), found 5 x 3"));
  EXPECT_THAT(with(nullptr), ElementsAre(HasSubstr("expected the bitmap \"m.npy\" to be loaded")));
  for (const std::string path : {"", "a\nb", "\xFF"}) {
    EXPECT_THAT(with(RandomBitmap(rng, 1, 3, 5), path), ElementsAre(HasSubstr("bitmap's path to be UTF-8"))) << path;
  }
  auto torn = std::make_shared<Bitmap>(*RandomBitmap(rng, 1, 3, 5));
  torn->cells.pop_back();
  EXPECT_THAT(with(torn), ElementsAre(HasSubstr("cells, found 14")));
  auto undigested = std::make_shared<Bitmap>(*RandomBitmap(rng, 1, 3, 5));
  undigested->digest.clear();
  EXPECT_THAT(with(undigested), ElementsAre(HasSubstr("to carry its digest")));
  EXPECT_THAT(After([&](Contract& c) { c.mask.heads[0].term.path = "m.npy"; }),
              ElementsAre(HasSubstr("expected no file on causal")));
}

TEST(ContractValidate, Capacities_ArePositive) {
  const auto number = [](int64_t n) { return Limit{Limit::Kind::kNumber, n}; };
  EXPECT_THAT(After([&](Contract& c) { c.capacity.width = number(0); }),
              ElementsAre(HasSubstr("capacity.width: expected 1 to")));
  EXPECT_THAT(After([&](Contract& c) { c.capacity.width_transposed = number(-5); }),
              ElementsAre(HasSubstr("capacity.width_transposed: ")));
  EXPECT_THAT(After([&](Contract& c) { c.capacity.cleanups = number(int64_t{1} << 31); }),
              ElementsAre(HasSubstr("capacity.cleanups: ")));
  EXPECT_THAT(After([&](Contract& c) {
                c.capacity.cleanups = {Limit::Kind::kPow2, 4};
              }),
              ElementsAre(HasSubstr("expected no number beside")));
  EXPECT_THAT(After([&](Contract& c) {
                c.capacity.width = {static_cast<Limit::Kind>(5), 0};
              }),
              ElementsAre(HasSubstr("\"exact\", \"pow2\" or a positive integer")));
  EXPECT_THAT(After([&](Contract& c) { c.capacity = {number(1), number(7), {Limit::Kind::kPow2, 0}}; }), IsEmpty());
}

TEST(ContractValidate, Routing_HasRules) {
  const auto with = [](const std::function<void(Routing&)>& change) {
    return After([&](Contract& c) {
      c.mask.heads = {Leaf(TermKind::kBlocks)};
      change(c.routing.emplace());  // 4096 keys: 16 blocks of 256
    });
  };
  EXPECT_THAT(with([](Routing&) {}), IsEmpty());
  EXPECT_THAT(After([](Contract& c) { c.routing.emplace(); }),
              ElementsAre(HasSubstr("routing: expected a `blocks` term in the mask")));
  EXPECT_THAT(After([](Contract& c) { c.mask.heads = {Leaf(TermKind::kBlocks)}; }), IsEmpty())
      << "a caller may bring its own picks";
  EXPECT_THAT(with([](Routing& r) { r.query_tile = 0; }), ElementsAre(HasSubstr("routing.query_tile: expected 1 to")));
  EXPECT_THAT(with([](Routing& r) { r.kv_tile = 1000; }),
              ElementsAre("routing.kv_tile: expected a multiple of selected_block (256), found 1000"));
  EXPECT_THAT(with([](Routing& r) { r.kv_tile = 0; }), ElementsAre(HasSubstr("routing.kv_tile: expected 1 to")));
  EXPECT_THAT(with([](Routing& r) { r.compression_block = 96; }),
              ElementsAre("routing.selected_block: expected a multiple of compression_block (96), found 256"));
  EXPECT_THAT(with([](Routing& r) { r.block_stride = 48; }),
              ElementsAre("routing.selected_block: expected a multiple of block_stride (48), found 256"));
  EXPECT_THAT(with([](Routing& r) { r.block_stride = 256; }), ElementsAre(HasSubstr("routing.block_stride: ")));
  EXPECT_THAT(with([](Routing& r) { r.selected_block = -1; }), ElementsAre(HasSubstr("routing.selected_block: ")));
  EXPECT_THAT(with([](Routing& r) { r.top_n = 17; }), ElementsAre("routing.top_n: expected 1 to 16, found 17"));
  EXPECT_THAT(with([](Routing& r) { r.top_n = 0; }), ElementsAre(HasSubstr("routing.top_n: ")));
  EXPECT_THAT(with([](Routing& r) { r.first_blocks = 9; }),
              ElementsAre("routing.first_blocks: expected 0 to 8, found 9"));
  EXPECT_THAT(with([](Routing& r) { r.union_capacity = 7; }),
              ElementsAre("routing.union_capacity: expected 8 to 16, found 7"));
  EXPECT_THAT(with([](Routing& r) { r.union_capacity = 17; }), ElementsAre(HasSubstr("routing.union_capacity: ")));
  EXPECT_THAT(with([](Routing& r) { r.meta_ratio = 0; }), ElementsAre(HasSubstr("routing.meta_ratio: ")));
  EXPECT_THAT(with([](Routing& r) { r.meta_keep = -3; }), ElementsAre(HasSubstr("routing.meta_keep: ")));
  const auto few = [](Routing& r) {
    r.meta_ratio = 3;
    r.meta_keep = 2;
  };
  EXPECT_THAT(with(few), IsEmpty()) << "not used unless hierarchical";
  EXPECT_THAT(with([&](Routing& r) {
                few(r);
                r.hierarchical = true;
              }),
              ElementsAre(HasSubstr("routing.meta_keep: expected meta_keep x meta_ratio of at least top_n (8)")));
}

TEST(ContractValidate, EveryViolation_IsReportedAtOnce) {
  const std::vector<std::string> all = After([](Contract& c) {
    c.version = 0;
    c.shape.batch = 0;
    c.shape.num_kv_heads = 3;
    c.mask.heads = {Leaf(TermKind::kChunk, 0)};
    c.score.scale = 0;
    c.tiles.kv = 8;
    c.tiles_reason = "\xFF";
    c.capacity.width = {Limit::Kind::kNumber, 0};
    c.routing.emplace().top_n = 0;
  });
  EXPECT_THAT(all, ElementsAre(HasSubstr("version"), HasSubstr("shape.batch"), HasSubstr("shape.num_kv_heads"),
                               HasSubstr("mask.expr"), HasSubstr("score.scale"), HasSubstr("tiles.reason"),
                               HasSubstr("capacity.width"), HasSubstr("routing: "), HasSubstr("routing.top_n")));
}

TEST(ContractValidate, EmptyContract_IsRefusedAndPrintable) {
  const Contract contract;
  EXPECT_FALSE(Validate(contract).empty());
  EXPECT_FALSE(ToToml(contract).empty());
  EXPECT_FALSE(ToJson(contract).empty());
  Contract odd = Good();
  odd.score.scale = std::nan("");
  EXPECT_THAT(ToToml(odd), HasSubstr("scale = nan\n"));
  EXPECT_THAT(ToJson(odd), HasSubstr("\"scale\": null"));
  odd.tiles_reason = "\xFF";
  EXPECT_THAT(ToToml(odd), HasSubstr("reason = \"\xEF\xBF\xBD\"\n"));
}

// toml++ looks for blanks at these places, and must not trip over a letter there.
TEST(ContractText, LettersOutsideAsciiWhereABlankMayStand_AreDecided) {
  const std::string head = "version = 1\n[shape]\nq_len = 64\ndim_qk = 8\n[mask]\nexpr = \"causal\"\n[tiles]\nq = 64\n";
  const Result<Contract> trimmed = ParseContract(head + "reason = \"\"\"short \\\n   \u00e9t\u00e9\"\"\"\n");
  ASSERT_TRUE(trimmed.has_value()) << ToText(trimmed.error());
  EXPECT_EQ(trimmed->tiles_reason, "short \u00e9t\u00e9");
  for (const char* letter : {"\u00e9", "\u00ff", "\u0180", "\u1700", "\u2010", "\u3001", "\ufe00"}) {
    EXPECT_FALSE(ParseContract(head + letter + " = 1\n").has_value());
    EXPECT_FALSE(ParseContract(head + "kv = 64" + letter + "\n").has_value());
    EXPECT_FALSE(ParseContract(head + "kv = " + letter + "64\n").has_value());
    EXPECT_FALSE(ParseContract(head + "[" + letter + "]\n").has_value());
  }
}

}  // namespace
}  // namespace tessera
