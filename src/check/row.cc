// The arithmetic of one row, from explicit probabilities. docs/numerics.md derives the bounds.
#include "check/row.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/try.h"

namespace tessera::check {
namespace {

double MaxKeepingNan(double a, double b) { return std::isnan(a) || std::isnan(b) ? a + b : std::max(a, b); }

bool IsFloat(ElementType type) {
  return type == ElementType::kF32 || type == ElementType::kBf16 || type == ElementType::kF16;
}

Result<const Tensor*> Find(const TensorMap& inputs, const char* name, const std::vector<int64_t>& shape) {
  const auto found = inputs.find(name);
  if (found == inputs.end()) return Fail(ErrorCode::kTensorMismatch, "the input is missing", name);
  const Tensor& tensor = found->second;
  if (!IsFloat(tensor.type)) return Fail(ErrorCode::kTensorMismatch, "expected f32, bf16 or f16", name);
  int64_t bytes = BytesOf(tensor.type);
  for (const int64_t extent : tensor.shape) bytes *= extent;
  if (tensor.shape != shape || static_cast<int64_t>(tensor.bytes.size()) != bytes) {
    return Fail(ErrorCode::kTensorMismatch,
                fmt::format("the shape is [{}], expected [{}]", fmt::join(tensor.shape, ", "), fmt::join(shape, ", ")),
                name);
  }
  return &tensor;
}

// How far the logarithm of a sum of weights can be off: of their mean, weighed by themselves, when each is off by a
// factor of exp(error).
double LogMeanError(const Row& row, const std::vector<double>& errors, double sink_error) {
  double largest = row.sink_p > 0.0 ? sink_error : 0.0;
  for (const double error : errors) largest = std::max(largest, error);
  double sum = 0.0;
  if (largest < 1.0) {
    if (row.sink_p > 0.0) sum += row.sink_p * std::expm1(sink_error);
    for (size_t n = 0; n < errors.size(); ++n) sum += row.p[n] * std::expm1(errors[n]);
    return std::log1p(sum);
  }
  // Weights that are nothing may have become something: in logarithms, from the largest on.
  double top = row.sink_log_p + sink_error;
  for (size_t n = 0; n < errors.size(); ++n) top = std::max(top, row.log_p[n] + errors[n]);
  sum += std::exp(row.sink_log_p + sink_error - top);
  for (size_t n = 0; n < errors.size(); ++n) sum += std::exp(row.log_p[n] + errors[n] - top);
  return std::max(0.0, top + std::log(sum));
}

}  // namespace

Result<Problem> Problem::Make(const Question& question, const CheckOptions& options) {
  const Contract& contract = question.contract;
  const TensorMap& inputs = question.inputs;
  const Shape& shape = contract.shape;
  Problem problem;
  problem.contract_ = &contract;
  problem.batch_ = &question.batch;
  problem.arithmetic_ = options.arithmetic;
  problem.input_type_ = ToElementType(shape.dtype);
  problem.q_side = {shape.num_q_heads, shape.q_len, shape.dim_qk, options.layout};
  problem.k_side = {shape.num_kv_heads, shape.kv_len, shape.dim_qk, options.layout};
  problem.v_side = {shape.num_kv_heads, shape.kv_len, shape.dim_v, options.layout};
  problem.o_side = {shape.num_q_heads, shape.q_len, shape.dim_v, options.layout};
  struct Wanted {
    const char* name;
    const Side* side;
    const Tensor** tensor;
  };
  std::vector<Wanted> wanted = {
      {"q", &problem.q_side, &problem.q_}, {"k", &problem.k_side, &problem.k_}, {"v", &problem.v_side, &problem.v_}};
  if (question.backward) wanted.push_back({"do", &problem.o_side, &problem.dout_});
  for (const Wanted& want : wanted) {
    *want.tensor = TESSERA_TRY(Find(inputs, want.name, want.side->Shape(shape.batch)));
  }
  if (contract.score.sink_logits) {
    const Tensor* tensor = TESSERA_TRY(Find(inputs, "sink_logits", {shape.num_q_heads}));
    for (int64_t h = 0; h < shape.num_q_heads; ++h) problem.sinks_.push_back(tensor->At(h));
  }
  return problem;
}

Status Problem::Enter(int64_t b, int64_t h) {
  const int64_t kv_head = KvHead(h);
  if (b != entered_batch_) {
    mask_ = TESSERA_TRY(MaskTest::Make(*contract_, *batch_, b));
  }
  if (b != entered_batch_ || kv_head != entered_kv_head_) {
    keys_.clear();
    values_.clear();
    for (int64_t j = 0; j < k_side.len; ++j) {
      for (const double x : k_side.Row(*k_, b, kv_head, j)) keys_.push_back(x);
      for (const double x : v_side.Row(*v_, b, kv_head, j)) values_.push_back(x);
    }
  }
  entered_batch_ = b;
  entered_kv_head_ = kv_head;
  return {};
}

Row Problem::ForwardRow(int64_t b, int64_t h, int64_t i) const {
  const Score& score = contract_->score;
  const double u = unit();
  Row row;
  row.q = q_side.Row(*q_, b, h, i);
  row.o.assign(Idx(v_side.dim), 0.0);
  row.o_bound.assign(Idx(v_side.dim), 0.0);
  std::vector<uint8_t> cells(Idx(k_side.len));
  mask_->Row(h, i, cells);
  for (int64_t j = 0; j < k_side.len; ++j) {
    if (cells[Idx(j)] == 0) continue;
    double dot = 0.0;
    double dot_magnitude = 0.0;
    double sizes = 0.0;
    for (int64_t d = 0; d < k_side.dim; ++d) {
      dot += row.q[Idx(d)] * Key(j)[d];
      dot_magnitude += SizeOf(row.q[Idx(d)]) * SizeOf(Key(j)[d]);
      sizes += 1.0 + std::abs(row.q[Idx(d)]) + std::abs(Key(j)[d]);
    }
    const double x = score.scale * dot;
    const double tanh = score.softcap > 0.0 ? std::tanh(x / score.softcap) : 0.0;
    const double s = score.softcap > 0.0 ? score.softcap * tanh : x;
    // A logit that is infinite is so for every lane.
    const double error = u * ((Growth(k_side.dim) + kFew) * std::abs(score.scale) * dot_magnitude +
                              (score.softcap > 0.0 ? kFew * std::abs(s) : 0.0)) +
                         Lost(std::max(score.scale, score.softcap), sizes);
    row.keys.push_back(j);
    row.s.push_back(s);
    row.slope.push_back(1.0 - tanh * tanh);
    row.score_error.push_back(std::isfinite(s) ? error : 0.0);
    row.max = MaxKeepingNan(row.max, s);
    row.max_bound = std::max(row.max_bound, row.score_error.back() + kFew * u * std::abs(s));
  }
  if (row.keys.empty()) return row;

  const bool has_sink = !sinks_.empty();
  const double sink = has_sink ? sinks_[Idx(h)] : -std::numeric_limits<double>::infinity();
  const double shift = has_sink ? MaxKeepingNan(row.max, sink) : row.max;
  double sum = has_sink ? std::exp(sink - shift) : 0.0;
  for (const double s : row.s) sum += std::exp(s - shift);
  row.lse = shift + std::log(sum);
  row.sink_p = has_sink ? std::exp(sink - shift) / sum : 0.0;
  row.sink_log_p = sink - shift - std::log(sum);

  // Errors of the exponents, and with them that of the denominator's logarithm.
  const int64_t count = static_cast<int64_t>(row.keys.size()) + (has_sink ? 1 : 0);
  std::vector<double> exponent_error;
  for (size_t n = 0; n < row.keys.size(); ++n) {
    const double s = row.s[n];
    exponent_error.push_back(std::isfinite(s) ? row.score_error[n] + u * (2.0 * (std::abs(s) + std::abs(shift)) + kFew)
                                              : 0.0);
    row.p.push_back(std::exp(s - shift) / sum);
    row.log_p.push_back(s - shift - std::log(sum));  // not s - lse, which has lost what a large lse cannot hold
  }
  const double sink_error = std::isfinite(sink) ? u * (2.0 * std::abs(sink - shift) + kFew) : 0.0;
  const double sum_error = LogMeanError(row, exponent_error, sink_error) + u * (Growth(count) + kFew);
  row.lse_bound = sum_error + 2.0 * u * (std::abs(shift) + std::log(static_cast<double>(count) + 1.0));

  std::vector<double> largest(Idx(v_side.dim), 0.0);
  const double rounding = OperandUnit() + u * (Growth(count) + kFew);
  for (size_t n = 0; n < row.keys.size(); ++n) {
    const double* value = Value(row.keys[n]);
    const double p_error = WeightError(row.log_p[n], exponent_error[n] + sum_error);
    for (int64_t d = 0; d < v_side.dim; ++d) {
      const double magnitude = std::abs(value[d]);
      row.o[Idx(d)] += row.p[n] * value[d];
      row.o_bound[Idx(d)] +=
          magnitude * (p_error + (row.p[n] + p_error) * rounding + OperandTiny()) + Lost(1.0, 1.0 + magnitude);
      largest[Idx(d)] = std::max(largest[Idx(d)], magnitude);
    }
  }
  // However little is known of the weights, they are weights: an output is no larger than the largest value.
  for (int64_t d = 0; d < v_side.dim; ++d) {
    const double most = std::abs(row.o[Idx(d)]) +
                        largest[Idx(d)] * (1.0 + 4.0 * static_cast<double>(count) * rounding) +
                        Lost(1.0, static_cast<double>(count) * (1.0 + largest[Idx(d)])) +
                        OperandTiny() * static_cast<double>(count) * largest[Idx(d)];
    if (most < row.o_bound[Idx(d)]) row.o_bound[Idx(d)] = most;
  }
  return row;
}

RowGradient Problem::BackwardRow(const Row& row, int64_t b, int64_t h, int64_t i) const {
  const Score& score = contract_->score;
  const double u = unit();
  const double dot_error = u * (Growth(v_side.dim) + kFew);
  RowGradient grad;
  grad.dq.assign(Idx(k_side.dim), 0.0);
  grad.dq_bound.assign(Idx(k_side.dim), 0.0);
  if (row.keys.empty()) return grad;  // `do` of an empty row is never read
  grad.dout = o_side.Row(*dout_, b, h, i);

  std::vector<double> dp;
  std::vector<double> dp_error;
  for (size_t n = 0; n < row.keys.size(); ++n) {
    const double* value = Value(row.keys[n]);
    double dot = 0.0;
    double magnitude = 0.0;
    double sizes = 0.0;
    for (int64_t d = 0; d < v_side.dim; ++d) {
      const double dout = grad.dout[Idx(d)];
      dot += dout * value[d];
      magnitude += SizeOf(dout) * SizeOf(value[d]);
      sizes += 1.0 + std::abs(dout) + std::abs(value[d]);
    }
    dp.push_back(dot);
    dp_error.push_back(magnitude * dot_error + Lost(1.0, sizes));
    grad.delta += row.p[n] * dot;
  }
  // A lane forms delta from the rounded o, and reads the rounded log-sum-exp.
  const CastError o_cast = CastErrorOf(input_type_);
  const CastError f32_cast = CastErrorOf(ElementType::kF32);
  for (int64_t d = 0; d < v_side.dim; ++d) {
    const double o = row.o[Idx(d)];
    const double dout = std::abs(grad.dout[Idx(d)]);
    grad.delta_error +=
        dout * (row.o_bound[Idx(d)] + o_cast.Of(o) + dot_error * std::abs(o)) + Lost(1.0, 1.0 + dout + std::abs(o));
  }
  grad.delta_error += f32_cast.Of(grad.delta);
  const double lean = std::abs(row.lse) > 0.99 * kLseLeanFrom ? kLseLean * std::abs(row.lse) : 0.0;
  const double lse_error = row.lse_bound + f32_cast.Of(row.lse) + lean;
  grad.sink_p_error = WeightError(row.sink_log_p, lse_error + kFew * u) + arithmetic_.least;

  const double count_error = u * (Growth(static_cast<int64_t>(row.keys.size())) + kFew);
  for (size_t n = 0; n < row.keys.size(); ++n) {
    const double centred = std::abs(dp[n] - grad.delta);
    const double centred_error = dp_error[n] + grad.delta_error;
    const double slope = row.slope[n];
    double slope_error = 0.0;
    if (score.softcap > 0.0) {
      slope_error =
          std::min(1.0, slope * std::expm1(std::min(2.0 * row.score_error[n] / score.softcap, 700.0))) + 3.0 * kFew * u;
    }
    const double exponent_error =
        row.score_error[n] + lse_error + u * (2.0 * (std::abs(row.s[n]) + std::abs(row.lse)) + kFew);
    const double p_error =
        std::isfinite(row.s[n]) ? WeightError(row.log_p[n], exponent_error) + arithmetic_.least : 0.0;
    const double dx = row.p[n] * (dp[n] - grad.delta) * slope;
    // What the gradient can come to at most, and by how much each of its factors moves it.
    const double p_most = row.p[n] + p_error;
    const double slope_most = slope + slope_error;
    grad.p_error.push_back(p_error);
    grad.dx.push_back(dx);
    grad.dx_error.push_back(p_most * slope_most * centred_error + p_error * slope_most * centred +
                            row.p[n] * slope_error * centred +
                            p_most * slope_most * (centred + centred_error) * (kFew * u + OperandUnit()) +
                            OperandTiny() * std::max(1.0, 1.0 / std::abs(score.scale)) + arithmetic_.least);
    for (int64_t d = 0; d < k_side.dim; ++d) {
      const double key = Key(row.keys[n])[d];
      grad.dq[Idx(d)] += dx * score.scale * key;
      grad.dq_bound[Idx(d)] +=
          std::abs(score.scale * key) * (grad.dx_error[n] * (1.0 + count_error) + std::abs(dx) * count_error) +
          GradientLost(key, dx);
    }
  }
  return grad;
}

}  // namespace tessera::check
