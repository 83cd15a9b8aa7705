// Lines of documents: any bytes give an error, or documents that pack into rows which keep every token.
#include "fuzz.h"
#include "tessera/rows.h"

namespace tessera {

bool FuzzDocuments(const uint8_t* data, size_t size) {
  DocumentOptions options;
  options.row_tokens = 16;
  options.long_documents = LongDocuments::kSplit;
  options.bytes = true;
  const auto set = ParseDocuments(AsText(data, size), "fuzz", options);
  if (!set) return false;
  int64_t tokens = 0;
  for (int64_t i = 0; i < set->Size(); ++i) {
    Require(set->Length(i) <= options.row_tokens, "a document fits a row");
    tokens += set->Length(i);
    const Document document = set->Get(i);
    const auto num_chunks = static_cast<int32_t>(document.chunks.size());
    int32_t last = 0;
    for (const Chunk& chunk : document.chunks) {
      Require(last <= chunk.begin && chunk.begin < chunk.end && chunk.end <= set->Length(i), "chunks ascend");
      last = chunk.end;
    }
    for (const auto* edges : {&document.call_edges, &document.type_edges}) {
      for (const ChunkEdge& edge : *edges) {
        Require(0 <= edge.from && edge.from < num_chunks && 0 <= edge.to && edge.to < num_chunks,
                "an edge has two ends");
      }
    }
  }
  for (const Packer packer : {Packer::kGreedy, Packer::kBestFit}) {
    const RowPlan plan = PlanRows(*set, options.row_tokens, packer);
    PackedRows rows;
    rows.Clear(options.row_tokens);
    FillRows(*set, plan, {0, plan.NumRows()}, 1, rows);
    int64_t packed = 0;
    for (int64_t i = 0; i < rows.rows; ++i) packed += rows.valid_token_count[static_cast<size_t>(i)];
    Require(packed == tokens, "rows hold every token");
  }
  return set->Size() > 0;
}

}  // namespace tessera
