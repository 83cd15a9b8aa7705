// Dense attention: all scores of all heads as one tensor, masked element by element. Nobody runs it but benchmarks and
// tests, which hold the chunked programs against it on the same plugin.
#include <limits>

#include "lanes/xla/stablehlo/tiles.h"

namespace tessera::stablehlo {
namespace {

std::vector<NamedType> InputsOf(const DenseSpec& spec, DenseKind kind) {
  const Shape& s = spec.shape;
  const Element e = ElementOf(s.dtype);
  std::vector<NamedType> inputs = {{"q", {e, {s.batch, s.num_q_heads, s.q_len, s.dim_qk}}},
                                   {"k", {e, {s.batch, s.num_kv_heads, s.kv_len, s.dim_qk}}},
                                   {"v", {e, {s.batch, s.num_kv_heads, s.kv_len, s.dim_v}}},
                                   {"scale", {Element::kF32, {}}}};
  if (spec.has_window) inputs.push_back({"window_left", {Element::kI32, {}}});
  if (spec.has_documents) inputs.push_back({"documents", {Element::kI32, {s.batch, s.kv_len}}});
  if (kind != DenseKind::kForward) inputs.push_back({"do", {e, {s.batch, s.num_q_heads, s.q_len, s.dim_v}}});
  if (kind == DenseKind::kBackward) {
    for (const char* stat : {"lse", "delta"}) {
      inputs.push_back({stat, {Element::kF32, {s.batch, s.num_q_heads, s.q_len}}});
    }
  }
  return inputs;
}

const char* NameOf(DenseKind kind) {
  return kind == DenseKind::kForward    ? "tessera_dense_forward"
         : kind == DenseKind::kBackward ? "tessera_dense_backward"
                                        : "tessera_dense_step";
}

class Dense {
 public:
  Dense(const DenseSpec& spec, DenseKind kind)
      : spec_(spec),
        s_(spec.shape),
        rows_(s_.num_q_heads / s_.num_kv_heads * s_.q_len),
        kind_(kind),
        inputs_(InputsOf(spec, kind)),
        b_(NameOf(kind), {}, inputs_) {}

  Result<Program> Lower() {
    const Value q = ByKvHead("q");
    const Value& k = b_.Input("k");
    const Value& v = b_.Input("v");
    const Element e = v.type.element;
    const Value p = kind_ == DenseKind::kBackward ? WeightsAgain(q, k) : Probabilities(q, k);
    Value delta;
    if (kind_ == DenseKind::kBackward) {
      delta = StatByKvHead("delta");
    } else {
      const Value o = b_.BatchDot(b_.Convert(p, e), v, {1, 0});
      Add("o", ByQueryHead(o));
      if (kind_ == DenseKind::kStep) {
        delta = b_.Reduce(Reduction::kAdd, b_.Mul(o, b_.Convert(ByKvHead("do"), Element::kF32)), {3});
      }
    }
    if (kind_ != DenseKind::kForward) {
      const Value dout = ByKvHead("do");
      const Value dp = b_.BatchDot(dout, v, {1, 1});
      const Value slope = b_.Mul(b_.Mul(p, b_.Sub(dp, b_.Spread(delta, dp.type.dims, {0, 1, 2}))), b_.Input("scale"));
      const Value ds = b_.Convert(slope, e);
      Add("dq", ByQueryHead(b_.BatchDot(ds, k, {1, 0})));
      Add("dk", b_.BatchDot(ds, q, {0, 0}));
      Add("dv", b_.BatchDot(b_.Convert(p, e), dout, {0, 0}));
    }
    return b_.Finish(outputs_).map([&](std::string text) {
      return Program{NameOf(kind_), std::move(text), inputs_, named_};
    });
  }

 private:
  void Add(const char* name, const Value& output) {
    outputs_.push_back(output);
    named_.push_back({name, output.type});
  }

  // Query heads that share a KV head stand below each other as rows of one matrix.
  Value ByKvHead(const char* input) {
    const Value& x = b_.Input(input);
    return b_.Reshape(x, {s_.batch, s_.num_kv_heads, rows_, x.type.dims[3]});
  }
  Value ByQueryHead(const Value& x) { return b_.Reshape(x, {s_.batch, s_.num_q_heads, s_.q_len, x.type.dims[3]}); }

  Value StatByKvHead(const char* input) { return b_.Reshape(b_.Input(input), {s_.batch, s_.num_kv_heads, rows_}); }

  Value Logits(const Value& q, const Value& k) {
    Value logits = b_.Mul(b_.BatchDot(q, k, {1, 1}), b_.Input("scale"));
    if (spec_.is_causal || spec_.has_window || spec_.has_documents) {
      const Value allowed = Allowed(logits.type.dims);
      const Value none = b_.Constant({Element::kF32, {}}, -std::numeric_limits<double>::infinity());
      logits = b_.Select(allowed, logits, none);
    }
    return logits;
  }

  Value WeightsAgain(const Value& q, const Value& k) {
    const Value logits = Logits(q, k);
    return b_.Exp(b_.Sub(logits, b_.Spread(StatByKvHead("lse"), logits.type.dims, {0, 1, 2})));
  }

  Value Probabilities(const Value& q, const Value& k) {
    const Value logits = Logits(q, k);
    const std::vector<int64_t>& dims = logits.type.dims;
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
      const Value of_queries = b_.Spread(ids, by_batch, {0, 1});
      const Value same = b_.Is(Compare::kEq, of_queries, b_.Spread(ids, by_batch, {0, 2}));
      allowed = b_.And(allowed, same);
    }
    const Value by_head = b_.Spread(
        allowed, {s_.batch, s_.num_kv_heads, s_.num_q_heads / s_.num_kv_heads, s_.q_len, s_.kv_len}, {0, 3, 4});
    return b_.Reshape(by_head, dims);
  }

  const DenseSpec& spec_;
  const Shape& s_;
  const int64_t rows_;
  const DenseKind kind_;
  std::vector<NamedType> inputs_;
  Builder b_;
  Values outputs_;
  std::vector<NamedType> named_;
};

}  // namespace

Result<Program> LowerDense(const DenseSpec& spec, DenseKind kind) { return Dense(spec, kind).Lower(); }

}  // namespace tessera::stablehlo
