// The comparison itself, and the check of a whole run against the oracle.
#include "oracle/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <tuple>

namespace tessera {
namespace {

// "[b, h, t, d]" of a flat index.
std::string Position(int64_t index, const std::vector<int64_t>& shape) {
  std::vector<int64_t> at(shape.size());
  for (size_t axis = shape.size(); axis-- > 0;) {
    at[axis] = index % shape[axis];
    index /= shape[axis];
  }
  return fmt::format("[{}]", fmt::join(at, ", "));
}

// Error over tolerance: 0 is exact, above 1 fails. Anything that must be exact and is not gives infinity.
struct Judged {
  double error = 0.0;
  double tolerance = 0.0;
  double ratio = 0.0;
};

Judged Judge(double got, double want, double bound, const CastError& cast) {
  constexpr double kWrong = std::numeric_limits<double>::infinity();
  if (std::isnan(want) || std::isnan(got)) return {0.0, 0.0, std::isnan(want) && std::isnan(got) ? 0.0 : kWrong};
  if (want == got) return {};
  if (std::isinf(want)) return {0.0, 0.0, kWrong};
  if (std::isinf(got)) {
    // Right where a result within its tolerance is too large for the output's type.
    const double most = (got > 0.0 ? want : -want) + bound;
    return {0.0, bound, bound > 0.0 && most >= cast.overflow ? 0.0 : kWrong};
  }
  const double error = std::abs(got - want);
  if (bound == 0.0) return {error, 0.0, error == 0.0 ? 0.0 : kWrong};
  const double tolerance = bound + cast.Of(std::abs(want) + bound);  // what is cast may be that much larger
  if (!std::isfinite(tolerance)) return {error, tolerance, kWrong};
  return {error, tolerance, error / tolerance};
}

// The chosen rows of a [B,H,T,D] or [B,T,H,D] output, or of a [B,H,T] statistic, as one small tensor.
Tensor GatherRows(const Tensor& from, const Shape& shape, const std::vector<OracleRow>& rows, OracleLayout layout) {
  const bool is_stat = from.shape.size() == 3;
  const int64_t dim = is_stat ? 1 : from.shape[3];
  std::vector<int64_t> out_shape = {static_cast<int64_t>(rows.size())};
  if (!is_stat) out_shape.push_back(dim);
  Tensor out = Tensor::Zeros(from.type, out_shape);
  const size_t row_bytes = static_cast<size_t>(dim * BytesOf(from.type));
  for (size_t n = 0; n < rows.size(); ++n) {
    const OracleRow& at = rows[n];
    const bool heads_first = is_stat || layout == OracleLayout::kBhtd;
    const int64_t row = heads_first ? (at.batch_row * shape.num_q_heads + at.head) * shape.q_len + at.i
                                    : (at.batch_row * shape.q_len + at.i) * shape.num_q_heads + at.head;
    std::memcpy(out.bytes.data() + n * row_bytes, from.bytes.data() + static_cast<size_t>(row) * row_bytes, row_bytes);
  }
  return out;
}

// The first and last row of every head and batch row would be too many at scale: random rows, and the two corners.
std::vector<OracleRow> ChooseRows(const Shape& shape, int64_t count, uint64_t seed) {
  std::mt19937_64 rng(seed);
  const auto below = [&rng](int64_t n) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(n)); };
  std::vector<OracleRow> rows = {{0, 0, 0}, {shape.batch - 1, shape.num_q_heads - 1, shape.q_len - 1}};
  while (static_cast<int64_t>(rows.size()) < count) {
    rows.push_back({below(shape.batch), below(shape.num_q_heads), below(shape.q_len)});
  }
  // Sorted, so that the oracle converts each head's keys once.
  std::sort(rows.begin(), rows.end(), [](const OracleRow& a, const OracleRow& b) {
    return std::tie(a.batch_row, a.head, a.i) < std::tie(b.batch_row, b.head, b.i);
  });
  return rows;
}

constexpr const char* kKnownOutputs[] = {"o", "lse", "max", "dq", "dk", "dv", "dsink_logits"};

struct Expected {
  const char* name;
  const OracleTensor* tensor;
};

void Judge(CheckReport& report, const TensorMap& outputs, const Expected& expected) {
  const auto found = outputs.find(expected.name);
  if (found == outputs.end()) return;
  report.outputs.push_back(Compare(expected.name, found->second, *expected.tensor));
}

void Finish(CheckReport& report) {
  report.pass = !report.outputs.empty();
  for (const Comparison& item : report.outputs) {
    report.pass = report.pass && item.pass;
    report.text += item.text + "\n";
  }
  for (const std::string& name : report.unchecked) report.text += fmt::format("{}: not checked, too large\n", name);
}

Status CheckShapes(const Shape& shape, const TensorMap& outputs, OracleLayout layout) {
  const auto full = [&](int64_t heads, int64_t len, int64_t dim) {
    return layout == OracleLayout::kBhtd ? std::vector<int64_t>{shape.batch, heads, len, dim}
                                         : std::vector<int64_t>{shape.batch, len, heads, dim};
  };
  for (const char* name : kKnownOutputs) {
    const auto found = outputs.find(name);
    if (found == outputs.end()) continue;
    const std::string_view text = name;
    std::vector<int64_t> want = {shape.batch, shape.num_q_heads, shape.q_len};
    if (text == "o") want = full(shape.num_q_heads, shape.q_len, shape.dim_v);
    if (text == "dq") want = full(shape.num_q_heads, shape.q_len, shape.dim_qk);
    if (text == "dk") want = full(shape.num_kv_heads, shape.kv_len, shape.dim_qk);
    if (text == "dv") want = full(shape.num_kv_heads, shape.kv_len, shape.dim_v);
    if (text == "dsink_logits") want = {shape.num_q_heads};
    const Tensor& got = found->second;
    const bool sized = static_cast<int64_t>(got.bytes.size()) == got.NumElements() * BytesOf(got.type);
    if (got.shape != want || !sized) {
      return Fail(ErrorCode::kTensorMismatch,
                  fmt::format("the output is [{}], expected [{}]", fmt::join(got.shape, ", "), fmt::join(want, ", ")),
                  name);
    }
  }
  return {};
}

