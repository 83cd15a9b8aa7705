// How far two that compute the same model may be from each other: eps times the length of a sum times a magnitude. The
// magnitude is the model's own: what rounding operands to bf16 does to each result, over bf16's eps, is how many units
// of rounding of its operands come out in it. docs/numerics.md has the derivation.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "model/model_fixture.h"

namespace tessera {

inline constexpr double kUnitBf16 = 0x1p-8;
inline constexpr double kUnitF32 = 0x1p-24;

class RoundingScale {
 public:
  // `exact` is in f32 and `rounded` the same model in bf16, with the same parameters. The largest of several batches,
  // so that none on which roundings cancel decides.
  static Result<RoundingScale> Measure(Trainer& exact, Trainer& rounded, const std::vector<RowBatch>& batches) {
    RoundingScale scale;
    const ModelSpec& s = exact.spec();
    scale.longest_ = std::max({s.rows * s.row_tokens, s.width, 2 * s.mlp_width, s.PaddedVocab(),
                               (s.num_q_heads + 2 * s.num_kv_heads) * s.head_dim});
    for (const RowBatch& rows : batches) {
      auto want = exact.Gradients(rows);
      if (!want) return tl::unexpected(want.error());
      auto got = rounded.Gradients(rows);
      if (!got) return tl::unexpected(got.error());
      for (const auto& [name, gradient] : want->gradients) {
        const double norm = ::tessera::Norm(gradient);
        if (norm == 0.0) continue;
        double& most = scale.gradients_[name];
        most = std::max(most, Distance(got->gradients.at(name), gradient) / norm / kUnitBf16);
      }
      // Of each token apart: in a sum they cancel by luck.
      double sum = 0.0;
      RowBatch one = rows;
      for (size_t i = 0; i < rows.loss_mask.size(); ++i) {
        if (rows.loss_mask[i] == 0) continue;
        std::fill(one.loss_mask.begin(), one.loss_mask.end(), int8_t{0});
        one.loss_mask[i] = 1;
        auto a = exact.Evaluate(one);
        if (!a) return tl::unexpected(a.error());
        auto b = rounded.Evaluate(one);
        if (!b) return tl::unexpected(b.error());
        sum += std::abs(a->loss_sum - b->loss_sum);
      }
      if (want->loss_sum > 0.0) scale.loss_ = std::max(scale.loss_, sum / want->loss_sum / kUnitBf16);
    }
    return scale;
  }

  // Relative to the result, for two that each round once where the definition does, and sum in f32.
  double Loss(DType dtype) const { return loss_ * Units(dtype); }
  double Gradient(const std::string& name, DType dtype) const {
    const auto at = gradients_.find(name);
    return at == gradients_.end() ? 0.0 : at->second * Units(dtype);
  }

 private:
  // Each of the two is as far as this from what is exact.
  double Units(DType dtype) const {
    const auto n = static_cast<double>(longest_);
    const double growth = std::min(n, 4.0 * std::sqrt(n));
    return 2.0 * ((dtype == DType::kBf16 ? kUnitBf16 : 0.0) + growth * kUnitF32);
  }

  std::map<std::string, double> gradients_;
  double loss_ = 0.0;
  int64_t longest_ = 0;
};

inline void ExpectWithin(const RoundingScale& scale, DType dtype, const GradientsResult& got,
                         const GradientsResult& want) {
  EXPECT_EQ(got.tokens, want.tokens);
  EXPECT_NEAR(got.loss_sum, want.loss_sum, scale.Loss(dtype) * want.loss_sum);
  ASSERT_EQ(got.gradients.size(), want.gradients.size());
  for (const auto& [name, gradient] : want.gradients) {
    EXPECT_LE(Distance(got.gradients.at(name), gradient),
              scale.Gradient(name, dtype) * Norm(gradient) + 0x1p-126 * static_cast<double>(gradient.NumElements()))
        << name;
  }
}

}  // namespace tessera
