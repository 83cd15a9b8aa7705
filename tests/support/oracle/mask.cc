// The mask as the contract writes it, one pair at a time. Deliberately shares nothing with the planner's run algebra
// or with ResolveBatch: ids, ranks and valid lengths are worked out again from the raw batch.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "oracle/oracle.h"

namespace tessera {
namespace {

// Chunks continue below zero: with a negative offset the first queries stand before the first key.
int64_t ChunkOf(int64_t position, int64_t size) {
  return position >= 0 ? position / size : -((-position + size - 1) / size);
}

MaskTermInput InputOf(const Contract& contract, const MaskTerm& term, int64_t head) {
  return {.q_len = contract.shape.q_len,
          .kv_len = contract.shape.kv_len,
          .offset = contract.mask.offset,
          .head = term.registered->per_head ? head : 0,
          .parameters = term.parameters};
}

// A registered term speaks for itself, by its own pair function or by its own runs.
bool RegisteredAllows(const Contract& contract, const MaskTerm& term, const OracleFacts& facts, int64_t head, int64_t i,
                      int64_t j) {
  const MaskTermInput input = InputOf(contract, term, head);
  if (term.registered->allows) return term.registered->allows(input, i, j);
  const auto found = std::find_if(facts.runs.begin(), facts.runs.end(), [&](const OracleRuns& runs) {
    return runs.term == term.registered.get() && runs.head == input.head && runs.parameters == term.parameters;
  });
  return found != facts.runs.end() && std::any_of(found->runs.begin(), found->runs.end(), [&](const MaskRun& run) {
           return i >= run.q_begin && i < run.q_end && j >= run.kv_begin && j < run.kv_end && j - i >= run.diag_begin &&
                  j - i < run.diag_end;
         });
}

void AddRuns(const Contract& contract, const MaskExpr& expr, int64_t head, OracleFacts& facts) {
  for (const MaskExpr& child : expr.children) AddRuns(contract, child, head, facts);
  if (expr.op != MaskExpr::Op::kTerm || expr.term.kind != TermKind::kRegistered || !expr.term.registered->runs) return;
  const MaskTermInput input = InputOf(contract, expr.term, head);
  const bool is_known = std::any_of(facts.runs.begin(), facts.runs.end(), [&](const OracleRuns& runs) {
    return runs.term == expr.term.registered.get() && runs.head == input.head &&
           runs.parameters == expr.term.parameters;
  });
  if (is_known) return;
  facts.runs.push_back(
      {expr.term.registered.get(), expr.term.parameters, input.head, expr.term.registered->runs(input)});
}

bool TermAllows(const Contract& contract, const MaskTerm& term, const OracleFacts& facts, int64_t head, int64_t i,
                int64_t j) {
  const int64_t p = i + contract.mask.offset;
  const size_t q = static_cast<size_t>(i);
  const size_t k = static_cast<size_t>(j);
  const bool has_ids = !facts.q_doc.empty() && !facts.kv_doc.empty();
  const bool same_document = has_ids && facts.q_doc[q] >= 0 && facts.q_doc[q] == facts.kv_doc[k];
  switch (term.kind) {
    case TermKind::kFull:
      return true;
    case TermKind::kCausal:
      return j <= p;
    case TermKind::kWindow:
      return (term.first < 0 || j >= p - term.first) && (term.second < 0 || j <= p + term.second);
    case TermKind::kChunk:
      return ChunkOf(p, term.first) == ChunkOf(j, term.first);
    case TermKind::kPrefix:
      return p < term.first && j < term.first;
    case TermKind::kSink:
      return j < term.first;
    case TermKind::kSinkDocument:
      return same_document && facts.kv_rank[k] < term.first;
    case TermKind::kDocuments:
    case TermKind::kDocumentsEqual:
      return same_document;
    case TermKind::kValid:
      return i < facts.q_valid && j < facts.kv_valid;
    case TermKind::kBlocks: {
      const int64_t kv_head = head / (contract.shape.num_q_heads / contract.shape.num_kv_heads);
      const auto begin = facts.picks.begin() + (i * contract.shape.num_kv_heads + kv_head) * facts.top_n;
      return std::find(begin, begin + facts.top_n, static_cast<int32_t>(j / facts.block_tokens)) != begin + facts.top_n;
    }
    case TermKind::kBitmap: {
      const Bitmap& bitmap = *term.bitmap;
      const int64_t plane = bitmap.heads == 1 ? 0 : head;
      return bitmap.cells[static_cast<size_t>((plane * bitmap.q_len + i) * bitmap.kv_len + j)] != 0;
    }
    case TermKind::kRegistered:
      return RegisteredAllows(contract, term, facts, head, i, j);
  }
  return false;
}

bool ExprAllows(const Contract& contract, const MaskExpr& expr, const OracleFacts& facts, int64_t head, int64_t i,
                int64_t j) {
  const auto allows = [&](const MaskExpr& child) { return ExprAllows(contract, child, facts, head, i, j); };
  switch (expr.op) {
    case MaskExpr::Op::kAnd:
      return std::all_of(expr.children.begin(), expr.children.end(), allows);
    case MaskExpr::Op::kOr:
      return std::any_of(expr.children.begin(), expr.children.end(), allows);
    case MaskExpr::Op::kTerm:
      break;
  }
  return TermAllows(contract, expr.term, facts, head, i, j);
}

struct IdRow {
  const char* field = nullptr;
  int64_t batch = 0;
  int64_t batch_row = 0;
  int64_t len = 0;
};

Result<std::vector<int32_t>> RowOf(const IdRows& ids, const IdRow& want) {
  if (ids.rows != want.batch || ids.len != want.len || static_cast<int64_t>(ids.values.size()) != ids.rows * ids.len) {
    return Fail(ErrorCode::kBatchInvalid,
                fmt::format("ids are [{}, {}], expected [{}, {}]", ids.rows, ids.len, want.batch, want.len),
                want.field);
  }
  const auto begin = ids.values.begin() + want.batch_row * want.len;
  return std::vector<int32_t>(begin, begin + want.len);
}

// Lengths and ends of documents, written out token by token; -1 after the last document.
Result<std::vector<int32_t>> RowOfDocuments(const IntRows& rows, bool are_ends, const IdRow& want) {
  if (static_cast<int64_t>(rows.size()) != want.batch) {
    return Fail(ErrorCode::kBatchInvalid, fmt::format("{} rows, expected {}", rows.size(), want.batch), want.field);
  }
  std::vector<int32_t> ids;
  int32_t doc = are_ends ? -1 : 0;  // the first end is the beginning of the row
  for (const int32_t number : rows[static_cast<size_t>(want.batch_row)]) {
    const int64_t end = are_ends ? number : static_cast<int64_t>(ids.size()) + number;
    if (end < static_cast<int64_t>(ids.size()) || end > want.len) {
      return Fail(ErrorCode::kBatchInvalid, fmt::format("a document ends at {} of {}", end, want.len), want.field);
    }
    ids.resize(static_cast<size_t>(end), doc++);
  }
  ids.resize(static_cast<size_t>(want.len), -1);
  return ids;
}

// The documents of one side, in whichever form they are; no ids where there are none.
Result<std::vector<int32_t>> RowOfAny(const std::optional<IdRows>& ids, const std::optional<IntRows>& lengths,
                                      const std::optional<IntRows>& ends, const IdRow& want) {
  if (ids) return RowOf(*ids, want);
  if (lengths) return RowOfDocuments(*lengths, false, want);
  if (ends) return RowOfDocuments(*ends, true, want);
  return std::vector<int32_t>();
}

// The smallest of the length and whatever counts are given for this row.
int64_t ValidLength(const Batch& batch, const std::optional<std::vector<int64_t>>& side, int64_t batch_row,
                    int64_t len) {
  // One count alone speaks for every row.
  const auto of_row = [&](const std::vector<int64_t>& counts) {
    return counts[counts.size() == 1 ? 0 : static_cast<size_t>(batch_row)];
  };
  int64_t valid = len;
  if (batch.valid_slots && batch.base_block_tokens) {
    valid = std::min(valid, of_row(*batch.valid_slots) * *batch.base_block_tokens);
  }
  if (batch.valid_tokens) valid = std::min(valid, of_row(*batch.valid_tokens));
  if (side) valid = std::min(valid, of_row(*side));
  return valid;
}

// Picks of a query tile are those of each of its queries.
void AddPicks(const Contract& contract, const Picks& picks, int64_t batch_row, OracleFacts& facts) {
  facts.top_n = picks.shape[3];
  facts.block_tokens = picks.block_tokens;
  const int64_t per_row = picks.shape[2] * facts.top_n;
  for (int64_t i = 0; i < contract.shape.q_len; ++i) {
    const int64_t row = picks.shape[1] == contract.shape.q_len ? i : i / contract.tiles.q;
    const auto begin = picks.blocks.begin() + (batch_row * picks.shape[1] + row) * per_row;
    facts.picks.insert(facts.picks.end(), begin, begin + per_row);
  }
}

}  // namespace

Result<OracleFacts> MakeOracleFacts(const Contract& contract, const Batch& batch, int64_t batch_row) {
  const Shape& shape = contract.shape;
  if (batch_row < 0 || batch_row >= shape.batch) {
    return Fail(ErrorCode::kBadArgument, fmt::format("batch row {} of {}", batch_row, shape.batch), "oracle");
  }
  for (const auto* counts : {&batch.valid_slots, &batch.valid_tokens, &batch.q_valid_tokens, &batch.kv_valid_tokens}) {
    if (*counts && (*counts)->size() != 1 && static_cast<int64_t>((*counts)->size()) != shape.batch) {
      return Fail(ErrorCode::kBatchInvalid, "valid counts must be one number, or one per batch row", "oracle");
    }
  }
  OracleFacts facts;
  const bool both = batch.doc_ids || batch.doc_lengths || batch.cu_seqlens;
  auto q_row = RowOfAny(both ? batch.doc_ids : batch.q_doc_ids, both ? batch.doc_lengths : batch.q_doc_lengths,
                        both ? batch.cu_seqlens : batch.q_cu_seqlens,
                        {"documents of queries", shape.batch, batch_row, shape.q_len});
  if (!q_row) return tl::unexpected(q_row.error());
  facts.q_doc = std::move(*q_row);
  auto kv_row = RowOfAny(both ? batch.doc_ids : batch.kv_doc_ids, both ? batch.doc_lengths : batch.kv_doc_lengths,
                         both ? batch.cu_seqlens : batch.kv_cu_seqlens,
                         {"documents of keys", shape.batch, batch_row, shape.kv_len});
  if (!kv_row) return tl::unexpected(kv_row.error());
  facts.kv_doc = std::move(*kv_row);
  std::map<int32_t, int64_t> seen;
  for (const int32_t doc : facts.kv_doc) facts.kv_rank.push_back(seen[doc]++);
  for (int64_t head = 0; head < shape.num_q_heads; ++head) AddRuns(contract, contract.mask.ForHead(head), head, facts);
  if (batch.picks) AddPicks(contract, *batch.picks, batch_row, facts);
  facts.q_valid = ValidLength(batch, batch.q_valid_tokens, batch_row, shape.q_len);
  facts.kv_valid = ValidLength(batch, batch.kv_valid_tokens, batch_row, shape.kv_len);
  return facts;
}

bool Allowed(const Contract& contract, const OracleFacts& facts, int64_t head, int64_t i, int64_t j) {
  return ExprAllows(contract, contract.mask.ForHead(head), facts, head, i, j);
}

Result<std::vector<uint8_t>> DenseMask(const Contract& contract, const Batch& batch, int64_t batch_row, int64_t head) {
  const Shape& shape = contract.shape;
  if (shape.q_len > kOracleMaxPairs / std::max<int64_t>(shape.kv_len, 1)) {
    return Fail(ErrorCode::kTooLarge,
                fmt::format("a dense mask of {} x {} cells, at most {} are allowed", shape.q_len, shape.kv_len,
                            kOracleMaxPairs),
                "oracle");
  }
  auto facts = MakeOracleFacts(contract, batch, batch_row);
  if (!facts) return tl::unexpected(facts.error());
  std::vector<uint8_t> cells;
  cells.reserve(static_cast<size_t>(shape.q_len * shape.kv_len));
  for (int64_t i = 0; i < shape.q_len; ++i) {
    for (int64_t j = 0; j < shape.kv_len; ++j) cells.push_back(Allowed(contract, *facts, head, i, j) ? 1 : 0);
  }
  return cells;
}

}  // namespace tessera
