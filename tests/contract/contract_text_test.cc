// Contract files: fields, defaults, canonical text, round trips, and what each mistake in a file is told.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <random>
#include <string>

#include "base/test_files.h"
#include "support/npy_file.h"
#include "support/random_contract.h"
#include "support/seed.h"
#include "tessera/contract.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr std::string_view kSmall = "version = 1\n[shape]\nq_len = 64\ndim_qk = 16\n[mask]\nexpr = \"causal\"\n";

Contract Parsed(std::string_view text) {
  const Result<Contract> contract = ParseContract(text);
  EXPECT_TRUE(contract) << text << "\n" << ToText(contract.error());
  return contract.value_or(Contract());
}

Error Refusal(std::string_view text) {
  const Result<Contract> contract = ParseContract(text);
  EXPECT_FALSE(contract) << text;
  return contract ? Error() : contract.error();
}

// One "field: expected" line per violation.
std::vector<std::string> FieldProblems(std::string_view text) {
  const Error error = Refusal(text);
  EXPECT_EQ(error.code, ErrorCode::kContractField) << ToText(error);
  std::vector<std::string> lines;
  for (const Violation& violation : error.violations) lines.push_back(violation.field + ": " + violation.expected);
  return lines;
}

TEST(ContractText, LeastContract_GetsEveryDefault) {
  const Contract contract = Parsed(kSmall);
  EXPECT_EQ(contract.version, 1);
  EXPECT_EQ(contract.shape, (Shape{.batch = 1,
                                   .q_len = 64,
                                   .kv_len = 64,
                                   .num_q_heads = 1,
                                   .num_kv_heads = 1,
                                   .dim_qk = 16,
                                   .dim_v = 16,
                                   .dtype = DType::kF32}));
  EXPECT_EQ(contract.mask.offset, 0);
  EXPECT_EQ(contract.score.scale, 0.25);
  EXPECT_EQ(contract.score.softcap, 0.0);
  EXPECT_FALSE(contract.score.sink_logits);
  EXPECT_EQ(contract.tiles, (TileSize{256, 256}));
  EXPECT_EQ(contract.tiles_reason, "");
  EXPECT_EQ(contract.capacity, Capacity{});
  EXPECT_FALSE(contract.routing);
}

TEST(ContractText, Defaults_FollowOtherFields) {
  const Contract contract = Parsed(
      "version = 1\n[shape]\nq_len = 10\nkv_len = 64\nnum_q_heads = 6\ndim_qk = 128\ndim_v = 64\n"
      "[mask]\nexpr = \"causal\"\n");
  EXPECT_EQ(contract.shape.num_kv_heads, 6);
  EXPECT_EQ(contract.mask.offset, 54);
  EXPECT_EQ(contract.score.scale, 0.08838834764831845);  // 1.0 / std::sqrt(128.0) is one unit below
  EXPECT_EQ(contract.shape.dim_v, 64);
  EXPECT_EQ(
      Parsed("version = 1\n[shape]\nq_len = 64\nkv_len = 10\ndim_qk = 4\n[mask]\nexpr = \"causal\"\n").mask.offset,
      -54);
  EXPECT_EQ(Parsed(std::string(kSmall) + "offset = -3\n").mask.offset, -3);
}

TEST(ContractText, DefaultScale_IsTheNearestDoubleToOneOverRoot) {
  for (int64_t dim = 1; dim <= 1024; ++dim) {
    const std::string text =
        fmt::format("version = 1\nshape = {{ q_len = 4, dim_qk = {} }}\nmask = {{ expr = \"full\" }}\n", dim);
    const double scale = Parsed(text).score.scale;
    // Neighbours on either side are no nearer: the exact value lies between the two midpoints. Squares of midpoints
    // times dim are compared with 1 in 2^-53 steps by splitting, so that nothing is lost.
    const auto above_one = [&](double a, double b) {  // ((a + b) / 2)^2 * dim > 1
      const double mid_high = a;
      const double mid_low = (b - a) / 2;  // exact
      const double square = mid_high * mid_high;
      const double square_rest = std::fma(mid_high, mid_high, -square) + 2 * mid_high * mid_low + mid_low * mid_low;
      const double n = static_cast<double>(dim);
      const double product = square * n;
      return (product - 1) + (std::fma(square, n, -product) + square_rest * n) > 0;
    };
    EXPECT_TRUE(above_one(scale, std::nextafter(scale, 2.0))) << dim;
    EXPECT_FALSE(above_one(scale, std::nextafter(scale, 0.0))) << dim;
  }
}

