// The roof a kernel is held against: how fast one core of this machine multiplies and adds when nothing else is in the
// way. Measured, not looked up, because clock rates and virtual machines differ from data sheets.
//
// A roof is independent chains of multiply-adds in registers, with the widest instructions this machine has. Not a
// goal: a matrix product, which also has to load; the distance between the two is a kernel's own business.
#pragma once

#include <string>

namespace tessera::bench {

struct Roof {
  std::string instructions;  // what was measured, or why nothing was
  double gflops = 0;         // of one core; 0 = this machine has no such instruction
};

// Multiply-adds on f32 vectors: NEON, AVX2 with FMA or AVX-512.
Roof MeasureF32Roof();

// bf16 products summed in f32: bfmmla on Arm, AMX or AVX512-BF16 on x86-64.
Roof MeasureBf16Roof();

}  // namespace tessera::bench
