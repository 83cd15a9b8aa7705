// Products with AVX-512's vdpbf16ps: each lane of C gets two products at once, of a pair of A (broadcast from memory)
// and its own pair of B. Operands are stored as pairs-inl.h writes them.
#include "lanes/cpu/matrix_units.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>

namespace tessera::lanes::cpu {
namespace {

constexpr int64_t kLanes = 16;
constexpr int64_t kPanel = 2 * kLanes;
constexpr int kBlock = 12;  // rows of C at a time: 24 accumulators of 32 registers
constexpr int kTail = 4;

// kA rows of C, a panel wide.
template <int kA>
__attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16"))) void Block(const Product& p, const uint16_t* a,
                                                                           const uint32_t* b, float* c) {
  __m512 acc[kA][2];
#pragma GCC unroll 16
  for (int i = 0; i < kA; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      acc[i][v] = p.accumulate ? _mm512_loadu_ps(c + i * p.c_stride + v * kLanes) : _mm512_setzero_ps();
    }
  }
  for (int64_t s = 0; s < p.num_segments; ++s) {
    // In twos, because there are fewer address registers than rows.
    const uint16_t* rows[kA / 2];
#pragma GCC unroll 16
    for (int i = 0; i < kA / 2; ++i) rows[i] = a + s * p.a_segment + 2 * i * p.a_stride;
    const uint32_t* b_at = b + s * p.b_segment;
    for (int64_t k = 0; k < p.num_k; k += 2) {
      __m512bh columns[2];
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        columns[v] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(b_at + v * kLanes));
      }
#pragma GCC unroll 16
      for (int i = 0; i < kA; ++i) {
        int32_t pair;
        std::memcpy(&pair, rows[i / 2] + k + i % 2 * p.a_stride, sizeof(pair));
        const auto factor = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v) acc[i][v] = _mm512_dpbf16_ps(acc[i][v], factor, columns[v]);
      }
      b_at += p.b_stride;
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kA; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) _mm512_storeu_ps(c + i * p.c_stride + v * kLanes, acc[i][v]);
  }
}

}  // namespace

void MultiplyAvx512Bf16(const Product& p) {
  for (int64_t j = 0; j < p.width; j += kPanel) {
    const auto* a = static_cast<const uint16_t*>(p.a);
    const uint32_t* b = static_cast<const uint32_t*>(p.b) + j;
    float* c = p.c + j;
    int64_t left = p.num_a;
    for (; left >= kBlock; left -= kBlock) {
      Block<kBlock>(p, a, b, c);
      a += kBlock * p.a_stride;
      c += kBlock * p.c_stride;
    }
    for (; left > 0; left -= kTail) {
      Block<kTail>(p, a, b, c);
      a += kTail * p.a_stride;
      c += kTail * p.c_stride;
    }
  }
}

}  // namespace tessera::lanes::cpu
#endif