TEST(ContractText, CanonicalToml_IsTheGoldenText) {
  const Contract contract = Parsed(R"toml(
version = 1
shape = { q_len = 8192, num_q_heads = 8, num_kv_heads = 2, dim_qk = 128, batch = 2, dtype = "bf16" }
[score]
softcap = 30
[mask]
expr = "( causal and window(1023,0)) and documents or sink(4)"
)toml");
  EXPECT_EQ(ToToml(contract), R"toml(version = 1

[shape]
batch = 2
q_len = 8192
kv_len = 8192
num_q_heads = 8
num_kv_heads = 2
dim_qk = 128
dim_v = 128
dtype = "bf16"

[mask]
expr = "causal and window(1023, 0) and documents or sink(4)"
offset = 0

[score]
scale = 0.08838834764831845
softcap = 30.0
sink_logits = false

[tiles]
q = 256
kv = 256
reason = ""

[capacity]
width = "exact"
width_transposed = "exact"
cleanups = "exact"
)toml");
}

TEST(ContractText, CanonicalJson_IsTheGoldenText) {
  Contract contract = Parsed(R"(
version = 1
shape = { q_len = 4096, num_q_heads = 2, dim_qk = 64 }
mask = { heads = ["causal and blocks", "causal"], offset = 1 }
tiles = { q = 128, reason = "say \"why\"\\\n" }
capacity = { width = "pow2", cleanups = 12 }
[routing]
)");
  EXPECT_EQ(ToJson(contract), R"({
  "version": 1,
  "shape": {
    "batch": 1,
    "q_len": 4096,
    "kv_len": 4096,
    "num_q_heads": 2,
    "num_kv_heads": 2,
    "dim_qk": 64,
    "dim_v": 64,
    "dtype": "f32"
  },
  "mask": {
    "heads": ["causal and blocks", "causal"],
    "offset": 1
  },
  "score": {
    "scale": 0.125,
    "softcap": 0.0,
    "sink_logits": false
  },
  "tiles": {
    "q": 128,
    "kv": 256,
    "reason": "say \"why\"\\\n"
  },
  "capacity": {
    "width": "pow2",
    "width_transposed": "exact",
    "cleanups": 12
  },
  "routing": {
    "query_tile": 256,
    "kv_tile": 1024,
    "selected_block": 256,
    "block_stride": 64,
    "compression_block": 128,
    "top_n": 8,
    "first_blocks": 0,
    "hierarchical": false,
    "meta_ratio": 8,
    "meta_keep": 16,
    "union_capacity": 0
  }
}
)");
}

TEST(ContractText, RandomContracts_RoundTripThroughTomlAndJson) {
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  const TestFolder folder;
  const std::filesystem::path dir = folder.path();
  for (int round = 0; round < 200; ++round) {
    const Contract contract = RandomContract(rng);
    ASSERT_THAT(Validate(contract), IsEmpty()) << ToToml(contract);
    for (const MaskExpr& head : contract.mask.heads) WriteBitmaps(dir, head);
    const Result<Contract> from_toml = ParseContract(ToToml(contract), dir.string(), &TestTerms());
    ASSERT_TRUE(from_toml) << ToText(from_toml.error()) << "\n" << ToToml(contract);
    ASSERT_EQ(*from_toml, contract) << ToToml(contract);
    const Result<Contract> from_json = ParseContract(ToJson(contract), dir.string(), &TestTerms());
    ASSERT_TRUE(from_json) << ToText(from_json.error()) << "\n" << ToJson(contract);
    ASSERT_EQ(*from_json, contract) << ToJson(contract);
    ASSERT_EQ(ToToml(*from_json), ToToml(contract));
    ASSERT_EQ(ToJson(*from_toml), ToJson(contract));
  }
}

