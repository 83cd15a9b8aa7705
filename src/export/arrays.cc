#include "export/arrays.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <string_view>

#include "base/try.h"

namespace tessera::exports {
namespace {

template <class T>
Tensor Cast(ElementType type, const IntArray& array) {
  Tensor out = Tensor::Zeros(type, array.shape);
  auto* to = reinterpret_cast<T*>(out.bytes.data());
  std::transform(array.values.begin(), array.values.end(), to, [](int32_t value) { return static_cast<T>(value); });
  return out;
}

Result<int64_t> Fit(const Source& source, int64_t capacity, int64_t needed, std::string_view what) {
  if (needed <= capacity) return capacity;
  if (source.options->widen_class) return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(needed)));
  return Fail(ErrorCode::kCapacityExceeded,
              fmt::format("this batch needs {} {}, the class holds {}; raise capacity, or ask for a wider class",
                          needed, what, capacity),
              "class");
}

}  // namespace

IntArray IntArray::Filled(std::vector<int64_t> shape, int32_t value) {
  int64_t count = 1;
  for (const int64_t dim : shape) count *= dim;
  return {std::move(shape), std::vector<int32_t>(static_cast<size_t>(count), value)};
}

Tensor IntArray::Narrowed(std::optional<int64_t> bound) const {
  if (values.empty()) return AsInt32();
  const int64_t largest = bound ? *bound : *std::max_element(values.begin(), values.end());
  if (largest <= INT8_MAX) return Cast<int8_t>(ElementType::kI8, *this);
  if (largest <= INT16_MAX) return Cast<int16_t>(ElementType::kI16, *this);
  return AsInt32();
}

Tensor IntArray::AsInt32() const { return Cast<int32_t>(ElementType::kI32, *this); }

Tensor QSequence(int64_t q_len) {
  Tensor ids = Tensor::Zeros(ElementType::kI32, {q_len});
  auto* first = reinterpret_cast<int32_t*>(ids.bytes.data());
  std::iota(first, first + q_len, 0);
  return ids;
}

Status CheckCells(double cells, int64_t arrays, const char* where) {
  const double bytes = cells * static_cast<double>(arrays) * sizeof(int32_t);
  if (bytes <= static_cast<double>(kMaxArrayBytes)) return {};
  return Fail(ErrorCode::kTooLarge,
              fmt::format("the arrays of this grid would need {:.0f} bytes, the limit is {}; use larger tiles", bytes,
                          kMaxArrayBytes),
              where);
}

Result<int64_t> FixedWidth(const Source& source, const TileGrid& grid, bool transposed) {
  std::vector<int64_t> counts(static_cast<size_t>(transposed ? grid.kv_tiles : grid.q_tiles), 0);
  for (const GridTile& tile : grid.tiles) ++counts[transposed ? tile.kv : tile.q];
  const Direction direction = transposed ? Direction::kDkv : Direction::kForward;
  return Fit(source, source.class_shape->width[static_cast<size_t>(direction)],
             *std::max_element(counts.begin(), counts.end()),
             transposed ? "slots per column (capacity.width_transposed)" : "slots per row (capacity.width)");
}

Result<int64_t> StoredCount(const Source& source, const StoredTiles& stored) {
  // Tiles that no batch changes need no room for others, unless the contract names a number.
  const bool is_exact = source.contract->capacity.cleanups.kind == Limit::Kind::kExact;
  if (!source.class_shape || (!source.is_baked && is_exact)) return stored.Size();
  const int64_t count =
      TESSERA_TRY(Fit(source, source.class_shape->cleanups, stored.Size(), "stored tiles (capacity.cleanups)"));
  TESSERA_TRY(CheckRoom(source, count));
  return count;
}

Status CheckRoom(const Source& source, int64_t count) {
  const double bytes =
      static_cast<double>(count) * static_cast<double>(source.tile.q) * static_cast<double>(source.tile.kv);
  if (bytes <= static_cast<double>(kMaxArrayBytes)) return {};
  return Fail(ErrorCode::kTooLarge,
              fmt::format("the class has room for {} stored tiles, {:.0f} bytes, and the limit is {}; give "
                          "capacity.cleanups a number, or store no tiles",
                          count, bytes, kMaxArrayBytes),
              "partial_mask_blocks");
}

Result<std::vector<uint32_t>> ContentOfHeads(const Source& source) {
  const auto heads = static_cast<size_t>(source.contract->shape.num_q_heads);
  const auto mask_of_head = source.plan->mask_of.subspan(source.batch_row * heads, heads);
  std::vector<uint32_t> content_of_head(heads, 0);
  if (std::all_of(mask_of_head.begin(), mask_of_head.end(), [&](uint32_t m) { return m == mask_of_head.front(); })) {
    return content_of_head;
  }
  if (source.class_shape) return std::vector<uint32_t>(mask_of_head.begin(), mask_of_head.end());
  GridReader reader(*source.plan, true);
  std::vector<TileGrid> distinct;
  for (size_t head = 0; head < heads; ++head) {
    const auto twin = std::find(mask_of_head.begin(), mask_of_head.begin() + head, mask_of_head[head]);
    if (const auto at = static_cast<size_t>(twin - mask_of_head.begin()); at < head) {
      content_of_head[head] = content_of_head[at];
      continue;
    }
    Result<TileGrid> grid = reader.Read(source.batch_row, static_cast<int64_t>(head));
    if (!grid) return tl::unexpected(std::move(grid.error()));
    const auto same = std::find_if(distinct.begin(), distinct.end(),
                                   [&](const TileGrid& other) { return other.tiles == grid->tiles; });
    content_of_head[head] = static_cast<uint32_t>(same - distinct.begin());
    if (same == distinct.end()) distinct.push_back(std::move(*grid));
  }
  return content_of_head;
}

Status CheckOneMask(const Source& source) {
  Result<std::vector<uint32_t>> content = ContentOfHeads(source);
  if (!content) return tl::unexpected(std::move(content.error()));
  const auto other =
      std::find_if(content->begin(), content->end(), [&](uint32_t mask) { return mask != content->front(); });
  if (other == content->end()) return {};
  const std::string library(ToText(source.options->to));
  return Fail(
      ErrorCode::kExportMask,
      fmt::format("{} has one mask for all heads, and head {} differs from head 0", library, other - content->begin()),
      library);
}

}  // namespace tessera::exports
