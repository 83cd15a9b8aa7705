// Documents cut and put together in another order: fill in the middle, and pieces of documents longer than a row. One
// function moves what goes with the tokens, so that no column can be left where it was.
#include <algorithm>

#include "tessera/documents.h"

namespace tessera {
namespace {

// Tokens [begin, end) of the document, or one new token.
struct Part {
  int64_t begin = 0;
  int64_t end = 0;
  std::optional<int32_t> sentinel = {};
};

// Edges between chunks that are still there, by their new numbers; -1 is gone.
std::vector<ChunkEdge> Renumbered(const std::vector<ChunkEdge>& edges, const std::vector<int32_t>& numbers,
                                  int64_t* dropped) {
  std::vector<ChunkEdge> kept;
  for (const ChunkEdge& edge : edges) {
    const ChunkEdge moved{numbers[static_cast<size_t>(edge.from)], numbers[static_cast<size_t>(edge.to)]};
    if (moved.from < 0 || moved.to < 0) {
      ++*dropped;
    } else {
      kept.push_back(moved);
    }
  }
  return kept;
}

// The tokens and columns of a part, behind those that are there.
void AppendTokens(const Document& document, const Part& part, Document& made) {
  if (part.sentinel) {
    made.tokens.push_back(*part.sentinel);
  } else {
    made.tokens.insert(made.tokens.end(), document.tokens.begin() + part.begin, document.tokens.begin() + part.end);
  }
  for (size_t c = 0; c < kNumTokenColumns; ++c) {
    const std::vector<int32_t>& from = document.columns[c];
    if (from.empty()) continue;
    std::vector<int32_t>& to = made.columns[c];
    if (part.sentinel) {
      to.push_back(0);  // and not the column's fill: a sentinel is a token of its own, of which nothing is missing
    } else {
      to.insert(to.end(), from.begin() + part.begin, from.begin() + part.end);
    }
  }
}

// The numbers of the first chunk within a part, and of the one behind the last: chunks ascend.
struct ChunkRange {
  size_t first = 0;
  size_t last = 0;
};
ChunkRange ChunksIn(const Document& document, const Part& part) {
  const auto begin = document.chunks.begin();
  const auto end = document.chunks.end();
  const auto first =
      std::partition_point(begin, end, [&](const Chunk& chunk) { return int64_t{chunk.begin} < part.begin; });
  const auto last =
      std::partition_point(first, end, [&](const Chunk& chunk) { return int64_t{chunk.end} <= part.end; });
  return {static_cast<size_t>(first - begin), static_cast<size_t>(last - begin)};
}

Chunk Moved(Chunk chunk, int64_t shift) {
  chunk.begin += static_cast<int32_t>(shift);
  chunk.end += static_cast<int32_t>(shift);
  return chunk;
}

Document Rearranged(const Document& document, const std::vector<Part>& parts, DocumentCounts* counts) {
  Document made;
  made.platform_ids = document.platform_ids;
  std::vector<std::pair<Chunk, int32_t>> chunks;  // with their old numbers
  for (const Part& part : parts) {
    const auto offset = static_cast<int64_t>(made.tokens.size());
    AppendTokens(document, part, made);
    if (part.sentinel) continue;
    const ChunkRange range = ChunksIn(document, part);
    for (size_t i = range.first; i < range.last; ++i)
      chunks.emplace_back(Moved(document.chunks[i], offset - part.begin), static_cast<int32_t>(i));
  }
  std::sort(chunks.begin(), chunks.end(), [](const auto& a, const auto& b) { return a.first.begin < b.first.begin; });
  std::vector<int32_t> numbers(document.chunks.size(), -1);
  for (const auto& [chunk, number] : chunks) {
    numbers[static_cast<size_t>(number)] = static_cast<int32_t>(made.chunks.size());
    made.chunks.push_back(chunk);
  }
  DocumentCounts ignored;
  if (counts == nullptr) counts = &ignored;
  counts->dropped_chunks += static_cast<int64_t>(document.chunks.size() - made.chunks.size());
  made.call_edges = Renumbered(document.call_edges, numbers, &counts->dropped_edges);
  made.type_edges = Renumbered(document.type_edges, numbers, &counts->dropped_edges);
  return made;
}

}  // namespace

Document PermuteForFim(const Document& document, const FimCut& cut, DocumentCounts* counts) {
  const auto sentinel = [&](size_t i) { return Part{.sentinel = cut.sentinels[i]}; };
  const Part prefix{.begin = 0, .end = cut.prefix_end};
  const Part middle{.begin = cut.prefix_end, .end = cut.middle_end};
  const Part suffix{.begin = cut.middle_end, .end = static_cast<int64_t>(document.tokens.size())};
  if (cut.suffix_first) {
    return Rearranged(document, {sentinel(0), sentinel(1), suffix, sentinel(2), prefix, middle, sentinel(3)}, counts);
  }
  return Rearranged(document, {sentinel(0), prefix, sentinel(1), suffix, sentinel(2), middle, sentinel(3)}, counts);
}

Document Slice(const Document& document, int64_t begin, int64_t end, DocumentCounts* counts) {
  return Rearranged(document, {{.begin = begin, .end = end}}, counts);
}

std::vector<Document> Split(const Document& document, int64_t most_tokens) {
  const auto length = static_cast<int64_t>(document.tokens.size());
  std::vector<Document> pieces;
  // Which piece a chunk is in, and its number there; -1 is across a cut.
  std::vector<int64_t> piece_of(document.chunks.size(), -1);
  std::vector<int32_t> number_of(document.chunks.size(), -1);
  for (int64_t begin = 0; begin < length; begin += most_tokens) {
    const Part part{.begin = begin, .end = std::min(length, begin + most_tokens)};
    Document& piece = pieces.emplace_back();
    piece.platform_ids = document.platform_ids;
    AppendTokens(document, part, piece);
    const ChunkRange range = ChunksIn(document, part);
    for (size_t i = range.first; i < range.last; ++i) {
      piece_of[i] = std::ssize(pieces) - 1;
      number_of[i] = static_cast<int32_t>(i - range.first);
      piece.chunks.push_back(Moved(document.chunks[i], -begin));
    }
  }
  const auto share = [&](const std::vector<ChunkEdge>& edges, std::vector<ChunkEdge> Document::*list) {
    for (const ChunkEdge& edge : edges) {
      const auto from = static_cast<size_t>(edge.from);
      const auto to = static_cast<size_t>(edge.to);
      if (piece_of[from] < 0 || piece_of[from] != piece_of[to]) continue;
      (pieces[static_cast<size_t>(piece_of[from])].*list).push_back({number_of[from], number_of[to]});
    }
  };
  share(document.call_edges, &Document::call_edges);
  share(document.type_edges, &Document::type_edges);
  return pieces;
}

}  // namespace tessera
