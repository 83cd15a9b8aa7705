// See range_bounds.h.
#include "lanes/xla/range_bounds.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tessera/dtype.h"

namespace tessera::lanes::xla {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// The largest of what `of_token` gives for each token of a tile.
template <class OfToken>
std::vector<float> OfTiles(std::span<const uint16_t> tokens, int64_t dim, int64_t tile, const OfToken& of_token) {
  const auto width = static_cast<size_t>(dim);
  const auto each = static_cast<size_t>(tile) * width;
  std::vector<float> bounds;
  for (size_t begin = 0; begin < tokens.size(); begin += each) {
    float most = 0;
    for (size_t at = begin; at < begin + each; at += width) {
      const float bound = of_token(tokens.subspan(at, width));
      most = std::isnan(bound) ? kInf : std::max(most, bound);
    }
    bounds.push_back(most);
  }
  return bounds;
}

// No less than the largest square of a token's length: of squares in bf16, as the programs around the kernels have
// them.
std::vector<float> LargestSquares(std::span<const uint16_t> tokens, int64_t dim, int64_t tile) {
  return OfTiles(tokens, dim, tile, [](std::span<const uint16_t> token) {
    float sum = 0;
    for (const uint16_t bits : token) sum += Bf16ToF32(F32ToBf16(Bf16ToF32(bits) * Bf16ToF32(bits)));
    return sum * static_cast<float>(kernels::kSquareSlack);
  });
}

// 0 where all values are in range, else infinity.
std::vector<float> BeyondRange(std::span<const uint16_t> tokens, int64_t dim, int64_t tile) {
  return OfTiles(tokens, dim, tile, [](std::span<const uint16_t> token) {
    const bool is_in_range = std::all_of(token.begin(), token.end(), [](uint16_t bits) {
      const float size = std::abs(Bf16ToF32(bits));
      return size == 0 || (size >= kernels::kLeastValueInRange && size <= kernels::kMostValueInRange);
    });
    return is_in_range ? 0.0F : kInf;
  });
}

}  // namespace

std::vector<float> QueryBounds(std::span<const uint16_t> q, const kernels::AttentionSpec& spec, double scale) {
  std::vector<float> bounds = LargestSquares(q, spec.dim_qk, spec.list.tile_q);
  const auto factor = static_cast<float>(scale) * static_cast<float>(scale);
  for (float& bound : bounds) bound *= factor;
  return bounds;
}

std::vector<float> KeyBounds(std::span<const uint16_t> k, std::span<const uint16_t> v,
                             const kernels::AttentionSpec& spec) {
  std::vector<float> bounds = LargestSquares(k, spec.dim_qk, spec.list.tile_kv);
  const std::vector<float> values = BeyondRange(v, spec.dim_v, spec.list.tile_kv);
  for (size_t i = 0; i < bounds.size(); ++i) bounds[i] += values[i];
  return bounds;
}

}  // namespace tessera::lanes::xla
