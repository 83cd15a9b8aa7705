// Every kernel this machine can run, by itself: the table's promises, packers element by element, products against
// sums in double, and the operands that the softmax and the gradients leave for the next product.
#include "lanes/cpu/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernel_operands.h"
#include "lanes/scratch.h"
#include "support/seed.h"

namespace tessera::lanes::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<KernelRow> RunnableRows() {
  std::vector<KernelRow> rows;
  for (const KernelRow& row : KernelTable()) {
    if (IsAvailable(row.isa)) rows.push_back(row);
  }
  return rows;
}

class EveryKernel : public testing::TestWithParam<KernelRow> {
 protected:
  EveryKernel() : kernel_(GetParam().make(GetParam())), index_(kernel_), rng_(PrintedSeed()) {
    if (kernel_.enter != nullptr) kernel_.enter();
  }
  ~EveryKernel() override {
    if (kernel_.leave != nullptr) kernel_.leave();
  }
  int64_t Draw(int64_t least, int64_t most) { return std::uniform_int_distribution<int64_t>(least, most)(rng_); }
  int64_t Padded(int64_t dim) const { return RoundUp(dim, kernel_.dim_step); }
  float Rounded(float x) const {
    if (kernel_.dtype == DType::kBf16) return Bf16ToF32(F32ToBf16(x));
    return kernel_.dtype == DType::kF16 ? F16ToF32(F32ToF16(x)) : x;
  }

  // One product, checked: C is num_a x width, `a` and `b` say what A and B hold, k counts over all segments.
  template <class A, class B>
  void CheckProduct(void (*multiply)(const Product&), Product p, const A& a, const B& b) {
    Aligned<float> c(p.num_a * p.c_stride);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < c.size(); ++i) c[i] = normal(rng_);
    const Aligned<float> before = c;
    p.c = c.data();
    multiply(p);
    const int64_t num_k = p.num_k * p.num_segments;
    // Every unit may add in its own order, and round to odd where it adds twice.
    const double slack = std::ldexp(static_cast<double>(num_k + 2), -23);
    for (int64_t i = 0; i < p.num_a; ++i) {
      for (int64_t j = 0; j < p.c_stride; ++j) {
        const float old = before.data()[i * p.c_stride + j];
        const float now = c.data()[i * p.c_stride + j];
        if (j >= p.width) {
          ASSERT_EQ(now, old) << "written past the width at " << i << ", " << j;
          continue;
        }
        double sum = p.accumulate ? static_cast<double>(old) : 0.0;
        double size = std::abs(sum);
        for (int64_t k = 0; k < num_k; ++k) {
          const double term = static_cast<double>(a(i, k)) * static_cast<double>(b(k, j));
          sum += term;
          size += std::abs(term);
        }
        ASSERT_NEAR(static_cast<double>(now), sum, slack * size) << "C[" << i << "][" << j << "]";
      }
    }
  }

  Kernel kernel_;
  OperandIndex index_;
  std::mt19937_64 rng_;
};

TEST_P(EveryKernel, Table_SaysWhatTheKernelIs) {
  const KernelRow& row = GetParam();
  EXPECT_EQ(kernel_.panel, row.panel);
  EXPECT_EQ(kernel_.name, row.name);
  EXPECT_EQ(kernel_.isa, row.isa);
  EXPECT_EQ(kernel_.dtype, row.dtype);
  for (const int64_t keys : {kernel_.key_block, kernel_.grad_keys}) EXPECT_EQ(keys % kernel_.key_step, 0);
  EXPECT_EQ(kernel_.grad_queries % kernel_.panel, 0);
  EXPECT_EQ(kernel_.panel % kernel_.dim_step, 0);
  EXPECT_LE(kernel_.key_step, 64) << "keys past the last are kept and masked only so far";
  EXPECT_EQ(kernel_.key_step % kernel_.tile_step, 0);
}

TEST_P(EveryKernel, ForcedByName_IsTheOneFound) {
  const Kernel* found = FindKernel(kernel_.dtype, kernel_.isa, 64);
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->name, kernel_.name);
  for (int64_t tile = 1; tile < 9; ++tile) {
    const Kernel* other = FindKernel(kernel_.dtype, kernel_.isa, tile);
    ASSERT_NE(other, nullptr) << "no kernel for tiles of " << tile;
    EXPECT_EQ(tile % other->tile_step, 0);
    EXPECT_TRUE(Includes(kernel_.isa, other->isa));
  }
}

