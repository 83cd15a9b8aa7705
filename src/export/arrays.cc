#include "export/arrays.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

namespace tessera::exports {
namespace {

template <class T>
Tensor Cast(ElementType type, const IntArray& array) {
  Tensor out = Tensor::Zeros(type, array.shape);
  auto* to = reinterpret_cast<T*>(out.bytes.data());
  std::transform(array.values.begin(), array.values.end(), to, [](int32_t value) { return static_cast<T>(value); });
  return out;
}

}  // namespace

IntArray IntArray::Filled(std::vector<int64_t> shape, int32_t value) {
  int64_t count = 1;
  for (const int64_t dim : shape) count *= dim;
  return {std::move(shape), std::vector<int32_t>(static_cast<size_t>(count), value)};
}

Tensor IntArray::Narrowed() const {
  if (values.empty()) return AsInt32();
  const int32_t largest = *std::max_element(values.begin(), values.end());
  if (largest <= INT8_MAX) return Cast<int8_t>(ElementType::kI8, *this);
  if (largest <= INT16_MAX) return Cast<int16_t>(ElementType::kI16, *this);
  return AsInt32();
}

Tensor IntArray::AsInt32() const { return Cast<int32_t>(ElementType::kI32, *this); }

Tensor QSequence(int64_t q_len) {
  IntArray ids = IntArray::Filled({q_len}, 0);
  std::iota(ids.values.begin(), ids.values.end(), 0);
  return ids.AsInt32();
}

Status CheckCells(double cells, int64_t arrays, const char* where) {
  const double bytes = cells * static_cast<double>(arrays) * sizeof(int32_t);
  if (bytes <= static_cast<double>(kMaxArrayBytes)) return {};
  return Fail(ErrorCode::kTooLarge,
              fmt::format("the arrays of this grid would need {:.0f} bytes, the limit is {}; use larger tiles", bytes,
                          kMaxArrayBytes),
              where);
}

Result<std::vector<uint32_t>> ContentOfHeads(const Source& source) {
  const auto heads = static_cast<size_t>(source.contract->shape.num_q_heads);
  const auto mask_of_head = source.plan->mask_of.subspan(source.batch_row * heads, heads);
  std::vector<uint32_t> content_of_head(heads, 0);
  if (std::all_of(mask_of_head.begin(), mask_of_head.end(), [&](uint32_t m) { return m == mask_of_head.front(); })) {
    return content_of_head;
  }
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
  const auto other = std::find_if(content->begin(), content->end(), [](uint32_t mask) { return mask != 0; });
  if (other == content->end()) return {};
  const std::string library(ToText(source.options->to));
  return Fail(
      ErrorCode::kExportMask,
      fmt::format("{} has one mask for all heads, and head {} differs from head 0", library, other - content->begin()),
      library);
}

}  // namespace tessera::exports
