// Attention and its gradients over whole inputs or chosen rows, one row at a time.
#include "check/expected.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/try.h"
#include "check/row.h"

namespace tessera::check {
namespace {

ExpectedTensor MakeTensor(std::vector<int64_t> shape) {
  ExpectedTensor tensor;
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  tensor.shape = std::move(shape);
  tensor.value.assign(Idx(count), 0.0);
  tensor.bound.assign(Idx(count), 0.0);
  return tensor;
}

void Put(ExpectedTensor& tensor, int64_t offset, const std::vector<double>& value, const std::vector<double>& bound) {
  std::copy(value.begin(), value.end(), tensor.value.begin() + offset);
  std::copy(bound.begin(), bound.end(), tensor.bound.begin() + offset);
}

void PutForward(Expected& out, const Row& row, int64_t o_offset, int64_t stat) {
  Put(out.o, o_offset, row.o, row.o_bound);
  Put(out.lse, stat, {row.lse}, {row.lse_bound});
  Put(out.max, stat, {row.max}, {row.max_bound});
}

// dk and dv of one batch: sums over rows, so that the length of each sum is known only at the end.
struct KeyGradients {
  ExpectedTensor dk, dv;
  std::vector<double> dk_magnitude, dv_magnitude;  // sums of |terms|
  std::vector<int64_t> count;                      // terms per key, [batch, num_kv_heads, kv_len]
};

void AddRow(KeyGradients& out, const Problem& problem, double scale, const Row& row, const RowGradient& grad,
            const RowPlace& at) {
  const int64_t kv_head = problem.KvHead(at.head);
  for (size_t n = 0; n < row.keys.size(); ++n) {
    const int64_t j = row.keys[n];
    const int64_t dk_at = problem.k_side.RowOffset(at.batch_row, kv_head, j);
    const int64_t dv_at = problem.v_side.RowOffset(at.batch_row, kv_head, j);
    out.count[Idx((at.batch_row * problem.k_side.heads + kv_head) * problem.k_side.len + j)] += 1;
    for (int64_t d = 0; d < problem.k_side.dim; ++d) {
      const double query = scale * row.q[Idx(d)];
      out.dk.value[Idx(dk_at + d)] += grad.dx[n] * query;
      out.dk.bound[Idx(dk_at + d)] +=
          grad.dx_error[n] * std::abs(query) + problem.GradientLost(row.q[Idx(d)], grad.dx[n]);
      out.dk_magnitude[Idx(dk_at + d)] += (std::abs(grad.dx[n]) + grad.dx_error[n]) * std::abs(query);
    }
    for (int64_t d = 0; d < problem.v_side.dim; ++d) {
      const double dout = grad.dout[Idx(d)];
      out.dv.value[Idx(dv_at + d)] += row.p[n] * dout;
      const double p_error =
          grad.p_error[n] + (row.p[n] + grad.p_error[n]) * problem.OperandUnit() + problem.OperandTiny();
      out.dv.bound[Idx(dv_at + d)] += p_error * std::abs(dout) + problem.Lost(1.0, 1.0 + std::abs(dout));
      out.dv_magnitude[Idx(dv_at + d)] += (row.p[n] + p_error) * std::abs(dout);
    }
  }
}

void FinishKeys(KeyGradients& out, const Problem& problem, int64_t batch) {
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < problem.k_side.heads; ++h) {
      for (int64_t j = 0; j < problem.k_side.len; ++j) {
        const int64_t count = out.count[Idx((b * problem.k_side.heads + h) * problem.k_side.len + j)];
        if (count == 0) continue;
        const double error = problem.unit() * (Growth(count) + kFew);
        const int64_t dk_at = problem.k_side.RowOffset(b, h, j);
        const int64_t dv_at = problem.v_side.RowOffset(b, h, j);
        for (int64_t d = 0; d < problem.k_side.dim; ++d)
          out.dk.bound[Idx(dk_at + d)] += error * out.dk_magnitude[Idx(dk_at + d)];
        for (int64_t d = 0; d < problem.v_side.dim; ++d)
          out.dv.bound[Idx(dv_at + d)] += error * out.dv_magnitude[Idx(dv_at + d)];
      }
    }
  }
}

// The sink's own value is zero, so its gradient is p * (0 - delta).
void AddSink(ExpectedTensor& dsink, const Problem& problem, const Shape& shape, const Row& row, const RowGradient& grad,
             int64_t head) {
  if (row.keys.empty()) return;
  const double u = problem.unit();
  const double sum_error = u * (Growth(shape.batch * shape.q_len) + kFew);
  dsink.value[Idx(head)] -= row.sink_p * grad.delta;
  const double p_most = row.sink_p + grad.sink_p_error;
  dsink.bound[Idx(head)] += p_most * (grad.delta_error + std::abs(grad.delta) * sum_error) +
                            grad.sink_p_error * std::abs(grad.delta) + problem.Lost(1.0, 1.0);
}

