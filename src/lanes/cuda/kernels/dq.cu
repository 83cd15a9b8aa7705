// dQ: queries are the rows. See backward.cuh.
#include "lanes/cuda/abi.h"

namespace tessera::lanes::cuda {
constexpr KernelKind kKind = KernelKind::kDq;
constexpr int kLoaderRegs = 40;
constexpr int kConsumerRegs = 232;
}  // namespace tessera::lanes::cuda

#include "lanes/cuda/kernels/backward.cuh"