Result<CheckReport> CheckSampled(const Contract& contract, const Batch& batch, const TensorMap& inputs,
                                 const TensorMap& outputs, const CheckOptions& options) {
  const int64_t fitting = kOracleMaxPairs / std::max<int64_t>(contract.shape.kv_len, 1);
  const std::vector<OracleRow> rows =
      ChooseRows(contract.shape, std::min(options.sample_rows, fitting), options.sample_seed);
  auto want = OracleRows(contract, batch, inputs, rows, options.oracle);
  if (!want) return tl::unexpected(want.error());
  CheckReport report;
  report.sampled = true;
  report.text = fmt::format("{} of {} rows checked\n", rows.size(),
                            contract.shape.batch * contract.shape.num_q_heads * contract.shape.q_len);
  TensorMap gathered;
  for (const char* name : {"o", "lse", "max", "dq"}) {
    const auto found = outputs.find(name);
    if (found == outputs.end()) continue;
    gathered[name] = GatherRows(found->second, contract.shape, rows, options.oracle.layout);
  }
  Judge(report, gathered, {"o", &want->o});
  Judge(report, gathered, {"lse", &want->lse});
  Judge(report, gathered, {"max", &want->max});
  Judge(report, gathered, {"dq", &want->dq});
  for (const char* name : {"dk", "dv", "dsink_logits"}) {
    if (outputs.count(name) != 0) report.unchecked.push_back(name);
  }
  Finish(report);
  return report;
}

}  // namespace

Comparison Compare(std::string_view name, const Tensor& got, const OracleTensor& want) {
  Comparison result;
  result.name = name;
  if (got.shape != want.shape) {
    result.text = fmt::format("{}: FAIL shape [{}], expected [{}]", name, fmt::join(got.shape, ", "),
                              fmt::join(want.shape, ", "));
    return result;
  }
  const CastError cast = CastErrorOf(got.type);
  double worst_ratio = -1.0;
  int64_t failures = 0;
  for (int64_t i = 0; i < got.NumElements(); ++i) {
    const size_t at = static_cast<size_t>(i);
    const double value = got.At(i);
    const Judged judged = Judge(value, want.value[at], want.bound[at], cast);
    result.max_error = std::max(result.max_error, judged.error);
    if (judged.ratio > 1.0) ++failures;
    if (judged.ratio > worst_ratio) {
      worst_ratio = judged.ratio;
      result.worst = i;
      result.got = value;
      result.want = want.value[at];
      result.tolerance = judged.tolerance;
    }
  }
  result.pass = failures == 0;
  if (result.worst < 0) {
    result.text = fmt::format("{}: ok, no elements", name);
    return result;
  }
  const std::string place = Position(result.worst, want.shape);
  result.text = result.pass
                    ? fmt::format("{}: ok, max error {:.3g}, nearest its limit at {}: error {:.3g} of {:.3g} allowed",
                                  name, result.max_error, place, std::abs(result.got - result.want), result.tolerance)
                    : fmt::format("{}: FAIL in {} of {} elements, worst at {}: got {:.9g}, want {:.9g}, allowed {:.3g}",
                                  name, failures, got.NumElements(), place, result.got, result.want, result.tolerance);
  return result;
}

Result<CheckReport> CheckOutputs(const Contract& contract, const Batch& batch, const TensorMap& inputs,
                                 const TensorMap& outputs, const CheckOptions& options) {
  const Shape& shape = contract.shape;
  if (auto ok = CheckShapes(shape, outputs, options.oracle.layout); !ok) return tl::unexpected(ok.error());
  const bool backward = outputs.count("dq") + outputs.count("dk") + outputs.count("dv") > 0;
  if (backward && inputs.count("do") == 0) return Fail(ErrorCode::kTensorMismatch, "the input is missing", "do");
  // In floating point: the product of valid extents can exceed 64 bits.
  const double pairs = static_cast<double>(shape.q_len) * static_cast<double>(shape.kv_len);
  const double work = pairs * static_cast<double>(shape.batch * shape.num_q_heads) *
                      static_cast<double>(shape.dim_qk + shape.dim_v) * (backward ? 3.0 : 1.0);
  if (work > static_cast<double>(options.max_work) || pairs > static_cast<double>(kOracleMaxPairs)) {
    return CheckSampled(contract, batch, inputs, outputs, options);
  }
  CheckReport report;
  const auto judge_forward = [&](const OracleForwardResult& want) {
    Judge(report, outputs, {"o", &want.o});
    Judge(report, outputs, {"lse", &want.lse});
    Judge(report, outputs, {"max", &want.max});
  };
  if (!backward) {
    auto want = OracleForward(contract, batch, inputs, options.oracle);
    if (!want) return tl::unexpected(want.error());
    judge_forward(*want);
  } else {
    auto want = OracleBackward(contract, batch, inputs, options.oracle);
    if (!want) return tl::unexpected(want.error());
    judge_forward(want->forward);
    Judge(report, outputs, {"dq", &want->dq});
    Judge(report, outputs, {"dk", &want->dk});
    Judge(report, outputs, {"dv", &want->dv});
    Judge(report, outputs, {"dsink_logits", &want->dsink});
  }
  Finish(report);
  return report;
}

}  // namespace tessera
