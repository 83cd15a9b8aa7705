// Thin wrappers over the sm_90a instructions the kernels need. No policy here: one function, one instruction.
#pragma once

#include <cstdint>

#include "lanes/cuda/abi.h"

namespace tessera::lanes::cuda::ptx {

struct Bf16 {};
struct F16 {};

__device__ __forceinline__ uint32_t Smem(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// ---- mbarrier --------------------------------------------------------------------------------------------------
__device__ __forceinline__ void BarInit(uint32_t bar, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void BarInitFence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void BarArrive(uint32_t bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void BarArriveExpect(uint32_t bar, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ bool BarTry(uint32_t bar, uint32_t parity) {
  uint32_t done;
  asm volatile("{\n .reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}"
               : "=r"(done)
               : "r"(bar), "r"(parity)
               : "memory");
  return done != 0;
}
// Waits until the phase of this parity has completed. With a limit, a stuck pipeline traps instead of hanging.
__device__ __forceinline__ void BarWait(uint32_t bar, uint32_t parity) {
#ifdef TESSERA_CUDA_WAIT_LIMIT
  for (int spin = 0; !BarTry(bar, parity); ++spin) {
    if (spin > TESSERA_CUDA_WAIT_LIMIT) __trap();
  }
#else
  while (!BarTry(bar, parity)) {
  }
#endif
}

// ---- named barriers: they count threads; 0 is __syncthreads ----------------------------------------------------
__device__ __forceinline__ void NamedSync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// Whether any of the threads brings true.
__device__ __forceinline__ bool NamedAny(int id, int threads, bool mine) {
  uint32_t any;
  asm volatile("{\n .reg .pred p, q;\n setp.ne.u32 p, %3, 0;\n bar.red.or.pred q, %1, %2, p;\n selp.u32 %0, 1, 0, q;\n}"
               : "=r"(any)
               : "r"(id), "r"(threads), "r"(static_cast<uint32_t>(mine))
               : "memory");
  return any != 0;
}

// ---- grids that follow each other ------------------------------------------------------------------------------
// The next launch may begin where this one leaves multiprocessors idle, if it was launched so ...
__device__ __forceinline__ void LetNextBegin() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
// ... and may end only after this: until all that this launch began beside has ended.
__device__ __forceinline__ void WaitForBefore() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// ---- registers, proxies ----------------------------------------------------------------------------------------
template <int N>
__device__ __forceinline__ void RegsInc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
__device__ __forceinline__ void RegsDec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
__device__ __forceinline__ void FenceAsyncShared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- TMA -------------------------------------------------------------------------------------------------------
__device__ __forceinline__ void PrefetchMap(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<uint64_t>(map)) : "memory");
}
// Where a tile begins; all its panels come at once.
struct TileAt {
  int token, head, batch;
};
// What the second cache should do with it: keep what other rows read too, drop what only this one does.
enum class Keep { kLast, kFirst };
#define PTX_TMA_LOAD(policy)                                                                                      \
  asm volatile("{\n .reg .b64 hint;\n createpolicy.fractional.L2::" policy                                        \
               ".b64 hint, 1.0;\n"                                                                                \
               "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint " \
               "[%0], [%1, {%3, %4, %3, %5, %6}], [%2], hint;\n}" ::"r"(dst),                                     \
               "l"(reinterpret_cast<uint64_t>(map)), "r"(bar), "r"(0), "r"(at.token), "r"(at.head), "r"(at.batch) \
               : "memory")
template <Keep K>
__device__ __forceinline__ void TmaLoad(uint32_t dst, const TensorMap* map, uint32_t bar, TileAt at) {
  if constexpr (K == Keep::kLast) {
    PTX_TMA_LOAD("evict_last");
  } else {
    PTX_TMA_LOAD("evict_first");
  }
}
// Plain bytes: 16-byte aligned, a multiple of 16.
__device__ __forceinline__ void BulkLoad(uint32_t dst, const void* src, uint32_t bytes, uint32_t bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(dst),
               "l"(reinterpret_cast<uint64_t>(src)), "r"(bytes), "r"(bar)
               : "memory");
}
__device__ __forceinline__ void TmaStore(const TensorMap* map, uint32_t src, TileAt at, int panel) {
  asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(
                   reinterpret_cast<uint64_t>(map)),
               "r"(src), "r"(0), "r"(at.token), "r"(panel), "r"(at.head), "r"(at.batch)
               : "memory");
}
__device__ __forceinline__ void TmaStoreCommit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
__device__ __forceinline__ void TmaStoreWaitRead() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ __forceinline__ void TmaStoreWait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

__device__ __forceinline__ void StMatrix(uint32_t addr, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(addr), "r"(a), "r"(b), "r"(c),
               "r"(d)
               : "memory");
}