TEST(ContractText, Doubles_RoundTripBitForBitAndReadAsFloats) {
  for (const double value : {1.0, 30.0, 0.1, 1e15, 1.5e-14, 1e13, 123456789012345.68, 1e-5, 1e-15, 1.0 / 3.0}) {
    Contract contract = Parsed(kSmall);
    contract.score.scale = value;
    contract.score.softcap = value;
    for (const std::string& text : {ToToml(contract), ToJson(contract)}) {
      EXPECT_EQ(Parsed(text).score.scale, value) << text;
      EXPECT_EQ(Parsed(text).score.softcap, value) << text;
    }
  }
  Contract contract = Parsed(kSmall);
  contract.score.scale = 30.0;
  EXPECT_THAT(ToToml(contract), HasSubstr("scale = 30.0\n"));
  EXPECT_THAT(ToToml(Parsed(std::string(kSmall) + "[score]\nsoftcap = -0.0\n")), HasSubstr("softcap = 0.0\n"));
}

TEST(ContractText, TomlAndJson_GiveTheSameContract) {
  EXPECT_EQ(Parsed(kSmall),
            Parsed(R"( {"version": 1, "shape": {"q_len": 64, "dim_qk": 16}, "mask": {"expr": "causal"}})"));
  EXPECT_EQ(Parsed(kSmall), Parsed(std::string("\xEF\xBB\xBF").append(kSmall)));
  EXPECT_EQ(Parsed(kSmall), Parsed(std::string("\xEF\xBB\xBF").append(ToJson(Parsed(kSmall)))));
}

TEST(ContractText, PerHeadMasks_AreListedOrGivenAsRanges) {
  const std::string shape = "version = 1\nshape = { q_len = 64, dim_qk = 16, num_q_heads = 4 }\n";
  const Contract listed = Parsed(shape + "[mask]\nheads = [\"causal\", \"full\", \"full\", \"causal\"]\n");
  ASSERT_EQ(listed.mask.heads.size(), 4u);
  EXPECT_EQ(listed.mask.heads[3], listed.mask.heads[0]);
  const Contract ranged = Parsed(shape +
                                 "[mask]\nheads = [{ range = \"1-2\", expr = \"full\" }, "
                                 "{ range = \"0\", expr = \"causal\" }, { range = \"3-3\", expr = \"causal\" }]\n");
  EXPECT_EQ(ranged, listed);
  EXPECT_THAT(ToToml(ranged), HasSubstr("heads = [\"causal\", \"full\", \"full\", \"causal\"]\n"));
  const Contract equal = Parsed(shape + "[mask]\nheads = [{ range = \"0-3\", expr = \"causal\" }]\n");
  EXPECT_EQ(equal.mask.heads.size(), 4u) << "equal heads stay one entry per head";
}

