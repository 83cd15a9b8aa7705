// The kernels of every instruction set that Highway covers, from one source: this file is compiled once per target by
// foreach_target.h, which includes it again with other compiler options.
#include "lanes/cpu/kernels.h"

// Targets that no machine would prefer are left out to keep the build short; what the compiler assumes of every machine
// may be no vectors at all, and has no kernels.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lanes/cpu/kernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "hwy/highway.h"
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
#include "lanes/cpu/math-inl.h"
#include "lanes/cpu/operands-inl.h"
#include "lanes/cpu/pack-inl.h"
#include "lanes/cpu/products-inl.h"
#include "lanes/cpu/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::lanes::cpu {
namespace HWY_NAMESPACE {

template <class Rounding>
Kernel MakeF32Kernel(const KernelRow& row) {
  using Operand = F32Operand<Rounding>;
  return {.name = row.name,
          .isa = row.isa,
          .dtype = row.dtype,
          .panel = kPanel,
          .key_step = 8,
          .dim_step = kPanel,
          .key_block = row.key_block,
          .panels_per_step = 4,
          .grad_keys = row.grad_keys,
          .grad_queries = row.grad_queries,
          .operand_bytes = 4,
          .scales_queries = true,
          .needs_columns = false,
          .pack_rows = PackF32Rows,
          .pack_panel = PackF32Panel,
          .pack_b_rows = PackF32Rows,
          .multiply = Multiply<Stored::kRows>,
          .multiply_columns = Multiply<Stored::kColumns>,
          .softmax = Softmax<Operand>,
          .gradients = Gradients<Operand>,
          .finish_panel = StorePanel,
          .finish_rows = StoreRows,
          .row_dots = DotRows};
}

Kernel MakeF32Operands(const KernelRow& row) {
  switch (row.dtype) {
    case DType::kF32:
      return MakeF32Kernel<RoundNot>(row);
    case DType::kBf16:
      return MakeF32Kernel<RoundToBf16>(row);
    case DType::kF16:
      return MakeF32Kernel<RoundToF16>(row);
  }
  return {};
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::lanes::cpu
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
#include <algorithm>
#include <vector>

#include "lanes/cpu/isa.h"

namespace tessera::lanes::cpu {
namespace {

bool IsAvailable(std::string_view name) {
  return std::any_of(Isas().begin(), Isas().end(), [&](const Isa& isa) { return isa.name == name && isa.available; });
}

}  // namespace

std::span<const KernelRow> KernelTable() {
  static const KernelRow kRows[] = {
#define TESSERA_CPU_KERNEL(isa, type, dtype, panel, key_block, grad_keys, grad_queries, make) \
  {"attention_" #dtype "_" #panel "x" #key_block "_" #isa,                                    \
   #isa,                                                                                      \
   DType::type,                                                                               \
   panel,                                                                                     \
   key_block,                                                                                 \
   grad_keys,                                                                                 \
   grad_queries,                                                                              \
   make},
#include "lanes/cpu/kernels.def"
#undef TESSERA_CPU_KERNEL
  };
  return kRows;
}

const Kernel* FindKernel(DType dtype, std::string_view isa) {
  static const std::vector<Kernel> kKernels = [] {
    std::vector<Kernel> kernels;
    for (const KernelRow& row : KernelTable()) {
      if (IsAvailable(row.isa)) kernels.push_back(row.make(row));
    }
    return kernels;
  }();
  if (isa != "auto" && !IsAvailable(isa)) return nullptr;
  for (const Kernel& kernel : kKernels) {
    if (kernel.dtype == dtype && (isa == "auto" || Includes(isa, kernel.isa))) return &kernel;
  }
  return nullptr;
}

}  // namespace tessera::lanes::cpu
#endif
