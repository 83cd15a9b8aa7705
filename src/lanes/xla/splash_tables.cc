// See splash_tables.h.
#include "lanes/xla/splash_tables.h"

#include <algorithm>

#include "lanes/xla/kernel_tables.h"
#include "lanes/xla/kernels/splash_parts.h"

namespace tessera::lanes::xla {
namespace {

using kernels::AttentionSpec;
using kernels::SplashMask;
using kernels::SplashMaskKind;
using kernels::SplashSpec;
using stablehlo::Element;
using stablehlo::ProgramSpec;

SplashMask MaskOf(const Band& band) {
  if (band.IsFull()) return {.kind = SplashMaskKind::kFull};
  if (band.IsCausal()) return {.kind = SplashMaskKind::kCausal, .offset = band.offset};
  return {.kind = SplashMaskKind::kLocal, .offset = band.offset, .left = band.left, .right = band.right};
}

// Whether the band itself lets a query see keys past the last.
bool SeesPadding(const Band& band, const AttentionSpec& kernel) {
  if (kernel.kv_tokens() == kernel.kv_len) return false;
  return !band.right || band.offset + kernel.q_len - 1 + *band.right >= kernel.kv_len;
}

}  // namespace

SplashSpec SplashSpecOf(const ProgramSpec& spec, Direction direction) {
  const AttentionSpec kernel = KernelSpecOf(spec, direction);
  const bool is_forward = direction == Direction::kForward;
  return {.num_q_heads = kernel.batch * kernel.num_q_heads,
          .num_kv_heads = kernel.batch * kernel.num_kv_heads,
          .q_len = kernel.q_tokens(),
          .kv_len = kernel.kv_tokens(),
          .dim_qk = kernel.dim_qk,
          .dim_v = kernel.dim_v,
          .element = kernel.element,
          .block_q = kernel.list.tile_q,
          .block_kv = kernel.list.tile_kv,
          .block_kv_compute = kernel.list.sub_tile_kv,
          .mask = MaskOf(*spec.band),
          .has_segments = SeesPadding(*spec.band, kernel),
          .has_lse = is_forward,
          .grid_width = kernel.list.width,
          .data_next = kernel.index};
}

Result<mosaic::Module> SplashKernelOf(const ProgramSpec& spec, Direction direction) {
  const SplashSpec kernel = SplashSpecOf(spec, direction);
  switch (direction) {
    case Direction::kForward:
      return kernels::SplashForward(kernel);
    case Direction::kDq:
      return kernels::SplashDq(kernel);
    case Direction::kDkv:
      break;
  }
  return kernels::SplashDkv(kernel);
}

std::vector<stablehlo::NamedType> SplashTableInputs(const ProgramSpec& spec, Direction direction) {
  const SplashSpec kernel = SplashSpecOf(spec, direction);
  const std::vector<int64_t> list = direction == Direction::kDkv
                                        ? std::vector<int64_t>{1, kernel.grid_width, kernel.kv_len / kernel.block_kv}
                                        : std::vector<int64_t>{1, kernel.q_len / kernel.block_q, kernel.grid_width};
  return {{TableName(direction, "data_next"), {Element::kI32, list}},
          {TableName(direction, "block_mask"), {Element::kI32, list}},
          {TableName(direction, "kv_live"), {Element::kI32, {spec.shape.batch, kernel.kv_len}}}};
}

void FillSplashTables(const ProgramSpec& spec, const PlanView& plan, Direction direction, PlanTables& tables) {
  const SplashSpec kernel = SplashSpecOf(spec, direction);
  const Worklist& list = plan.Of(direction);
  const bool is_dkv = direction == Direction::kDkv;
  const auto rows = static_cast<size_t>(list.rows_per_mask);
  const auto width = static_cast<size_t>(kernel.grid_width);
  std::vector<int32_t>& data_next = tables.at(TableName(direction, "data_next"));
  std::vector<int32_t>& block_mask = tables.at(TableName(direction, "block_mask"));
  for (size_t row = 0; row < rows; ++row) {
    const std::span<const Slot> slots = list.Row(plan.mask_of[0] * rows + row);
    int32_t column = 0;
    for (size_t i = 0; i < width; ++i) {
      if (i < slots.size()) column = static_cast<int32_t>(slots[i].index);
      const size_t at = is_dkv ? i * rows + row : row * width + i;
      data_next[at] = column;
      block_mask[at] = i >= slots.size() ? 0 : slots[i].cleanup == 0 ? 2 : 1;
    }
  }
  const Band& band = *spec.band;
  const int64_t first = band.left ? std::max<int64_t>(band.offset - *band.left, 0) : 0;
  const int64_t last = band.right ? band.offset + plan.q_len - 1 + *band.right : plan.kv_len - 1;
  std::vector<int32_t>& live = tables.at(TableName(direction, "kv_live"));
  for (int64_t b = 0; b < spec.shape.batch; ++b) {
    for (int64_t t = first; t <= std::min(last, plan.kv_len - 1); ++t) {
      live[static_cast<size_t>(b * kernel.kv_len + t)] = 1;
    }
  }
}

std::vector<std::vector<int64_t>> SplashRunningDims(const SplashSpec& spec, Direction direction) {
  switch (direction) {
    case Direction::kForward:
      return {{spec.block_q, kernels::kLanes}, {spec.block_q, kernels::kLanes}, {spec.block_q, spec.dim_v}};
    case Direction::kDq:
      return {{spec.block_q, spec.dim_qk}};
    case Direction::kDkv:
      break;
  }
  return {{spec.block_kv, spec.dim_qk}, {spec.block_kv, spec.dim_v}};
}

}  // namespace tessera::lanes::xla
