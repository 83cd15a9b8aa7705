// Reading documents: columns, characters, chunks, edges, and every way to be wrong.
#include <gmock/gmock.h>

#include "documents.h"
#include "support/proves.h"
#include "support/seed.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<int32_t> ColumnOf(const Document& document, TokenColumn column) {
  return document.columns[static_cast<size_t>(column)];
}

TEST(Documents, Columns_OfOneDocument_AreFillsOfAnother) {
  Proves("R70 B24");
  const DocumentSet set = Parsed(
      "{\"tokens\": [5, 6]}\n\n"
      "{\"input_ids\": [7], \"token_ast_depth\": [3], \"token_def_use\": [1], \"token_symbol_ids\": null}\n"
      "{\"tokens\": [8]}");
  ASSERT_EQ(set.Size(), 3);
  EXPECT_THAT(set.tokens, ElementsAre(5, 6, 7, 8));
  EXPECT_THAT(set.columns[static_cast<size_t>(TokenColumn::kAstDepth)], ElementsAre(-1, -1, 3, -1));
  EXPECT_THAT(set.columns[static_cast<size_t>(TokenColumn::kDefUse)], ElementsAre(0, 0, 1, 0));
  EXPECT_THAT(set.columns[static_cast<size_t>(TokenColumn::kSymbolIds)], IsEmpty()) << "null is absent";
  EXPECT_EQ(set.sources[1].line, 3);
  for (const ColumnInfo& column : TokenColumns()) {
    const bool is_minus_one = column.name == "token_ast_depth" || column.name == "token_sibling_index" ||
                              column.name == "token_ast_node_type" || column.name == "hunk_id_per_token";
    EXPECT_EQ(column.fill, is_minus_one ? -1 : 0) << column.name;
  }
}

TEST(Documents, ValidTokens_AbsentAndZero_Differ) {
  Proves("B1 B27");
  const DocumentSet set = Parsed(
      "{\"tokens\": [1, 2, 3]}\n"
      "{\"tokens\": [1, 2, 3], \"valid_token_count\": 0}\n"
      "{\"tokens\": [1, 2, 3], \"actual_token_count\": 2, \"token_dep_levels\": [4, 5, 6]}\n"
      "{\"tokens\": [1, 2, 3], \"valid_token_count\": null}");
  EXPECT_EQ(set.Length(0), 3);
  EXPECT_EQ(set.Length(1), 0);
  EXPECT_EQ(set.sources[1].counts.empty, 1);
  EXPECT_EQ(set.Length(2), 2);
  EXPECT_THAT(ColumnOf(set.Get(2), TokenColumn::kDepLevels), ElementsAre(4, 5));
  EXPECT_EQ(set.Length(3), 3);
}

TEST(Documents, Tokens_TakeTheirFirstCharacter) {
  Proves("R72");
  const DocumentSet set =
      Parsed(R"({"text": "int ä;", "tokens": [9, 8, 7, 6], "token_spans": [[0, 3], [3, 5], [5, 5], [5, 6]],)"
             R"( "char_structure_ids": [2, 2, 2, 3, 4, 5], "char_ast_depth": [1, 1, 1, 7, 8, 9]})");
  EXPECT_THAT(ColumnOf(set.Get(0), TokenColumn::kStructureIds), ElementsAre(2, 3, 0, 5));
  EXPECT_THAT(ColumnOf(set.Get(0), TokenColumn::kAstDepth), ElementsAre(1, 7, -1, 9));
  const Error no_spans = Refused(R"({"text": "ab", "tokens": [1], "char_ast_depth": [1, 2]})");
  EXPECT_EQ(no_spans.code, ErrorCode::kDocumentColumn);
  EXPECT_EQ(Refused(R"({"tokens": [1], "chunk_boundaries": [{"start": 0}]})").code, ErrorCode::kDocumentColumn);
  DocumentOptions bytes;
  bytes.bytes = true;
  const Document document = Parsed(R"({"text": "ä;", "char_def_use": [3, 4]})", bytes).Get(0);
  EXPECT_THAT(document.tokens, ElementsAre(0xc3, 0xa4, ';'));
  EXPECT_THAT(ColumnOf(document, TokenColumn::kDefUse), ElementsAre(3, 3, 4));
}

