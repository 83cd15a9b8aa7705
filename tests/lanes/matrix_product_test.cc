// Products of whole matrices with every kernel this machine has, against sums in double.
#include "lanes/cpu/matrix_product.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "kernel_operands.h"
#include "support/seed.h"

namespace tessera::lanes::cpu {
namespace {

class EveryProduct : public testing::TestWithParam<KernelRow> {
 protected:
  EveryProduct() : kernel_(GetParam().make(GetParam())), rng_(PrintedSeed()) {}
  int64_t Draw(int64_t least, int64_t most) { return std::uniform_int_distribution<int64_t>(least, most)(rng_); }

  // Operands, and results that say so where nothing was written.
  struct Case {
    MatrixProduct product;
    std::vector<float> a, b, c;  // the values as the kernel's type has them
    std::vector<std::byte> a_bytes, b_bytes;
  };
  std::vector<std::byte> Narrowed(std::vector<float>& values) const {
    const bool is_wide = kernel_.dtype == DType::kF32;
    std::vector<std::byte> bytes(values.size() * (is_wide ? 4 : 2));
    for (size_t i = 0; i < values.size(); ++i) {
      if (is_wide) {
        std::memcpy(bytes.data() + 4 * i, &values[i], 4);
        continue;
      }
      const bool is_bf16 = kernel_.dtype == DType::kBf16;
      const uint16_t bits = is_bf16 ? F32ToBf16(values[i]) : F32ToF16(values[i]);
      values[i] = is_bf16 ? Bf16ToF32(bits) : F16ToF32(bits);
      std::memcpy(bytes.data() + 2 * i, &bits, 2);
    }
    return bytes;
  }
  Case Drawn(MatrixProduct product) {
    Case out{.product = product, .a = {}, .b = {}, .c = {}, .a_bytes = {}, .b_bytes = {}};
    std::normal_distribution<float> normal;
    out.a.resize(static_cast<size_t>(product.rows * product.inner));
    out.b.resize(static_cast<size_t>(product.inner * product.columns));
    for (float& value : out.a) value = normal(rng_);
    for (float& value : out.b) value = normal(rng_);
    out.a_bytes = Narrowed(out.a);
    out.b_bytes = Narrowed(out.b);
    return out;
  }
  void Run(Case& of, int64_t threads) const {
    constexpr int64_t kGuard = 64;
    of.c.assign(static_cast<size_t>(of.product.rows * of.product.columns + kGuard), -77.0F);
    of.product.a = of.a_bytes.data();
    of.product.b = of.b_bytes.data();
    of.product.c = of.c.data();
    const int64_t bytes = ScratchBytes(kernel_, of.product);
    Aligned<uint8_t> scratch(bytes + kGuard, 0xC2);
    Multiply(kernel_, of.product, reinterpret_cast<std::byte*>(scratch.data()), threads);
    for (int64_t i = 0; i < kGuard; ++i) {
      ASSERT_EQ(scratch[bytes + i], 0xC2) << "written behind the scratch memory";
      ASSERT_EQ(of.c[of.c.size() - 1 - static_cast<size_t>(i)], -77.0F) << "written behind the result";
    }
  }
  static float A(const Case& of, int64_t row, int64_t k) {
    const MatrixProduct& p = of.product;
    return of.a[static_cast<size_t>(p.a_is_turned ? k * p.rows + row : row * p.inner + k)];
  }
  static float B(const Case& of, int64_t k, int64_t column) {
    const MatrixProduct& p = of.product;
    return of.b[static_cast<size_t>(p.b_is_turned ? column * p.inner + k : k * p.columns + column)];
  }

  Kernel kernel_;
  std::mt19937_64 rng_;
};

// eps times the length of the sum times its terms' sizes: units add in an order of their own, and twice where they add
// two products at once.
TEST_P(EveryProduct, AnySizeEitherWayRound_IsTheSum) {
  for (int round = 0; round < 24; ++round) {
    MatrixProduct product{.rows = Draw(1, 300), .inner = Draw(1, 150), .columns = Draw(1, 110)};
    if (round % 6 == 5) product.inner = Draw(500, 1100);  // several stretches of a sum
    if (round % 4 == 3) {                                 // operands that may be read where they lie
      product.rows = RoundUp(product.rows, int64_t{64});
      product.inner = RoundUp(product.inner, int64_t{64});
    }
    product.a_is_turned = round % 2 == 1;
    product.b_is_turned = round / 2 % 2 == 1;
    Case of = Drawn(product);
    Run(of, 1 + round % 3);
    if (HasFatalFailure()) return;
    const double slack = std::ldexp(static_cast<double>(product.inner + 2), -23);
    for (int64_t row = 0; row < product.rows; ++row) {
      for (int64_t column = 0; column < product.columns; ++column) {
        double sum = 0.0;
        double size = 0.0;
        for (int64_t k = 0; k < product.inner; ++k) {
          const double term = static_cast<double>(A(of, row, k)) * static_cast<double>(B(of, k, column));
          sum += term;
          size += std::abs(term);
        }
        ASSERT_NEAR(of.c[static_cast<size_t>(row * product.columns + column)], sum, slack * size)
            << product.rows << " x " << product.inner << " x " << product.columns << " at " << row << ", " << column;
      }
    }
  }
}

TEST_P(EveryProduct, AnyNumberOfThreads_SameBits) {
  Case of = Drawn({.rows = 700, .inner = 600, .columns = 90, .a_is_turned = Draw(0, 1) == 1});
  Run(of, 1);
  const std::vector<float> alone = of.c;
  for (const int64_t threads : {2, 3, 8}) {
    Run(of, threads);
    EXPECT_EQ(0, std::memcmp(of.c.data(), alone.data(), alone.size() * sizeof(float))) << threads;
  }
}

// What is not finite stays in its row, or its column, and in no other: padding multiplies nothing.
TEST_P(EveryProduct, NotFinite_StaysWhereItIs) {
  for (const bool is_of_a : {true, false}) {
    for (const bool is_turned : {true, false}) {
      Case of = Drawn({.rows = 70, .inner = 45, .columns = 37, .a_is_turned = is_turned, .b_is_turned = is_turned});
      const int64_t row = Draw(0, 69);
      const int64_t column = Draw(0, 36);
      const int64_t k = Draw(0, 44);
      const size_t at = is_of_a ? static_cast<size_t>(is_turned ? k * 70 + row : row * 45 + k)
                                : static_cast<size_t>(is_turned ? column * 45 + k : k * 37 + column);
      (is_of_a ? of.a : of.b)[at] = std::numeric_limits<float>::quiet_NaN();
      (is_of_a ? of.a_bytes : of.b_bytes) = Narrowed(is_of_a ? of.a : of.b);
      Run(of, 2);
      if (HasFatalFailure()) return;
      for (int64_t i = 0; i < 70; ++i) {
        for (int64_t j = 0; j < 37; ++j) {
          ASSERT_EQ(std::isnan(of.c[static_cast<size_t>(i * 37 + j)]), is_of_a ? i == row : j == column)
              << i << ", " << j;
        }
      }
    }
  }
}

std::vector<KernelRow> RowsHere() {
  std::vector<KernelRow> rows;
  for (const KernelRow& row : KernelTable()) {
    if (IsAvailable(row.isa)) rows.push_back(row);
  }
  return rows;
}

INSTANTIATE_TEST_SUITE_P(Lane, EveryProduct, testing::ValuesIn(RowsHere()),
                         [](const auto& row) { return std::string(row.param.name); });

}  // namespace
}  // namespace tessera::lanes::cpu