// What a packer must write for (row, d): zeros for rows that are missing, dead or flagged, and from dim on.
TEST_P(EveryKernel, Packers_EveryElementInItsPlace) {
  for (int round = 0; round < 40; ++round) {
    const int64_t dim = round == 0 ? 512 : Draw(1, 300);
    const int64_t num_rows = Draw(1, 70);
    const int64_t padded_rows = RoundUp(num_rows, 8) + 8 * Draw(0, 1);
    const int64_t padded = Padded(dim);
    InputRows in(kernel_, num_rows, dim, dim + Draw(0, 9), rng_);
    std::vector<uint8_t> dead(static_cast<size_t>(num_rows));
    std::vector<bool> is_finite(static_cast<size_t>(num_rows), true);
    for (int64_t row = 0; row < num_rows; ++row) {
      dead[static_cast<size_t>(row)] = Draw(0, 5) == 0 ? 1 : 0;
      if (Draw(0, 4) != 0) continue;
      const float values[] = {kNan, kInf, -kInf};
      in.Set(row * in.row_stride + Draw(0, dim - 1), values[Draw(0, 2)]);
      is_finite[static_cast<size_t>(row)] = false;
    }
    const auto want = [&](int64_t row, int64_t d, bool flags) {
      const bool is_zero = row >= num_rows || d >= dim || dead[static_cast<size_t>(row)] != 0 ||
                           (flags && !is_finite[static_cast<size_t>(row)]);
      return is_zero ? 0.0F : in.At(row, d);
    };
    const auto same = [](float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); };

    for (const bool flags : {true, false}) {
      SCOPED_TRACE(flags ? "with flags" : "without flags");
      std::vector<uint8_t> found(static_cast<size_t>(num_rows), 0);
      const auto pack_as = [&](void (*pack)(const PackRows&), Operand& to, int64_t rows, int64_t stride) {
        PackRows args = in.Pack(padded, rows, to.data(), stride);
        args.num_rows = std::min(num_rows, rows);
        args.dead = dead.data();
        args.not_finite = flags ? found.data() : nullptr;
        pack(args);
      };
      Operand rows(kernel_, padded_rows * padded);
      pack_as(kernel_.pack_rows, rows, padded_rows, padded);
      Operand b_rows(kernel_, padded_rows * padded);
      pack_as(kernel_.pack_b_rows, b_rows, padded_rows, padded);
      Operand panel(kernel_, kernel_.panel * padded);
      pack_as(kernel_.pack_panel, panel, kernel_.panel, 0);
      const int64_t column_stride = padded_rows + 8;
      Operand columns(kernel_, kernel_.needs_columns ? column_stride * padded : 0);
      if (kernel_.needs_columns) pack_as(kernel_.pack_columns, columns, padded_rows, column_stride);
      for (int64_t d = 0; d < padded; ++d) {
        for (int64_t row = 0; row < padded_rows; ++row) {
          const float value = want(row, d, flags);
          ASSERT_TRUE(same(rows.At(index_.A(row, d, padded)), value)) << "rows " << row << ", " << d;
          ASSERT_TRUE(same(b_rows.At(index_.B(row, d, padded)), value)) << "b_rows " << row << ", " << d;
          if (!kernel_.needs_columns) continue;
          ASSERT_TRUE(same(columns.At(index_.A(d, row, column_stride)), value)) << "columns " << row << ", " << d;
        }
        for (int64_t row = 0; row < kernel_.panel; ++row) {
          ASSERT_TRUE(same(panel.At(index_.B(d, row, kernel_.panel)), want(row, d, flags))) << "panel " << row;
        }
        if (!kernel_.needs_columns) continue;
        for (int64_t k = padded_rows; k < column_stride; ++k) {
          ASSERT_NE(columns.At(index_.A(d, k, column_stride)), 0.0F) << "written past the padded rows";
        }
      }
      for (int64_t row = 0; row < num_rows; ++row) {
        const bool flagged = flags && !is_finite[static_cast<size_t>(row)] && dead[static_cast<size_t>(row)] == 0;
        ASSERT_EQ(found[static_cast<size_t>(row)], flagged ? 1 : 0) << "flag of row " << row;
      }
    }
  }
}

