// Units that multiply bf16 matrices and that Highway does not cover: one file each, plain functions behind the kernels'
// interface. Whether a machine has one is isa.cc's question.
#pragma once

#include <cstdint>

#include "lanes/cpu/kernel.h"

namespace tessera::lanes::cpu {

struct MatrixUnit {
  void (*multiply)(const Product&) = nullptr;
  void (*enter)() = nullptr;
  void (*leave)() = nullptr;
  int64_t key_step = 0;  // rows of A, and k, come in multiples of this
  int64_t a_group = 1;   // as in Kernel
  int64_t tile_step = 1;
};

#if defined(__aarch64__)
void MultiplyArmBf16(const Product& product);
inline constexpr MatrixUnit kArmBf16{.multiply = MultiplyArmBf16, .key_step = 8, .a_group = 2, .tile_step = 4};
#elif defined(__x86_64__)
void MultiplyAvx512Bf16(const Product& product);
inline constexpr MatrixUnit kAvx512Bf16{.multiply = MultiplyAvx512Bf16, .key_step = 8};

void MultiplyAmx(const Product& product);
void EnterAmx();
void LeaveAmx();
// Tiles hold data between instructions; the system saves them only for processes that have asked. Asks once.
bool MayUseAmx();
inline constexpr MatrixUnit kAmx{.multiply = MultiplyAmx, .enter = EnterAmx, .leave = LeaveAmx, .key_step = 32};
#endif

}  // namespace tessera::lanes::cpu
