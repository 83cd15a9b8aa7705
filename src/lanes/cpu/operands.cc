#include "lanes/cpu/operands.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace tessera::lanes::cpu {
namespace {

constexpr double kLog2E = 1.4426950408889634;

}  // namespace

Sizes::Sizes(const Contract& contract, const Kernel& kernel) : shape(contract.shape) {
  group = shape.num_q_heads / shape.num_kv_heads;
  dim_qk = RoundUp(shape.dim_qk, kernel.dim_step);
  dim_v = RoundUp(shape.dim_v, kernel.dim_step);
  kv_rows = RoundUp(shape.kv_len + kCellSlack, kCellSlack);
  const double s = contract.score.scale;
  const double cap = contract.score.softcap;
  scale = static_cast<float>(s);
  score.scale_log2 = static_cast<float>(s * kLog2E);
  score.has_softcap = cap > 0;
  if (score.has_softcap) {
    score.inner = static_cast<float>(s / cap);
    score.cap_log2 = static_cast<float>(cap * kLog2E);
  }
  if (kernel.scales_queries) query_factor = score.has_softcap ? score.inner : score.scale_log2;
}

PackedKeys TakeKeys(Scratch& scratch, const Kernel& kernel, const Sizes& sizes, int64_t dim, PackedForms forms) {
  const int64_t heads = sizes.shape.batch * sizes.shape.num_kv_heads;
  PackedKeys keys{.dim = dim,
                  .padded_dim = RoundUp(dim, kernel.dim_step),
                  .num_rows = sizes.kv_rows,
                  .element_bytes = kernel.operand_bytes,
                  .group = kernel.a_group};
  const int64_t bytes = heads * keys.num_rows * keys.padded_dim * keys.element_bytes;
  if (forms.rows || !kernel.needs_columns) keys.rows = scratch.TakeBytes(bytes);
  if (forms.columns && kernel.needs_columns) keys.columns = scratch.TakeBytes(bytes);
  if (forms.flags) keys.not_finite = scratch.Take<uint8_t>(heads * keys.num_rows);
  return keys;
}

int64_t PackUnits(const Sizes& sizes) {
  return sizes.shape.batch * sizes.shape.num_kv_heads * RoundUp(sizes.shape.kv_len, kPackRows) / kPackRows;
}

void PackUnit(const Kernel& kernel, const Sizes& sizes, const TensorRef& from, const PackedKeys& to, int64_t unit) {
  const int64_t units_per_head = RoundUp(sizes.shape.kv_len, kPackRows) / kPackRows;
  const int64_t head = unit / units_per_head;
  const int64_t begin = unit % units_per_head * kPackRows;
  const int64_t end = std::min(begin + kPackRows, sizes.shape.kv_len);
  // The last stretch also writes the zeros that steps read past the last key.
  const int64_t zero_end = end == sizes.shape.kv_len ? to.num_rows : end;
  uint8_t* flags = nullptr;
  if (to.not_finite != nullptr) {
    flags = to.not_finite + head * to.num_rows + begin;
    std::memset(flags, 0, static_cast<size_t>(zero_end - begin));
  }
  PackRows pack{.type = from.type,
                .from = RowAt(from, head / sizes.shape.num_kv_heads, head % sizes.shape.num_kv_heads, begin),
                .from_stride = from.token_stride,
                .num_rows = end - begin,
                .dim = to.dim,
                .padded_dim = to.padded_dim,
                .padded_rows = zero_end - begin,
                .not_finite = flags};
  if (to.rows != nullptr) {
    pack.to = to.Row(head, begin);
    pack.to_stride = to.padded_dim;
    kernel.pack_rows(pack);
  }
  if (to.columns != nullptr) {
    pack.to = to.Column(head, begin);
    pack.to_stride = to.num_rows;
    kernel.pack_columns(pack);
  }
}

float ScalarAt(const std::byte* row, ElementType type, int64_t at) {
  if (type == ElementType::kF32) return reinterpret_cast<const float*>(row)[at];
  const uint16_t bits = reinterpret_cast<const uint16_t*>(row)[at];
  return type == ElementType::kBf16 ? Bf16ToF32(bits) : F16ToF32(bits);
}

float ScalarDot(const std::byte* a, ElementType a_type, const std::byte* b, ElementType b_type, int64_t dim) {
  float sum = 0.0F;
  for (int64_t at = 0; at < dim; ++at) sum += ScalarAt(a, a_type, at) * ScalarAt(b, b_type, at);
  return sum;
}

}  // namespace tessera::lanes::cpu