// Scores: rows of keys against a panel of queries.
TEST_P(EveryKernel, RowsTimesPanel_EqualSumsInDouble) {
  for (int round = 0; round < 12; ++round) {
    const int64_t dim = Draw(1, 200);
    const int64_t num_keys = kernel_.key_step * Draw(1, 5);
    const int64_t padded = Padded(dim);
    const InputRows keys(kernel_, num_keys, dim, dim + 3, rng_);
    const InputRows queries(kernel_, kernel_.panel, dim, dim, rng_);
    Operand a(kernel_, num_keys * padded);
    Operand b(kernel_, kernel_.panel * padded);
    kernel_.pack_rows(keys.Pack(padded, num_keys, a.data(), padded));
    kernel_.pack_panel(queries.Pack(padded, kernel_.panel, b.data(), 0));
    const auto at = [&](const InputRows& rows, int64_t row, int64_t d) { return d < dim ? rows.At(row, d) : 0.0F; };
    CheckProduct(
        kernel_.multiply,
        {.a = a.data(),
         .a_stride = padded,
         .b = b.data(),
         .b_stride = kernel_.panel,
         .c_stride = kernel_.panel,
         .num_a = num_keys,
         .num_k = padded,
         .width = kernel_.panel,
         .accumulate = round % 2 != 0},
        [&](int64_t i, int64_t k) { return at(keys, i, k); }, [&](int64_t k, int64_t j) { return at(queries, j, k); });
  }
}

// Outputs: columns of values, from any step on, against probabilities.
TEST_P(EveryKernel, ColumnsTimesProbabilities_EqualSumsInDouble) {
  for (int round = 0; round < 12; ++round) {
    const int64_t dim = Draw(1, 200);
    const int64_t skipped = kernel_.key_step * Draw(0, 3);
    const int64_t num_keys = kernel_.key_step * Draw(1, 5);
    const int64_t padded = Padded(dim);
    const InputRows values(kernel_, skipped + num_keys, dim, dim, rng_);
    const InputRows probs(kernel_, num_keys, kernel_.panel, kernel_.panel, rng_);
    const int64_t kept = RoundUp(skipped + num_keys, 64);
    Operand a(kernel_, kept * padded);
    Operand b(kernel_, num_keys * kernel_.panel);
    const int64_t stride = kernel_.needs_columns ? kept : padded;
    (kernel_.needs_columns ? kernel_.pack_columns : kernel_.pack_rows)(values.Pack(padded, kept, a.data(), stride));
    kernel_.pack_b_rows(probs.Pack(kernel_.panel, num_keys, b.data(), kernel_.panel));
    const int64_t first = kernel_.needs_columns ? skipped * kernel_.a_group : skipped * padded;
    CheckProduct(
        kernel_.multiply_columns,
        {.a = static_cast<std::byte*>(a.data()) + first * kernel_.operand_bytes,
         .a_stride = stride,
         .b = b.data(),
         .b_stride = kernel_.panel,
         .c_stride = kernel_.panel,
         .num_a = padded,
         .num_k = num_keys,
         .width = kernel_.panel,
         .accumulate = round % 3 != 0},
        [&](int64_t i, int64_t k) { return i < dim ? values.At(skipped + k, i) : 0.0F; },
        [&](int64_t k, int64_t j) { return probs.At(k, j); });
  }
}

// Gradients of keys: planes of a few panels against the panels' rows.
TEST_P(EveryKernel, SegmentsTimesRows_EqualSumsInDouble) {
  for (int round = 0; round < 12; ++round) {
    const int64_t panel = kernel_.panel;
    const int64_t num_panels = Draw(1, 4);
    const int64_t dim = Draw(1, 200);
    const int64_t padded = Padded(dim);
    const int64_t width = RoundUp(padded, panel);
    const int64_t num_keys = kernel_.key_step * Draw(1, 3);
    const int64_t plane = (num_keys + kernel_.key_step) * panel;
    const InputRows queries(kernel_, num_panels * panel, dim, dim, rng_);
    std::vector<InputRows> probs;
    Operand a(kernel_, num_panels * plane);
    Operand b(kernel_, num_panels * panel * width);
    for (int64_t s = 0; s < num_panels; ++s) {
      probs.emplace_back(kernel_, num_keys, panel, panel, rng_);
      auto* to = static_cast<std::byte*>(a.data()) + s * plane * kernel_.operand_bytes;
      kernel_.pack_rows(probs.back().Pack(panel, num_keys, to, panel));
    }
    kernel_.pack_b_rows(queries.Pack(width, num_panels * panel, b.data(), width));
    CheckProduct(
        kernel_.multiply,
        {.a = a.data(),
         .a_stride = panel,
         .a_segment = plane,
         .b = b.data(),
         .b_stride = width,
         .b_segment = kernel_.operand_bytes == 4 ? panel * width : panel / 2 * width,
         .c_stride = width,
         .num_a = num_keys,
         .num_k = panel,
         .num_segments = num_panels,
         .width = width,
         .accumulate = round % 2 == 0},
        [&](int64_t i, int64_t k) { return probs[static_cast<size_t>(k / panel)].At(i, k % panel); },
        [&](int64_t k, int64_t j) { return j < dim ? queries.At(k, j) : 0.0F; });
  }
}

