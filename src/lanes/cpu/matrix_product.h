// Products of whole matrices with the operands and instructions that attention has, for programs whose compiler has
// slower ones. Rows of results are shared among threads; how each element is summed does not depend on how many.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lanes/cpu/kernel.h"

namespace tessera::lanes::cpu {

// c = a b, [rows, columns] in f32, a and b in the kernel's type. Dense and row-major.
struct MatrixProduct {
  int64_t rows = 0;
  int64_t inner = 0;  // what is summed over
  int64_t columns = 0;
  const std::byte* a = nullptr;  // [rows, inner], or the other way round
  const std::byte* b = nullptr;  // [inner, columns], or the other way round
  float* c = nullptr;
  bool a_is_turned = false;
  bool b_is_turned = false;
};

// Of memory that a product packs its operands into; its sizes are looked at and nothing else.
int64_t ScratchBytes(const Kernel& kernel, const MatrixProduct& product);

// `scratch` begins at a multiple of 64 bytes.
void Multiply(const Kernel& kernel, const MatrixProduct& product, std::byte* scratch, int64_t threads);

}  // namespace tessera::lanes::cpu
