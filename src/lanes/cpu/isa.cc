#include "lanes/cpu/isa.h"

#include <algorithm>

namespace tessera::lanes::cpu {
namespace {

#if defined(__x86_64__)
// What Highway's targets of these names may use; the compiler's function also asks whether the system saves the
// registers.
bool HasSse4() {
  return __builtin_cpu_supports("ssse3") && __builtin_cpu_supports("sse4.1") && __builtin_cpu_supports("sse4.2");
}
bool HasAvx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("f16c");
}
bool HasAvx512() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
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