TEST(Documents, Chunks_BecomeTokenOffsets_InOrder) {
  Proves("R73 B26");
  const Document document =
      Parsed(R"({"tokens": [1, 2, 3, 4, 5], "token_spans": [[0, 2], [2, 4], [4, 6], [6, 8], [8, 9]],)"
             R"( "chunk_boundaries": [{"start": 5, "kind": "func_body", "dep_level": 2, "id": "g"},)"
             R"( {"start": 0, "kind": 1, "id": "top"}, {"start": 8, "end": 9, "kind": "comment", "id": 7}],)"
             R"( "call_edges": [{"from": "g", "to": "top"}, {"from": "g", "to": "gone"}], "type_edges": [[7, "g"]]})")
          .Get(0);
  // Token 2 begins before character 5, so it is of the chunk before.
  EXPECT_EQ(document.chunks, (std::vector<Chunk>{{0, 3, 1, -1}, {3, 4, 3, 2}, {4, 5, 6, -1}}));
  EXPECT_EQ(document.call_edges, (std::vector<ChunkEdge>{{1, 0}}));
  EXPECT_EQ(document.type_edges, (std::vector<ChunkEdge>{{2, 1}}));
  const Document lists = Parsed(R"({"tokens": [1, 2, 3, 4], "token_chunk_starts": [2, 0], )"
                                R"("token_chunk_kinds": ["typedef", 3], "token_call_edges": [[0, 1]]})")
                             .Get(0);
  EXPECT_EQ(lists.chunks, (std::vector<Chunk>{{0, 2, 3, -1}, {2, 4, 7, -1}}));
  EXPECT_EQ(lists.call_edges, (std::vector<ChunkEdge>{{1, 0}}));
  EXPECT_EQ(Refused(R"({"tokens": [1], "token_chunk_starts": [0], "token_chunk_kinds": ["func"]})").code,
            ErrorCode::kDocumentValue);
  const Error twice = Refused(R"({"tokens": [1], "token_spans": [[0, 1]],)"
                              R"( "chunk_boundaries": [{"start": 0, "kind": 1, "kind": "comment"}]})");
  EXPECT_EQ(twice.code, ErrorCode::kDocumentColumn);
  EXPECT_THAT(twice.message, HasSubstr("kind twice"));
}

// A class that holds two methods: it ends where the first begins, as a chunk without an end would.
TEST(Documents, AChunkInsideOfAnother_EndsIt) {
  Proves("R73");
  const DocumentSet set =
      Parsed(R"({"tokens": [1, 2, 3, 4, 5, 6, 7], "token_spans": [[0,1],[1,2],[2,3],[3,4],[4,5],[5,6],[6,7]],)"
             R"( "chunk_boundaries": [{"start": 0, "end": 7, "kind": "class_decl", "id": "C"},)"
             R"( {"start": 2, "end": 4, "kind": "class_member", "id": "m"}, {"start": 4, "end": 5, "id": "n"}],)"
             R"( "call_edges": [["m", "n"], ["C", "m"]]})");
  EXPECT_EQ(set.chunks, (std::vector<Chunk>{{0, 2, 4, -1}, {2, 4, 5, -1}, {4, 5, 0, -1}}));
  EXPECT_EQ(set.call_edges, (std::vector<ChunkEdge>{{1, 2}, {0, 1}}));
  EXPECT_EQ(set.sources[0].counts.cut_chunks, 1);
  EXPECT_EQ(set.sources[0].counts.dropped_chunks, 0);
  // Two that begin at one token: nothing is left of the one that comes first in the line.
  const DocumentSet same = Parsed(R"({"tokens": [1, 2, 3], "token_chunk_starts": [0, 0], "token_chunk_ends": [3, 2]})");
  EXPECT_EQ(same.chunks, (std::vector<Chunk>{{0, 2, 0, -1}}));
  EXPECT_EQ(same.sources[0].counts.dropped_chunks, 1);
}

