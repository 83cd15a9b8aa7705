// See add_document.h.
#include "rows/add_document.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/hash.h"

namespace tessera::rows {
namespace {

// Numbers that depend on seed and place alone.
class Dice {
 public:
  Dice(uint64_t seed, uint64_t place) : words_{seed, place, 0} {}
  // Below `count`, which is at least 1.
  int64_t Below(int64_t count) {
    ++words_[2];
    return static_cast<int64_t>(Hash64(words_.data(), sizeof(words_)) % static_cast<uint64_t>(count));
  }

 private:
  std::array<uint64_t, 3> words_;
};

// Every document that can be cut in three and fits a row with its sentinels, with the chance asked for, half of them
// suffix first.
std::optional<FimCut> ChooseCut(const Document& document, const DocumentOptions& options, uint64_t place) {
  Dice dice(options.fim_seed, place);
  const auto length = static_cast<int64_t>(document.tokens.size());
  const bool fits = options.row_tokens == 0 || length + std::ssize(options.fim_sentinels) <= options.row_tokens;
  if (dice.Below(100) >= options.fim_percent || length < 3 || !fits) return std::nullopt;
  int64_t a = dice.Below(length + 1);
  int64_t b = dice.Below(length + 1);
  if (a > b) std::swap(a, b);
  return FimCut{
      .prefix_end = a, .middle_end = b, .suffix_first = dice.Below(2) == 1, .sentinels = options.fim_sentinels};
}

void LimitPlatformIds(Document& document, DocumentCounts& counts) {
  const auto most = static_cast<size_t>(kPlatformIds);
  if (document.platform_ids.size() <= most) return;
  counts.dropped_platform_ids += static_cast<int64_t>(document.platform_ids.size() - most);
  document.platform_ids.resize(most);
}

// The first chunks that a row's table holds, and the edges among them.
void LimitChunks(int64_t row_tokens, Document& document, DocumentCounts& counts) {
  const int64_t most = ChunkWidth(row_tokens);
  const auto count = static_cast<int64_t>(document.chunks.size());
  if (row_tokens == 0 || count <= most) return;
  counts.dropped_chunks += count - most;
  document.chunks.resize(static_cast<size_t>(most));
  for (std::vector<ChunkEdge>* edges : {&document.call_edges, &document.type_edges}) {
    const auto is_gone = [&](const ChunkEdge& edge) { return edge.from >= most || edge.to >= most; };
    const auto first = std::remove_if(edges->begin(), edges->end(), is_gone);
    counts.dropped_edges += edges->end() - first;
    edges->erase(first, edges->end());
  }
}

}  // namespace

std::optional<Problem> AddDocument(const Document& given, const DocumentOptions& options, uint64_t place,
                                   DocumentSource source, DocumentSet& set) {
  const Document* document = &given;
  Document made;
  const auto change = [&](Document changed) {
    made = std::move(changed);
    document = &made;
  };
  if (options.fim_percent > 0) {
    if (const std::optional<FimCut> cut = ChooseCut(*document, options, place)) {
      change(PermuteForFim(*document, *cut, &source.counts));
      source.counts.permuted = 1;
    }
  }
  if (document->platform_ids.size() > static_cast<size_t>(kPlatformIds)) {
    change(Document(*document));
    LimitPlatformIds(made, source.counts);
  }
  const auto length = static_cast<int64_t>(document->tokens.size());
  const bool is_long = options.row_tokens > 0 && length > options.row_tokens;
  if (!is_long) {
    if (options.row_tokens > 0 && static_cast<int64_t>(document->chunks.size()) > ChunkWidth(options.row_tokens)) {
      change(Document(*document));
      LimitChunks(options.row_tokens, made, source.counts);
    }
    set.Add(*document, source);
    return {};
  }
  switch (options.long_documents) {
    case LongDocuments::kRefuse:
      return Problem{
          ErrorCode::kDocumentTooLong,
          fmt::format("the document has {} tokens, and a row {}: --long split cuts such documents, --long skip "
                      "leaves them out and counts them",
                      length, options.row_tokens)};
    case LongDocuments::kSkip:
      source.counts.skipped = 1;
      source.counts.skipped_tokens = length;
      set.Add({}, source);
      return {};
    case LongDocuments::kSplit:
      break;
  }
  source.counts.split = 1;
  int64_t kept_chunks = 0;
  int64_t kept_edges = 0;
  const int64_t first_source = static_cast<int64_t>(set.sources.size());
  for (Document& piece : Split(*document, options.row_tokens)) {
    DocumentCounts ignored;
    LimitChunks(options.row_tokens, piece, ignored);
    kept_chunks += static_cast<int64_t>(piece.chunks.size());
    kept_edges += static_cast<int64_t>(piece.call_edges.size() + piece.type_edges.size());
    set.Add(piece, source);
    source.counts = {};
    ++source.piece;
  }
  // Across a cut: in no piece, so counted once and with the first.
  DocumentCounts& counts = set.sources[static_cast<size_t>(first_source)].counts;
  counts.dropped_chunks += static_cast<int64_t>(document->chunks.size()) - kept_chunks;
  counts.dropped_edges += static_cast<int64_t>(document->call_edges.size() + document->type_edges.size()) - kept_edges;
  return {};
}

}  // namespace tessera::rows
