// Sets of documents: adding to them, taking from them.
#include <algorithm>

#include "tessera/documents.h"

namespace tessera {
namespace {

template <class T>
void AppendRange(const std::vector<T>& from, int64_t first, int64_t last, std::vector<T>& to) {
  to.insert(to.end(), from.begin() + first, from.begin() + last);
}

// The lists of documents [first, last), and where each of them begins.
template <class T>
void AppendLists(const std::vector<int64_t>& begins, const std::vector<T>& from, int64_t first, int64_t last,
                 std::vector<int64_t>& to_begins, std::vector<T>& to) {
  const int64_t shift = static_cast<int64_t>(to.size()) - begins[static_cast<size_t>(first)];
  for (int64_t i = first + 1; i <= last; ++i) to_begins.push_back(begins[static_cast<size_t>(i)] + shift);
  AppendRange(from, begins[static_cast<size_t>(first)], begins[static_cast<size_t>(last)], to);
}

template <class T>
void AddList(const std::vector<T>& from, std::vector<int64_t>& begins, std::vector<T>& to) {
  to.insert(to.end(), from.begin(), from.end());
  begins.push_back(static_cast<int64_t>(to.size()));
}

// A column that the set has not had so far says nothing of the tokens that are there already.
void Widen(std::vector<int32_t>& column, size_t tokens, int32_t fill) { column.resize(tokens, fill); }

}  // namespace

DocumentCounts& DocumentCounts::operator+=(const DocumentCounts& other) {
  documents += other.documents;
  tokens += other.tokens;
  empty += other.empty;
  skipped += other.skipped;
  skipped_tokens += other.skipped_tokens;
  split += other.split;
  permuted += other.permuted;
  dropped_chunks += other.dropped_chunks;
  cut_chunks += other.cut_chunks;
  dropped_edges += other.dropped_edges;
  dropped_platform_ids += other.dropped_platform_ids;
  return *this;
}

void DocumentSet::Add(const Document& document, const DocumentSource& source) {
  const size_t before = tokens.size();
  AddList(document.tokens, token_begins, tokens);
  for (size_t i = 0; i < kNumTokenColumns; ++i) {
    const int32_t fill = TokenColumns()[i].fill;
    if (document.columns[i].empty() && columns[i].empty()) continue;
    Widen(columns[i], before, fill);
    columns[i].insert(columns[i].end(), document.columns[i].begin(), document.columns[i].end());
    Widen(columns[i], tokens.size(), fill);
  }
  AddList(document.chunks, chunk_begins, chunks);
  AddList(document.call_edges, call_begins, call_edges);
  AddList(document.type_edges, type_begins, type_edges);
  AddList(document.platform_ids, platform_begins, platform_ids);
  sources.push_back(source);
  sources.back().columns = 0;
  for (size_t i = 0; i < kNumTokenColumns; ++i) sources.back().columns |= document.columns[i].empty() ? 0U : 1U << i;
}

void DocumentSet::Append(const DocumentSet& other, int64_t first, int64_t last) {
  const size_t before = tokens.size();
  AppendLists(other.token_begins, other.tokens, first, last, token_begins, tokens);
  for (size_t i = 0; i < kNumTokenColumns; ++i) {
    const int32_t fill = TokenColumns()[i].fill;
    if (other.columns[i].empty() && columns[i].empty()) continue;
    Widen(columns[i], before, fill);
    if (!other.columns[i].empty())
      AppendRange(other.columns[i], other.token_begins[static_cast<size_t>(first)],
                  other.token_begins[static_cast<size_t>(last)], columns[i]);
    Widen(columns[i], tokens.size(), fill);
  }
  AppendLists(other.chunk_begins, other.chunks, first, last, chunk_begins, chunks);
  AppendLists(other.call_begins, other.call_edges, first, last, call_begins, call_edges);
  AppendLists(other.type_begins, other.type_edges, first, last, type_begins, type_edges);
  AppendLists(other.platform_begins, other.platform_ids, first, last, platform_begins, platform_ids);
  AppendRange(other.sources, first, last, sources);
}

Document DocumentSet::Get(int64_t i) const {
  const auto at = static_cast<size_t>(i);
  Document document;
  AppendRange(tokens, token_begins[at], token_begins[at + 1], document.tokens);
  for (size_t c = 0; c < kNumTokenColumns; ++c) {
    if (!columns[c].empty()) AppendRange(columns[c], token_begins[at], token_begins[at + 1], document.columns[c]);
  }
  AppendRange(chunks, chunk_begins[at], chunk_begins[at + 1], document.chunks);
  AppendRange(call_edges, call_begins[at], call_begins[at + 1], document.call_edges);
  AppendRange(type_edges, type_begins[at], type_begins[at + 1], document.type_edges);
  AppendRange(platform_ids, platform_begins[at], platform_begins[at + 1], document.platform_ids);
  return document;
}

void DocumentSet::Clear() {
  for (std::vector<int64_t>* begins : {&token_begins, &chunk_begins, &call_begins, &type_begins, &platform_begins})
    begins->assign(1, 0);
  tokens.clear();
  for (std::vector<int32_t>& column : columns) column.clear();
  chunks.clear();
  call_edges.clear();
  type_edges.clear();
  platform_ids.clear();
  sources.clear();
}

}  // namespace tessera
