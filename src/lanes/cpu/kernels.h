// The kernels there are, from kernels.def, and which one runs.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "lanes/cpu/kernel.h"

namespace tessera::lanes::cpu {

struct KernelRow {
  std::string_view name;  // attention_<dtype>_<panel>x<key_block>_<isa>
  std::string_view isa;
  DType dtype = DType::kF32;
  int64_t panel = 0;
  int64_t key_block = 0;
  int64_t grad_keys = 0;
  int64_t grad_queries = 0;
  Kernel (*make)(const KernelRow& row) = nullptr;
};

// Every kernel built for this architecture, best first.
std::span<const KernelRow> KernelTable();

// The best usable kernel for the type, for plans with tiles of `tile_kv` keys; of one instruction set, or what that
// builds on, when `isa` is not "auto". Null when there is none.
const Kernel* FindKernel(DType dtype, std::string_view isa, int64_t tile_kv);

}  // namespace tessera::lanes::cpu
