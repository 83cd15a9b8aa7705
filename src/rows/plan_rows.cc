// Which document stands in which row. A row is full when its tokens are, or its table of chunks.
#include <algorithm>
#include <optional>
#include <set>

#include "base/math.h"
#include "tessera/rows.h"

namespace tessera {
namespace {

constexpr int64_t kLeastChunks = 128;
constexpr int64_t kTokensPerChunk = 32;
// Rows that are tried for a document whose chunks do not fit where its tokens do.
constexpr int kTries = 64;

int64_t NumChunks(const DocumentSet& documents, int64_t i) {
  return documents.chunk_begins[static_cast<size_t>(i) + 1] - documents.chunk_begins[static_cast<size_t>(i)];
}

RowPlan PlanGreedy(const DocumentSet& documents, int64_t row_tokens, bool is_end) {
  RowPlan plan;
  const int64_t width = ChunkWidth(row_tokens);
  int64_t tokens = 0;
  int64_t chunks = 0;
  int64_t first = 0;  // of the open row
  std::vector<int64_t> open;
  const auto close = [&] {
    if (open.empty()) return;
    plan.documents.insert(plan.documents.end(), open.begin(), open.end());
    plan.row_begins.push_back(static_cast<int64_t>(plan.documents.size()));
    open.clear();
    tokens = chunks = 0;
  };
  for (int64_t i = 0; i < documents.Size(); ++i) {
    const int64_t length = documents.Length(i);
    if (length == 0) continue;
    if (tokens + length > row_tokens || chunks + NumChunks(documents, i) > width) {
      close();
    }
    if (open.empty()) first = i;
    open.push_back(i);
    tokens += length;
    chunks += NumChunks(documents, i);
  }
  plan.next_document = documents.Size();
  if (is_end) {
    close();
  } else if (!open.empty()) {
    plan.next_document = first;
  }
  return plan;
}

// Best fit, largest first: all rows of these documents. Rows come in the order of their first documents, and documents
// in a row in their own.
RowPlan PlanBestFit(const DocumentSet& documents, int64_t row_tokens) {
  const int64_t width = ChunkWidth(row_tokens);
  std::vector<int64_t> order;
  for (int64_t i = 0; i < documents.Size(); ++i) {
    if (documents.Length(i) > 0) order.push_back(i);
  }
  // How much of a row a document takes: of its tokens or of its table of chunks, whichever is more.
  const auto share = [&](int64_t i) {
    return std::max(documents.Length(i) * width, NumChunks(documents, i) * row_tokens);
  };
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return share(a) > share(b); });
  struct Row {
    std::vector<int64_t> documents;
    int64_t tokens_left = 0;
    int64_t chunks_left = 0;
  };
  std::vector<Row> rows;
  // Rows by the tokens they have left, and by the share of a document that fits whatever it consists of.
  std::set<std::pair<int64_t, int64_t>> by_tokens;
  std::set<std::pair<int64_t, int64_t>> by_share;
  const auto room = [&](int64_t row) {
    const Row& it = rows[static_cast<size_t>(row)];
    return std::min(it.tokens_left * width, it.chunks_left * row_tokens);
  };
  const auto find = [&](int64_t document) -> std::optional<int64_t> {
    const int64_t chunks = NumChunks(documents, document);
    auto fit = by_tokens.lower_bound({documents.Length(document), 0});
    for (int i = 0; i < kTries && fit != by_tokens.end(); ++i, ++fit) {
      if (rows[static_cast<size_t>(fit->second)].chunks_left >= chunks) return fit->second;
    }
    const auto sure = by_share.lower_bound({share(document), 0});
    return sure == by_share.end() ? std::nullopt : std::optional(sure->second);
  };
  for (const int64_t document : order) {
    const std::optional<int64_t> found = find(document);
    const int64_t row = found.value_or(static_cast<int64_t>(rows.size()));
    if (found) {
      by_tokens.erase({rows[static_cast<size_t>(row)].tokens_left, row});
      by_share.erase({room(row), row});
    } else {
      rows.push_back({{}, row_tokens, width});
    }
    Row& it = rows[static_cast<size_t>(row)];
    it.documents.push_back(document);
    it.tokens_left -= documents.Length(document);
    it.chunks_left -= NumChunks(documents, document);
    if (it.tokens_left == 0) continue;
    by_tokens.emplace(it.tokens_left, row);
    by_share.emplace(room(row), row);
  }
  for (Row& row : rows) std::sort(row.documents.begin(), row.documents.end());
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.documents[0] < b.documents[0]; });
  RowPlan plan;
  for (const Row& row : rows) {
    plan.documents.insert(plan.documents.end(), row.documents.begin(), row.documents.end());
    plan.row_begins.push_back(static_cast<int64_t>(plan.documents.size()));
  }
  plan.next_document = documents.Size();
  return plan;
}

}  // namespace

int64_t ChunkWidth(int64_t row_tokens) { return std::max(kLeastChunks, row_tokens / kTokensPerChunk); }
int64_t PaddedVocab(int64_t vocab) { return RoundUp(vocab, kVocabMultiple); }
std::string_view ToText(Packer packer) { return packer == Packer::kGreedy ? "greedy" : "best_fit"; }
std::string_view ToText(LongDocuments choice) {
  return choice == LongDocuments::kRefuse ? "refuse" : choice == LongDocuments::kSplit ? "split" : "skip";
}

RowPlan PlanRows(const DocumentSet& documents, int64_t row_tokens, Packer packer, bool is_end) {
  if (packer == Packer::kGreedy) return PlanGreedy(documents, row_tokens, is_end);
  RowPlan best = PlanBestFit(documents, row_tokens);
  // Where chunks fill rows rather than tokens, documents in their order may need fewer rows.
  RowPlan greedy = PlanGreedy(documents, row_tokens, true);
  return greedy.NumRows() < best.NumRows() ? greedy : best;
}

}  // namespace tessera