// ---- wgmma -----------------------------------------------------------------------------------------------------
// Descriptors for tiles stored as panels of 64 16-bit columns (128 bytes a row, SWIZZLE_128B, base at a multiple of
// 1024). Rows are the M or N index ("K-major"): next 8 rows at 1024 bytes, the next k16 step 32 bytes on inside a
// panel. Rows are the K index ("MN-major"): next 8 rows at 1024 bytes, next 64 columns one panel on, the next k16 step
// 2048 bytes on. Only the low word depends on the tile; advancing it alone saves the carries.
__device__ __forceinline__ uint32_t Desc(uint32_t addr, uint32_t leading_bytes) {
  return ((addr & 0x3FFFF) >> 4) | (leading_bytes >> 4) << 16;
}
__device__ __forceinline__ uint32_t Advance(uint32_t desc, uint32_t bytes) { return desc + (bytes >> 4); }
__device__ __forceinline__ uint64_t DescWords(uint32_t desc) {
  return static_cast<uint64_t>((1024 >> 4) | 1U << 30) << 32 | desc;
}

// The same value, of which the compiler knows nothing: keeps it from holding every descriptor made of it in registers
// across a loop.
__device__ __forceinline__ uint32_t Opaque(uint32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}

__device__ __forceinline__ void WgmmaFence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void WgmmaCommit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// clang-format off
#define PTX_F4(d, i) "+f"((d)[i]), "+f"((d)[(i) + 1]), "+f"((d)[(i) + 2]), "+f"((d)[(i) + 3])
#define PTX_F16(d, i) PTX_F4(d, i), PTX_F4(d, (i) + 4), PTX_F4(d, (i) + 8), PTX_F4(d, (i) + 12)
#define PTX_F32(d, i) PTX_F16(d, i), PTX_F16(d, (i) + 16)
#define PTX_U4(d, i) "+r"((d)[i]), "+r"((d)[(i) + 1]), "+r"((d)[(i) + 2]), "+r"((d)[(i) + 3])
#define PTX_U16(d, i) PTX_U4(d, i), PTX_U4(d, (i) + 4), PTX_U4(d, (i) + 8), PTX_U4(d, (i) + 12)
#define PTX_REGS32(d) PTX_F32(d, 0)
#define PTX_REGS64(d) PTX_F32(d, 0), PTX_F32(d, 32)
#define PTX_REGS96(d) PTX_REGS64(d), PTX_F32(d, 64)
#define PTX_REGS128(d) PTX_REGS96(d), PTX_F32(d, 96)
#define PTX_LIST32 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define PTX_LIST64 PTX_LIST32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define PTX_LIST96 PTX_LIST64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define PTX_LIST128 PTX_LIST96 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