// The steps' scores and what they leave for the next product agree, wherever that product's unit wants it.
TEST_P(EveryKernel, Operands_AreTheRoundedResults) {
  const int64_t panel = kernel_.panel;
  const auto num_keys = static_cast<int32_t>(kernel_.key_step * 3);
  Aligned<float> scores(num_keys * panel);
  Aligned<float> grads(num_keys * panel);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < scores.size(); ++i) scores[i] = normal(rng_);
  for (int64_t i = 0; i < grads.size(); ++i) grads[i] = normal(rng_);
  const Aligned<float> logits = scores;
  const Aligned<float> dots = grads;
  Aligned<int32_t> begin(panel, 0);
  Aligned<int32_t> end(panel, num_keys - 5);
  const StepMask mask{0, 0, num_keys - 5, begin.data(), end.data(), nullptr};
  const bool is_f32 = kernel_.operand_bytes == 4;

  Operand b(kernel_, is_f32 ? 0 : num_keys * panel);
  Aligned<float> row_max(panel, -kInf);
  Aligned<float> row_sum(panel, 0.0F);
  Aligned<float> out(panel * kernel_.dim_step, 1.0F);
  kernel_.softmax({.score = {},
                   .mask = mask,
                   .num_keys = num_keys,
                   .scores = scores.data(),
                   .operand = is_f32 ? scores.data() : b.data(),
                   .row_max = row_max.data(),
                   .row_sum = row_sum.data(),
                   .out = out.data(),
                   .out_rows = kernel_.dim_step});
  for (int32_t key = 0; key < num_keys; ++key) {
    for (int64_t j = 0; j < panel; ++j) {
      const float p = scores[key * panel + j];
      const double exact = std::exp2(static_cast<double>(logits[key * panel + j]) - static_cast<double>(row_max[j]));
      ASSERT_NEAR(static_cast<double>(p), key < num_keys - 5 ? exact : 0.0, 0.01) << key << ", " << j;
      if (is_f32) continue;
      ASSERT_EQ(b.At(index_.B(key, j, panel)), Rounded(p)) << key << ", " << j;
    }
  }

  scores = logits;
  Operand probs(kernel_, is_f32 ? 0 : num_keys * panel);
  Operand grad_rows(kernel_, is_f32 ? 0 : num_keys * panel);
  Operand grad_pairs(kernel_, is_f32 ? 0 : num_keys * panel);
  Aligned<float> lse(panel, 8.0F);  // above every logit: no weight is above 1
  Aligned<float> delta(panel, 0.5F);
  kernel_.gradients({.score = {},
                     .mask = mask,
                     .num_keys = num_keys,
                     .scores = scores.data(),
                     .grads = grads.data(),
                     .prob_rows = is_f32 ? nullptr : probs.data(),
                     .grad_rows = is_f32 ? nullptr : grad_rows.data(),
                     .grad_pairs = is_f32 ? nullptr : grad_pairs.data(),
                     .lse_log2 = lse.data(),
                     .delta = delta.data()});
  for (int32_t key = 0; key < num_keys; ++key) {
    for (int64_t j = 0; j < panel; ++j) {
      const int64_t at = key * panel + j;
      const double p = key < num_keys - 5 ? std::exp2(static_cast<double>(logits[at]) - 8.0) : 0.0;
      ASSERT_NEAR(static_cast<double>(scores[at]), p, 0.005 * p) << key << ", " << j;
      const double ds = p * (static_cast<double>(dots[at]) - 0.5);
      ASSERT_NEAR(static_cast<double>(grads[at]), ds, 0.005 * std::abs(ds) + 1e-6) << key << ", " << j;
      if (is_f32) continue;
      ASSERT_EQ(probs.At(index_.A(key, j, panel)), Rounded(scores[at])) << key << ", " << j;
      ASSERT_EQ(grad_rows.At(index_.A(key, j, panel)), Rounded(grads[at])) << key << ", " << j;
      ASSERT_EQ(grad_pairs.At(index_.B(key, j, panel)), Rounded(grads[at])) << key << ", " << j;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, EveryKernel, testing::ValuesIn(RunnableRows()),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace tessera::lanes::cpu
