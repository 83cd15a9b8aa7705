#include "lanes/cpu/operands.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "lanes/workers.h"

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

namespace {

PackedKeys Take(Scratch& scratch, const Kernel& kernel, const PackedKeys& sizes, int64_t heads, PackedForms forms) {
  PackedKeys keys = sizes;
  keys.padded_dim = RoundUp(keys.dim, kernel.dim_step);
  keys.element_bytes = kernel.operand_bytes;
  keys.group = kernel.a_group;
  const int64_t bytes = heads * keys.num_rows * keys.padded_dim * keys.element_bytes;
  if (forms.rows || !kernel.needs_columns) keys.rows = scratch.TakeBytes(bytes);
  if (forms.columns && kernel.needs_columns) keys.columns = scratch.TakeBytes(bytes);
  if (forms.flags) keys.not_finite = scratch.Take<uint8_t>(heads * keys.num_rows);
  return keys;
}

// Keys of whole tensors are packed in stretches of this many rows, each a unit of work of its own.
constexpr int64_t kPackRows = 256;

int64_t UnitsPerHead(const Sizes& sizes) { return RoundUp(sizes.shape.kv_len, kPackRows) / kPackRows; }

// Whether products can read the tensor where it is: contiguous f32 rows without padding, and lengths in whole steps, so
// that no step reaches past the last key.
bool CanReadInPlace(const PackRun& run, const TensorRef& from, const PackedKeys& to) {
  const Kernel& kernel = *run.kernel;
  return kernel.operand_bytes == 4 && from.type == ElementType::kF32 && to.dim == to.padded_dim &&
         from.token_stride == to.dim && run.sizes->shape.kv_len % kernel.key_step == 0 &&
         run.tile_kv % kernel.key_step == 0;
}

// Rows of one head, and where in `to` they go.
struct Stretch {
  int64_t head = 0;
  int64_t begin = 0;
  int64_t num_rows = 0;
  int64_t padded_rows = 0;  // zeros from num_rows on
  int64_t to_head = 0;
  int64_t to_row = 0;
};

PackRows PackOf(const PackRun& run, const TensorRef& from, const PackedKeys& to, const Stretch& at) {
  const int64_t heads = run.sizes->shape.num_kv_heads;
  PackRows pack{.type = from.type,
                .from = RowAt(from, at.head / heads, at.head % heads, at.begin),
                .from_stride = from.token_stride,
                .num_rows = at.num_rows,
                .dim = to.dim,
                .padded_dim = to.padded_dim,
                .padded_rows = at.padded_rows};
  if (to.not_finite != nullptr) {
    pack.not_finite = to.not_finite + at.to_head * to.num_rows + at.to_row;
    std::memset(pack.not_finite, 0, static_cast<size_t>(at.padded_rows));
  }
  return pack;
}

void Pack(const PackRun& run, const TensorRef& from, const PackedKeys& to, const Stretch& at) {
  PackRows pack = PackOf(run, from, to, at);
  if (to.rows != nullptr) {
    pack.to = to.Row(at.to_head, at.to_row);
    pack.to_stride = to.padded_dim;
    run.kernel->pack_rows(pack);
  }
  if (to.columns != nullptr) {
    pack.to = to.Column(at.to_head, at.to_row);
    pack.to_stride = to.num_rows;
    run.kernel->pack_columns(pack);
  }
}

}  // namespace

PackedKeys TakeKeys(Scratch& scratch, const Kernel& kernel, const Sizes& sizes, int64_t dim, PackedForms forms) {
  const int64_t heads = sizes.shape.num_kv_heads;
  return Take(scratch, kernel, {.dim = dim, .num_rows = sizes.kv_rows, .heads_per_batch = heads},
              sizes.shape.batch * heads, forms);
}

PackedKeys TakeTile(Scratch& scratch, const Kernel& kernel, const Sizes& sizes, int64_t dim, int64_t tile_kv,
                    PackedForms forms) {
  const int64_t num_rows = RoundUp(std::min(tile_kv, sizes.shape.kv_len), kCellSlack);
  return Take(scratch, kernel, {.dim = dim, .num_rows = num_rows}, 1, forms);
}

void PackAll(const PackRun& run, std::span<const KeysToPack> tensors) {
  std::vector<KeysToPack> left;
  for (const KeysToPack& keys : tensors) {
    if (CanReadInPlace(run, *keys.from, *keys.to)) {
      keys.to->in_place = keys.from;
      keys.to->not_finite = nullptr;
    } else {
      left.push_back(keys);
    }
  }
  const Shape& shape = run.sizes->shape;
  const int64_t units_per_head = UnitsPerHead(*run.sizes);
  const int64_t units = shape.batch * shape.num_kv_heads * units_per_head;
  RunUnits(run.threads, static_cast<int64_t>(left.size()) * units, [&](int64_t unit, int64_t) {
    const KeysToPack& keys = left[static_cast<size_t>(unit / units)];
    const int64_t head = unit % units / units_per_head;
    const int64_t begin = unit % units_per_head * kPackRows;
    const int64_t end = std::min(begin + kPackRows, shape.kv_len);
    // The last stretch also writes the zeros that steps read past the last key.
    const int64_t zero_end = end == shape.kv_len ? keys.to->num_rows : end;
    Pack(run, *keys.from, *keys.to, {head, begin, end - begin, zero_end - begin, head, begin});
  });
}

PackedKeys InPlace(const PackRun& run, const TensorRef& from, const PackedKeys& tile) {
  PackedKeys all{.dim = tile.dim,
                 .padded_dim = tile.padded_dim,
                 .num_rows = run.sizes->shape.kv_len,
                 .element_bytes = tile.element_bytes,
                 .heads_per_batch = run.sizes->shape.num_kv_heads};
  if (CanReadInPlace(run, from, tile)) all.in_place = &from;
  return all;
}

TileKeys LookAtTile(const PackRun& run, const TensorRef& from, const PackedKeys& all, const PackedKeys& own,
                    int64_t head, int64_t begin) {
  const int64_t num_rows = std::min(run.tile_kv, run.sizes->shape.kv_len - begin);
  const Stretch at{head, begin, num_rows, RoundUp(num_rows, kCellSlack), 0, 0};
  if (all.in_place != nullptr) {
    const PackRows look = PackOf(run, from, own, at);
    run.kernel->flag_rows(look);
    if (!HasFlag(look.not_finite, num_rows)) return {&all, head, begin};
  }
  Pack(run, from, own, at);
  return {&own, 0, 0};
}

float ScalarDot(const std::byte* a, ElementType a_type, const std::byte* b, ElementType b_type, int64_t dim) {
  float sum = 0.0F;
  for (int64_t at = 0; at < dim; ++at) sum += ScalarAt(a, a_type, at) * ScalarAt(b, b_type, at);
  return sum;
}

}  // namespace tessera::lanes::cpu
