// Rows, dot products and logits: the small arithmetic of the reference lane.
#include "lanes/reference/walk.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "base/dtype.h"
#include "base/tensor_row.h"

namespace tessera::lanes::reference {
namespace {

// The caller's bytes may have any alignment.
template <class Bits, class Convert>
void LoadAs(const std::byte* from, std::span<double> row, Convert convert) {
  for (double& value : row) {
    Bits bits;
    std::memcpy(&bits, from, sizeof(bits));
    value = static_cast<double>(convert(bits));
    from += sizeof(bits);
  }
}

template <class Bits, class Convert>
void StoreAs(std::byte* to, std::span<const double> row, Convert convert) {
  for (const double value : row) {
    const Bits bits = convert(value);
    std::memcpy(to, &bits, sizeof(bits));
    to += sizeof(bits);
  }
}

}  // namespace

void LoadRow(const TensorRef& tensor, const RowIndex& at, std::span<double> row) {
  const std::byte* from = RowAt(tensor, at.batch, at.head, at.token);
  if (tensor.type == ElementType::kF32) {
    LoadAs<float>(from, row, [](float value) { return value; });
  } else if (tensor.type == ElementType::kBf16) {
    LoadAs<uint16_t>(from, row, [](uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); });
  } else {
    LoadAs<uint16_t>(from, row, F16ToF32);
  }
}

void StoreRow(const TensorRef& tensor, const RowIndex& at, std::span<const double> row) {
  std::byte* to = RowAt(tensor, at.batch, at.head, at.token);
  if (tensor.type == ElementType::kF32) {
    StoreAs<float>(to, row, [](double value) { return static_cast<float>(value); });
  } else if (tensor.type == ElementType::kBf16) {
    StoreAs<uint16_t>(to, row, F64ToBf16);
  } else {
    StoreAs<uint16_t>(to, row, F64ToF16);
  }
}

double Dot(std::span<const double> a, std::span<const double> b) {
  double sum = 0.0;
  for (size_t d = 0; d < a.size(); ++d) sum += a[d] * b[d];
  return sum;
}

Logit LogitOf(const Score& score, double dot) {
  const double scaled = score.scale * dot;
  if (score.softcap <= 0.0) return {scaled, 1.0};
  const double tanh = std::tanh(scaled / score.softcap);
  return {score.softcap * tanh, 1.0 - tanh * tanh};
}

TileRow TileRowOf(const PlanView& plan, Direction direction, uint32_t mask, int64_t row) {
  const Worklist& list = plan.Of(direction);
  const bool transposed = direction == Direction::kDkv;
  const int64_t tile = transposed ? list.tile_kv : list.tile_q;
  const int64_t len = transposed ? plan.kv_len : plan.q_len;
  const uint64_t at = static_cast<uint64_t>(mask) * list.rows_per_mask + static_cast<uint64_t>(row);
  return {row * tile, std::min((row + 1) * tile, len), list.Row(at)};
}

}  // namespace tessera::lanes::reference