Status CheckPairs(int64_t rows, int64_t kv_len) {
  if (rows <= kMaxPairs / std::max<int64_t>(kv_len, 1)) return {};
  return Fail(ErrorCode::kTooLarge,
              fmt::format("{} rows of {} keys; a check takes at most {} pairs", rows, kv_len, kMaxPairs), "check");
}

}  // namespace

Result<Expected> Expect(const Question& question, const CheckOptions& options) {
  const Contract& contract = question.contract;
  const Shape& shape = contract.shape;
  const bool backward = question.backward;
  TESSERA_TRY(CheckPairs(shape.q_len, shape.kv_len));
  Problem problem = TESSERA_TRY(Problem::Make(question, options));
  Expected out;
  out.o = MakeTensor(problem.o_side.Shape(shape.batch));
  out.lse = MakeTensor({shape.batch, shape.num_q_heads, shape.q_len});
  out.max = out.lse;
  KeyGradients keys;
  if (backward) {
    out.dq = MakeTensor(problem.q_side.Shape(shape.batch));
    if (contract.score.sink_logits) out.dsink = MakeTensor({shape.num_q_heads});
    keys.dk = MakeTensor(problem.k_side.Shape(shape.batch));
    keys.dv = MakeTensor(problem.v_side.Shape(shape.batch));
    keys.dk_magnitude = keys.dk.value;
    keys.dv_magnitude = keys.dv.value;
    keys.count.assign(Idx(shape.batch * shape.num_kv_heads * shape.kv_len), 0);
  }
  RunMeter* meter = options.meter;
  if (meter != nullptr) meter->Begin(RunStep::kCheckOutputs, shape.batch * shape.num_q_heads * shape.q_len);
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t h = 0; h < shape.num_q_heads; ++h) {
      TESSERA_TRY(problem.Enter(b, h));
      for (int64_t i = 0; i < shape.q_len; ++i) {
        if (meter != nullptr) ++meter->done;
        const Row row = problem.ForwardRow(b, h, i);
        PutForward(out, row, problem.o_side.RowOffset(b, h, i), (b * shape.num_q_heads + h) * shape.q_len + i);
        if (!backward) continue;
        const RowGradient grad = problem.BackwardRow(row, b, h, i);
        Put(out.dq, problem.q_side.RowOffset(b, h, i), grad.dq, grad.dq_bound);
        AddRow(keys, problem, contract.score.scale, row, grad, {b, h, i});
        if (contract.score.sink_logits) AddSink(out.dsink, problem, shape, row, grad, h);
      }
    }
  }
  if (!backward) return out;
  FinishKeys(keys, problem, shape.batch);
  out.dk = std::move(keys.dk);
  out.dv = std::move(keys.dv);
  return out;
}

Result<Expected> ExpectRows(const Question& question, const std::vector<RowPlace>& rows, const CheckOptions& options) {
  const Shape& shape = question.contract.shape;
  const bool backward = question.backward;
  const int64_t count = static_cast<int64_t>(rows.size());
  TESSERA_TRY(CheckPairs(count, shape.kv_len));
  Problem problem = TESSERA_TRY(Problem::Make(question, options));
  Expected out;
  out.o = MakeTensor({count, shape.dim_v});
  out.lse = MakeTensor({count});
  out.max = out.lse;
  if (backward) out.dq = MakeTensor({count, shape.dim_qk});
  if (options.meter != nullptr) options.meter->Begin(RunStep::kCheckOutputs, count);
  for (int64_t n = 0; n < count; ++n) {
    if (options.meter != nullptr) ++options.meter->done;
    const RowPlace& at = rows[Idx(n)];
    if (at.head < 0 || at.head >= shape.num_q_heads || at.i < 0 || at.i >= shape.q_len) {
      return Fail(ErrorCode::kBadArgument, fmt::format("no row {} of head {}", at.i, at.head), "check");
    }
    TESSERA_TRY(problem.Enter(at.batch_row, at.head));
    const Row row = problem.ForwardRow(at.batch_row, at.head, at.i);
    PutForward(out, row, n * shape.dim_v, n);
    if (!backward) continue;
    const RowGradient grad = problem.BackwardRow(row, at.batch_row, at.head, at.i);
    Put(out.dq, n * shape.dim_qk, grad.dq, grad.dq_bound);
  }
  return out;
}

}  // namespace tessera::check
