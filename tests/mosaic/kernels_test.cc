// Kernels that somebody else wrote, on operands with known results: tests/peers/mosaic_test.py makes them with JAX.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "lanes/xla/mosaic/interpret.h"
#include "lanes/xla/mosaic/parse.h"
#include "lanes/xla/mosaic/print.h"
#include "tessera/io.h"

namespace tessera::mosaic {
namespace {

Element ElementOf(ElementType type) {
  switch (type) {
    case ElementType::kF32:
      return Element::kF32;
    case ElementType::kBf16:
      return Element::kBf16;
    case ElementType::kI8:
      return Element::kI8;
    case ElementType::kI16:
      return Element::kI16;
    default:
      return Element::kI32;
  }
}

// The largest difference, in units of what this type may lose: both sides round P and dS to the operands' type from
// sums in another order, so a value moves by a rounding of that type, relative to the largest of its tensor.
double WorstError(const Tensor& tensor, const std::vector<std::byte>& bytes) {
  const Tensor own{tensor.type, tensor.shape, bytes};
  double largest = 0;
  double worst = 0;
  for (int64_t at = 0; at < tensor.NumElements(); ++at) {
    const double a = own.At(at);
    const double b = tensor.At(at);
    if (std::isnan(a) != std::isnan(b)) return HUGE_VAL;
    if (std::isnan(a) || a == b) continue;
    worst = std::max(worst, std::abs(a - b));
    if (std::isfinite(b)) largest = std::max(largest, std::abs(b));
  }
  for (int64_t at = 0; at < tensor.NumElements(); ++at) {
    if (std::isfinite(tensor.At(at))) largest = std::max(largest, std::abs(tensor.At(at)));
  }
  return largest == 0 ? worst : worst / largest;
}

TEST(Interpret_GivenKernels, GiveTheirResults) {
  const char* folder = std::getenv("TESSERA_MOSAIC_KERNELS");
  if (folder == nullptr) GTEST_SKIP() << "TESSERA_MOSAIC_KERNELS names no folder; tests/peers/mosaic_test.py makes one";
  int num_agreed = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".mlir") continue;
    const std::string name = entry.path().stem();
    const Result<std::string> text = ReadFile(entry.path());
    const Result<TensorMap> tensors =
        ReadSafetensors(std::filesystem::path(entry.path()).replace_extension("safetensors"));
    ASSERT_TRUE(text && tensors) << name;
    const Result<Module> module = Parse(*text);
    ASSERT_TRUE(module) << name << ": " << ToText(module.error());
    EXPECT_EQ(Print(*module), *text) << name;
    std::vector<ArrayView> operands;
    std::vector<ArrayType> results;
    std::vector<const Tensor*> expected;
    bool is_f32 = true;
    for (const auto& [role, tensor] : *tensors) {
      if (role.starts_with("operand")) {
        operands.push_back({ElementOf(tensor.type), tensor.shape, tensor.bytes});
        continue;
      }
      results.push_back({ElementOf(tensor.type), tensor.shape});
      expected.push_back(&tensor);
    }
    for (const ArrayView& operand : operands) is_f32 &= operand.element != Element::kBf16;
    const auto begin = std::chrono::steady_clock::now();
    // JAX's interpreter multiplies f32 as f32.
    const Result<Interpreted> done = Interpret(*module, operands, results, {.exact_f32_matmul = true});
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    ASSERT_TRUE(done) << name << ": " << ToText(done.error());
    const double bound = is_f32 ? 1e-5 : 1.0 / 128;
    bool agrees = true;
    double worst = 0;
    for (size_t at = 0; at < expected.size(); ++at) {
      const double error = WorstError(*expected[at], done->results[at]);
      EXPECT_LE(error, bound) << name << ", result " << at;
      agrees &= error <= bound;
      worst = std::max(worst, error);
    }
    std::cout << fmt::format("kernel {}: worst {:.1e} of {:.1e}, {} steps, {:.0f} ms\n", name, worst, bound,
                             done->num_steps, took.count());
    num_agreed += agrees ? 1 : 0;
  }
  std::cout << num_agreed << " kernels agree\n";
}

}  // namespace
}  // namespace tessera::mosaic
