#include "routing/dots.h"

#include <bit>
#include <cstring>

namespace tessera::routing {
namespace {

// One source for all: vectors of the size that the machine has, or that the best clone has.
#if defined(__x86_64__)
constexpr int kVec = 8;
#else
constexpr int kVec = 4;
#endif
constexpr int kParts = static_cast<int>(kDotLanes) / kVec;
using Vec = float __attribute__((vector_size(kVec * sizeof(float))));

// Clones are chosen by a resolver that runs before a sanitizer is ready, so instrumented builds do without.
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define TESSERA_NO_CLONES
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TESSERA_NO_CLONES
#endif
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(TESSERA_NO_CLONES)
#define TESSERA_DOT_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define TESSERA_DOT_CLONES
#endif

// By halves, as the header says. References, since how a vector is passed by value depends on the instruction set.
template <int kCount, class Vector>
inline __attribute__((always_inline)) float SumLanes(const Vector (&parts)[kCount]) {
  if constexpr (kCount == 4) {
    const Vector sum = (parts[0] + parts[2]) + (parts[1] + parts[3]);
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
  } else {
    const Vector sum = parts[0] + parts[1];
    return ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
  }
}

// `Q` queries by `M` rows. The lanes of all of them stay in registers.
template <int Q, int M>
inline __attribute__((always_inline)) void DotBlock(const float* const* queries, const float* rows, int64_t dim,
                                                    float* out, int64_t out_stride) {
  Vec lanes[Q][M][kParts] = {};
  for (int64_t d = 0; d < dim; d += kDotLanes) {
    for (int part = 0; part < kParts; ++part) {
      Vec query[Q];
      for (int i = 0; i < Q; ++i) std::memcpy(&query[i], queries[i] + d + part * kVec, sizeof(Vec));
      for (int m = 0; m < M; ++m) {
        Vec row;
        std::memcpy(&row, rows + m * dim + d + part * kVec, sizeof(Vec));
        for (int i = 0; i < Q; ++i) lanes[i][m][part] += query[i] * row;
      }
    }
  }
  for (int i = 0; i < Q; ++i) {
    for (int m = 0; m < M; ++m) {
      out[i * out_stride + m] = SumLanes<kParts>(lanes[i][m]);
    }
  }
}

template <int M>
inline __attribute__((always_inline)) void DotRows(const DotJob& job, int64_t m) {
  const auto count = static_cast<int64_t>(job.queries.size());
  const float* const* queries = job.queries.data();
  const float* rows = job.rows + m * job.dim;
  int64_t i = 0;
  for (; i + 2 <= count; i += 2) {
    DotBlock<2, M>(queries + i, rows, job.dim, job.out + i * job.out_stride + m, job.out_stride);
  }
  if (i < count) DotBlock<1, M>(queries + i, rows, job.dim, job.out + i * job.out_stride + m, job.out_stride);
}

// Exact, without a branch: the exponent is moved by a multiplication that subnormals survive; what was infinite or NaN
// is then at least 2^16.
inline float HalfToFloat(uint16_t half) {
  const float magnitude = std::bit_cast<float>(static_cast<uint32_t>(half & 0x7fff) << 13) * 0x1p112f;
  const uint32_t special = magnitude >= 65536.0F ? 0x7f800000U : 0U;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | special |
                              static_cast<uint32_t>(half & 0x8000) << 16);
}

template <class Element, class Convert, class Store>
inline void ForRow(const std::byte* row, int64_t dim, Convert convert, Store store) {
  for (int64_t d = 0; d < dim; ++d) {
    Element element;
    std::memcpy(&element, row + d * static_cast<int64_t>(sizeof(Element)), sizeof(Element));
    store(d, convert(element));
  }
}

template <class Store>
inline void ForRow(ElementType type, const std::byte* row, int64_t dim, Store store) {
  switch (type) {
    case ElementType::kBf16:
      return ForRow<uint16_t>(
          row, dim, [](uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }, store);
    case ElementType::kF16:
      return ForRow<uint16_t>(row, dim, HalfToFloat, store);
    default:
      return ForRow<float>(
          row, dim, [](float value) { return value; }, store);
  }
}

}  // namespace

TESSERA_DOT_CLONES void Dots(const DotJob& job) {
  int64_t m = 0;
  for (; m + 2 <= job.num_rows; m += 2) DotRows<2>(job, m);
  if (m < job.num_rows) DotRows<1>(job, m);
}

void CopyRow(ElementType type, const std::byte* row, int64_t dim, float* out) {
  ForRow(type, row, dim, [out](int64_t d, float value) { out[d] = value; });
}

void AddRow(ElementType type, const std::byte* row, int64_t dim, float* out) {
  ForRow(type, row, dim, [out](int64_t d, float value) { out[d] += value; });
}

}  // namespace tessera::routing
