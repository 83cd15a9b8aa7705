// Norms and their gradients with every instruction set this machine has, against sums in double.
#include "lanes/cpu/norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "kernel_operands.h"
#include "support/seed.h"

namespace tessera::lanes::cpu {
namespace {

class EveryNorm : public testing::TestWithParam<KernelRow> {};

TEST_P(EveryNorm, AnySize_IsTheSumAndHasItsGradient) {
  const Kernel kernel = GetParam().make(GetParam());
  std::mt19937_64 rng(PrintedSeed());
  std::normal_distribution<float> normal;
  for (int round = 0; round < 12; ++round) {
    const int64_t rows = std::uniform_int_distribution<int64_t>(1, 700)(rng);
    const int64_t width = std::uniform_int_distribution<int64_t>(1, 150)(rng);
    const auto drawn = [&](int64_t count) {
      std::vector<float> values(static_cast<size_t>(count));
      for (float& value : values) value = normal(rng);
      return values;
    };
    const std::vector<float> x = drawn(rows * width);
    const std::vector<float> dy = drawn(rows * width);
    const std::vector<float> weight = drawn(width);
    std::vector<float> y(x.size() + 1, -77.0F), dx(x.size() + 1, -77.0F), scale(static_cast<size_t>(rows));
    std::vector<float> dweight(static_cast<size_t>(width), -77.0F);
    std::vector<float> scratch(static_cast<size_t>(NormBlocks(rows) * width), -77.0F);
    const float eps = 1e-3F;
    Normalise(kernel,
              {.x = x.data(),
               .weight = weight.data(),
               .eps = eps,
               .num_rows = rows,
               .width = width,
               .y = y.data(),
               .scale = scale.data()},
              1 + round % 3);
    const NormGradient back{.dy = dy.data(),
                            .x = x.data(),
                            .scale = scale.data(),
                            .weight = weight.data(),
                            .num_rows = rows,
                            .width = width,
                            .dx = dx.data(),
                            .dweight = dweight.data()};
    NormaliseBack(kernel, back, scratch.data(), 1 + round % 3);
    EXPECT_EQ(y.back(), -77.0F);
    EXPECT_EQ(dx.back(), -77.0F);
    const std::vector<float> once = dweight;
    NormaliseBack(kernel, back, scratch.data(), 4);
    EXPECT_EQ(0, std::memcmp(once.data(), dweight.data(), once.size() * sizeof(float))) << "other threads, other bits";
    // eps times the length of a sum, and a few operations on it, times the size of what is summed.
    const double unit = std::ldexp(1.0, -24);
    const double slack = unit * static_cast<double>(width + 8);
    std::vector<double> want(static_cast<size_t>(width)), size(static_cast<size_t>(width));
    for (int64_t row = 0; row < rows; ++row) {
      const auto at = [&](const std::vector<float>& of, int64_t i) {
        return static_cast<double>(of[static_cast<size_t>(row * width + i)]);
      };
      const auto w = [&](int64_t i) { return static_cast<double>(weight[static_cast<size_t>(i)]); };
      double squares = 0.0;
      for (int64_t i = 0; i < width; ++i) squares += at(x, i) * at(x, i);
      const double root = 1.0 / std::sqrt(squares / static_cast<double>(width) + static_cast<double>(eps));
      ASSERT_NEAR(scale[static_cast<size_t>(row)], root, slack * root);
      double dot = 0.0;
      double dot_size = 0.0;
      for (int64_t i = 0; i < width; ++i) {
        const double term = at(dy, i) * w(i) * at(x, i) * root;
        dot += term;
        dot_size += std::abs(term);
      }
      for (int64_t i = 0; i < width; ++i) {
        const double x_hat = at(x, i) * root;
        ASSERT_NEAR(at(y, i), x_hat * w(i), slack * std::abs(x_hat * w(i))) << row << ", " << i;
        const double along = x_hat / static_cast<double>(width);
        const double bound = slack * root * (std::abs(at(dy, i) * w(i)) + 4.0 * std::abs(along) * dot_size);
        ASSERT_NEAR(at(dx, i), (at(dy, i) * w(i) - along * dot) * root, bound) << row << ", " << i;
        want[static_cast<size_t>(i)] += at(dy, i) * x_hat;
        size[static_cast<size_t>(i)] += std::abs(at(dy, i) * x_hat);
      }
    }
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_NEAR(dweight[i], want[i], (slack + unit * static_cast<double>(rows)) * size[i]) << i;
    }
  }
}

// One for each instruction set.
std::vector<KernelRow> NormsHere() {
  std::vector<KernelRow> rows;
  for (const KernelRow& row : KernelTable()) {
    if (IsAvailable(row.isa) && row.dtype == DType::kF32) rows.push_back(row);
  }
  return rows;
}

INSTANTIATE_TEST_SUITE_P(Lane, EveryNorm, testing::ValuesIn(NormsHere()),
                         [](const auto& row) { return std::string(row.param.isa); });

}  // namespace
}  // namespace tessera::lanes::cpu
