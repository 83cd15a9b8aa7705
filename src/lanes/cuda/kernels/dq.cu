// dQ: queries are the rows. See backward.cuh.
#include "lanes/cuda/abi.h"

namespace tessera::lanes::cuda {
constexpr KernelKind kKind = KernelKind::kDq;
constexpr bool kIsTight = TESSERA_CUDA_DIM_QK == 256;  // the accumulators leave the loader little
constexpr int kLoaderRegs = kIsTight ? 24 : 40;
constexpr int kConsumerRegs = kIsTight ? 240 : 232;
}  // namespace tessera::lanes::cuda

#include "lanes/cuda/kernels/backward.cuh"
