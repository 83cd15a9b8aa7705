// Which document stands in which row. A row is full when its tokens are, or its table of chunks.
#include <algorithm>
#include <numeric>
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

// Best fit, longest first: all rows of these documents. Rows come in the order of their first documents, and documents
// in a row in their own.
RowPlan PlanBestFit(const DocumentSet& documents, int64_t row_tokens) {
  const int64_t width = ChunkWidth(row_tokens);
  std::vector<int64_t> order;
  for (int64_t i = 0; i < documents.Size(); ++i) {
    if (documents.Length(i) > 0) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return documents.Length(a) > documents.Length(b); });
  struct Row {
    std::vector<int64_t> documents;
    int64_t chunks_left = 0;
  };
  std::vector<Row> rows;
  std::set<std::pair<int64_t, int64_t>> room;  // tokens left, row
  for (const int64_t document : order) {
    const int64_t length = documents.Length(document);
    const int64_t chunks = NumChunks(documents, document);
    auto fit = room.lower_bound({length, 0});
    for (int i = 0; fit != room.end() && rows[static_cast<size_t>(fit->second)].chunks_left < chunks; ++i) {
      fit = i < kTries ? std::next(fit) : room.end();
    }
    int64_t row = 0;
    int64_t left = row_tokens;
    if (fit == room.end()) {
      row = static_cast<int64_t>(rows.size());
      rows.push_back({{}, width});
    } else {
      left = fit->first;
      row = fit->second;
      room.erase(fit);
    }
    rows[static_cast<size_t>(row)].documents.push_back(document);
    rows[static_cast<size_t>(row)].chunks_left -= chunks;
    if (left > length) room.emplace(left - length, row);
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
  return packer == Packer::kGreedy ? PlanGreedy(documents, row_tokens, is_end) : PlanBestFit(documents, row_tokens);
}

}  // namespace tessera
