// The check of a whole run: every output, or chosen rows of those that are too large.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <tuple>

#include "base/try.h"
#include "check/expected.h"

namespace tessera {
namespace check {
namespace {

// The chosen rows of a [B,H,T,D] or [B,T,H,D] output, or of a [B,H,T] statistic, as one small tensor.
Tensor GatherRows(const Tensor& from, const Shape& shape, const std::vector<RowPlace>& rows, Layout layout) {
  const bool is_stat = from.shape.size() == 3;
  const int64_t dim = is_stat ? 1 : from.shape[3];
  std::vector<int64_t> out_shape = {static_cast<int64_t>(rows.size())};
  if (!is_stat) out_shape.push_back(dim);
  Tensor out = Tensor::Zeros(from.type, out_shape);
  const size_t row_bytes = static_cast<size_t>(dim * BytesOf(from.type));
  for (size_t n = 0; n < rows.size(); ++n) {
    const RowPlace& at = rows[n];
    const bool heads_first = is_stat || layout == Layout::kBhtd;
    const int64_t row = heads_first ? (at.batch_row * shape.num_q_heads + at.head) * shape.q_len + at.i
                                    : (at.batch_row * shape.q_len + at.i) * shape.num_q_heads + at.head;
    std::memcpy(out.bytes.data() + n * row_bytes, from.bytes.data() + static_cast<size_t>(row) * row_bytes, row_bytes);
  }
  return out;
}

// The first and last row of every head and batch row would be too many at scale: random rows, and the two corners.
std::vector<RowPlace> ChooseRows(const Shape& shape, int64_t count, uint64_t seed) {
  std::mt19937_64 rng(seed);
  const auto below = [&rng](int64_t n) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(n)); };
  std::vector<RowPlace> rows = {{0, 0, 0}, {shape.batch - 1, shape.num_q_heads - 1, shape.q_len - 1}};
  while (static_cast<int64_t>(rows.size()) < count) {
    rows.push_back({below(shape.batch), below(shape.num_q_heads), below(shape.q_len)});
  }
  // Sorted, so that each head's keys are converted once.
  std::sort(rows.begin(), rows.end(), [](const RowPlace& a, const RowPlace& b) {
    return std::tie(a.batch_row, a.head, a.i) < std::tie(b.batch_row, b.head, b.i);
  });
  return rows;
}

constexpr const char* kKnownOutputs[] = {"o", "lse", "max", "dq", "dk", "dv", "dsink_logits"};

void Judge(CheckReport& report, const TensorMap& outputs, const char* name, const ExpectedTensor& want) {
  const auto found = outputs.find(name);
  if (found != outputs.end()) report.outputs.push_back(Compare(name, found->second, want));
}

void Finish(CheckReport& report) {
  report.pass = !report.outputs.empty();
  for (const Comparison& item : report.outputs) {
    report.pass = report.pass && item.pass;
    report.text += item.text + "\n";
  }
  for (const std::string& name : report.unchecked) report.text += fmt::format("{}: not checked, too large\n", name);
}

Status CheckShapes(const Shape& shape, const TensorMap& outputs, Layout layout) {
  const auto full = [&](int64_t heads, int64_t len, int64_t dim) {
    return layout == Layout::kBhtd ? std::vector<int64_t>{shape.batch, heads, len, dim}
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

Result<CheckReport> CheckSampled(const Question& question, const TensorMap& outputs, const CheckOptions& options) {
  const Shape& shape = question.contract.shape;
  const int64_t fitting = kMaxPairs / std::max<int64_t>(shape.kv_len, 1);
  const std::vector<RowPlace> rows = ChooseRows(shape, std::min(options.sample_rows, fitting), options.sample_seed);
  const Expected want = TESSERA_TRY(ExpectRows(question, rows, options));
  CheckReport report;
  report.sampled = true;
  report.text = fmt::format("{} of {} rows checked\n", rows.size(), shape.batch * shape.num_q_heads * shape.q_len);
  TensorMap gathered;
  for (const char* name : {"o", "lse", "max", "dq"}) {
    const auto found = outputs.find(name);
    if (found != outputs.end()) gathered[name] = GatherRows(found->second, shape, rows, options.layout);
  }
  Judge(report, gathered, "o", want.o);
  Judge(report, gathered, "lse", want.lse);
  Judge(report, gathered, "max", want.max);
  Judge(report, gathered, "dq", want.dq);
  for (const char* name : {"dk", "dv", "dsink_logits"}) {
    if (outputs.count(name) != 0) report.unchecked.push_back(name);
  }
  Finish(report);
  return report;
}

Result<CheckReport> CheckWhole(const Question& question, const TensorMap& outputs, const CheckOptions& options) {
  const Expected want = TESSERA_TRY(Expect(question, options));
  CheckReport report;
  Judge(report, outputs, "o", want.o);
  Judge(report, outputs, "lse", want.lse);
  Judge(report, outputs, "max", want.max);
  if (question.backward) {
    Judge(report, outputs, "dq", want.dq);
    Judge(report, outputs, "dk", want.dk);
    Judge(report, outputs, "dv", want.dv);
    Judge(report, outputs, "dsink_logits", want.dsink);
  }
  Finish(report);
  return report;
}

}  // namespace
}  // namespace check

// A mask term of the caller's own may throw, and memory may run out.
Result<CheckReport> CheckOutputs(const Contract& contract, const Batch& batch, const TensorMap& inputs,
                                 const TensorMap& outputs, const CheckOptions& options) try {
  const Shape& shape = contract.shape;
  TESSERA_TRY(check::CheckShapes(shape, outputs, options.layout));
  const bool backward = outputs.count("dq") + outputs.count("dk") + outputs.count("dv") > 0;
  const check::Question question{.contract = contract, .batch = batch, .inputs = inputs, .backward = backward};
  // In floating point: the product of valid extents can exceed 64 bits.
  const double pairs = static_cast<double>(shape.q_len) * static_cast<double>(shape.kv_len);
  const double work = pairs * static_cast<double>(shape.batch * shape.num_q_heads) *
                      static_cast<double>(shape.dim_qk + shape.dim_v) * (backward ? 3.0 : 1.0);
  const bool is_large = work > static_cast<double>(options.max_work) || pairs > static_cast<double>(check::kMaxPairs);
  return is_large ? check::CheckSampled(question, outputs, options) : check::CheckWhole(question, outputs, options);
} catch (const std::exception& error) {
  return Fail(ErrorCode::kTooLarge, fmt::format("the check could not be made: {}", error.what()), "check");
}

}  // namespace tessera
