// The kernels of every instruction set that Highway covers, from one source: this file is compiled once per target by
// foreach_target.h, which includes it again with other compiler options.
#include "lanes/cpu/kernels.h"

#include "lanes/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lanes/cpu/kernels.cc"  // NOLINT(readability-identifier-naming): its name
#include "hwy/foreach_target.h"                    // IWYU pragma: keep
//
#include "hwy/highway.h"
// What the compiler assumes of every machine may be no vectors at all, and has no kernels.
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
#include "lanes/cpu/half-inl.h"
#include "lanes/cpu/math-inl.h"
#include "lanes/cpu/matrix_units.h"
#include "lanes/cpu/norm-inl.h"
#include "lanes/cpu/operands-inl.h"
#include "lanes/cpu/pack-inl.h"
#include "lanes/cpu/pairs-inl.h"
#include "lanes/cpu/products-inl.h"
#include "lanes/cpu/quads-inl.h"
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
          .grad_keys = row.grad_keys,
          .grad_queries = row.grad_queries,
          .operand_bytes = 4,
          .scales_queries = true,
          .needs_columns = false,
          .flag_rows = FlagF32Rows,
          .pack_rows = PackF32Rows,
          .pack_panel = PackF32Panel,
          .pack_b_rows = PackF32Rows,
          .multiply = Multiply<Stored::kRows>,
          .multiply_columns = Multiply<Stored::kColumns>,
          .softmax = Softmax<Operand>,
          .gradients = Gradients<Operand>,
          .finish_panel = StorePanel,
          .finish_rows = StoreRows,
          .row_dots = DotRows,
          .norm = NormForward,
          .norm_gradient = NormBackward};
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

#if HWY_TARGET == HWY_NEON || HWY_TARGET == HWY_AVX3
// A unit multiplies bf16; all the rest is the target's.
Kernel MakeBf16Kernel(const KernelRow& row, const MatrixUnit& unit) {
  Kernel kernel = MakeF32Kernel<RoundNot>(row);
  kernel.key_step = unit.key_step;
  kernel.operand_bytes = 2;
  kernel.scales_queries = false;
  kernel.a_group = unit.a_group;
  kernel.tile_step = unit.tile_step;
  kernel.needs_columns = true;
  kernel.enter = unit.enter;
  kernel.leave = unit.leave;
  kernel.multiply = unit.multiply;
  kernel.multiply_columns = unit.multiply;
#if HWY_TARGET == HWY_NEON
  kernel.pack_rows = PackQuadRows;
  kernel.pack_columns = PackQuadColumns;
  kernel.pack_panel = PackQuadPanel;
  kernel.pack_b_rows = PackQuadBRows;
  kernel.softmax = Softmax<Bf16Quads>;
  kernel.gradients = Gradients<Bf16Quads>;
#else
  kernel.pack_rows = PackBf16Rows;
  kernel.pack_columns = PackBf16Columns;
  kernel.pack_panel = PackBf16Panel;
  kernel.pack_b_rows = PackBf16RowPairs;
  kernel.softmax = Softmax<Bf16Pairs>;
  kernel.gradients = Gradients<Bf16Pairs>;
#endif
  return kernel;
}
#endif

#if HWY_TARGET == HWY_NEON
Kernel MakeArmBf16(const KernelRow& row) { return MakeBf16Kernel(row, kArmBf16); }
#elif HWY_TARGET == HWY_AVX3
Kernel MakeAvx512Bf16(const KernelRow& row) { return MakeBf16Kernel(row, kAvx512Bf16); }
Kernel MakeAmx(const KernelRow& row) { return MakeBf16Kernel(row, kAmx); }
#endif

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

const Kernel* FindKernel(DType dtype, std::string_view isa, int64_t tile_kv) {
  static const std::vector<Kernel> kKernels = [] {
    std::vector<Kernel> kernels;
    for (const KernelRow& row : KernelTable()) {
      if (IsAvailable(row.isa)) kernels.push_back(row.make(row));
    }
    return kernels;
  }();
  if (isa != "auto" && !IsAvailable(isa)) return nullptr;
  const Kernel* found = nullptr;
  for (const Kernel& kernel : kKernels) {
    if (kernel.dtype != dtype || tile_kv % kernel.tile_step != 0) continue;
    if (kernel.isa == isa) return &kernel;
    if (found == nullptr && (isa == "auto" || Includes(isa, kernel.isa))) found = &kernel;
  }
  return found;
}

}  // namespace tessera::lanes::cpu
#endif
