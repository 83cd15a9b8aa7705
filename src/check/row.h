// One query row worked out in double precision: its keys, logits, probabilities and gradients, and the error bound of
// each.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "check/expected.h"
#include "check/mask_test.h"
#include "check/tolerance.h"
#include "tessera/check.h"
#include "tessera/tensor.h"

namespace tessera::check {

// A few roundings that no sum explains: one multiplication, one exp or tanh with its last-bit error.
inline constexpr double kFew = 8.0;

inline size_t Idx(int64_t i) { return static_cast<size_t>(i); }

// The extents of one input, and where its rows lie in either layout.
struct Side {
  int64_t heads = 0;
  int64_t len = 0;
  int64_t dim = 0;
  Layout layout = Layout::kBhtd;

  std::vector<int64_t> Shape(int64_t batch) const {
    if (layout == Layout::kBhtd) return {batch, heads, len, dim};
    return {batch, len, heads, dim};
  }
  int64_t RowOffset(int64_t b, int64_t h, int64_t t) const {
    return (layout == Layout::kBhtd ? (b * heads + h) * len + t : (b * len + t) * heads + h) * dim;
  }
  std::vector<double> Row(const Tensor& tensor, int64_t b, int64_t h, int64_t t) const {
    std::vector<double> row(Idx(dim));
    for (int64_t d = 0; d < dim; ++d) row[Idx(d)] = tensor.At(RowOffset(b, h, t) + d);
    return row;
  }
};

// One query row: its keys, logits and probabilities, and how far a lane's may be from them.
struct Row {
  std::vector<double> q;
  std::vector<int64_t> keys;
  std::vector<double> s;            // logits, after scale and softcap
  std::vector<double> slope;        // d logit / d score: 1, or 1 - tanh^2
  std::vector<double> score_error;  // of the score, absolute
  std::vector<double> p;
  std::vector<double> log_p;
  double sink_p = 0.0;
  double sink_log_p = -std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();
  double max_bound = 0.0;
  double lse = -std::numeric_limits<double>::infinity();
  double lse_bound = 0.0;
  std::vector<double> o;
  std::vector<double> o_bound;
};

struct RowGradient {
  std::vector<double> dout;
  std::vector<double> dx;        // gradient of the scores
  std::vector<double> dx_error;  // absolute
  std::vector<double> p_error;   // of the probability as the backward recomputes it, absolute
  double sink_p_error = 0.0;     // the same of the sink
  double delta = 0.0;            // sum of p * dP
  double delta_error = 0.0;
  std::vector<double> dq;
  std::vector<double> dq_bound;
};

class Problem {
 public:
  static Result<Problem> Make(const Question& question, const CheckOptions& options);

  Status Enter(int64_t b, int64_t h);  // must be called before the row functions below
  Row ForwardRow(int64_t b, int64_t h, int64_t i) const;
  RowGradient BackwardRow(const Row& row, int64_t b, int64_t h, int64_t i) const;
  const double* Key(int64_t j) const { return &keys_[Idx(j * k_side.dim)]; }
  const double* Value(int64_t j) const { return &values_[Idx(j * v_side.dim)]; }
  int64_t KvHead(int64_t h) const { return h / (contract_->shape.num_q_heads / contract_->shape.num_kv_heads); }
  double OperandUnit() const { return arithmetic_.round_operands ? CastErrorOf(input_type_).unit : 0.0; }
  double OperandTiny() const { return arithmetic_.round_operands ? CastErrorOf(input_type_).tiny : 0.0; }
  double unit() const { return arithmetic_.unit; }
  // The size by which a product's error goes. A matrix unit adds products aligned by their operands' exponents, and
  // that of a subnormal f16 number is the smallest normal one's.
  double SizeOf(double x) const {
    const bool is_aligned = input_type_ == ElementType::kF16 && OperandUnit() > 0.0 && x != 0.0;
    return is_aligned ? std::max(std::abs(x), 0x1p-14) : std::abs(x);
  }
  // What taking small numbers for zero loses of a sum of products: `sizes` is the sum of both factors' sizes, and 1 for
  // the product, over all of them; `factor` is what the sum is multiplied by afterwards, or may have been before.
  double Lost(double factor, double sizes) const { return arithmetic_.least * std::max(1.0, factor) * sizes; }
  // The same of one element of dq and dk, for one pair.
  double GradientLost(double other, double dx) const {
    return Lost(contract_->score.scale, 1.0 + std::abs(other) + std::abs(dx));
  }

  Side q_side, k_side, v_side, o_side;

 private:
  const Contract* contract_ = nullptr;
  const Batch* batch_ = nullptr;
  const Tensor* q_ = nullptr;
  const Tensor* k_ = nullptr;
  const Tensor* v_ = nullptr;
  const Tensor* dout_ = nullptr;
  std::vector<double> sinks_;
  Arithmetic arithmetic_;
  ElementType input_type_ = ElementType::kF32;
  int64_t entered_batch_ = -1;
  int64_t entered_kv_head_ = -1;
  std::optional<MaskTest> mask_;  // of the entered batch row
  std::vector<double> keys_;      // of the entered (batch row, key head)
  std::vector<double> values_;
};

}  // namespace tessera::check