// A chunk whose id is a text is known by its place in the line too, unless that number is another's id.
TEST(Documents, Edges_ByPlace_WhereIdsAreTexts) {
  Proves("R73 B25");
  const auto edges = [](const char* ids, const char* calls) {
    const DocumentSet set = Parsed(
        fmt::format(R"({{"tokens": [1, 2, 3], "token_spans": [[0, 1], [1, 2], [2, 3]], "chunk_boundaries": [)"
                    R"({{"start": 2, "id": {}}}, {{"start": 0, "id": "f"}}, {{"start": 1}}], "call_edges": {}}})",
                    ids, calls));
    EXPECT_EQ(set.sources[0].counts.dropped_edges, 1) << "[0, 9]";
    return set.call_edges;
  };
  EXPECT_EQ(edges("\"g\"", R"([[0, 1], ["g", 1], [1, "g"], {"src": 2, "dst": "f"}, [0, 9]])"),
            (std::vector<ChunkEdge>{{2, 0}, {2, 0}, {0, 2}, {1, 0}}));
  // An id that is a number: the place of another chunk, and one larger than any place.
  EXPECT_EQ(edges("1", R"([[1, "f"], [2, 1], [0, 9]])"), (std::vector<ChunkEdge>{{2, 0}, {1, 2}}));
  EXPECT_EQ(edges("1099511627776", R"([[1099511627776, 1], [0, 9]])"), (std::vector<ChunkEdge>{{2, 0}}));
}

TEST(Documents, Edges_InEverySpelling_AreOneEdge) {
  Proves("R73 B25");
  for (const char* edge : {"[1, 0]", R"({"from": 1, "to": 0})", R"({"src": 1, "dst": 0})",
                           R"({"source": 1, "target": 0})", R"({"to": 0, "weight": [1, {"from": 3}], "from": 1})"}) {
    for (const char* name : {"token_call_edges", "call_edges"}) {
      const DocumentSet set =
          Parsed(fmt::format(R"({{"tokens": [1, 2], "token_chunk_starts": [0, 1], "{}": [{}, [0, 5]]}})", name, edge));
      EXPECT_EQ(set.call_edges, (std::vector<ChunkEdge>{{1, 0}})) << edge;
      EXPECT_EQ(set.sources[0].counts.dropped_edges, 1);
    }
  }
  for (const char* edge : {"[1]", "[1, 0, 1]", R"({"from": 1})", R"({"from": 1, "src": 1})", "3", "[[1, 0]]"}) {
    const Error error =
        Refused(fmt::format(R"({{"tokens": [1, 2], "token_chunk_starts": [0, 1], "call_edges": [{}]}})", edge));
    EXPECT_EQ(error.code, ErrorCode::kDocumentColumn) << edge;
  }
}