TEST(ContractText, BadHeadLists_SayWhichHead) {
  const auto problems = [](std::string_view heads) {
    return FieldProblems("version = 1\nshape = { q_len = 64, dim_qk = 16, num_q_heads = 4 }\n[mask]\nheads = " +
                         std::string(heads) + "\n");
  };
  EXPECT_THAT(problems("[\"causal\"]"), ElementsAre("mask.heads: expected one expression per query head (4), found 1"));
  EXPECT_THAT(problems("[]"), ElementsAre(HasSubstr("mask.heads: expected an array: one expression per query head")));
  EXPECT_THAT(problems("3"), ElementsAre(HasSubstr("found the integer 3")));
  EXPECT_THAT(problems("[\"causal\", 3, \"causal\", {}]"),
              ElementsAre("mask.heads[1]: expected a string, found the integer 3",
                          "mask.heads[3]: expected a string, found a table"));
  EXPECT_THAT(problems("[{ range = \"0-2\", expr = \"causal\" }]"),
              ElementsAre("mask.heads: head 3 is in no range, expected every head once"));
  EXPECT_THAT(problems("[{ range = \"0-3\", expr = \"causal\" }, { range = \"3\", expr = \"full\" }]"),
              ElementsAre("mask.heads[1].range: head 3 is in an earlier range too, expected every head once"));
  for (const std::string range : {"0-4", "2-1", "-1", "", "0-", "a", "0-3x", "99999999999999999999", "0,1", " 0"}) {
    EXPECT_THAT(problems("[{ range = \"" + range + "\", expr = \"causal\" }]"),
                ElementsAre(HasSubstr("mask.heads[0].range: expected heads from 0 to 3")))
        << range;
  }
  EXPECT_THAT(problems("[{ rnge = \"0-3\" }, \"causal\"]"),
              ElementsAre("mask.heads[0].rnge: unknown field, expected one of range, expr; did you mean range?",
                          "mask.heads[0].range: missing, expected heads, as in \"0-3\"",
                          "mask.heads[0].expr: missing, expected a mask expression",
                          "mask.heads[1]: expected a table with range and expr, found the string \"causal\""));
}

TEST(ContractText, RangesThatExpandToTooMuch_AreRefused) {
  std::string expr = "valid";
  for (int i = 1; i < 256; ++i) expr += " or valid";
  EXPECT_THAT(FieldProblems("version = 1\nshape = { q_len = 64, dim_qk = 16, num_q_heads = 65536 }\n[mask]\nheads = "
                            "[{ range = \"0-65535\", expr = \"" +
                            expr + "\" }]\n"),
              ElementsAre("mask.heads: expected at most 1048576 terms over all heads"));
}

TEST(ContractText, MaskTable_NeedsExactlyOneForm) {
  EXPECT_THAT(FieldProblems("version = 1\nshape = { q_len = 64, dim_qk = 16 }\n[mask]\noffset = 0\n"),
              ElementsAre("mask: expected expr or heads, found neither"));
  EXPECT_THAT(FieldProblems(std::string(kSmall) + "heads = [\"causal\"]\n"),
              ElementsAre("mask: expected expr or heads, found both"));
}

TEST(ContractText, EveryFieldProblem_IsReportedAtOnce) {
  EXPECT_THAT(
      FieldProblems(R"(
version = "1"
extra = 1
[shape]
batch = 2.0
q_len = "64"
num_q_head = 4
dtype = "fp16"
[mask]
expr = 7
offset = true
[score]
scale = "auto"
softcap = false
sink_logits = 0
[tiles]
q = []
reason = 1
[capacity]
width = "exakt"
width_transposed = 1.5
[routing]
hierarchical = 1
top_n = 1979-05-27
)"),
      testing::UnorderedElementsAre(
          "version: expected an integer, found the string \"1\"",
          HasSubstr("extra: unknown field, expected one of version, shape, mask, score, tiles, capacity, routing"),
          HasSubstr("shape.batch: expected an integer, found the number 2"),
          "shape.q_len: expected an integer, found the string \"64\"",
          AllOf(HasSubstr("shape.num_q_head: unknown field"), HasSubstr("did you mean num_q_heads?")),
          "shape.dim_qk: missing, expected an integer",
          "shape.dtype: expected \"f32\", \"bf16\" or \"f16\", found \"fp16\"",
          "mask.expr: expected a string, found the integer 7", "mask.offset: expected an integer, found true",
          "score.scale: expected a number, found the string \"auto\"", "score.softcap: expected a number, found false",
          "score.sink_logits: expected true or false, found the integer 0",
          "tiles.q: expected an integer, found an array", "tiles.reason: expected a string, found the integer 1",
          "capacity.width: expected \"exact\", \"pow2\" or a positive integer, found the string \"exakt\"",
          "capacity.width_transposed: expected \"exact\", \"pow2\" or a positive integer, found the number 1.5",
          "routing.hierarchical: expected true or false, found the integer 1",
          "routing.top_n: expected an integer, found a date or time"));
}

