// See batch.h and BatchFor of attention.h.
#include "model/batch.h"

#include <fmt/format.h>

#include "base/try.h"
#include "model/attention.h"

namespace tessera::model {
namespace {

Status CheckLength(const char* name, size_t found, int64_t expected) {
  if (static_cast<int64_t>(found) == expected) return {};
  return Fail(ErrorCode::kModelRows, fmt::format("{}: {} values expected, got {}", name, expected, found), name);
}

Status CheckShape(const ModelSpec& spec, const RowBatch& rows) {
  if (rows.rows != spec.rows || rows.row_tokens != spec.row_tokens) {
    return Fail(ErrorCode::kModelRows, fmt::format("{} rows of {} tokens expected, got {} of {}", spec.rows,
                                                   spec.row_tokens, rows.rows, rows.row_tokens));
  }
  const int64_t tokens = spec.rows * spec.row_tokens;
  TESSERA_TRY(CheckLength("input_ids", rows.input_ids.size(), tokens));
  TESSERA_TRY(CheckLength("target_ids", rows.target_ids.size(), tokens));
  TESSERA_TRY(CheckLength("loss_mask", rows.loss_mask.size(), tokens));
  TESSERA_TRY(CheckLength("doc_ids", rows.doc_ids.size(), tokens));
  TESSERA_TRY(CheckLength("valid_token_count", rows.valid_token_count.size(), spec.rows));
  for (const std::vector<int32_t>& column : rows.structure) {
    if (spec.structure) TESSERA_TRY(CheckLength("structure", column.size(), tokens));
  }
  return {};
}

Status CheckIds(const ModelSpec& spec, const char* name, const std::vector<int32_t>& ids) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < spec.vocab) continue;
    const int64_t at = static_cast<int64_t>(i);
    return Fail(ErrorCode::kModelRows, fmt::format("{} is none of a vocabulary of {}", ids[i], spec.vocab),
                fmt::format("{}, row {}, token {}", name, at / spec.row_tokens, at % spec.row_tokens));
  }
  return {};
}

}  // namespace

Result<RowOperands> ToOperands(const ModelSpec& spec, const RowBatch& rows) {
  TESSERA_TRY(CheckShape(spec, rows));
  TESSERA_TRY(CheckIds(spec, "input_ids", rows.input_ids));
  TESSERA_TRY(CheckIds(spec, "target_ids", rows.target_ids));
  const auto tokens = static_cast<size_t>(spec.rows * spec.row_tokens);
  RowOperands out;
  out.loss_mask.resize(tokens);
  out.positions.resize(tokens);
  for (size_t i = 0; i < tokens; ++i) {
    const bool begins = i % static_cast<size_t>(spec.row_tokens) == 0 || rows.doc_ids[i] != rows.doc_ids[i - 1];
    out.positions[i] = begins ? 0 : out.positions[i - 1] + 1;
    const bool is_trained = rows.loss_mask[i] != 0;
    out.loss_mask[i] = is_trained ? 1.0F : 0.0F;
    out.tokens += is_trained ? 1 : 0;
  }
  return out;
}

RowBatch SomeRows(const RowBatch& rows, int64_t first, int64_t count) {
  RowBatch some;
  some.rows = count;
  some.row_tokens = rows.row_tokens;
  const auto take = [&](const auto& from, int64_t each, auto& to) {
    if (from.empty()) return;
    to.assign(from.begin() + first * each, from.begin() + (first + count) * each);
  };
  take(rows.input_ids, rows.row_tokens, some.input_ids);
  take(rows.target_ids, rows.row_tokens, some.target_ids);
  take(rows.loss_mask, rows.row_tokens, some.loss_mask);
  take(rows.doc_ids, rows.row_tokens, some.doc_ids);
  take(rows.valid_token_count, 1, some.valid_token_count);
  for (size_t i = 0; i < rows.structure.size(); ++i) take(rows.structure[i], rows.row_tokens, some.structure[i]);
  return some;
}

Batch BatchFor(const MaskFacts& facts, const RowBatch& rows) {
  Batch batch;
  if (facts.names_documents) batch.doc_ids = IdRows{rows.rows, rows.row_tokens, rows.doc_ids};
  if (facts.names_valid) {
    batch.valid_tokens = std::vector<int64_t>(rows.valid_token_count.begin(), rows.valid_token_count.end());
  }
  return batch;
}

}  // namespace tessera::model
