// Each measured loop is a function of its own with the instruction set it needs as an attribute, called only after the
// machine was asked for it, so one program serves every machine of an architecture.
#include "roof.h"

#include <algorithm>
#include <chrono>
#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#include <sys/auxv.h>
#endif

namespace tessera::bench {
namespace {

constexpr int64_t kSteps = 20000;  // of a chain, per timed call: well under a millisecond
constexpr double kSeconds = 0.2;

// Best of as many calls as fit, noise only ever adds. `chains` is multiply-adds in flight, `flops` what one of them
// does.
template <class Function>
double BestGflops(Function function, int64_t chains, int64_t flops) {
  const double work = static_cast<double>(kSteps) * static_cast<double>(chains) * static_cast<double>(flops);
  double best = 0;
  const auto start = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - start < std::chrono::duration<double>(kSeconds)) {
    const auto begin = std::chrono::steady_clock::now();
    function();
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
    best = std::max(best, work / std::max(took.count(), 1.0));
  }
  return best;
}

// Results go here, so that no compiler may leave the work out.
volatile float g_sink = 0;

// Chains are written out one by one: an array of them would stay in memory. 12 cover the latency of two pipes and leave
// AVX2 room for operands; machines with 32 registers get 24, for up to four pipes.
// An empty asm makes each a value of its own to the compiler, which would fold equal chains into one.
#define TESSERA_12(CHAIN) \
  CHAIN(0) CHAIN(1) CHAIN(2) CHAIN(3) CHAIN(4) CHAIN(5) CHAIN(6) CHAIN(7) CHAIN(8) CHAIN(9) CHAIN(10) CHAIN(11)
#define TESSERA_24(CHAIN) \
  TESSERA_12(CHAIN)       \
  CHAIN(12)               \
  CHAIN(13) CHAIN(14) CHAIN(15) CHAIN(16) CHAIN(17) CHAIN(18) CHAIN(19) CHAIN(20) CHAIN(21) CHAIN(22) CHAIN(23)

#if defined(__x86_64__)

#define TESSERA_BEGIN(I)             \
  __m256 a##I = _mm256_setzero_ps(); \
  asm volatile("" : "+x"(a##I));
#define TESSERA_STEP(I) a##I = _mm256_fmadd_ps(x, x, a##I);
#define TESSERA_END(I) sum = _mm256_add_ps(sum, a##I);
__attribute__((target("avx2,fma"))) void Avx2Loop() {
  __m256 x = _mm256_set1_ps(1);
  asm volatile("" : "+x"(x));
  TESSERA_12(TESSERA_BEGIN)
  for (int64_t step = 0; step < kSteps; ++step) {
    TESSERA_12(TESSERA_STEP)
  }
  __m256 sum = _mm256_setzero_ps();
  TESSERA_12(TESSERA_END)
  g_sink = _mm256_cvtss_f32(sum);
}
#undef TESSERA_BEGIN
#undef TESSERA_STEP
#undef TESSERA_END

#define TESSERA_BEGIN(I)             \
  __m512 a##I = _mm512_setzero_ps(); \
  asm volatile("" : "+v"(a##I));
#define TESSERA_STEP(I) a##I = _mm512_fmadd_ps(x, x, a##I);
#define TESSERA_END(I) sum = _mm512_add_ps(sum, a##I);
__attribute__((target("avx512f"))) void Avx512Loop() {
  __m512 x = _mm512_set1_ps(1);
  asm volatile("" : "+v"(x));
  TESSERA_24(TESSERA_BEGIN)
  for (int64_t step = 0; step < kSteps; ++step) {
    TESSERA_24(TESSERA_STEP)
  }
  __m512 sum = _mm512_setzero_ps();
  TESSERA_24(TESSERA_END)
  g_sink = _mm512_cvtss_f32(sum);
}
#undef TESSERA_STEP

// A product of 32 pairs of bf16 into 16 sums.
#define TESSERA_STEP(I) a##I = _mm512_dpbf16_ps(a##I, x, x);
__attribute__((target("avx512f,avx512bf16"))) void Avx512Bf16Loop() {
  const __m512bh x = (__m512bh)_mm512_set1_epi32(0x3f803f80);
  TESSERA_24(TESSERA_BEGIN)
  for (int64_t step = 0; step < kSteps; ++step) {
    TESSERA_24(TESSERA_STEP)
  }
  __m512 sum = _mm512_setzero_ps();
  TESSERA_24(TESSERA_END)
  g_sink = _mm512_cvtss_f32(sum);
}
#undef TESSERA_BEGIN
#undef TESSERA_STEP
#undef TESSERA_END

#elif defined(__aarch64__)

#define TESSERA_BEGIN(I)             \
  float32x4_t a##I = vdupq_n_f32(0); \
  asm volatile("" : "+w"(a##I));
#define TESSERA_STEP(I) a##I = vfmaq_f32(a##I, x, x);
#define TESSERA_END(I) sum = vaddq_f32(sum, a##I);
void NeonLoop() {
  float32x4_t x = vdupq_n_f32(1);
  asm volatile("" : "+w"(x));
  TESSERA_24(TESSERA_BEGIN)
  for (int64_t step = 0; step < kSteps; ++step) {
    TESSERA_24(TESSERA_STEP)
  }
  float32x4_t sum = vdupq_n_f32(0);
  TESSERA_24(TESSERA_END)
  g_sink = vgetq_lane_f32(sum, 0);
}
#undef TESSERA_STEP

// 2 x 4 by 4 x 2 into four sums. As assembly, because compilers differ in when their header offers it.
#if defined(__clang__)
#define TESSERA_BF16 __attribute__((target("bf16")))
#else
#define TESSERA_BF16 __attribute__((target("arch=armv8.2-a+bf16")))
#endif
#define TESSERA_STEP(I) asm volatile("bfmmla %0.4s, %1.8h, %1.8h" : "+w"(a##I) : "w"(x));
TESSERA_BF16 void BfmmlaLoop() {
  const uint16x8_t x = vdupq_n_u16(0x3f80);
  TESSERA_24(TESSERA_BEGIN)
  for (int64_t step = 0; step < kSteps; ++step) {
    TESSERA_24(TESSERA_STEP)
  }
  float32x4_t sum = vdupq_n_f32(0);
  TESSERA_24(TESSERA_END)
  g_sink = vgetq_lane_f32(sum, 0);
}
#undef TESSERA_BEGIN
#undef TESSERA_STEP
#undef TESSERA_END

bool HasBf16() {
  constexpr unsigned long kBf16Bit = 1ul << 14;  // HWCAP2_BF16
  return (::getauxval(AT_HWCAP2) & kBf16Bit) != 0;
}

#endif
#undef TESSERA_12
#undef TESSERA_24

#if defined(__x86_64__)

// Tiles of 16 rows of 64 bytes; 16 x 16 sums of 32 products each.
__attribute__((target("amx-tile,amx-bf16"))) void AmxLoop() {
  struct alignas(64) TileConfig {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  };
  static_assert(sizeof(TileConfig) == 64);
  const TileConfig config;
  alignas(64) uint8_t zeros[1024] = {};
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_loadd(6, zeros, 64);
  _tile_loadd(7, zeros, 64);
  for (int64_t step = 0; step < kSteps; ++step) {
    _tile_dpbf16ps(0, 6, 7);
    _tile_dpbf16ps(1, 6, 7);
    _tile_dpbf16ps(2, 6, 7);
    _tile_dpbf16ps(3, 6, 7);
    _tile_dpbf16ps(4, 6, 7);
    _tile_dpbf16ps(5, 6, 7);
  }
  _tile_stored(0, zeros, 64);
  g_sink = static_cast<float>(zeros[0]);
  _tile_release();
}

bool HasAvx512Bf16() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __builtin_cpu_supports("avx512f") != 0 && __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a >> 5 & 1) != 0;
}

// The processor must have it, and the kernel must grant the tile registers to this process.
bool HasAmx() {
  constexpr long kRequestPermission = 0x1023;
  constexpr long kTileData = 18;
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  const bool has = __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d >> 22 & 1) != 0 && (d >> 24 & 1) != 0;
  return has && ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

#endif

}  // namespace

Roof MeasureF32Roof() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") != 0) return {"AVX-512", BestGflops(Avx512Loop, 24, 32)};
  if (__builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0) {
    return {"AVX2 and FMA", BestGflops(Avx2Loop, 12, 16)};
  }
  return {"none: no AVX2 with FMA", 0};
#elif defined(__aarch64__)
  return {"NEON", BestGflops(NeonLoop, 24, 8)};
#else
  return {"none: not known on this architecture", 0};
#endif
}

Roof MeasureBf16Roof() {
#if defined(__x86_64__)
  if (HasAmx()) return {"AMX tdpbf16ps", BestGflops(AmxLoop, 6, 2 * 16 * 16 * 32)};
  if (HasAvx512Bf16()) return {"AVX512-BF16 vdpbf16ps", BestGflops(Avx512Bf16Loop, 24, 64)};
  return {"none: no AMX and no AVX512-BF16", 0};
#elif defined(__aarch64__)
  if (HasBf16()) return {"bfmmla", BestGflops(BfmmlaLoop, 24, 32)};
  return {"none: no bf16 instructions", 0};
#else
  return {"none: not known on this architecture", 0};
#endif
}

}  // namespace tessera::bench