TEST(Documents, WhatIsWrong_IsNamedWithFileLineAndColumn) {
  Proves("R69");
  struct Case {
    const char* line;
    ErrorCode code;
    const char* words;
  };
  const std::vector<Case> cases = {
      {R"({"tokens": [1, 2)", ErrorCode::kDocumentSyntax, ""},
      {"[1, 2]", ErrorCode::kDocumentSyntax, "object"},
      {"7", ErrorCode::kDocumentSyntax, "object"},
      {R"({"tokens": [1]} {"tokens": [2]})", ErrorCode::kDocumentSyntax, ""},
      {R"({"words": [1]})", ErrorCode::kDocumentColumn, "tokens is missing"},
      {R"({"text": "a"})", ErrorCode::kDocumentColumn, "tokenised"},
      {R"({"tokens": [1], "loss_mask": [1]})", ErrorCode::kDocumentColumn, "loss_mask"},
      {R"({"tokens": [1], "input_ids": [1]})", ErrorCode::kDocumentColumn, "input_ids"},
      {R"({"tokens": [1], "token_dep_levels": [1, 2]})", ErrorCode::kDocumentColumn, "token_dep_levels"},
      {R"({"tokens": [1], "token_dep_levels": []})", ErrorCode::kDocumentColumn, "token_dep_levels"},
      {R"({"tokens": [1], "token_dep_levels": 5})", ErrorCode::kDocumentColumn, "token_dep_levels"},
      {R"({"tokens": [1], "token_dep_levels": [1.5]})", ErrorCode::kDocumentColumn, "token_dep_levels"},
      {R"({"tokens": ["a"]})", ErrorCode::kDocumentColumn, "tokens"},
      {R"({"tokens": [-1]})", ErrorCode::kDocumentValue, "tokens"},
      {R"({"tokens": [4294967296]})", ErrorCode::kDocumentValue, "tokens"},
      {R"({"tokens": [50]})", ErrorCode::kDocumentValue, "tokens"},
      {R"({"tokens": [1], "token_structure_ids": [9]})", ErrorCode::kDocumentValue, "token_structure_ids"},
      {R"({"tokens": [1], "platform_ids": [113]})", ErrorCode::kDocumentValue, "platform_ids"},
      {R"({"tokens": [1], "valid_token_count": 2})", ErrorCode::kDocumentValue, "valid_token_count"},
      {R"({"tokens": [1, 2], "token_spans": [[0, 1]]})", ErrorCode::kDocumentColumn, "token_spans"},
      {R"({"tokens": [1, 2], "token_spans": [[2, 3], [1, 2]]})", ErrorCode::kDocumentValue, "token_spans"},
      {R"({"tokens": [1, 2], "token_chunk_starts": [0, 1], "token_chunk_ends": [3, 2]})", ErrorCode::kDocumentValue,
       "token_chunk_starts"},
      {R"({"tokens": [1, 2, 3, 4, 5, 6, 7, 8, 9]})", ErrorCode::kDocumentTooLong, "--long split"},
  };
  DocumentOptions options;
  options.vocab = 50;
  options.row_tokens = 8;
  for (const Case& bad : cases) {
    const Error error = Refused(std::string("{\"tokens\": [1]}\n\n") + bad.line + "\n{\"tokens\": [2]}\n", options);
    EXPECT_EQ(error.code, bad.code) << bad.line << error.message;
    EXPECT_THAT(error.message, HasSubstr(bad.words)) << bad.line;
    EXPECT_EQ(error.where, "d.jsonl line 3") << bad.line;
  }
  options.required = {TokenColumn::kAstDepth};
  const Error missing = Refused("{\"tokens\": [1], \"token_ast_depth\": [1]}\n{\"tokens\": [1]}\n", options);
  EXPECT_EQ(missing.code, ErrorCode::kDocumentColumn);
  EXPECT_EQ(missing.where, "d.jsonl line 2");
  EXPECT_THAT(missing.message, HasSubstr("token_ast_depth"));
}

TEST(Documents, AnyNumberOfThreads_ReadsTheSame) {
  std::mt19937_64 random(PrintedSeed());
  std::string text;
  while (text.size() < 400000) text += RandomLine(random, 40);
  DocumentOptions options;
  options.row_tokens = 32;
  options.long_documents = LongDocuments::kSplit;
  options.fim_percent = 40;
  options.fim_sentinels = {1001, 1002, 1003, 1004};
  const DocumentSet one = Parsed(text, options);
  for (const int64_t threads : {2, 5}) {
    options.threads = threads;
    const DocumentSet many = Parsed(text, options);
    ASSERT_EQ(many.Size(), one.Size());
    EXPECT_EQ(many.tokens, one.tokens);
    EXPECT_EQ(many.columns, one.columns);
    EXPECT_EQ(many.chunks, one.chunks);
    EXPECT_EQ(many.call_edges, one.call_edges);
    for (size_t i = 0; i < one.sources.size(); ++i) ASSERT_EQ(many.sources[i].line, one.sources[i].line);
  }
}

