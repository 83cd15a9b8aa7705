// See gradient_bounds.h.
#include "shard/gradient_bounds.h"

#include <algorithm>
#include <cmath>

#include "base/try.h"
#include "shard/difference.h"

namespace tessera::shard {
namespace {

// What the two runs give is rounded itself, weights and operands to the type of the inputs.
constexpr double kOfRunsThemselves = 1.05;

float Magnitude(float x) { return std::isfinite(x) ? std::abs(x) : 0.0F; }

class Bounds {
 public:
  Bounds(const BackwardOfOne& one, const ContextPlan& plan, const WholeTensors& whole, std::span<const float> sinks)
      : one_(one),
        plan_(plan),
        s_(plan.contract.shape),
        whole_(whole),
        sinks_(sinks),
        q_(ToFloats(whole.q, s_.dtype)),
        k_(ToFloats(whole.k, s_.dtype)),
        v_(ToFloats(whole.v, s_.dtype)),
        dout_(ToFloats(whole.dout, s_.dtype)),
        tiles_(plan.shards * plan.tiles_per_shard) {}

  Result<GradientBounds> Make() {
    SetRows();
    GradientBounds out;
    BoundQueries(out.dq);
    TESSERA_TRY(BoundKeys(out.dk));
    TESSERA_TRY(BoundValues(out.dv));
    BoundSinks(out.dsink_logits);
    return out;
  }

 private:
  int64_t Rows() const { return s_.batch * s_.num_q_heads * s_.q_len; }
  size_t KeyHeadOf(int64_t row) const {
    const int64_t head = row / s_.q_len;
    return static_cast<size_t>(head / (s_.num_q_heads / s_.num_kv_heads));
  }
  static double NormOf(std::span<const float> values) {
    double sum = 0;
    for (const float x : values) sum += static_cast<double>(Magnitude(x)) * Magnitude(x);
    return std::sqrt(sum);
  }
  static std::span<const float> At(const std::vector<float>& of, int64_t row, int64_t dim) {
    return std::span(of).subspan(static_cast<size_t>(row * dim), static_cast<size_t>(dim));
  }

  // Of each row, what |do . v - delta| cannot exceed for any key of its head.
  void SetRows() {
    std::vector<double> longest(static_cast<size_t>(s_.batch * s_.num_kv_heads), 0.0);
    for (int64_t key = 0; key < s_.batch * s_.num_kv_heads * s_.kv_len; ++key) {
      double& most = longest[static_cast<size_t>(key / s_.kv_len)];
      most = std::max(most, NormOf(At(v_, key, s_.dim_v)));
    }
    for (int64_t row = 0; row < Rows(); ++row) {
      const float delta = Magnitude(whole_.delta[static_cast<size_t>(row)]);
      of_row_.push_back(NormOf(At(dout_, row, s_.dim_v)) * longest[KeyHeadOf(row)] + delta);
    }
  }

  // The weights of a row add up to no more than 1.
  void BoundQueries(std::vector<double>& out) const {
    const auto dim = static_cast<size_t>(s_.dim_qk);
    std::vector<double> most(static_cast<size_t>(s_.batch * s_.num_kv_heads) * dim, 0.0);
    for (size_t i = 0; i < k_.size(); ++i) {
      double& here = most[i / (static_cast<size_t>(s_.kv_len) * dim) * dim + i % dim];
      here = std::max(here, static_cast<double>(Magnitude(k_[i])));
    }
    for (int64_t row = 0; row < Rows(); ++row) {
      for (size_t d = 0; d < dim; ++d) {
        const double terms = Scale() * of_row_[static_cast<size_t>(row)] * most[KeyHeadOf(row) * dim + d];
        out.push_back(ReorderedSum(tiles_ + plan_.shards, terms));
      }
    }
  }

  // The sum over a key's rows of weight * number, where number is [rows, dim_v].
  Result<std::vector<float>> WeightedSums(const std::vector<float>& numbers) const {
    const std::vector<std::byte> bytes = Rounded(numbers, s_.dtype);
    WholeTensors run = whole_;
    run.dout = bytes;
    return TESSERA_TRY(one_.Run(run, sinks_)).dv;
  }

  Status BoundKeys(std::vector<double>& out) const {
    std::vector<double> weights;
    double most = 0;
    for (int64_t row = 0; row < Rows(); ++row) {
      float largest = 0;
      for (const float x : At(q_, row, s_.dim_qk)) largest = std::max(largest, Magnitude(x));
      weights.push_back(largest * of_row_[static_cast<size_t>(row)]);
      most = std::max(most, weights.back());
    }
    std::vector<float> numbers;
    for (const double weight : weights) {
      const double part = most == 0 ? 0 : weight / most;  // so that every type holds it
      numbers.insert(numbers.end(), static_cast<size_t>(s_.dim_v), static_cast<float>(part));
    }
    const std::vector<float> sums = TESSERA_TRY(WeightedSums(numbers));
    for (size_t key = 0; key < sums.size() / static_cast<size_t>(s_.dim_v); ++key) {
      const double terms = Scale() * most * static_cast<double>(sums[key * static_cast<size_t>(s_.dim_v)]);
      out.insert(out.end(), static_cast<size_t>(s_.dim_qk), ReorderedSum(KeyAdditions(), kOfRunsThemselves * terms));
    }
    return {};
  }

  Status BoundValues(std::vector<double>& out) const {
    std::vector<float> numbers;
    for (const float x : dout_) numbers.push_back(Magnitude(x));
    for (const float sum : TESSERA_TRY(WeightedSums(numbers))) {
      out.push_back(ReorderedSum(KeyAdditions(), kOfRunsThemselves * static_cast<double>(sum)));
    }
    return {};
  }

  void BoundSinks(std::vector<double>& out) const {
    std::vector<double> terms(sinks_.size(), 0.0);
    for (int64_t row = 0; !terms.empty() && row < Rows(); ++row) {
      const auto head = static_cast<size_t>(row / s_.q_len % s_.num_q_heads);
      const double lse = whole_.lse[static_cast<size_t>(row)];
      if (!std::isfinite(lse)) continue;
      const double weight = std::exp(std::min(0.0, static_cast<double>(sinks_[head]) - lse));
      terms[head] += weight * Magnitude(whole_.delta[static_cast<size_t>(row)]);
    }
    for (const double sum : terms) out.push_back(ReorderedSum(s_.batch * s_.q_len + plan_.shards, sum));
  }

  double Scale() const { return std::abs(plan_.contract.score.scale); }
  // Tiles of queries, of all heads of a group, and a device's share each.
  int64_t KeyAdditions() const { return tiles_ * (s_.num_q_heads / s_.num_kv_heads) + plan_.shards; }

  const BackwardOfOne& one_;
  const ContextPlan& plan_;
  const Shape& s_;
  const WholeTensors& whole_;
  const std::span<const float> sinks_;
  const std::vector<float> q_, k_, v_, dout_;
  const int64_t tiles_;
  std::vector<double> of_row_;
};

}  // namespace

Result<GradientBounds> BoundGradients(const BackwardOfOne& one, const ContextPlan& plan, const WholeTensors& whole,
                                      std::span<const float> sink_logits) {
  return Bounds(one, plan, whole, sink_logits).Make();
}

}  // namespace tessera::shard
