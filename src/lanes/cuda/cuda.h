// The CUDA lane: kernels for Hopper GPUs that were compiled with the library, on the caller's device memory and stream.
// docs/cuda.md.
#pragma once

#include <cstdint>
#include <memory>

#include "lanes/lane.h"

namespace tessera {
namespace lanes::cuda {
struct Driver;
class State;
}  // namespace lanes::cuda

// An engine's devices and uploaded plans. With a driver of the caller's, in place of the machine's: for tests.
std::shared_ptr<lanes::cuda::State> MakeCudaState(const lanes::cuda::Driver* driver = nullptr);

struct CudaOptions {
  MemorySpace memory = {};  // where the calls' tensors will be; the host's are copied where a call allows it
};
bool HasCudaKernels();  // whether this build has any: not without an nvcc
std::unique_ptr<Lane> MakeCudaLane(std::shared_ptr<lanes::cuda::State> state, CudaOptions options);

}  // namespace tessera
