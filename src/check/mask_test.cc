// See mask_test.h. First what a batch row says of its tokens, then terms, each as the contract's documentation words
// it.
#include "check/mask_test.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "base/checked.h"
#include "base/math.h"
#include "base/try.h"

namespace tessera::check {
namespace {

constexpr int64_t kAll = std::numeric_limits<int32_t>::max();

tl::unexpected<Error> BadBatch(const char* field, std::string message) {
  return Fail(ErrorCode::kBatchInvalid, std::move(message), field);
}

// The ids of one batch row, token by token; none where the batch says nothing of this side.
struct Side {
  const char* name = "";
  int64_t len = 0;
  const std::optional<IdRows>& ids;
  const std::optional<IntRows>& lengths;
  const std::optional<IntRows>& ends;
};

Result<std::vector<int32_t>> DocumentsOf(const Side& side, int64_t batch, int64_t batch_row) {
  if (side.ids) {
    const IdRows& ids = *side.ids;
    if (ids.rows != batch || ids.len != side.len || ids.values.size() != static_cast<size_t>(batch * side.len)) {
      return BadBatch(side.name,
                      fmt::format("ids are [{}, {}], expected [{}, {}]", ids.rows, ids.len, batch, side.len));
    }
    const auto begin = ids.values.begin() + batch_row * side.len;
    return std::vector<int32_t>(begin, begin + side.len);
  }
  if (!side.lengths && !side.ends) return std::vector<int32_t>();
  const IntRows& rows = side.lengths ? *side.lengths : *side.ends;
  if (static_cast<int64_t>(rows.size()) != batch) {
    return BadBatch(side.name, fmt::format("{} rows, expected {}", rows.size(), batch));
  }
  std::vector<int32_t> docs(static_cast<size_t>(side.len), -1);
  const std::vector<int32_t>& numbers = rows[static_cast<size_t>(batch_row)];
  int64_t begin = 0;
  // The first of the ends is where the first document begins.
  for (size_t n = side.lengths ? 0 : 1; n < numbers.size(); ++n) {
    const int64_t end = side.lengths ? begin + numbers[n] : int64_t{numbers[n]};
    if (end < begin || end > side.len) {
      return BadBatch(side.name, fmt::format("a document ends at {} of {}", end, side.len));
    }
    const auto doc = static_cast<int32_t>(side.lengths ? n : n - 1);
    std::fill(docs.begin() + begin, docs.begin() + end, doc);
    begin = end;
  }
  return docs;
}

void Allow(std::span<uint8_t> cells, int64_t begin, int64_t end) {
  const auto len = static_cast<int64_t>(cells.size());
  begin = std::clamp<int64_t>(begin, 0, len);
  end = std::clamp<int64_t>(end, begin, len);
  std::fill(cells.begin() + begin, cells.begin() + end, uint8_t{1});
}

}  // namespace

Result<MaskTest> MaskTest::Make(const Contract& contract, const Batch& batch, int64_t batch_row) {
  const Shape& shape = contract.shape;
  if (batch_row < 0 || batch_row >= shape.batch) {
    return Fail(ErrorCode::kBadArgument, fmt::format("batch row {} of {}", batch_row, shape.batch), "check");
  }
  MaskTest test;
  test.contract_ = &contract;
  test.batch_ = &batch;
  test.batch_row_ = batch_row;
  TESSERA_TRY(test.ReadDocuments());
  TESSERA_TRY(test.ReadCounts());
  TESSERA_TRY(test.ReadPicks());
  for (int64_t head = 0; head < shape.num_q_heads; ++head) {
    TESSERA_TRY(test.Gather(contract.mask.ForHead(head), head));
    if (contract.mask.heads.size() == 1 && test.runs_.empty()) break;  // nothing to ask for each head
  }
  return test;
}

Status MaskTest::ReadDocuments() {
  const Shape& shape = contract_->shape;
  const Batch& b = *batch_;
  const bool is_common = b.doc_ids || b.doc_lengths || b.cu_seqlens;
  const Side q{"documents of queries", shape.q_len, is_common ? b.doc_ids : b.q_doc_ids,
               is_common ? b.doc_lengths : b.q_doc_lengths, is_common ? b.cu_seqlens : b.q_cu_seqlens};
  const Side kv{"documents of keys", shape.kv_len, is_common ? b.doc_ids : b.kv_doc_ids,
                is_common ? b.doc_lengths : b.kv_doc_lengths, is_common ? b.cu_seqlens : b.kv_cu_seqlens};
  q_doc_ = TESSERA_TRY(DocumentsOf(q, shape.batch, batch_row_));
  kv_doc_ = TESSERA_TRY(DocumentsOf(kv, shape.batch, batch_row_));
  std::unordered_map<int32_t, int32_t> seen;
  kv_rank_.reserve(kv_doc_.size());
  for (const int32_t doc : kv_doc_) kv_rank_.push_back(seen[doc]++);
  return {};
}

Status MaskTest::ReadCounts() {
  const Shape& shape = contract_->shape;
  q_valid_ = shape.q_len;
  kv_valid_ = shape.kv_len;
  const auto lower = [&](const std::optional<std::vector<int64_t>>& counts, int64_t unit, bool q, bool kv) -> Status {
    if (!counts) return {};
    if (counts->size() != 1 && static_cast<int64_t>(counts->size()) != shape.batch) {
      return BadBatch("valid counts", "must be one number, or one per batch row");
    }
    const int64_t count = (*counts)[counts->size() == 1 ? 0 : static_cast<size_t>(batch_row_)];
    const int64_t tokens = CheckedMul(count, unit).value_or(std::numeric_limits<int64_t>::max());
    if (q) q_valid_ = std::min(q_valid_, tokens);
    if (kv) kv_valid_ = std::min(kv_valid_, tokens);
    return {};
  };
  TESSERA_TRY(lower(batch_->valid_slots, batch_->base_block_tokens.value_or(0), true, true));
  TESSERA_TRY(lower(batch_->valid_tokens, 1, true, true));
  TESSERA_TRY(lower(batch_->q_valid_tokens, 1, true, false));
  return lower(batch_->kv_valid_tokens, 1, false, true);
}

Status MaskTest::ReadPicks() {
  if (!batch_->picks) return {};
  const Picks& picks = *batch_->picks;
  const Shape& shape = contract_->shape;
  const bool is_shaped =
      picks.shape.size() == 4 && picks.shape[0] == shape.batch &&
      (picks.shape[1] == shape.q_len || picks.shape[1] == CeilDiv(shape.q_len, contract_->tiles.q)) &&
      picks.shape[2] == shape.num_kv_heads && picks.shape[3] >= 0 && picks.block_tokens > 0;
  if (!is_shaped || CheckedProduct(picks.shape) != static_cast<int64_t>(picks.blocks.size())) {
    return BadBatch("picks", "must be [batch, q_len or query tiles, num_kv_heads, top_n]");
  }
  return {};
}

int64_t MaskTest::HeadOf(const MaskTerm& term, int64_t head) const { return term.registered->per_head ? head : 0; }

// What a mask names must be there before any row is asked for.
Status MaskTest::Gather(const MaskExpr& expr, int64_t head) {
  for (const MaskExpr& child : expr.children) TESSERA_TRY(Gather(child, head));
  return expr.op == MaskExpr::Op::kTerm ? GatherTerm(expr.term, head) : Status();
}

Status MaskTest::GatherTerm(const MaskTerm& term, int64_t head) {
  const Shape& shape = contract_->shape;
  if (term.kind == TermKind::kBlocks && !batch_->picks) {
    // `full or blocks` needs none.
    const MaskFacts facts = TESSERA_TRY(DescribeMask(*contract_));
    if (facts.needs_blocks) return BadBatch("picks", "the mask needs picks, and the batch brings none");
  }
  if (term.kind == TermKind::kBitmap) {
    const bool fits = term.bitmap && term.bitmap->q_len == shape.q_len && term.bitmap->kv_len == shape.kv_len &&
                      (term.bitmap->heads == 1 || term.bitmap->heads == shape.num_q_heads);
    if (!fits) return Fail(ErrorCode::kContractInvalid, "a bitmap of another shape", "mask");
  }
  if (term.kind != TermKind::kRegistered || !term.registered->runs) return {};
  const int64_t of_head = HeadOf(term, head);
  const bool is_known = std::any_of(
      runs_.begin(), runs_.end(), [&](const TermRuns& known) { return known.term == &term && known.head == of_head; });
  if (is_known) return {};
  runs_.push_back({&term, of_head,
                   term.registered->runs({.q_len = shape.q_len,
                                          .kv_len = shape.kv_len,
                                          .offset = contract_->mask.offset,
                                          .head = of_head,
                                          .parameters = term.parameters})});
  return {};
}

void MaskTest::Row(int64_t head, int64_t i, std::span<uint8_t> cells) const {
  ExprRow(contract_->mask.ForHead(head), head, i, cells);
}

void MaskTest::ExprRow(const MaskExpr& expr, int64_t head, int64_t i, std::span<uint8_t> cells) const {
  if (expr.op == MaskExpr::Op::kTerm) {
    std::fill(cells.begin(), cells.end(), uint8_t{0});
    return TermRow(expr.term, head, i, cells);
  }
  ExprRow(expr.children.front(), head, i, cells);
  std::vector<uint8_t> other(cells.size());
  for (size_t n = 1; n < expr.children.size(); ++n) {
    ExprRow(expr.children[n], head, i, other);
    if (expr.op == MaskExpr::Op::kAnd) {
      for (size_t j = 0; j < cells.size(); ++j) cells[j] &= other[j];
    } else {
      for (size_t j = 0; j < cells.size(); ++j) cells[j] |= other[j];
    }
  }
}

// `cells` are 0 when it begins.
void MaskTest::TermRow(const MaskTerm& term, int64_t head, int64_t i, std::span<uint8_t> cells) const {
  const int64_t p = i + contract_->mask.offset;
  const auto len = static_cast<int64_t>(cells.size());
  switch (term.kind) {
    case TermKind::kFull:
      return Allow(cells, 0, len);
    case TermKind::kCausal:
      return Allow(cells, 0, p + 1);
    case TermKind::kWindow:
      return Allow(cells, term.first < 0 ? 0 : p - term.first, term.second < 0 ? len : p + term.second + 1);
    case TermKind::kChunk: {
      // Chunks go on below zero, where the first queries stand when the offset is negative.
      const int64_t within = (p % term.first + term.first) % term.first;
      return Allow(cells, p - within, p - within + term.first);
    }
    case TermKind::kPrefix:
      return Allow(cells, 0, p < term.first ? term.first : 0);
    case TermKind::kSink:
      return Allow(cells, 0, term.first);
    case TermKind::kSinkDocument:
      return DocumentRow(i, term.first, cells);
    case TermKind::kDocuments:
    case TermKind::kDocumentsEqual:
      return DocumentRow(i, kAll, cells);
    case TermKind::kValid:
      return Allow(cells, 0, i < q_valid_ ? kv_valid_ : 0);
    case TermKind::kBlocks:
      return PickRow(head, i, cells);
    case TermKind::kBitmap: {
      const Bitmap& bitmap = *term.bitmap;
      const int64_t plane = bitmap.heads == 1 ? 0 : head;
      const auto row = bitmap.cells.begin() + (plane * bitmap.q_len + i) * bitmap.kv_len;
      std::transform(row, row + len, cells.begin(), [](uint8_t cell) { return cell != 0 ? uint8_t{1} : uint8_t{0}; });
      return;
    }
    case TermKind::kRegistered:
      return RegisteredRow(term, head, i, cells);
  }
}

void MaskTest::DocumentRow(int64_t i, int64_t ranks, std::span<uint8_t> cells) const {
  if (q_doc_.empty() || kv_doc_.empty() || q_doc_[static_cast<size_t>(i)] < 0) return;
  const int32_t doc = q_doc_[static_cast<size_t>(i)];
  for (size_t j = 0; j < cells.size(); ++j) cells[j] = kv_doc_[j] == doc && kv_rank_[j] < ranks ? 1 : 0;
}

// Picks of a query tile are those of each of its queries.
void MaskTest::PickRow(int64_t head, int64_t i, std::span<uint8_t> cells) const {
  if (!batch_->picks) return;
  const Picks& picks = *batch_->picks;
  const Shape& shape = contract_->shape;
  const int64_t kv_head = head / (shape.num_q_heads / shape.num_kv_heads);
  const int64_t row = picks.shape[1] == shape.q_len ? i : i / contract_->tiles.q;
  const int64_t at = ((batch_row_ * picks.shape[1] + row) * picks.shape[2] + kv_head) * picks.shape[3];
  for (int64_t n = at; n < at + picks.shape[3]; ++n) {
    const int64_t block = picks.blocks[static_cast<size_t>(n)];
    if (block >= 0) Allow(cells, block * picks.block_tokens, (block + 1) * picks.block_tokens);
  }
}

// Such a term speaks for itself, by its own runs or pair by pair.
void MaskTest::RegisteredRow(const MaskTerm& term, int64_t head, int64_t i, std::span<uint8_t> cells) const {
  const int64_t of_head = HeadOf(term, head);
  for (const TermRuns& given : runs_) {
    if (given.term != &term || given.head != of_head) continue;
    for (const MaskRun& run : given.runs) {
      if (i < run.q_begin || i >= run.q_end) continue;
      Allow(cells, std::max(run.kv_begin, i + run.diag_begin), std::min(run.kv_end, i + run.diag_end));
    }
  }
  if (!term.registered->allows) return;
  const MaskTermInput input{.q_len = contract_->shape.q_len,
                            .kv_len = contract_->shape.kv_len,
                            .offset = contract_->mask.offset,
                            .head = of_head,
                            .parameters = term.parameters};
  for (size_t j = 0; j < cells.size(); ++j) {
    cells[j] = term.registered->allows(input, i, static_cast<int64_t>(j)) ? 1 : 0;
  }
}

}  // namespace tessera::check