// Waits until at most N groups are in flight. The operands tie the registers: nothing may read or reuse them earlier.
#define PTX_WAIT(regs)                                                                            \
  template <int N> __device__ __forceinline__ void WgmmaWait(float (&d)[regs]) {                  \
    asm volatile("wgmma.wait_group.sync.aligned %" #regs ";" : PTX_REGS##regs(d) : "n"(N) : "memory"); \
  }
PTX_WAIT(32) PTX_WAIT(64) PTX_WAIT(96) PTX_WAIT(128)
// The same for packed operands that a product has been reading.
__device__ __forceinline__ void Tie(uint32_t (&p)[32]) { asm volatile("" : PTX_U16(p, 0), PTX_U16(p, 16)::"memory"); }
__device__ __forceinline__ void Tie(uint32_t (&p)[16]) { asm volatile("" : PTX_U16(p, 0)::"memory"); }

// d[64 x n] (+)= A[64 x 16] B[n x 16]^T, both K-major in shared memory.
#define PTX_SS(tag, type, n, regs, a0, a1, a2)                                                                          \
  template <int Add> __device__ __forceinline__ void WgmmaSs(tag, float (&d)[regs], uint32_t a, uint32_t b) {           \
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %" #a2 ", 0;\n"                                                    \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" PTX_LIST##regs "}, %" #a0 ", %" #a1 ", p, 1, 1, 0, 0;\n}" \
                 : PTX_REGS##regs(d) : "l"(DescWords(a)), "l"(DescWords(b)), "n"(Add));                                 \
  }
PTX_SS(Bf16, "bf16", 64, 32, 32, 33, 34) PTX_SS(F16, "f16", 64, 32, 32, 33, 34)
PTX_SS(Bf16, "bf16", 128, 64, 64, 65, 66) PTX_SS(F16, "f16", 128, 64, 64, 65, 66)

// d[64 x n] += A[64 x 16] B[16 x n]: A in registers, B MN-major in shared memory.
#define PTX_RS(tag, type, n, regs, a0, a1, a2, a3, a4)                                                                  \
  __device__ __forceinline__ void WgmmaRs(tag, float (&d)[regs], const uint32_t* a, uint32_t b) {                       \
    asm volatile("{\n .reg .pred p;\n setp.eq.b32 p, 0, 0;\n"                                                           \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" PTX_LIST##regs "}, {%" #a0 ",%" #a1 ",%" #a2 ",%" #a3 "}, %" #a4 ", p, 1, 1, 1;\n}" \
                 : PTX_REGS##regs(d) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(DescWords(b)));                  \
  }
PTX_RS(Bf16, "bf16", 64, 32, 32, 33, 34, 35, 36) PTX_RS(F16, "f16", 64, 32, 32, 33, 34, 35, 36)
PTX_RS(Bf16, "bf16", 128, 64, 64, 65, 66, 67, 68) PTX_RS(F16, "f16", 128, 64, 64, 65, 66, 67, 68)
PTX_RS(Bf16, "bf16", 192, 96, 96, 97, 98, 99, 100) PTX_RS(F16, "f16", 192, 96, 96, 97, 98, 99, 100)
PTX_RS(Bf16, "bf16", 256, 128, 128, 129, 130, 131, 132) PTX_RS(F16, "f16", 256, 128, 128, 129, 130, 131, 132)
    // clang-format on

    // ---- arithmetic ------------------------------------------------------------------------------------------------
    __device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float Rcp(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// A NaN on either side stays.
__device__ __forceinline__ float MaxNan(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
__device__ __forceinline__ float MinNan(float a, float b) {
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
// Two floats to 16 bits each, the first in the low half.
__device__ __forceinline__ uint32_t Pack(Bf16, float lo, float hi) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
__device__ __forceinline__ uint32_t Pack(F16, float lo, float hi) {
  uint32_t r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
__device__ __forceinline__ float2 Unpack(Bf16, uint32_t x) {
  return {__uint_as_float(x << 16), __uint_as_float(x & 0xFFFF0000U)};
}
__device__ __forceinline__ float2 Unpack(F16, uint32_t x) {
  float2 y;
  asm("{\n .reg .b16 l, h;\n mov.b32 {l, h}, %2;\n cvt.f32.f16 %0, l;\n cvt.f32.f16 %1, h;\n}"
      : "=f"(y.x), "=f"(y.y)
      : "r"(x));
  return y;
}
// acc + 0 * x in 16 bits, two at a time: NaN once x is NaN or infinite, else zero.
__device__ __forceinline__ uint32_t AddZeroTimes(Bf16, uint32_t x, uint32_t acc) {
  asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(acc) : "r"(x), "r"(0));
  return acc;
}
__device__ __forceinline__ uint32_t AddZeroTimes(F16, uint32_t x, uint32_t acc) {
  asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(acc) : "r"(x), "r"(0));
  return acc;
}

}  // namespace tessera::lanes::cuda::ptx