TEST(ContractText, MissingTables_AreNamed) {
  EXPECT_THAT(FieldProblems(""), ElementsAre("version: missing, expected an integer",
                                             "shape: missing, expected a table with at least q_len and dim_qk",
                                             "mask: missing, expected a table with expr or heads"));
  EXPECT_THAT(FieldProblems("version = 1\nshape = 3\nmask = \"causal\"\n"),
              ElementsAre("shape: expected a table, found the integer 3",
                          "mask: expected a table, found the string \"causal\""));
  EXPECT_THAT(FieldProblems("version = 2\nshape = { q_len = 64, dim_qk = 16 }\nmask = { expr = \"causal\" }\n"),
              ElementsAre("version: expected 1, found 2"));
}

TEST(ContractText, JsonIntegers_MustBeIntegral) {
  const auto with = [](const std::string& q_len) {
    return R"({"version": 1, "shape": {"dim_qk": 16, "q_len": )" + q_len + R"(}, "mask": {"expr": "causal"}})";
  };
  EXPECT_EQ(Parsed(with("64")).shape.q_len, 64);
  EXPECT_THAT(FieldProblems(with("64.5")), ElementsAre("shape.q_len: expected an integer, found the number 64.5"));
  EXPECT_THAT(FieldProblems(with("64.0")), ElementsAre("shape.q_len: expected an integer, found the number 64.0"));
  EXPECT_THAT(FieldProblems(with("18446744073709551615")),
              ElementsAre("shape.q_len: expected an integer, found the number 18446744073709551615"));
  EXPECT_THAT(FieldProblems(with("null")), ElementsAre("shape.q_len: expected an integer, found null"));
  EXPECT_THAT(FieldProblems(with("[64]")), ElementsAre("shape.q_len: expected an integer, found an array"));
}

TEST(ContractText, MaskMistakes_ComeWithFieldColumnAndTheOtherRules) {
  const Error error = Refusal(
      "version = 1\nshape = { batch = 0, q_len = 64, dim_qk = 16, num_q_heads = 2 }\n[mask]\nheads = [\"causal\", "
      "\"causl\"]\n");
  EXPECT_EQ(error.code, ErrorCode::kMaskSyntax);
  ASSERT_EQ(error.violations.size(), 2u);
  EXPECT_EQ(error.violations[0].field, "mask.heads[1]");
  EXPECT_THAT(error.violations[0].expected, AllOf(HasSubstr("column 1: found \"causl\""), HasSubstr("mean causal?")));
  EXPECT_EQ(error.violations[1].field, "shape.batch");
}

TEST(ContractText, BrokenRules_AreContractInvalid) {
  const Error error = Refusal(
      "version = 1\n[shape]\nq_len = 64\ndim_qk = 16\nnum_q_heads = 6\nnum_kv_heads = 4\n[mask]\nexpr = "
      "\"causal\"\n[tiles]\nq = 64\n[score]\nscale = nan\n");
  EXPECT_EQ(error.code, ErrorCode::kContractInvalid);
  std::vector<std::string> fields;
  for (const Violation& violation : error.violations) fields.push_back(violation.field);
  EXPECT_THAT(fields, ElementsAre("shape.num_kv_heads", "score.scale", "tiles.reason"));
}

TEST(ContractText, BrokenToml_NamesLineAndColumn) {
  const Error error = Refusal("version = 1\n[shape]\nq_len = = 3\n");
  EXPECT_EQ(error.code, ErrorCode::kContractSyntax);
  EXPECT_EQ(error.where, "line 3, column 9");
  EXPECT_THAT(error.message, HasSubstr("not well-formed TOML"));
  EXPECT_EQ(Refusal("version = 1\nversion = 1\n").code, ErrorCode::kContractSyntax);
  EXPECT_EQ(Refusal("version = 99999999999999999999\n").code, ErrorCode::kContractSyntax);
  // These break assertions inside toml++ 3.3.
  for (const std::string text : {"[$", "[[$]]", "[ =", "[\n", "[shape.]", "[.shape]"}) {
    EXPECT_EQ(Refusal(text).code, ErrorCode::kContractSyntax) << text;
  }
}

