// The cases of the proof "same program as JAX" (docs/tpu.md): one table for the kernels written here and for the script
// that has JAX write its own.
#pragma once

#include <string>
#include <vector>

#include "lanes/xla/kernels/splash.h"

namespace tessera::proof {

enum class SplashKernel { kForward, kForwardLse, kDkv, kDq };

struct SplashCase {
  std::string name;  // "causal_dkv"
  SplashKernel kernel = SplashKernel::kForward;
  kernels::SplashSpec spec;
};

std::vector<SplashCase> SplashCases();
Result<mosaic::Module> KernelOf(const SplashCase& wish);
// Of the kernel's text, as in splash.txt.
Result<std::string> TextDigest(const SplashCase& wish);
// What the script reads: one JSON array.
std::string ToJson(const std::vector<SplashCase>& cases);

}  // namespace tessera::proof
