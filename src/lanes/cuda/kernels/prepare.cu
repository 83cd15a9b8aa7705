// What both backward kernels read of each query row: lse2 = lse * log2(e) and delta = sum of o * do, padded to whole
// tiles; and the rows' shares of dsink, summed per block in a fixed order. A block has kPrepareRows rows, eight lanes a
// row.
#include "lanes/cuda/kernels/common.cuh"
#include "lanes/weights.h"

namespace tessera::lanes::cuda {
namespace {

// lanes::LeanLse, in f64: what f32 would round away here decides over weights of 1 and 0 where logits are large.
__device__ __forceinline__ double Lean(float lse) {
  const double size = fabs(static_cast<double>(lse));
  return size >= kLeanFrom && size < INFINITY ? lse - kLean * size : lse;
}

}  // namespace
}  // namespace tessera::lanes::cuda

extern "C" __global__ void __launch_bounds__(256)
    TESSERA_CUDA_NAME(const __grid_constant__ tessera::lanes::cuda::PrepareParams p) {
  using namespace tessera::lanes::cuda;
  using T = ptx::TESSERA_CUDA_TYPE;
  constexpr double kLog2e = 1.4426950408889634;
  __shared__ float shares[kPrepareRows];
  // One number for both: a grid's second axis ends at 65,535, which heads and rows of a batch may pass.
  const int blocks = p.shape.padded_q / kPrepareRows;
  const int row_head = static_cast<int>(blockIdx.x) / blocks;
  const int block = static_cast<int>(blockIdx.x) - row_head * blocks;
  const int batch = row_head / p.shape.num_q_heads;
  const int head = row_head - batch * p.shape.num_q_heads;
  if (blockIdx.x == 0 && threadIdx.x < kNumTickets) p.tickets[threadIdx.x] = 0;
#pragma unroll
  for (int pass = 0; pass < kPrepareRows / 32; ++pass) {
    const int local = 32 * pass + (threadIdx.x >> 3);
    const int token = block * kPrepareRows + local;
    const int64_t at = static_cast<int64_t>(row_head) * p.shape.q_len + token;
    float lse = -INFINITY;
    if (token < p.shape.q_len) lse = p.lse[at];
    const bool is_empty = lse == -INFINITY;  // or padding: o and do are not read
    float delta = 0;
    if (!is_empty) {
      if (p.delta_in != nullptr) {
        delta = p.delta_in[at];
      } else {
        const uint16_t* o = RowOf(p.o, batch, head, token);
        const uint16_t* d = RowOf(p.dout, batch, head, token);
        for (int i = 8 * (threadIdx.x & 7); i < p.dim_v; i += 64) {
          const uint4 a = __ldg(reinterpret_cast<const uint4*>(o + i));
          const uint4 b = __ldg(reinterpret_cast<const uint4*>(d + i));
          const auto add = [&](uint32_t x, uint32_t y) {
            const float2 u = ptx::Unpack(T{}, x);
            const float2 v = ptx::Unpack(T{}, y);
            delta = fmaf(u.x, v.x, delta);
            delta = fmaf(u.y, v.y, delta);
          };
          add(a.x, b.x);
          add(a.y, b.y);
          add(a.z, b.z);
          add(a.w, b.w);
        }
      }
    }
    if (p.delta_in == nullptr) {
#pragma unroll
      for (int n = 4; n > 0; n >>= 1) delta += __shfl_xor_sync(~0U, delta, n);
    }
    if ((threadIdx.x & 7) == 0) {
      const int64_t to = static_cast<int64_t>(row_head) * p.shape.padded_q + token;
      const double lean = Lean(lse);
      p.lse2[to] = is_empty ? INFINITY : static_cast<float>(lean * kLog2e);
      p.delta[to] = delta;
      float share = 0;
      if (!is_empty && p.sinks != nullptr) {
        const auto exponent = static_cast<float>(p.sinks[head] - lean);
        share = expf(exponent > 0 ? 0.0F : exponent) * delta;  // NaN stays
      }
      shares[local] = share;
    }
  }
  if (p.sink_parts == nullptr) return;
  __syncthreads();
  if (threadIdx.x < 32) {
    float sum = shares[threadIdx.x] + shares[threadIdx.x + 32];
#pragma unroll
    for (int n = 16; n > 0; n >>= 1) sum += __shfl_xor_sync(~0U, sum, n);
    if (threadIdx.x == 0) p.sink_parts[blockIdx.x] = sum;
  }
}
