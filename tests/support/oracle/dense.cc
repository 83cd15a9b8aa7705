// Attention as a textbook has it: the whole matrix of scores of a head, softmax along its rows, and its gradients.
#include <algorithm>
#include <cmath>
#include <limits>

#include "oracle/oracle.h"

namespace tessera {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

OracleTensor Zeros(std::vector<int64_t> shape) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return {std::move(shape), std::vector<double>(static_cast<size_t>(count), 0.0)};
}

// One head's rows of a [B,H,T,D] input.
struct Rows {
  const double* data = nullptr;
  int64_t dim = 0;
  const double* operator[](int64_t t) const { return data + t * dim; }
};

double Dot(const double* a, const double* b, int64_t n) {
  double sum = 0.0;
  for (int64_t d = 0; d < n; ++d) sum += a[d] * b[d];
  return sum;
}

// The inputs as doubles, and the sizes they must have.
struct Inputs {
  std::vector<double> q, k, v, dout, sinks;
};

Status Read(const TensorMap& inputs, const char* name, const std::vector<int64_t>& shape, std::vector<double>& to) {
  const auto found = inputs.find(name);
  if (found == inputs.end()) return Fail(ErrorCode::kTensorMismatch, "the input is missing", name);
  const Tensor& tensor = found->second;
  if (tensor.shape != shape) return Fail(ErrorCode::kTensorMismatch, "the input has another shape", name);
  for (int64_t i = 0; i < tensor.NumElements(); ++i) to.push_back(tensor.At(i));
  return {};
}

Result<Inputs> ReadInputs(const Contract& contract, const TensorMap& tensors, bool backward) {
  const Shape& s = contract.shape;
  Inputs in;
  if (auto ok = Read(tensors, "q", {s.batch, s.num_q_heads, s.q_len, s.dim_qk}, in.q); !ok) {
    return tl::unexpected(ok.error());
  }
  if (auto ok = Read(tensors, "k", {s.batch, s.num_kv_heads, s.kv_len, s.dim_qk}, in.k); !ok) {
    return tl::unexpected(ok.error());
  }
  if (auto ok = Read(tensors, "v", {s.batch, s.num_kv_heads, s.kv_len, s.dim_v}, in.v); !ok) {
    return tl::unexpected(ok.error());
  }
  if (backward) {
    if (auto ok = Read(tensors, "do", {s.batch, s.num_q_heads, s.q_len, s.dim_v}, in.dout); !ok) {
      return tl::unexpected(ok.error());
    }
  }
  if (contract.score.sink_logits) {
    if (auto ok = Read(tensors, "sink_logits", {s.num_q_heads}, in.sinks); !ok) return tl::unexpected(ok.error());
  }
  return in;
}

// One row of a head, over all keys: 0 where a key may not be seen.
struct DenseRow {
  bool is_empty = true;
  double max = -kInf;
  double lse = -kInf;
  double sink_p = 0.0;
  std::vector<double> p;
  std::vector<double> slope;  // d logit / d score
};

DenseRow Softmax(const Contract& contract, const uint8_t* mask, const double* q, const Rows& k, const double* sink) {
  const Score& score = contract.score;
  const int64_t kv_len = contract.shape.kv_len;
  DenseRow row;
  row.p.assign(static_cast<size_t>(kv_len), 0.0);
  row.slope.assign(static_cast<size_t>(kv_len), 0.0);
  std::vector<double> logits(static_cast<size_t>(kv_len), -kInf);
  bool has_nan = false;
  for (int64_t j = 0; j < kv_len; ++j) {
    if (mask[j] == 0) continue;
    const size_t at = static_cast<size_t>(j);
    const double x = score.scale * Dot(q, k[j], k.dim);
    const double tanh = score.softcap > 0.0 ? std::tanh(x / score.softcap) : 0.0;
    logits[at] = score.softcap > 0.0 ? score.softcap * tanh : x;
    row.slope[at] = 1.0 - tanh * tanh;
    row.is_empty = false;
    row.max = std::max(row.max, logits[at]);
    has_nan = has_nan || std::isnan(logits[at]);
  }
  if (row.is_empty) return row;
  if (has_nan) row.max = std::numeric_limits<double>::quiet_NaN();
  double shift = row.max;
  if (sink != nullptr && !(*sink <= shift)) shift = std::isnan(shift) ? shift : *sink;
  double sum = sink != nullptr ? std::exp(*sink - shift) : 0.0;
  for (int64_t j = 0; j < kv_len; ++j) {
    if (mask[j] == 0) continue;
    row.p[static_cast<size_t>(j)] = std::exp(logits[static_cast<size_t>(j)] - shift);
    sum += row.p[static_cast<size_t>(j)];
  }
  for (double& p : row.p) p /= sum;
  row.sink_p = sink != nullptr ? std::exp(*sink - shift) / sum : 0.0;
  row.lse = shift + std::log(sum);
  return row;
}

