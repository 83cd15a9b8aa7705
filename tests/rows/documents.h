// Documents for tests: parsed from text, or random.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "tessera/documents.h"

namespace tessera {

inline DocumentSet Parsed(const std::string& jsonl, const DocumentOptions& options = {}) {
  auto set = ParseDocuments(jsonl, "d.jsonl", options);
  EXPECT_TRUE(set.has_value()) << ToText(set.error());
  return set ? std::move(*set) : DocumentSet();
}

inline Error Refused(const std::string& jsonl, const DocumentOptions& options = {}) {
  auto set = ParseDocuments(jsonl, "d.jsonl", options);
  EXPECT_FALSE(set.has_value()) << jsonl;
  return set ? Error() : set.error();
}

template <class List>
std::string Join(const List& values) {
  return fmt::format("[{}]", fmt::join(values, ","));
}

// A line of a random document: some have columns, chunks, edges in one spelling or another, platform ids.
inline std::string RandomLine(std::mt19937_64& random, int64_t most_tokens) {
  const auto below = [&](int64_t count) { return static_cast<int64_t>(random() % static_cast<uint64_t>(count)); };
  const int64_t length = below(most_tokens + 1);
  const auto values = [&](int64_t count, int64_t limit) {
    std::vector<int64_t> list;
    for (int64_t i = 0; i < count; ++i) list.push_back(below(limit));
    return Join(list);
  };
  std::string line = fmt::format("{{\"tokens\": {}", values(length, 1000));
  for (const ColumnInfo& column : TokenColumns()) {
    if (below(3) == 0) line += fmt::format(", \"{}\": {}", column.name, values(length, 9));
  }
  if (length > 0 && below(2) == 0) {
    std::vector<int64_t> starts;
    for (int64_t at = 0; at < length; at += 1 + below(6)) starts.push_back(at);
    const auto count = static_cast<int64_t>(starts.size());
    line += fmt::format(", \"token_chunk_starts\": {}, \"token_chunk_kinds\": {}, \"token_chunk_dep_levels\": {}",
                        Join(starts), values(count, 9), values(count, 4));
    const char* const forms[] = {"[{}, {}]", R"({{"from": {}, "to": {}}})", R"({{"src": {}, "dst": {}}})",
                                 R"({{"source": {}, "target": {}}})"};
    for (const char* name : {"token_call_edges", "type_edges"}) {
      std::vector<std::string> edges;
      for (int64_t i = below(4); i > 0; --i)
        edges.push_back(fmt::format(fmt::runtime(forms[below(4)]), below(count + 1), below(count)));
      line += fmt::format(", \"{}\": {}", name, Join(edges));
    }
  }
  if (below(3) == 0) line += fmt::format(", \"platform_ids\": {}", values(below(24), kPlatformVocab));
  if (below(8) == 0) line += fmt::format(", \"valid_token_count\": {}", below(length + 1));
  return line + ", \"new_column\": {\"a\": [1, 2.5, null, {\"b\": true}]}}\n";
}

}  // namespace tessera
