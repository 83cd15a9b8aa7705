#include "lanes/cpu/operands.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "lanes/cpu/workers.h"

namespace tessera::lanes::cpu {

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
                  .group = kernel.a_group,
                  .heads_per_batch = sizes.shape.num_kv_heads};
  const int64_t bytes = heads * keys.num_rows * keys.padded_dim * keys.element_bytes;
  if (forms.rows || !kernel.needs_columns) keys.rows = scratch.TakeBytes(bytes);
  if (forms.columns && kernel.needs_columns) keys.columns = scratch.TakeBytes(bytes);
  if (forms.flags) keys.not_finite = scratch.Take<uint8_t>(heads * keys.num_rows);
  return keys;
}

namespace {

// Keys are packed in stretches of this many rows, each a unit of work of its own.
constexpr int64_t kPackRows = 256;

int64_t PackUnits(const Sizes& sizes) {
  return sizes.shape.batch * sizes.shape.num_kv_heads * RoundUp(sizes.shape.kv_len, kPackRows) / kPackRows;
}

// Whether products can read the tensor where it is: contiguous f32 rows without padding, and lengths in whole steps, so
// that no step reaches past the last key.
bool LiesRight(const PackRun& run, const TensorRef& from, const PackedKeys& to) {
  const Kernel& kernel = *run.kernel;
  return kernel.operand_bytes == 4 && from.type == ElementType::kF32 && to.dim == to.padded_dim &&
         from.token_stride == to.dim && run.sizes->shape.kv_len % kernel.key_step == 0 &&
         run.tile_kv % kernel.key_step == 0;
}

// Rows of one unit. With `only_flags` they are looked at, not packed. Says whether one is not finite, where flags are
// kept.
bool PackUnit(const PackRun& run, const KeysToPack& keys, int64_t unit, bool only_flags) {
  const Kernel& kernel = *run.kernel;
  const Sizes& sizes = *run.sizes;
  const TensorRef& from = *keys.from;
  const PackedKeys& to = *keys.to;
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
  if (only_flags) {
    kernel.flag_rows(pack);
    return HasFlag(flags, end - begin);
  }
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
  return false;
}

}  // namespace

void PackAll(const PackRun& run, std::span<const KeysToPack> tensors) {
  const int64_t units = PackUnits(*run.sizes);
  std::vector<uint8_t> may_stay;
  for (const KeysToPack& keys : tensors) may_stay.push_back(LiesRight(run, *keys.from, *keys.to) ? 1 : 0);
  // A tensor that may stay is only looked at for rows that are not finite, which send it to be packed after all.
  std::vector<std::atomic<bool>> has_flag(tensors.size());
  RunUnits(run.threads, static_cast<int64_t>(tensors.size()) * units, [&](int64_t unit, int64_t) {
    const auto t = static_cast<size_t>(unit / units);
    if (may_stay[t] != 0 && tensors[t].to->not_finite == nullptr) return;
    if (PackUnit(run, tensors[t], unit % units, may_stay[t] != 0)) has_flag[t] = true;
  });
  for (size_t t = 0; t < tensors.size(); ++t) {
    if (may_stay[t] == 0) continue;
    if (has_flag[t]) {
      RunUnits(run.threads, units, [&](int64_t unit, int64_t) { PackUnit(run, tensors[t], unit, false); });
    } else {
      tensors[t].to->in_place = tensors[t].from;
    }
  }
}

float ScalarDot(const std::byte* a, ElementType a_type, const std::byte* b, ElementType b_type, int64_t dim) {
  float sum = 0.0F;
  for (int64_t at = 0; at < dim; ++at) sum += ScalarAt(a, a_type, at) * ScalarAt(b, b_type, at);
  return sum;
}

}  // namespace tessera::lanes::cpu
