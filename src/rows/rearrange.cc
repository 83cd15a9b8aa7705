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

Document Rearranged(const Document& document, const std::vector<Part>& parts, DocumentCounts* counts) {
  Document made;
  made.platform_ids = document.platform_ids;
  std::vector<std::pair<Chunk, int32_t>> chunks;  // with their old numbers
  int64_t offset = 0;
  for (const Part& part : parts) {
    if (part.sentinel) {
      made.tokens.push_back(*part.sentinel);
    } else {
      made.tokens.insert(made.tokens.end(), document.tokens.begin() + part.begin, document.tokens.begin() + part.end);
      const auto shift = static_cast<int32_t>(offset - part.begin);
      for (size_t i = 0; i < document.chunks.size(); ++i) {
        Chunk chunk = document.chunks[i];
        if (chunk.begin < part.begin || chunk.end > part.end) continue;
        chunk.begin += shift;
        chunk.end += shift;
        chunks.emplace_back(chunk, static_cast<int32_t>(i));
      }
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
    offset = static_cast<int64_t>(made.tokens.size());
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

}  // namespace tessera
