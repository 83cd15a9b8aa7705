// See understand.h. A token takes the value of its first character; a chunk of characters is one of the tokens whose
// first character lies in it.
#include "rows/understand.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

#include "base/spelling.h"

namespace tessera::rows {
namespace {

using Found = std::optional<Problem>;

Problem Column(std::string text) { return {ErrorCode::kDocumentColumn, std::move(text)}; }
Problem Value(std::string text) { return {ErrorCode::kDocumentValue, std::move(text)}; }

// The text's bytes as tokens; every byte lies in the character it is part of.
Found TakeBytes(RawDocument& raw) {
  const std::string_view text = *raw.text;
  if (!IsUtf8(text)) return Value("column text is not UTF-8");
  raw.tokens.is_given = raw.spans.is_given = true;
  int32_t character = -1;
  for (const char byte : text) {
    const auto value = static_cast<uint8_t>(byte);
    if ((value & 0xc0) != 0x80) ++character;
    raw.tokens.values.push_back(value);
    raw.spans.values.insert(raw.spans.values.end(), {character, character + 1});
  }
  return {};
}

int64_t CountCharacters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char byte) { return (static_cast<uint8_t>(byte) & 0xc0) != 0x80; });
}

Found CheckSpans(const RawDocument& raw) {
  if (raw.spans.values.size() != 2 * raw.tokens.values.size())
    return Column(fmt::format("column token_spans has {} spans for {} tokens", raw.spans.values.size() / 2,
                              raw.tokens.values.size()));
  const int64_t characters = raw.text ? CountCharacters(*raw.text) : std::numeric_limits<int32_t>::max();
  int32_t last = 0;
  for (size_t i = 0; i < raw.spans.values.size(); i += 2) {
    const int32_t begin = raw.spans.values[i];
    const int32_t end = raw.spans.values[i + 1];
    if (begin < last || end < begin || end > characters)
      return Value(fmt::format("column token_spans: token {} has [{}, {}]; spans ascend and end within the text", i / 2,
                               begin, end));
    last = begin;
  }
  return {};
}

// The value of each token's first character; a token without characters has the column's fill.
Found FromCharacters(const RawDocument& raw, size_t column, std::vector<int32_t>& values) {
  const ColumnInfo& info = TokenColumns()[column];
  const std::vector<int32_t>& characters = raw.characters[column].values;
  if (raw.text && CountCharacters(*raw.text) != static_cast<int64_t>(characters.size()))
    return Column(fmt::format("column {} has {} values for {} characters", info.characters, characters.size(),
                              CountCharacters(*raw.text)));
  values.clear();
  for (size_t i = 0; i < raw.spans.values.size(); i += 2) {
    const int32_t begin = raw.spans.values[i];
    if (raw.spans.values[i + 1] == begin) {
      values.push_back(info.fill);
    } else if (static_cast<size_t>(begin) < characters.size()) {
      values.push_back(characters[static_cast<size_t>(begin)]);
    } else {
      return Column(fmt::format("column {} ends before character {} of token {}", info.characters, begin, i / 2));
    }
  }
  return {};
}

Found TakeColumns(RawDocument& raw, Document& document) {
  for (size_t i = 0; i < kNumTokenColumns; ++i) {
    std::vector<int32_t>& values = document.columns[i];
    values.clear();
    const ColumnInfo& info = TokenColumns()[i];
    if (raw.columns[i].is_given && raw.characters[i].is_given)
      return Column(fmt::format("columns {} and {} both say what a token's value is", info.name, info.characters));
    if (raw.columns[i].is_given) {
      values.swap(raw.columns[i].values);
    } else if (raw.characters[i].is_given) {
      if (!raw.spans.is_given)
        return Column(fmt::format("column {} is one of characters, and there is no token_spans", info.characters));
      if (Found found = FromCharacters(raw, i, values)) return found;
    } else {
      continue;
    }
    if (values.size() != document.tokens.size())
      return Column(
          fmt::format("column {} has {} values for {} tokens", info.name, values.size(), document.tokens.size()));
  }
  return {};
}

