// See words.h.
#include "lanes/xla/mosaic/words.h"

#include <algorithm>
#include <cstring>

#include "tessera/dtype.h"

namespace tessera::mosaic {
namespace {

constexpr uint32_t kPoisonFloat = 0x7FC0DEAD;  // a NaN with a name
constexpr int32_t kPoisonInt = -559038737;     // 0xDEADBEEF

template <class Narrow>
void Widen(const std::byte* from, int64_t count, std::byte* to) {
  for (int64_t at = 0; at < count; ++at) {
    Narrow value;
    std::memcpy(&value, from + at * static_cast<int64_t>(sizeof(Narrow)), sizeof(Narrow));
    Ints(to)[at] = static_cast<int32_t>(value);
  }
}

template <class Narrow>
void Narrowed(const std::byte* from, int64_t count, std::byte* to) {
  for (int64_t at = 0; at < count; ++at) {
    const auto value = static_cast<Narrow>(Ints(from)[at]);
    std::memcpy(to + at * static_cast<int64_t>(sizeof(Narrow)), &value, sizeof(Narrow));
  }
}

void CopyWord(std::byte* to, const std::byte* from) { std::memcpy(to, from, kWordBytes); }

// One row along the last axis.
void GatherRow(const std::byte* src, int64_t stride, int64_t count, std::byte* dst) {
  if (stride == 1) {
    std::memcpy(dst, src, static_cast<size_t>(count * kWordBytes));
    return;
  }
  for (int64_t at = 0; at < count; ++at) CopyWord(dst + at * kWordBytes, src + at * stride * kWordBytes);
}

void ScatterRow(const std::byte* src, int64_t count, std::byte* dst, int64_t stride) {
  if (stride == 1) {
    std::memcpy(dst, src, static_cast<size_t>(count * kWordBytes));
    return;
  }
  for (int64_t at = 0; at < count; ++at) CopyWord(dst + at * stride * kWordBytes, src + at * kWordBytes);
}

// Calls row(dense offset, strided offset, count, stride) for each row of the shape.
template <class Row>
void ForRows(std::span<const int64_t> strides, std::span<const int64_t> dims, const Row& row) {
  if (dims.empty()) {
    row(0, 0, 1, 1);
    return;
  }
  const int64_t count = dims.back();
  const size_t outer = dims.size() - 1;
  int64_t num_rows = 1;
  for (size_t axis = 0; axis < outer; ++axis) num_rows *= dims[axis];
  if (count == 0) return;
  std::vector<int64_t> at(outer, 0);
  int64_t offset = 0;
  for (int64_t done = 0; done < num_rows; ++done) {
    row(done * count, offset, count, strides.back());
    for (size_t axis = outer; axis-- > 0;) {
      offset += strides[axis];
      if (++at[axis] < dims[axis]) break;
      offset -= strides[axis] * dims[axis];
      at[axis] = 0;
    }
  }
}

}  // namespace

Words WordPool::Take(int64_t count) {
  std::unique_ptr<std::byte[]> bytes;
  auto& list = (*free_)[count];
  if (!list.empty()) {
    bytes = std::move(list.back());
    list.pop_back();
  } else {
    bytes.reset(
        static_cast<std::byte*>(::operator new[](static_cast<size_t>(std::max<int64_t>(count, 1) * kWordBytes))));
  }
  return {bytes.release(), [free = free_, count](std::byte* back) { (*free)[count].emplace_back(back); }};
}

void Poison(std::byte* words, int64_t count, Element element) {
  if (IsFloat(element)) {
    std::fill_n(Floats(words), count, std::bit_cast<float>(kPoisonFloat));
  } else {
    const int32_t value = element == Element::kI8    ? static_cast<int8_t>(kPoisonInt)
                          : element == Element::kI16 ? static_cast<int16_t>(kPoisonInt)
                                                     : kPoisonInt;
    std::fill_n(Ints(words), count, value);
  }
}

std::vector<int64_t> RowMajor(std::span<const int64_t> dims) {
  std::vector<int64_t> strides(dims.size(), 1);
  for (size_t axis = dims.size(); axis-- > 1;) strides[axis - 1] = strides[axis] * dims[axis];
  return strides;
}

void Gather(const std::byte* src, std::span<const int64_t> strides, std::span<const int64_t> dims, std::byte* dst) {
  ForRows(strides, dims, [&](int64_t dense, int64_t strided, int64_t count, int64_t stride) {
    GatherRow(src + strided * kWordBytes, stride, count, dst + dense * kWordBytes);
  });
}

void Scatter(const std::byte* src, std::span<const int64_t> dims, std::byte* dst, std::span<const int64_t> strides) {
  ForRows(strides, dims, [&](int64_t dense, int64_t strided, int64_t count, int64_t stride) {
    ScatterRow(src + dense * kWordBytes, count, dst + strided * kWordBytes, stride);
  });
}

int64_t ArrayBytesOf(Element element) { return element == Element::kI1 ? 1 : BitsOf(element) / 8; }

void ToWords(const std::byte* bytes, Element element, int64_t count, std::byte* words) {
  switch (element) {
    case Element::kI1:
    case Element::kI8:
      return Widen<int8_t>(bytes, count, words);
    case Element::kI16:
      return Widen<int16_t>(bytes, count, words);
    case Element::kBf16:
      for (int64_t at = 0; at < count; ++at) {
        uint16_t bits = 0;
        std::memcpy(&bits, bytes + at * 2, 2);
        Floats(words)[at] = Bf16ToF32(bits);
      }
      return;
    case Element::kF32:
      for (int64_t at = 0; at < count; ++at) std::memcpy(Floats(words) + at, bytes + at * kWordBytes, kWordBytes);
      return;
    default:
      return Widen<int32_t>(bytes, count, words);
  }
}

void FromWords(const std::byte* words, Element element, int64_t count, std::byte* bytes) {
  switch (element) {
    case Element::kI1:
    case Element::kI8:
      return Narrowed<int8_t>(words, count, bytes);
    case Element::kI16:
      return Narrowed<int16_t>(words, count, bytes);
    case Element::kBf16:
      for (int64_t at = 0; at < count; ++at) {
        const uint16_t bits = F32ToBf16(Floats(words)[at]);
        std::memcpy(bytes + at * 2, &bits, 2);
      }
      return;
    case Element::kF32:
      std::memcpy(bytes, words, static_cast<size_t>(count * kWordBytes));
      return;
    default:
      return Narrowed<int32_t>(words, count, bytes);
  }
}

}  // namespace tessera::mosaic
