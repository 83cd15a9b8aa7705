// A contract from named fields: the reader's defaults, without a text.
#include "tessera/make_contract.h"

#include <fmt/format.h>

#include <utility>

#include "contract/default_scale.h"
#include "contract/limits.h"

namespace tessera {
namespace {

Result<std::vector<MaskExpr>> ReadMasks(const ContractSpec& spec, const MaskTerms* terms) {
  if (spec.mask.empty() == spec.head_masks.empty()) {
    return Fail(ErrorCode::kContractField, {{"mask", spec.mask.empty() ? "expected mask or head_masks, found neither"
                                                                       : "expected mask or head_masks, found both"}});
  }
  std::vector<MaskExpr> heads;
  std::vector<Violation> violations;
  ErrorCode code = ErrorCode::kContractInvalid;
  const bool is_one = spec.head_masks.empty();
  const size_t count = is_one ? 1 : spec.head_masks.size();
  for (size_t head = 0; head < count; ++head) {
    Result<MaskExpr> expr = ParseMaskExpr(is_one ? spec.mask : spec.head_masks[head], spec.base_dir, terms);
    if (expr) {
      heads.push_back(std::move(*expr));
      continue;
    }
    const Error& error = expr.error();
    if (violations.empty()) code = error.code;
    violations.push_back({is_one ? "mask" : fmt::format("head_masks[{}]", head),
                          error.where.empty() ? error.message : fmt::format("{}: {}", error.where, error.message)});
  }
  if (!violations.empty()) return Fail(code, std::move(violations));
  return heads;
}

}  // namespace

Result<Contract> MakeContract(const ContractSpec& spec, const MaskTerms* terms) {
  Result<std::vector<MaskExpr>> heads = ReadMasks(spec, terms);
  if (!heads) return tl::unexpected(std::move(heads.error()));
  Contract contract;
  Shape& shape = contract.shape;
  shape = {.batch = spec.batch,
           .q_len = spec.q_len,
           .kv_len = spec.kv_len.value_or(spec.q_len),
           .num_q_heads = spec.num_q_heads,
           .num_kv_heads = spec.num_kv_heads.value_or(spec.num_q_heads),
           .dim_qk = spec.dim_qk,
           .dim_v = spec.dim_v.value_or(spec.dim_qk),
           .dtype = spec.dtype};
  contract.mask.heads = std::move(*heads);
  // Lengths may be absurd here; Validate says so, and the difference must not overflow before that.
  const auto is_length = [](int64_t len) { return len >= 1 && len <= kMaxLength; };
  const bool has_lengths = is_length(shape.q_len) && is_length(shape.kv_len);
  contract.mask.offset = spec.offset.value_or(has_lengths ? shape.kv_len - shape.q_len : 0);
  const double scale = shape.dim_qk > 0 ? DefaultScale(static_cast<double>(shape.dim_qk)) : 0.0;
  contract.score = {.scale = spec.scale.value_or(scale), .softcap = spec.softcap, .sink_logits = spec.sink_logits};
  contract.tiles = spec.tiles;
  contract.tiles_reason = spec.tiles_reason;
  contract.capacity = spec.capacity;
  contract.routing = spec.routing;
  if (std::vector<Violation> violations = Validate(contract); !violations.empty()) {
    return Fail(ErrorCode::kContractInvalid, std::move(violations));
  }
  return contract;
}

}  // namespace tessera