// The first token that begins at or after a character.
int64_t TokenAt(const RawDocument& raw, int64_t character) {
  const std::vector<int32_t>& spans = raw.spans.values;
  int64_t low = 0;
  int64_t high = static_cast<int64_t>(spans.size() / 2);
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (spans[static_cast<size_t>(2 * middle)] < character) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// The four token lists as chunks, so that there is one way on from here.
Found ListsToChunks(RawDocument& raw) {
  const RawList* const lists[] = {&raw.chunk_ends, &raw.chunk_kinds, &raw.chunk_dep_levels};
  const char* const names[] = {"token_chunk_ends", "token_chunk_kinds", "token_chunk_dep_levels"};
  const size_t count = raw.chunk_starts.values.size();
  for (size_t i = 0; i < 3; ++i) {
    if (lists[i]->is_given && (!raw.chunk_starts.is_given || lists[i]->values.size() != count))
      return Column(
          fmt::format("column {} has {} values for {} token_chunk_starts", names[i], lists[i]->values.size(), count));
  }
  if (!raw.chunk_starts.is_given) return {};
  if (raw.has_chunks) return Column("columns token_chunk_starts and chunk_boundaries both say where chunks begin");
  for (size_t i = 0; i < count; ++i) {
    RawChunk& chunk = raw.chunks.emplace_back();
    chunk.start = raw.chunk_starts.values[i];
    if (raw.chunk_ends.is_given) chunk.end = raw.chunk_ends.values[i];
    if (raw.chunk_kinds.is_given) chunk.kind = raw.chunk_kinds.values[i];
    if (raw.chunk_dep_levels.is_given && raw.chunk_dep_levels.values[i] >= 0)
      chunk.dep_level = raw.chunk_dep_levels.values[i];
  }
  return {};
}

// Where the chunks of the line stand in the document: their ids, or their places in the line, to places in the
// document; -1 is gone.
using Places = std::map<int64_t, int32_t>;

Found TakeChunks(RawDocument& raw, Document& document, Places& places, DocumentCounts& counts) {
  document.chunks.clear();
  if (raw.has_chunks && !raw.spans.is_given)
    return Column("column chunk_boundaries counts characters, and there is no token_spans");
  const bool in_characters = raw.has_chunks;
  if (Found found = ListsToChunks(raw)) return found;
  const char* const name = in_characters ? "chunk_boundaries" : "token_chunk_starts";
  const auto num_tokens = static_cast<int64_t>(document.tokens.size());
  const auto to_token = [&](int64_t at) { return in_characters ? TokenAt(raw, at) : at; };
  std::vector<size_t> order(raw.chunks.size());
  std::iota(order.begin(), order.end(), size_t{0});
  for (size_t i = 0; i < order.size(); ++i) {
    const RawChunk& chunk = raw.chunks[i];
    if (!chunk.start) return Column(fmt::format("column {}: chunk {} has no start", name, i));
    if (*chunk.start < 0 || (chunk.end && *chunk.end < *chunk.start) || (!in_characters && *chunk.start > num_tokens) ||
        (!in_characters && chunk.end && *chunk.end > num_tokens))
      return Value(fmt::format("column {}: chunk {} is not within the document", name, i));
    const int64_t kind = chunk.kind.value_or(0);
    if (kind < 0 || kind >= static_cast<int64_t>(StructureCategories().size()))
      return Value(fmt::format("column {}: chunk {} has kind {}; kinds are 0 to {}, or their names", name, i, kind,
                               StructureCategories().size() - 1));
    if (chunk.dep_level && (*chunk.dep_level < 0 || *chunk.dep_level > std::numeric_limits<int32_t>::max()))
      return Value(fmt::format("column {}: chunk {} has dep_level {}", name, i, *chunk.dep_level));
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return *raw.chunks[a].start < *raw.chunks[b].start; });
  std::vector<std::pair<size_t, int32_t>> by_place;  // of chunks that a number does not name otherwise
  for (size_t i = 0; i < order.size(); ++i) {
    const RawChunk& chunk = raw.chunks[order[i]];
    const int64_t begin = to_token(*chunk.start);
    const int64_t next = i + 1 < order.size() ? to_token(*raw.chunks[order[i + 1]].start) : num_tokens;
    const int64_t given = chunk.end ? to_token(*chunk.end) : next;
    const int64_t end = std::min(given, next);  // what begins inside of a chunk ends it
    const auto id = chunk.id.value_or(static_cast<int64_t>(order[i]));
    const bool is_kept = begin < end;
    if (!is_kept) ++counts.dropped_chunks;
    if (is_kept && end < given) ++counts.cut_chunks;
    const int32_t place = is_kept ? static_cast<int32_t>(document.chunks.size()) : -1;
    if (!places.emplace(id, place).second) return Value(fmt::format("column {}: two chunks have one id", name));
    if (chunk.id && IsTextId(*chunk.id)) by_place.emplace_back(order[i], place);
    if (!is_kept) continue;
    document.chunks.push_back({static_cast<int32_t>(begin), static_cast<int32_t>(end),
                               static_cast<int32_t>(chunk.kind.value_or(0)),
                               static_cast<int32_t>(chunk.dep_level.value_or(-1))});
  }
  // A number that is no chunk's id is a place.
  for (const auto& [number, place] : by_place) places.emplace(static_cast<int64_t>(number), place);
  return {};
}

