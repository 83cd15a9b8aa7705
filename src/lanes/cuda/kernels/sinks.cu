// dsink of a head: minus the sum of its blocks' shares over the batch, in one fixed order.
#include "lanes/cuda/abi.h"

extern "C" __global__ void __launch_bounds__(128)
    TESSERA_CUDA_NAME(const __grid_constant__ tessera::lanes::cuda::SinksParams p) {
  using namespace tessera::lanes::cuda;
  __shared__ float sums[kSinksThreads];
  const int blocks = p.shape.padded_q / kPrepareRows;
  float sum = 0;
  for (int64_t i = threadIdx.x; i < static_cast<int64_t>(blocks) * p.shape.batch; i += kSinksThreads) {
    const int64_t batch = i / blocks;
    sum += p.sink_parts[(batch * p.shape.num_q_heads + blockIdx.x) * blocks + i % blocks];
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
#pragma unroll
  for (int n = kSinksThreads / 2; n > 0; n >>= 1) {
    if (threadIdx.x < n) sums[threadIdx.x] += sums[threadIdx.x + n];
    __syncthreads();
  }
  if (threadIdx.x == 0) p.dsink[blockIdx.x] = -sums[0];
}
