#include "lanes/cpu/isa.h"

#if defined(__aarch64__)
#include <sys/auxv.h>
#elif defined(__x86_64__)
#include <cpuid.h>

#include "lanes/cpu/matrix_units.h"
#endif

namespace tessera::lanes::cpu {
namespace {

#if defined(__aarch64__)
bool HasArmBf16() {
  constexpr unsigned long kHwcap2Bf16 = 1UL << 14;  // HWCAP2_BF16; older systems' headers lack the name
  return (getauxval(AT_HWCAP2) & kHwcap2Bf16) != 0;
}
#elif defined(__x86_64__)
// Bits of cpuid, for what some compilers' functions have no names for.
struct CpuId {
  uint32_t eax = 0;
  uint32_t ebx = 0;
  uint32_t ecx = 0;
  uint32_t edx = 0;
  CpuId(uint32_t leaf, uint32_t part) { __get_cpuid_count(leaf, part, &eax, &ebx, &ecx, &edx); }
};

// What Highway's targets of these names may use; the compiler's function also asks whether the system saves the
// registers.
bool HasSse4() {
  return __builtin_cpu_supports("ssse3") && __builtin_cpu_supports("sse4.1") && __builtin_cpu_supports("sse4.2");
}
bool HasAvx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2") && (CpuId(1, 0).ecx >> 29 & 1U) != 0;
}
bool HasAvx512() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

bool HasAvx512Bf16() { return HasAvx512() && (CpuId(7, 1).eax >> 5 & 1U) != 0; }
// Its kernels do the rest of their work with AVX-512.
bool HasAmx() {
  const uint32_t bits = CpuId(7, 0).edx;
  return HasAvx512() && (bits >> 22 & 1U) != 0 && (bits >> 24 & 1U) != 0 && MayUseAmx();
}
#endif

}  // namespace

std::span<const Isa> Isas() {
  static const Isa kIsas[] = {
#define TESSERA_CPU_ISA(name, base, available, meaning) {name, base, available, meaning},
#include "lanes/cpu/isas.def"
#undef TESSERA_CPU_ISA
  };
  return kIsas;
}

bool Includes(std::string_view isa, std::string_view name) {
  if (isa == name) return true;
  for (const Isa& row : Isas()) {
    if (row.name == isa && !row.base.empty()) return Includes(row.base, name);
  }
  return false;
}

}  // namespace tessera::lanes::cpu