Found TakeEdges(const RawEdges& raw, const Places& places, std::vector<ChunkEdge>& edges, DocumentCounts& counts) {
  edges.clear();
  for (size_t i = 0; i < raw.edges.size(); ++i) {
    const RawEdge& edge = raw.edges[i];
    if (!edge.from || !edge.to)
      return Column(fmt::format(
          "column {}: edge {} has not two ends, as [a, b] or by from and to, src and dst, or source and target",
          raw.name, i));
    const auto from = places.find(*edge.from);
    const auto to = places.find(*edge.to);
    if (from == places.end() || to == places.end() || from->second < 0 || to->second < 0) {
      ++counts.dropped_edges;
    } else {
      edges.push_back({from->second, to->second});
    }
  }
  return {};
}

Found CheckRange(const std::vector<int32_t>& values, std::string_view name, int64_t low, int64_t high) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] < low || values[i] > high)
      return Value(fmt::format("column {} holds {} at {}; {} to {} is allowed", name, values[i], i, low, high));
  }
  return {};
}

}  // namespace

std::optional<Problem> CheckDocument(const Document& document, const DocumentOptions& options) {
  const int64_t most = options.vocab.value_or(int64_t{1} << 31) - 1;
  if (Found found = CheckRange(document.tokens, "tokens", 0, most)) return found;
  for (const TokenColumn column : options.required) {
    if (document.columns[static_cast<size_t>(column)].empty() && !document.tokens.empty())
      return Column(
          fmt::format("column {} is required, and missing", TokenColumns()[static_cast<size_t>(column)].name));
  }
  const auto last_category = static_cast<int64_t>(StructureCategories().size()) - 1;
  if (Found found = CheckRange(document.columns[0], TokenColumns()[0].name, 0, last_category)) return found;
  return CheckRange(document.platform_ids, "platform_ids", 0, kPlatformVocab - 1);
}

std::optional<Problem> Understand(RawDocument& raw, const DocumentOptions& options, Document& document,
                                  DocumentCounts& counts) {
  if (!raw.tokens.is_given && raw.text && options.bytes) {
    if (raw.spans.is_given) return Column("column token_spans has no use where tokens are the text's bytes");
    if (Found found = TakeBytes(raw)) return found;
  }
  if (!raw.tokens.is_given)
    return Column(raw.text ? "column tokens is missing: a text is not tokenised here (--bytes takes its bytes)"
                           : "column tokens is missing");
  if (raw.spans.is_given) {
    if (Found found = CheckSpans(raw)) return found;
  }
  document.tokens.swap(raw.tokens.values);
  if (Found found = TakeColumns(raw, document)) return found;
  Places places;
  if (Found found = TakeChunks(raw, document, places, counts)) return found;
  if (Found found = TakeEdges(raw.call_edges, places, document.call_edges, counts)) return found;
  if (Found found = TakeEdges(raw.type_edges, places, document.type_edges, counts)) return found;
  document.platform_ids.swap(raw.platform_ids.values);
  if (Found found = CheckDocument(document, options)) return found;
  counts.documents = 1;
  counts.tokens = static_cast<int64_t>(document.tokens.size());
  if (raw.valid_tokens) {
    if (*raw.valid_tokens < 0 || *raw.valid_tokens > counts.tokens)
      return Value(fmt::format("valid_token_count is {}, of {} tokens", *raw.valid_tokens, counts.tokens));
    if (*raw.valid_tokens < counts.tokens) document = Slice(document, 0, *raw.valid_tokens, &counts);
  }
  if (document.tokens.empty()) counts.empty = 1;
  return {};
}

}  // namespace tessera::rows