TEST(Documents, Fim_PermutesEveryColumn_AndDropsChunksAcrossACut) {
  Proves("R74");
  Document document = Parsed(R"({"tokens": [1, 2, 3, 4, 5, 6], "token_ast_depth": [11, 12, 13, 14, 15, 16],)"
                             R"( "token_def_use": [1, 2, 3, 4, 5, 6], "token_chunk_starts": [0, 2, 3, 5],)"
                             R"( "call_edges": [[0, 3], [2, 3], [3, 3]]})")
                          .Get(0);
  DocumentCounts counts;
  FimCut cut{.prefix_end = 2, .middle_end = 4, .suffix_first = false, .sentinels = {91, 92, 93, 94}};
  const Document psm = PermuteForFim(document, cut, &counts);
  EXPECT_THAT(psm.tokens, ElementsAre(91, 1, 2, 92, 5, 6, 93, 3, 4, 94));
  EXPECT_THAT(ColumnOf(psm, TokenColumn::kAstDepth), ElementsAre(0, 11, 12, 0, 15, 16, 0, 13, 14, 0))
      << "a sentinel has 0, where padding has -1";
  EXPECT_THAT(ColumnOf(psm, TokenColumn::kHunkId), IsEmpty()) << "absent stays absent";
  EXPECT_THAT(ColumnOf(psm, TokenColumn::kDefUse), ElementsAre(0, 1, 2, 0, 5, 6, 0, 3, 4, 0));
  // Chunk [3, 5) is across the second cut; the last one moves before the second.
  EXPECT_EQ(psm.chunks, (std::vector<Chunk>{{1, 3, 0, -1}, {5, 6, 0, -1}, {7, 8, 0, -1}}));
  EXPECT_EQ(psm.call_edges, (std::vector<ChunkEdge>{{0, 1}, {1, 1}}));
  EXPECT_EQ(counts.dropped_chunks, 1);
  EXPECT_EQ(counts.dropped_edges, 1);
  cut.suffix_first = true;
  const Document spm = PermuteForFim(document, cut, nullptr);
  EXPECT_THAT(spm.tokens, ElementsAre(91, 92, 5, 6, 93, 1, 2, 3, 4, 94));
  EXPECT_THAT(ColumnOf(spm, TokenColumn::kDefUse), ElementsAre(0, 0, 5, 6, 0, 1, 2, 3, 4, 0));
}

TEST(Documents, Fim_LeavesADocument_ThatWouldNotFitARow) {
  Proves("R74");
  DocumentOptions options;
  options.fim_percent = 100;
  options.fim_sentinels = {91, 92, 93, 94};
  const std::string text = "{\"tokens\": [1, 2, 3, 4, 5, 6]}";
  options.row_tokens = 10;
  EXPECT_EQ(Parsed(text, options).Length(0), 10);
  options.row_tokens = 9;
  const DocumentSet left = Parsed(text, options);
  EXPECT_THAT(left.tokens, ElementsAre(1, 2, 3, 4, 5, 6)) << "it fits as it is, so it is not refused for its sentinels";
  EXPECT_EQ(left.sources[0].counts.permuted, 0);
  options.row_tokens = 4;
  options.long_documents = LongDocuments::kSplit;
  EXPECT_THAT(Parsed(text, options).tokens, ElementsAre(1, 2, 3, 4, 5, 6)) << "pieces of a permuted one mean nothing";
}

TEST(Documents, LongOnes_AreSplitOrSkipped_AndCounted) {
  Proves("B36");
  const std::string text = "{\"tokens\": [1, 2, 3]}\n{\"tokens\": [1, 2, 3, 4, 5, 6, 7, 8, 9]}\n{\"tokens\": [4]}\n";
  DocumentOptions options;
  options.row_tokens = 4;
  options.long_documents = LongDocuments::kSkip;
  const DocumentSet skipped = Parsed(text, options);
  EXPECT_THAT(skipped.tokens, ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(skipped.sources[1].counts.skipped, 1);
  EXPECT_EQ(skipped.sources[1].counts.skipped_tokens, 9);
  options.long_documents = LongDocuments::kSplit;
  const DocumentSet split = Parsed(text, options);
  EXPECT_EQ(split.Size(), 5);
  EXPECT_EQ(split.Length(1), 4);
  EXPECT_EQ(split.Length(3), 1);
  EXPECT_EQ(split.sources[3].piece, 2);
  EXPECT_EQ(split.sources[1].counts.split, 1);
  DocumentCounts counts;
  for (const DocumentSource& source : split.sources) counts += source.counts;
  EXPECT_EQ(counts.documents, 3);
  EXPECT_EQ(counts.tokens, 13);
}

}  // namespace
}  // namespace tessera