void Backward(const Contract& contract, const uint8_t* mask, const DenseRow& row, const double* q, const double* dout,
              const Rows& k, const Rows& v, double* dq, double* dk, double* dv, double& dsink) {
  if (row.is_empty) return;
  const int64_t kv_len = contract.shape.kv_len;
  std::vector<double> dp(static_cast<size_t>(kv_len), 0.0);
  double delta = 0.0;
  for (int64_t j = 0; j < kv_len; ++j) {
    if (mask[j] == 0) continue;
    dp[static_cast<size_t>(j)] = Dot(dout, v[j], v.dim);
    delta += row.p[static_cast<size_t>(j)] * dp[static_cast<size_t>(j)];
  }
  dsink -= row.sink_p * delta;
  for (int64_t j = 0; j < kv_len; ++j) {
    if (mask[j] == 0) continue;
    const size_t at = static_cast<size_t>(j);
    const double dx = row.p[at] * (dp[at] - delta) * row.slope[at] * contract.score.scale;
    for (int64_t d = 0; d < k.dim; ++d) {
      dq[d] += dx * k[j][d];
      dk[j * k.dim + d] += dx * q[d];
    }
    for (int64_t d = 0; d < v.dim; ++d) dv[j * v.dim + d] += row.p[at] * dout[d];
  }
}

Result<OracleBackwardResult> Compute(const Contract& contract, const Batch& batch, const TensorMap& tensors,
                                     bool backward) {
  const Shape& s = contract.shape;
  OracleBackwardResult out;
  OracleForwardResult& forward = out.forward;
  // Its refusal of long lengths comes before anything is looked at.
  if (auto mask = DenseMask(contract, batch, 0, 0); !mask) return tl::unexpected(mask.error());
  auto in = ReadInputs(contract, tensors, backward);
  if (!in) return tl::unexpected(in.error());
  forward.o = Zeros({s.batch, s.num_q_heads, s.q_len, s.dim_v});
  forward.lse = Zeros({s.batch, s.num_q_heads, s.q_len});
  forward.max = forward.lse;
  if (backward) {
    out.dq = Zeros({s.batch, s.num_q_heads, s.q_len, s.dim_qk});
    out.dk = Zeros({s.batch, s.num_kv_heads, s.kv_len, s.dim_qk});
    out.dv = Zeros({s.batch, s.num_kv_heads, s.kv_len, s.dim_v});
    if (contract.score.sink_logits) out.dsink = Zeros({s.num_q_heads});
  }
  double no_sink = 0.0;
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < s.num_q_heads; ++h) {
      auto mask = DenseMask(contract, batch, b, h);
      if (!mask) return tl::unexpected(mask.error());
      const int64_t q_head = b * s.num_q_heads + h;
      const int64_t kv_row = (b * s.num_kv_heads + h / (s.num_q_heads / s.num_kv_heads)) * s.kv_len;
      const Rows k{in->k.data() + kv_row * s.dim_qk, s.dim_qk};
      const Rows v{in->v.data() + kv_row * s.dim_v, s.dim_v};
      const double* sink = in->sinks.empty() ? nullptr : &in->sinks[static_cast<size_t>(h)];
      for (int64_t i = 0; i < s.q_len; ++i) {
        const int64_t at = q_head * s.q_len + i;
        const double* q = in->q.data() + at * s.dim_qk;
        const uint8_t* cells = mask->data() + i * s.kv_len;
        const DenseRow row = Softmax(contract, cells, q, k, sink);
        forward.lse.value[static_cast<size_t>(at)] = row.lse;
        forward.max.value[static_cast<size_t>(at)] = row.max;
        for (int64_t j = 0; j < s.kv_len; ++j) {
          for (int64_t d = 0; cells[j] != 0 && d < s.dim_v; ++d) {
            forward.o.value[static_cast<size_t>(at * s.dim_v + d)] += row.p[static_cast<size_t>(j)] * v[j][d];
          }
        }
        if (!backward) continue;
        Backward(contract, cells, row, q, in->dout.data() + at * s.dim_v, k, v, out.dq.value.data() + at * s.dim_qk,
                 out.dk.value.data() + kv_row * s.dim_qk, out.dv.value.data() + kv_row * s.dim_v,
                 sink == nullptr ? no_sink : out.dsink.value[static_cast<size_t>(h)]);
      }
    }
  }
  return out;
}

}  // namespace

Result<OracleForwardResult> OracleForward(const Contract& contract, const Batch& batch, const TensorMap& inputs) {
  return Compute(contract, batch, inputs, false).map([](OracleBackwardResult out) { return std::move(out.forward); });
}

Result<OracleBackwardResult> OracleBackward(const Contract& contract, const Batch& batch, const TensorMap& inputs) {
  if (inputs.count("do") == 0) return Fail(ErrorCode::kTensorMismatch, "the input is missing", "do");
  return Compute(contract, batch, inputs, true);
}

}  // namespace tessera
