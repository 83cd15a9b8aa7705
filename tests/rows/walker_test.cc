// The reader of lines beside the reader of all other JSON, which stands in for it where there is no simdjson: they take
// and refuse the same lines, and take the same out of them.
#include <gmock/gmock.h>

#include <tuple>

#include "documents.h"
#include "io/json_events.h"
#include "io/limits.h"
#include "rows/line_walker.h"
#include "support/proves.h"
#include "support/seed.h"

namespace tessera::rows {
namespace {

auto Of(const RawList& list) { return std::tuple(list.is_given, list.values); }

auto Of(const RawEdges& list) {
  std::vector<std::tuple<std::optional<int64_t>, std::optional<int64_t>>> edges;
  for (const RawEdge& edge : list.edges) edges.emplace_back(edge.from, edge.to);
  return std::tuple(list.is_given, edges);
}

auto Of(const RawDocument& raw) {
  std::vector<std::tuple<bool, std::vector<int32_t>>> lists;
  for (const RawList* list : {&raw.tokens, &raw.spans, &raw.chunk_starts, &raw.chunk_ends, &raw.chunk_kinds,
                              &raw.chunk_dep_levels, &raw.platform_ids})
    lists.push_back(Of(*list));
  for (const RawList& list : raw.columns) lists.push_back(Of(list));
  for (const RawList& list : raw.characters) lists.push_back(Of(list));
  std::vector<std::tuple<std::optional<int64_t>, std::optional<int64_t>, std::optional<int64_t>>> chunks;
  for (const RawChunk& chunk : raw.chunks) chunks.emplace_back(chunk.start, chunk.end, chunk.kind);
  return std::tuple(lists, chunks, Of(raw.call_edges), Of(raw.type_edges), raw.text, raw.valid_tokens);
}

struct Walked {
  std::string wrong;
  RawDocument raw;
};

Walked WithLineWalker(const std::string& line) {
  static LineWalker walker;
  Walked walked;
  DocumentHandler handler(walked.raw);
  const std::string padded = line + std::string(kLinePadding, '7');
  walked.wrong = walker.Walk(std::string_view(padded).substr(0, line.size()), handler);
  return walked;
}

Walked WithWalkJson(const std::string& line) {
  Walked walked;
  DocumentHandler handler(walked.raw);
  handler.Begin();
  walked.wrong = WalkJson(line, kMaxJsonNesting, handler);
  return walked;
}

// What the two are known to differ in: a key that means nothing may be there twice, a fraction may be above a double's.
bool IsKnown(const std::string& wrong) {
  return wrong.find("appears twice") != std::string::npos || wrong.find("overflow") != std::string::npos;
}

void ExpectAlike(const std::string& line) {
  const Walked one = WithLineWalker(line);
  const Walked other = WithWalkJson(line);
  if (IsKnown(other.wrong)) return;
  ASSERT_EQ(one.wrong.empty(), other.wrong.empty()) << line << "\n" << one.wrong << "\n" << other.wrong;
  if (one.wrong.empty()) {
    ASSERT_EQ(Of(one.raw), Of(other.raw)) << line;
  }
}

TEST(Walker, TakesAndRefuses_AsTheReaderOfOtherJson) {
  Proves("R77");
  const std::string deep(kMaxJsonNesting, '[');
  const std::string deep_end(kMaxJsonNesting, ']');
  std::vector<std::string> lines = {"",
                                    "{",
                                    "}",
                                    "{}",
                                    "{} ",
                                    " {}",
                                    "{}{}",
                                    "{} 1",
                                    "[]",
                                    "1",
                                    "-",
                                    "tru",
                                    "\"",
                                    "\"a\"",
                                    "nul",
                                    "{\"a\"}",
                                    "{\"a\":}",
                                    "{\"a\":1,}",
                                    "{,}",
                                    "{\"a\":1 \"b\":2}",
                                    "{\"a\":[1,]}",
                                    "{\"a\":[,1]}",
                                    "{\"a\":[1 2]}",
                                    "{\"a\":[1}",
                                    "{\"a\":{\"b\":1]}",
                                    "{\"a\":1]",
                                    "{a:1}",
                                    "{'a':1}",
                                    "{1:2}",
                                    "{\"a\":tru}",
                                    "{\"a\":nul}",
                                    "{\"a\":nulll}",
                                    "{\"a\":truefalse}",
                                    "{\"a\":falsey}",
                                    "{\"a\":01}",
                                    "{\"a\":-}",
                                    "{\"a\":+1}",
                                    "{\"a\":.5}",
                                    "{\"a\":1.}",
                                    "{\"a\":1.5e}",
                                    "{\"a\":1e5}",
                                    "{\"a\":-0}",
                                    "{\"a\":-0.0E-3}",
                                    "{\"a\":1x}",
                                    "{\"a\":0x10}",
                                    "{\"a\":NaN}",
                                    "{\"a\":\"\\u12\"}",
                                    "{\"a\":\"\\ud800\"}",
                                    "{\"a\":\"\\q\"}",
                                    "{\"a\":\"\x01\"}",
                                    "{\"a\":\"\xff\"}",
                                    "{\"a\":\"\xc3\xa4\"}",
                                    "{\"\\u0074okens\":[1]}",
                                    "{\"tokens\":[1],\"\\u0074okens\":[1]}",
                                    "{\"a\":123456789012345678901234567890}",
                                    "{\"a\":-123456789012345678901234567890}",
                                    "{\"a\":9223372036854775808}",
                                    "{\"a\":18446744073709551616}",
                                    "{\"tokens\":[9223372036854775808]}",
                                    "{\"tokens\":[123456789012345678901234567890]}",
                                    "{\"tokens\":[00000000000000000000001]}",
                                    "{\"tokens\":[1e0]}",
                                    "{\"tokens\":[1.0]}",
                                    "{\"tokens\":[-2147483648,2147483647]}",
                                    "{\"tokens\":[2147483648]}",
                                    "{\"tokens\":[[1]]}",
                                    "{\"tokens\":[null]}",
                                    "{\"tokens\":[true]}",
                                    "{\"tokens\":{}}",
                                    "{\"tokens\":null}",
                                    "{\"tokens\":[1,2,3",
                                    "{\"tokens\":[1,2,3]",
                                    "{\"tokens\": [ 1 , 2 ] }",
                                    "\xef\xbb\xbf{}",
                                    "{\"a\":" + deep.substr(1) + deep_end.substr(1) + "}",
                                    "{\"a\":" + deep + deep_end + "}",
                                    "{\"tokens\":[1],\"text\":\"a\\nb\\u00e4\\ud83d\\ude00\"}"};
  lines.push_back(std::string("{\"a\":\"b\0c\"}", 11));
  lines.push_back(std::string("{\"a\":1}\0", 8));
  for (const std::string& line : lines) ExpectAlike(line);
  // Lines with one byte changed, gone, or put in.
  std::mt19937_64 random(PrintedSeed());
  const std::string_view bytes = "{}[]:,\"\\0123456789-+.eEtfnu \ta\x01\xc3\xff";
  for (int i = 0; i < 20000; ++i) {
    std::string line = RandomLine(random, 4);
    line.pop_back();
    for (size_t change = random() % 3; change > 0; --change) {
      const size_t at = random() % line.size();
      const char byte = bytes[random() % bytes.size()];
      switch (random() % 3) {
        case 0:
          line[at] = byte;
          break;
        case 1:
          line.erase(at, 1);
          break;
        default:
          line.insert(at, 1, byte);
      }
    }
    ExpectAlike(line);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace tessera::rows
