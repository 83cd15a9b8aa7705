#include "lanes/cuda/kernels.h"

#include <algorithm>
#include <cmath>

namespace tessera::lanes::cuda {
namespace {

constexpr KernelKind forward = KernelKind::kForward;  // NOLINT(readability-identifier-naming): columns of kernels.def
constexpr KernelKind dq = KernelKind::kDq;            // NOLINT(readability-identifier-naming)
constexpr KernelKind dkv = KernelKind::kDkv;          // NOLINT(readability-identifier-naming)
constexpr KernelKind prepare = KernelKind::kPrepare;  // NOLINT(readability-identifier-naming)
constexpr KernelKind sinks = KernelKind::kSinks;      // NOLINT(readability-identifier-naming)
constexpr KernelKind join = KernelKind::kJoin;        // NOLINT(readability-identifier-naming)
constexpr DType bf16 = DType::kBf16;                  // NOLINT(readability-identifier-naming)
constexpr DType f16 [[maybe_unused]] = DType::kF16;   // NOLINT(readability-identifier-naming)
constexpr DType f32 = DType::kF32;                    // NOLINT(readability-identifier-naming)

constexpr KernelRow kRows[] = {
#define TESSERA_CUDA_KERNEL(kind, dtype, dim_qk, dim_v, softcap) \
  {kind, dtype, dim_qk, dim_v, #softcap, "tessera_" #kind "_" #dtype "_" #dim_qk "_" #dim_v "_" #softcap},
#include "lanes/cuda/kernels.def"
#undef TESSERA_CUDA_KERNEL
};

// Those that go through tiles, and are compiled for dims and softcap; the others take any.
constexpr bool TakesTiles(KernelKind kind) {
  return kind == KernelKind::kForward || kind == KernelKind::kDq || kind == KernelKind::kDkv;
}

// What a multiprocessor gives one block.
constexpr int32_t kMostShared = 227 * 1024;
constexpr bool FitsShared(const KernelRow& row) {
  return !TakesTiles(row.kind) || SharedBytes(row.kind, row.dim_qk, row.dim_v) <= kMostShared;
}
static_assert(std::all_of(std::begin(kRows), std::end(kRows), FitsShared));

}  // namespace

std::span<const KernelRow> KernelRows() { return kRows; }

std::string_view SoftcapOf(KernelKind kind, const Contract& contract) {
  const double cap = contract.score.softcap;
  if (cap <= 0 || !TakesTiles(kind)) return "none";
  if (kind != KernelKind::kForward) return "capped";
  return contract.shape.dtype == DType::kBf16 && HasBounded(cap, contract.shape.dim_qk) ? "bounded" : "wide";
}

bool FitsSoftcap(double scale, double cap) {
  constexpr double kLeast = 0x1p-126;
  constexpr double kMost = 0x1p127;
  const auto fits = [](double x) { return x >= kLeast && x <= kMost; };
  const double b = scale / cap;
  double power = scale;
  for (const double term : kTanhNear) {
    if (!fits(std::abs(term) * power) || !fits(2 * power)) return false;  // forward's; 2: more than log2(e)
    if (!fits(std::abs(term) * power / cap)) return false;                // backward's
    power *= b * b;
  }
  return fits(0.25 / (b * b)) && fits(3 * b) && fits(2 * cap) && fits(0.5 / cap);
}

const KernelRow* FindKernel(KernelKind kind, const Contract& contract) {
  const auto fits = [&](const KernelRow& row) {
    if (row.kind != kind || row.softcap != SoftcapOf(kind, contract)) return false;
    if (kind != KernelKind::kSinks && row.dtype != contract.shape.dtype) return false;
    return !TakesTiles(kind) || (row.dim_qk == contract.shape.dim_qk && row.dim_v == contract.shape.dim_v);
  };
  const auto it = std::find_if(std::begin(kRows), std::end(kRows), fits);
  return it == std::end(kRows) ? nullptr : &*it;
}

int32_t ThreadsOf(KernelKind kind) {
  if (kind == KernelKind::kPrepare) return kPrepareThreads;
  if (kind == KernelKind::kJoin) return kJoinThreads;
  return kind == KernelKind::kSinks ? kSinksThreads : kThreads;
}

int32_t SharedBytesOf(const KernelRow& row) {
  return TakesTiles(row.kind) ? SharedBytes(row.kind, row.dim_qk, row.dim_v) : 0;
}

}  // namespace tessera::lanes::cuda
