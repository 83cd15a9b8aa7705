// dK and dV: keys are the rows. See backward.cuh.
#include "lanes/cuda/abi.h"

namespace tessera::lanes::cuda {
constexpr KernelKind kKind = KernelKind::kDkv;
constexpr int kLoaderRegs = 24;
constexpr int kConsumerRegs = 240;
}  // namespace tessera::lanes::cuda

#include "lanes/cuda/kernels/backward.cuh"
