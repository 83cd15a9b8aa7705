// Dense attention: all scores of all heads as one tensor, masked element by element. Nobody runs it but benchmarks and
// tests, which hold the chunked programs against it on the same plugin.
#include <limits>

#include "lanes/xla/stablehlo/tiles.h"

namespace tessera::stablehlo {
namespace {

std::vector<NamedType> InputsOf(const DenseSpec& spec, bool is_step) {
  const Shape& s = spec.shape;
  const Element e = ElementOf(s.dtype);
  std::vector<NamedType> inputs = {{"q", {e, {s.batch, s.num_q_heads, s.q_len, s.dim_qk}}},
                                   {"k", {e, {s.batch, s.num_kv_heads, s.kv_len, s.dim_qk}}},
                                   {"v", {e, {s.batch, s.num_kv_heads, s.kv_len, s.dim_v}}},
                                   {"scale", {Element::kF32, {}}}};
  if (spec.has_window) inputs.push_back({"window_left", {Element::kI32, {}}});
  if (spec.has_documents) inputs.push_back({"documents", {Element::kI32, {s.batch, s.kv_len}}});
  if (is_step) inputs.push_back({"do", {e, {s.batch, s.num_q_heads, s.q_len, s.dim_v}}});
  return inputs;
}

class Dense {
 public:
  Dense(const DenseSpec& spec, bool is_step)
      : spec_(spec),
        s_(spec.shape),
        rows_(s_.num_q_heads / s_.num_kv_heads * s_.q_len),
        is_step_(is_step),
        name_(is_step ? "tessera_dense_step" : "tessera_dense_forward"),
        inputs_(InputsOf(spec, is_step)),
        b_(name_, {}, inputs_) {}

  Result<Program> Lower() {
    const Value q = ByKvHead("q");
    const Value& k = b_.Input("k");
    const Value& v = b_.Input("v");
    const Element e = v.type.element;
    const Value p = Probabilities(q, k);
    const Value o = b_.BatchDot(b_.Convert(p, e), v, {1, 0});
    Values outputs = {ByQueryHead(o)};
    std::vector<NamedType> named = {{"o", outputs[0].type}};
    if (is_step_) {
      const Value dout = ByKvHead("do");
      const Value delta = b_.Reduce(Reduction::kAdd, b_.Mul(o, b_.Convert(dout, Element::kF32)), {3});
      const Value dp = b_.BatchDot(dout, v, {1, 1});
      const Value slope = b_.Mul(b_.Mul(p, b_.Sub(dp, b_.Spread(delta, dp.type.dims, {0, 1, 2}))), b_.Input("scale"));
      const Value ds = b_.Convert(slope, e);
      outputs.push_back(ByQueryHead(b_.BatchDot(ds, k, {1, 0})));
      outputs.push_back(b_.BatchDot(ds, q, {0, 0}));
      outputs.push_back(b_.BatchDot(b_.Convert(p, e), dout, {0, 0}));
      for (const char* name : {"dq", "dk", "dv"}) named.push_back({name, outputs[named.size()].type});
    }
    return b_.Finish(outputs).map([&](std::string text) {
      return Program{name_, std::move(text), inputs_, std::move(named)};
    });
  }

 private:
  // Query heads that share a KV head stand below each other as rows of one matrix.
  Value ByKvHead(const char* input) {
    const Value& x = b_.Input(input);
    return b_.Reshape(x, {s_.batch, s_.num_kv_heads, rows_, x.type.dims[3]});
  }
  Value ByQueryHead(const Value& x) { return b_.Reshape(x, {s_.batch, s_.num_q_heads, s_.q_len, x.type.dims[3]}); }

  Value Probabilities(const Value& q, const Value& k) {
    Value logits = b_.Mul(b_.BatchDot(q, k, {1, 1}), b_.Input("scale"));
    const std::vector<int64_t> dims = logits.type.dims;
    if (spec_.is_causal || spec_.has_window || spec_.has_documents) {
      const double minus_infinity = -std::numeric_limits<double>::infinity();
      logits = b_.Select(Allowed(dims), logits, b_.Constant({Element::kF32, {}}, minus_infinity));
    }
    const Value max = b_.Reduce(Reduction::kMax, logits, {3});
    const Value weights = b_.Exp(b_.Sub(logits, b_.Spread(max, dims, {0, 1, 2})));
    const Value sum = b_.Reduce(Reduction::kAdd, weights, {3});
    return b_.Div(weights, b_.Spread(sum, dims, {0, 1, 2}));
  }

  // Tested where it is needed, so that XLA can fuse it into its user: no tensor of masks need exist.
  Value Allowed(const std::vector<int64_t>& dims) {
    const Type matrix{Element::kI32, {s_.q_len, s_.kv_len}};
    const Value row = b_.Iota(matrix, 0);
    const Value column = b_.Iota(matrix, 1);
    Value allowed = b_.Constant({Element::kI1, matrix.dims}, 1);
    if (spec_.is_causal) allowed = b_.Is(Compare::kLe, column, row);
    if (spec_.has_window) {
      allowed = b_.And(allowed, b_.Is(Compare::kGe, column, b_.Sub(row, b_.Input("window_left"))));
    }
    const std::vector<int64_t> by_batch = {s_.batch, s_.q_len, s_.kv_len};
    allowed = b_.Spread(allowed, by_batch, {1, 2});
    if (spec_.has_documents) {
      const Value& ids = b_.Input("documents");
      const Value same = b_.Is(Compare::kEq, b_.Spread(ids, by_batch, {0, 1}), b_.Spread(ids, by_batch, {0, 2}));
      allowed = b_.And(allowed, same);
    }
    const Value by_head = b_.Spread(
        allowed, {s_.batch, s_.num_kv_heads, s_.num_q_heads / s_.num_kv_heads, s_.q_len, s_.kv_len}, {0, 3, 4});
    return b_.Reshape(by_head, dims);
  }

  const DenseSpec& spec_;
  const Shape& s_;
  const int64_t rows_;
  const bool is_step_;
  const std::string name_;
  std::vector<NamedType> inputs_;
  Builder b_;
};

}  // namespace

Result<Program> LowerDenseForward(const DenseSpec& spec) { return Dense(spec, false).Lower(); }
Result<Program> LowerDenseStep(const DenseSpec& spec) { return Dense(spec, true).Lower(); }

}  // namespace tessera::stablehlo
