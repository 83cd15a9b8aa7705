// The kernels of kernels.def as values, and the cubins that this build has of them.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lanes/cuda/abi.h"
#include "tessera/contract.h"

namespace tessera::lanes::cuda {

struct KernelRow {
  KernelKind kind = KernelKind::kForward;
  DType dtype = DType::kBf16;
  int32_t dim_qk = 0;
  int32_t dim_v = 0;
  std::string_view softcap;  // "none", "bounded", "wide" or "capped"
  std::string_view name;     // of its function and its cubin: "tessera_forward_bf16_128_128_none"
};
std::span<const KernelRow> KernelRows();

// The row of a pass's kernel for this contract; null when the table has none. prepare and sinks are asked for with any.
const KernelRow* FindKernel(KernelKind kind, const Contract& contract);

// Which of the forward's softcap kernels a contract takes, and dq's and dkv's.
std::string_view SoftcapOf(KernelKind kind, const Contract& contract);

// Whether f32 holds the kernels' softcap (MakeSoftcap) in normal numbers, and the square of a score in its near range.
bool FitsSoftcap(double scale, double cap);

// A row's cubin; empty where this build was made without nvcc.
struct Cubin {
  std::string_view name;
  std::span<const std::byte> bytes;
};
std::span<const Cubin> EmbeddedCubins();

int32_t ThreadsOf(KernelKind kind);
// Dynamic shared memory of a launch.
int32_t SharedBytesOf(const KernelRow& row);

}  // namespace tessera::lanes::cuda
