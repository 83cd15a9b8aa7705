// Products with Arm's bfmmla: each instruction adds a 2 x 4 by 4 x 2 product to a 2 x 2 block of C, four times the work
// of an f32 multiply-add. Operands are stored as quads-inl.h writes them.
#include "lanes/cpu/matrix_units.h"

#if defined(__aarch64__)
#include <arm_neon.h>

// For functions of this file only: nothing else may need the instructions.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("bf16"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("arch=armv8.2-a+bf16")
#endif

namespace tessera::lanes::cpu {
namespace {

// A block of C, 8 x 8: 16 accumulators, four registers of A and four of B, of 32.
constexpr int kRows = 8;
constexpr int kColumns = 8;
constexpr int64_t kPanel = 16;

// Written out because clang 14 declares the intrinsic only where the whole file is compiled for bf16.
__attribute__((always_inline)) inline void MultiplyAdd(float32x4_t& c, uint16x8_t a, uint16x8_t b) {
  asm("bfmmla %0.4s, %1.8h, %2.8h" : "+w"(c) : "w"(a), "w"(b));
}

// Of two vectors, the first halves and the second halves: two rows of four are two 2 x 2 blocks, and the other way
// round.
__attribute__((always_inline)) inline float32x4_t FirstHalves(float32x4_t a, float32x4_t b) {
  return vreinterpretq_f32_f64(vzip1q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b)));
}
__attribute__((always_inline)) inline float32x4_t SecondHalves(float32x4_t a, float32x4_t b) {
  return vreinterpretq_f32_f64(vzip2q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b)));
}

void Block(const Product& p, const uint16_t* a, const uint16_t* b, float* c) {
  float32x4_t acc[kRows / 2][kColumns / 2];
#pragma GCC unroll 8
  for (int i = 0; i < kRows / 2; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kColumns / 2; j += 2) {
      acc[i][j] = acc[i][j + 1] = vdupq_n_f32(0.0F);
      if (!p.accumulate) continue;
      const float32x4_t first = vld1q_f32(c + 2 * i * p.c_stride + 2 * j);
      const float32x4_t second = vld1q_f32(c + (2 * i + 1) * p.c_stride + 2 * j);
      acc[i][j] = FirstHalves(first, second);
      acc[i][j + 1] = SecondHalves(first, second);
    }
  }
  for (int64_t s = 0; s < p.num_segments; ++s) {
    const uint16_t* a_at = a + s * p.a_segment;
    const uint16_t* b_at = b + s * p.b_segment * 2;
    for (int64_t k = 0; k < p.num_k; k += 4) {
      uint16x8_t rows[kRows / 2];
      uint16x8_t columns[kColumns / 2];
#pragma GCC unroll 8
      for (int i = 0; i < kRows / 2; ++i) rows[i] = vld1q_u16(a_at + 2 * i * p.a_stride);
#pragma GCC unroll 8
      for (int j = 0; j < kColumns / 2; ++j) columns[j] = vld1q_u16(b_at + j * 8);
#pragma GCC unroll 8
      for (int i = 0; i < kRows / 2; ++i) {
#pragma GCC unroll 8
        for (int j = 0; j < kColumns / 2; ++j) MultiplyAdd(acc[i][j], rows[i], columns[j]);
      }
      a_at += 8;
      b_at += 4 * p.b_stride;  // two rows of words
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows / 2; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kColumns / 2; j += 2) {
      vst1q_f32(c + 2 * i * p.c_stride + 2 * j, FirstHalves(acc[i][j], acc[i][j + 1]));
      vst1q_f32(c + (2 * i + 1) * p.c_stride + 2 * j, SecondHalves(acc[i][j], acc[i][j + 1]));
    }
  }
}

}  // namespace

void MultiplyArmBf16(const Product& p) {
  for (int64_t panel = 0; panel < p.width; panel += kPanel) {
    for (int64_t row = 0; row < p.num_a; row += kRows) {
      // Rows of A that came into the first cache serve the whole panel.
      for (int64_t j = panel; j < panel + kPanel; j += kColumns) {
        Block(p, static_cast<const uint16_t*>(p.a) + row * p.a_stride, static_cast<const uint16_t*>(p.b) + j * 4,
              p.c + row * p.c_stride + j);
      }
    }
  }
}

}  // namespace tessera::lanes::cpu

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
