// A request written at its class: contract, batch and tensors. Padding lies behind the request's own rows, tokens and
// heads, so no position moves; what keeps it out of every result is the mask, never the values in it.
#include "classes/at_class.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "contract/batch_documents.h"
#include "contract/limits.h"
#include "io/bitmap.h"
#include "tessera/normalise.h"
#include "tessera/receipt.h"

namespace tessera {
namespace {

size_t Idx(int64_t i) { return static_cast<size_t>(i); }

Status CheckOwn(const Shape& shape, const RequestClass& at) {
  if (shape == at.request) return {};
  return Fail(ErrorCode::kClassRefused,
              fmt::format("the class was made for another request: {} expected, got {}", ShapeText(at.request),
                          ShapeText(shape)),
              "class");
}

MaskExpr NothingExpr() {
  MaskExpr expr;
  expr.term.kind = TermKind::kSink;  // sink(0): the keys before the first one
  return expr;
}

// Padded bitmaps by their originals, so that heads which share one still do.
using PaddedBitmaps = std::map<const Bitmap*, std::shared_ptr<const Bitmap>>;

std::shared_ptr<const Bitmap> PadBitmap(const Bitmap& bitmap, const RequestClass& at) {
  auto padded = std::make_shared<Bitmap>();
  padded->heads = bitmap.heads == 1 ? 1 : at.shape.num_q_heads;
  padded->q_len = at.shape.q_len;
  padded->kv_len = at.shape.kv_len;
  padded->cells.assign(Idx(padded->heads * padded->q_len * padded->kv_len), 0);
  for (int64_t head = 0; head < bitmap.heads; ++head) {
    const int64_t to_head = bitmap.heads == 1 ? 0 : HeadAtClass(at, head);
    for (int64_t i = 0; i < bitmap.q_len; ++i) {
      const auto from = bitmap.cells.begin() + (head * bitmap.q_len + i) * bitmap.kv_len;
      std::copy(from, from + bitmap.kv_len, padded->cells.begin() + (to_head * padded->q_len + i) * padded->kv_len);
    }
  }
  padded->digest = BitmapDigest(*padded);
  return padded;
}

void PadBitmaps(MaskExpr& expr, const RequestClass& at, PaddedBitmaps& done) {
  if (expr.op == MaskExpr::Op::kTerm && expr.term.kind == TermKind::kBitmap) {
    std::shared_ptr<const Bitmap>& padded = done[expr.term.bitmap.get()];
    if (padded == nullptr) padded = PadBitmap(*expr.term.bitmap, at);
    expr.term.bitmap = padded;
    expr.term.path = fmt::format("{}.{}x{}x{}", expr.term.path, padded->heads, padded->q_len, padded->kv_len);
  }
  for (MaskExpr& child : expr.children) PadBitmaps(child, at, done);
}

bool IsSameSize(const Shape& a, const Shape& b) {
  return a.q_len == b.q_len && a.kv_len == b.kv_len && a.num_q_heads == b.num_q_heads;
}

Mask MaskAtClass(const Contract& contract, const RequestClass& at) {
  Mask mask;
  mask.offset = contract.mask.offset;
  mask.heads = contract.mask.heads;
  if (!IsSameSize(at.request, at.shape)) {
    PaddedBitmaps bitmaps;
    for (MaskExpr& head : mask.heads) PadBitmaps(head, at, bitmaps);
  }
  for (MaskExpr& head : mask.heads) {
    if (at.cut == PaddingCut::kValid) head = AndTerm(std::move(head), TermKind::kValid);
    if (at.cut == PaddingCut::kDocuments) head = AndTerm(std::move(head), TermKind::kDocuments);
  }
  if (at.shape.num_q_heads == at.request.num_q_heads) return mask;
  std::vector<MaskExpr> heads(Idx(at.shape.num_q_heads), NothingExpr());
  for (int64_t head = 0; head < at.request.num_q_heads; ++head) {
    heads[Idx(HeadAtClass(at, head))] = mask.heads[mask.heads.size() == 1 ? 0 : Idx(head)];
  }
  mask.heads = std::move(heads);
  return mask;
}

// What the caller left open is rounded: to the class's own number where there is one already.
Limit Rounded(const Limit& limit, int64_t of_class = 0) {
  if (limit.kind == Limit::Kind::kNumber) return limit;
  if (of_class < 1 || of_class > kMaxLength) return {.kind = Limit::Kind::kPow2};
  return {.kind = Limit::Kind::kNumber, .number = of_class};
}

// One side's documents, in whatever form they came, as ids with padding behind them.
IdRows PadDocuments(const Shape& shape, const Batch& batch, Side side, const RequestClass& at) {
  const int64_t len = side == Side::kQ ? at.shape.q_len : at.shape.kv_len;
  IdRows padded{.rows = at.shape.batch, .len = len, .values = std::vector<int32_t>(Idx(at.shape.batch * len), -1)};
  for (int64_t row = 0; row < shape.batch; ++row) {
    CopyDocumentIds(shape, batch, side, Idx(row), padded.values.data() + row * len);
  }
  return padded;
}

std::vector<int64_t> PadCounts(std::vector<int64_t> counts, int64_t rows) {
  counts.resize(Idx(rows), 0);
  return counts;
}

// [batch, rows, kv heads, top_n]; what was added picks nothing.
struct PickRows {
  int64_t request = 0;
  int64_t padded = 0;
};
// Picks are per query, or per tile of queries.
PickRows PickRowsOf(const Contract& contract, const RequestClass& at, bool is_per_query) {
  const int64_t tile = contract.tiles.q;
  const auto rows = [&](int64_t q_len) { return is_per_query ? q_len : (q_len + tile - 1) / tile; };
  return {rows(at.request.q_len), rows(at.shape.q_len)};
}

Picks PadPicks(const Picks& picks, const Contract& contract, const RequestClass& at) {
  const bool is_per_query = picks.shape[1] == at.request.q_len;
  const int64_t rows = PickRowsOf(contract, at, is_per_query).padded;
  const int64_t top_n = picks.shape[3];
  Picks padded{.block_tokens = picks.block_tokens,
               .shape = {at.shape.batch, rows, at.shape.num_kv_heads, top_n},
               .blocks = std::vector<int32_t>(Idx(at.shape.batch * rows * at.shape.num_kv_heads * top_n), -1)};
  for (int64_t b = 0; b < picks.shape[0]; ++b) {
    for (int64_t row = 0; row < picks.shape[1]; ++row) {
      const auto from = picks.blocks.begin() + (b * picks.shape[1] + row) * picks.shape[2] * top_n;
      std::copy(from, from + picks.shape[2] * top_n,
                padded.blocks.begin() + (b * rows + row) * at.shape.num_kv_heads * top_n);
    }
  }
  return padded;
}

// For a mask that names picks in vain at the request's lengths.
Picks NoPicks(const RequestClass& at) {
  const Shape& shape = at.shape;
  return {.block_tokens = 1,
          .shape = {shape.batch, shape.q_len, shape.num_kv_heads, 1},
          .blocks = std::vector<int32_t>(Idx(shape.batch * shape.q_len * shape.num_kv_heads), -1)};
}

// The rows' own valid lengths; where the mask asks for none, the lengths themselves.
void FillValid(const std::vector<BatchRow>& rows, const RequestClass& at, Batch& padded) {
  std::vector<int64_t> q_valid;
  std::vector<int64_t> kv_valid;
  for (const BatchRow& row : rows) {
    q_valid.push_back(row.q_valid.value_or(at.request.q_len));
    kv_valid.push_back(row.kv_valid.value_or(at.request.kv_len));
  }
  padded.q_valid_tokens = PadCounts(std::move(q_valid), at.shape.batch);
  padded.kv_valid_tokens = PadCounts(std::move(kv_valid), at.shape.batch);
}

}  // namespace

MaskExpr AndTerm(MaskExpr expr, TermKind kind) {
  MaskExpr term;
  term.term.kind = kind;
  if (expr.op == MaskExpr::Op::kAnd) {
    expr.children.push_back(std::move(term));
    return expr;
  }
  MaskExpr both;
  both.op = MaskExpr::Op::kAnd;
  both.children = {std::move(expr), std::move(term)};
  return both;
}

int64_t HeadAtClass(const RequestClass& at, int64_t q_head) {
  const int64_t group = at.request.num_q_heads / at.request.num_kv_heads;
  const int64_t padded_group = at.shape.num_q_heads / at.shape.num_kv_heads;
  return q_head / group * padded_group + q_head % group;
}

Result<Contract> AtClass(const Contract& contract, const RequestClass& at) {
  if (Status own = CheckOwn(contract.shape, at); !own) return tl::unexpected(own.error());
  Contract padded = contract;
  padded.shape = at.shape;
  padded.mask = MaskAtClass(contract, at);
  padded.capacity = {.width = Rounded(contract.capacity.width),
                     .width_transposed = Rounded(contract.capacity.width_transposed),
                     .cleanups = Rounded(contract.capacity.cleanups, at.sizes.cleanups)};
  if (std::vector<Violation> violations = Validate(padded); !violations.empty()) {
    return Fail(ErrorCode::kClassRefused, std::move(violations), "the request at its class");
  }
  return padded;
}

Result<Batch> AtClass(const Contract& contract, const Batch& batch, const RequestClass& at) {
  if (Status own = CheckOwn(contract.shape, at); !own) return tl::unexpected(own.error());
  const Result<MaskFacts> facts = DescribeMask(contract);
  if (!facts) return tl::unexpected(facts.error());
  const Result<std::vector<BatchRow>> rows = ResolveBatch(contract, batch);
  if (!rows) return tl::unexpected(rows.error());
  Batch padded;
  if (at.cut == PaddingCut::kNone) {  // lengths and rows are the request's own; heads may be more
    padded = batch;
    if (batch.picks) padded.picks = PadPicks(*batch.picks, contract, at);
    return padded;
  }
  // One document of all real tokens: the cut itself, or documents for a mask that names them in vain at the request's
  // lengths and might not at the class's.
  const auto one_document = [&](int64_t len) { return IntRows(Idx(at.request.batch), {static_cast<int32_t>(len)}); };
  Batch one;
  one.q_doc_lengths = one_document(at.request.q_len);
  one.kv_doc_lengths = one_document(at.request.kv_len);
  if (HasDocuments(batch) || at.cut == PaddingCut::kDocuments || facts->names_documents) {
    const Batch& documents = HasDocuments(batch) ? batch : one;
    padded.q_doc_ids = PadDocuments(contract.shape, documents, Side::kQ, at);
    padded.kv_doc_ids = PadDocuments(contract.shape, documents, Side::kKv, at);
  }
  FillValid(*rows, at, padded);
  if (batch.picks) {
    padded.picks = PadPicks(*batch.picks, contract, at);
  } else if (facts->names_blocks && !contract.routing) {
    padded.picks = NoPicks(at);
  }
  return padded;
}

Picks CropPicks(const Picks& picks, const Contract& contract, const RequestClass& at) {
  const int64_t rows = PickRowsOf(contract, at, picks.shape[1] == at.shape.q_len).request;
  const int64_t top_n = picks.shape[3];
  const int64_t kept = at.request.num_kv_heads * top_n;
  Picks cropped{.block_tokens = picks.block_tokens,
                .shape = {at.request.batch, rows, at.request.num_kv_heads, top_n},
                .blocks = std::vector<int32_t>(Idx(at.request.batch * rows * kept))};
  for (int64_t b = 0; b < at.request.batch; ++b) {
    for (int64_t row = 0; row < rows; ++row) {
      const auto from = picks.blocks.begin() + (b * picks.shape[1] + row) * picks.shape[2] * top_n;
      std::copy(from, from + kept, cropped.blocks.begin() + (b * rows + row) * kept);
    }
  }
  return cropped;
}

}  // namespace tessera