TEST(ContractText, BrokenJson_NamesLineAndColumn) {
  const Error error = Refusal("{\"version\": 1,\n \"shape\": }");
  EXPECT_EQ(error.code, ErrorCode::kContractSyntax);
  EXPECT_EQ(error.where, "line 2, column 11");
  EXPECT_THAT(error.message, AllOf(HasSubstr("not well-formed JSON"), Not(HasSubstr("json.exception"))));
  EXPECT_THAT(Refusal("{\"version\": 1, \"version\": 1}").message, HasSubstr("\"version\" appears twice"));
  EXPECT_THAT(Refusal("{\"scale\": 1e999}").message, HasSubstr("1e999"));
  EXPECT_EQ(Refusal("{} {}").code, ErrorCode::kContractSyntax);
  EXPECT_LT(Refusal(std::string("{\"a\": \"").append(100000, 'x')).message.size(), 300u);
}

TEST(ContractText, HostileText_IsRefused) {
  EXPECT_EQ(Refusal("version = 1\nx = \"\xFF\"\n").code, ErrorCode::kContractSyntax);
  EXPECT_EQ(Refusal("{\"version\": \"\xC3\"}").code, ErrorCode::kContractSyntax);
  EXPECT_EQ(Refusal(std::string("version = 1\0", 12)).code, ErrorCode::kContractSyntax);
  EXPECT_EQ(Refusal(std::string("{\0}", 3)).code, ErrorCode::kContractSyntax);
  const std::string deep_array = std::string("x = ").append(100000, '[');
  EXPECT_EQ(Refusal(deep_array).code, ErrorCode::kContractSyntax);
  EXPECT_THAT(Refusal(std::string("{\"x\": ").append(100000, '[')).message, HasSubstr("nested deeper than 64"));
  // A table in a table in a table ... by dotted keys, with and without strings that try to hide them.
  for (const std::string before : {"", "[", "x = [ \"\"\"a\"\"\"\"\", { ", "x = [ '''a'''', { ", "x = '\\' # '\n",
                                   "\"q\\\"\".", "x = \"\" # \"\"\"\n", "x = { y = 1, "}) {
    std::string keys = before + "a";
    for (int i = 0; i < 500000; ++i) keys += ".a";
    EXPECT_THAT(Refusal(keys + " = 1\n").message, HasSubstr("a dotted key has more than 16 parts")) << before;
  }
  // The parser's time grows with the square of the tables that a text makes, so they are counted before it sees them.
  for (const std::string piece : {"[[a]]\n[[a.b]]\n[[a.b.c]]\n", "[a]\n", "[[ a . b ]]\n", "  [a.b]\r\n",
                                  "a.b=1\nc.d=1\n", "x = { a.b = 1, c.d = 2 }\n", "x = [ { a.b.c = 1 } ]\n"}) {
    std::string text;
    while (text.size() < (1 << 23)) text += piece;
    EXPECT_THAT(Refusal(text).message, HasSubstr("more than 4096 tables")) << piece;
  }
  EXPECT_THAT(FieldProblems(std::string(kSmall) + "[tiles]\nreason = '''\n................................\n'''\nz=1"),
              ElementsAre(HasSubstr("tiles.z: unknown field")));
  std::string objects;
  for (int i = 0; i < 100000; ++i) objects += "{\"a\":";
  EXPECT_THAT(Refusal(objects).message, HasSubstr("nested deeper than 64"));
  EXPECT_EQ(Refusal(std::string((1 << 24) + 1, '#')).code, ErrorCode::kTooLarge);
  // Text that a mask or a name must not smuggle into a message or a path.
  EXPECT_EQ(Refusal("{\"version\": 1, \"shape\": {\"q_len\": 4, \"dim_qk\": 4}, \"mask\": {\"expr\": "
                    "\"bitmap('a\\u0000b')\"}}")
                .code,
            ErrorCode::kMaskSyntax);
  EXPECT_THAT(FieldProblems(std::string(kSmall) + "[\"a\\u0007\\n\"]\n"),
              ElementsAre(HasSubstr("\"a\\u0007\\n\": unk")));
}

