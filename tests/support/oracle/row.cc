// The arithmetic of one row, from explicit probabilities. docs/numerics.md derives the bounds.
#include "oracle/row.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tessera::oracle {
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

}  // namespace

Result<Problem> Problem::Make(const Contract& contract, const Batch& batch, const TensorMap& inputs,
                              const OracleOptions& options) {
  const Shape& shape = contract.shape;
  Problem problem;
  problem.contract_ = &contract;
  problem.batch_ = &batch;
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
  if (inputs.count("do") != 0) wanted.push_back({"do", &problem.o_side, &problem.dout_});
  for (const Wanted& want : wanted) {
    auto tensor = Find(inputs, want.name, want.side->Shape(shape.batch));
    if (!tensor) return tl::unexpected(tensor.error());
    *want.tensor = *tensor;
  }
  if (contract.score.sink_logits) {
    auto tensor = Find(inputs, "sink_logits", {shape.num_q_heads});
    if (!tensor) return tl::unexpected(tensor.error());
    for (int64_t h = 0; h < shape.num_q_heads; ++h) problem.sinks_.push_back((*tensor)->At(h));
  }
  return problem;
}

Status Problem::Enter(int64_t b, int64_t h) {
  const int64_t kv_head = KvHead(h);
  if (b != entered_batch_) {
    auto facts = MakeOracleFacts(*contract_, *batch_, b);
    if (!facts) return tl::unexpected(facts.error());
    facts_ = std::move(*facts);
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
  for (int64_t j = 0; j < k_side.len; ++j) {
    if (!Allowed(*contract_, facts_, h, i, j)) continue;
    double dot = 0.0;
    double dot_magnitude = 0.0;
    for (int64_t d = 0; d < k_side.dim; ++d) {
      const double product = row.q[Idx(d)] * Key(j)[d];
      dot += product;
      dot_magnitude += std::abs(product);
    }
    const double x = score.scale * dot;
    const double tanh = score.softcap > 0.0 ? std::tanh(x / score.softcap) : 0.0;
    row.keys.push_back(j);
    row.s.push_back(score.softcap > 0.0 ? score.softcap * tanh : x);
    row.slope.push_back(1.0 - tanh * tanh);
    row.score_error.push_back(u * (Growth(k_side.dim) + kFew) * std::abs(score.scale) * dot_magnitude);
    row.max = MaxKeepingNan(row.max, row.s.back());
    row.max_bound = std::max(row.max_bound, row.score_error.back() + kFew * u * std::abs(row.s.back()));
  }
  if (row.keys.empty()) return row;

  const bool has_sink = !sinks_.empty();
  const double sink = has_sink ? sinks_[Idx(h)] : 0.0;
  const double shift = has_sink ? MaxKeepingNan(row.max, sink) : row.max;
  double sum = has_sink ? std::exp(sink - shift) : 0.0;
  for (const double s : row.s) sum += std::exp(s - shift);
  row.lse = shift + std::log(sum);
  row.sink_p = has_sink ? std::exp(sink - shift) / sum : 0.0;

  const int64_t count = static_cast<int64_t>(row.keys.size()) + (has_sink ? 1 : 0);
  const auto exp_error = [&](double s) { return u * (2.0 * (std::abs(s) + std::abs(shift)) + kFew); };
  double mean_error = row.sink_p * exp_error(sink);
  for (size_t n = 0; n < row.keys.size(); ++n) {
    row.p.push_back(std::exp(row.s[n] - shift) / sum);
    mean_error += row.p[n] * (row.score_error[n] + exp_error(row.s[n]));
  }
  const double sum_error = mean_error + u * (Growth(count) + kFew);
  row.lse_bound = sum_error + 2.0 * u * (std::abs(shift) + std::log(static_cast<double>(count) + 1.0));
  for (size_t n = 0; n < row.keys.size(); ++n) {
    const double* value = Value(row.keys[n]);
    const double p_error = row.score_error[n] + exp_error(row.s[n]) + sum_error;
    for (int64_t d = 0; d < v_side.dim; ++d) {
      const double magnitude = std::abs(value[d]);
      row.o[Idx(d)] += row.p[n] * value[d];
      row.o_bound[Idx(d)] +=
          row.p[n] * magnitude * (p_error + OperandUnit() + u * (Growth(count) + kFew)) + OperandTiny() * magnitude;
    }
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
  std::vector<double> dp_magnitude;
  for (size_t n = 0; n < row.keys.size(); ++n) {
    const double* value = Value(row.keys[n]);
    double dot = 0.0;
    double magnitude = 0.0;
    for (int64_t d = 0; d < v_side.dim; ++d) {
      dot += grad.dout[Idx(d)] * value[d];
      magnitude += std::abs(grad.dout[Idx(d)] * value[d]);
    }
    dp.push_back(dot);
    dp_magnitude.push_back(magnitude);
    grad.delta += row.p[n] * dot;
  }
  // A lane forms delta from the rounded o, and reads the rounded log-sum-exp.
  const CastError o_cast = CastErrorOf(input_type_);
  const CastError f32_cast = CastErrorOf(ElementType::kF32);
  for (int64_t d = 0; d < v_side.dim; ++d) {
    const double o = row.o[Idx(d)];
    grad.delta_error += std::abs(grad.dout[Idx(d)]) * (row.o_bound[Idx(d)] + o_cast.Of(o) + dot_error * std::abs(o));
  }
  grad.delta_error += f32_cast.Of(grad.delta);
  const double lse_error = row.lse_bound + f32_cast.Of(row.lse);

  const double count_error = u * (Growth(static_cast<int64_t>(row.keys.size())) + kFew);
  for (size_t n = 0; n < row.keys.size(); ++n) {
    const double centred = dp[n] - grad.delta;
    const double slope = row.slope[n];
    const double p_error = row.score_error[n] + lse_error + u * (2.0 * (std::abs(row.s[n]) + std::abs(row.lse)) + kFew);
    const double slope_error = score.softcap > 0.0 ? 2.0 * slope * row.score_error[n] / score.softcap + kFew * u : 0.0;
    const double dx = row.p[n] * centred * slope;
    grad.p_error.push_back(p_error);
    grad.dx.push_back(dx);
    grad.dx_error.push_back(row.p[n] * slope * (dp_magnitude[n] * dot_error + grad.delta_error) +
                            std::abs(dx) * (p_error + kFew * u + OperandUnit()) +
                            row.p[n] * std::abs(centred) * slope_error +
                            OperandTiny() * std::max(1.0, 1.0 / std::abs(score.scale)));
    for (int64_t d = 0; d < k_side.dim; ++d) {
      const double key = score.scale * Key(row.keys[n])[d];
      grad.dq[Idx(d)] += dx * key;
      grad.dq_bound[Idx(d)] += std::abs(key) * (grad.dx_error[n] + std::abs(dx) * count_error);
    }
  }
  return grad;
}

}  // namespace tessera::oracle