TEST(ContractText, RandomDamage_NeverCrashesAndSurvivorsRoundTrip) {
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  RandomContractOptions options;
  options.bitmap = false;
  for (int round = 0; round < 1500; ++round) {
    const Contract contract = RandomContract(rng, options);
    std::string text = RandomInt(rng, 0, 1) == 0 ? ToToml(contract) : ToJson(contract);
    for (int64_t n = RandomInt(rng, 1, 3); n > 0; --n) {
      const size_t at = rng() % text.size();
      switch (RandomInt(rng, 0, 3)) {
        case 0:
          text[at] = static_cast<char>(rng() & 0xFF);
          break;
        case 1:
          text.erase(at, 1 + rng() % 8);
          break;
        case 2:
          text.insert(at, 1, static_cast<char>(rng() & 0x7F));
          break;
        default:
          text.resize(at + 1);
      }
      if (text.empty()) text = "x";
    }
    const Result<Contract> read = ParseContract(text);
    if (read) {
      ASSERT_EQ(ParseContract(ToToml(*read)).value_or(Contract()), *read) << text;
    } else {
      ASSERT_FALSE(ToText(read.error()).empty());
    }
  }
}

TEST(ContractText, DocumentedContracts_AreGood) {
  const std::string page = Slurp(TESSERA_SOURCE_DIR "/docs/contract.md");
  const std::string open = "```toml\n";
  std::vector<size_t> num_masks;
  for (size_t at = page.find(open); at != std::string::npos; at = page.find(open, at + 1)) {
    const size_t begin = at + open.size();
    const Contract contract = Parsed(page.substr(begin, page.find("```", begin) - begin));
    EXPECT_EQ(Parsed(ToJson(contract)), contract);
    num_masks.push_back(contract.mask.heads.size());
  }
  EXPECT_THAT(num_masks, ElementsAre(1, 8));
}

TEST(ContractText, ReadContract_NamesTheFileAndFindsBitmapsBesideIt) {
  const TestFolder folder;
  const std::filesystem::path dir = folder.path();
  WriteBytes(dir / "c.toml",
             "version = 1\nshape = { q_len = 2, kv_len = 3, dim_qk = 4 }\nmask = { expr = \"bitmap('m.npy')\" }\n");
  WriteBytes(dir / "m.npy", NpyBytes("|b1", "(2, 3)", std::string("\1\0\1\0\0\1", 6)));
  const Result<Contract> contract = ReadContract((dir / "c.toml").string());
  ASSERT_TRUE(contract) << ToText(contract.error());
  EXPECT_EQ(contract->mask.heads[0].term.bitmap->cells, (std::vector<uint8_t>{1, 0, 1, 0, 0, 1}));

  WriteBytes(dir / "bad.toml", "version = = 1\n");
  const Result<Contract> bad = ReadContract((dir / "bad.toml").string());
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().where, (dir / "bad.toml").string() + ", line 1, column 11");
  WriteBytes(dir / "fields.toml", "version = 1\n");
  EXPECT_EQ(ReadContract((dir / "fields.toml").string()).error().where, (dir / "fields.toml").string());
  EXPECT_EQ(ReadContract((dir / "absent.toml").string()).error().code, ErrorCode::kFileRead);
  EXPECT_EQ(ReadContract(dir.string()).error().code, ErrorCode::kFileRead);
}

}  // namespace
}  // namespace tessera
