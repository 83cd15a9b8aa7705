// Forward and backward of a decoder. Each part's backward stands beside its forward; what a backward needs again is
// kept in a struct of that part.
#include "model/definition.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/try.h"
#include "lanes/xla/stablehlo/tiles.h"
#include "model/barriers.h"
#include "model/contracts.h"
#include "model/names.h"

namespace tessera::model {
namespace {

using stablehlo::Compare;
using stablehlo::Element;
using stablehlo::Reduction;
using stablehlo::Type;
using stablehlo::Values;

class Definition {
 public:
  Definition(const Layout& layout, const AttentionSubstitute& attention, int64_t barrier_every, const LayerOps& layer,
             Builder& b)
      : s_(layout.own),
        attention_(attention),
        layer_(layer),
        b_(b),
        tokens_(s_.rows * s_.row_tokens),
        heads_(s_.num_q_heads + 2 * s_.num_kv_heads),
        element_(stablehlo::ElementOf(s_.dtype)),
        columns_(layout.Groups({kModelAxis})),
        tokens_of_all_(layout.Groups({kDataAxis, kContextAxis})),
        barriers_(BarriersAfter(s_.layers, barrier_every)) {
    const std::vector<std::string> distinct = DistinctMasks(s_);
    for (const std::string& mask : s_.masks) {
      mask_of_.push_back(static_cast<size_t>(std::find(distinct.begin(), distinct.end(), mask) - distinct.begin()));
    }
  }

  // The sum of nats.
  Value Forward() {
    rotations_ = b_.TakeRows(b_.Input(kRotations), Flat(kPositions));
    Value x = Embed();
    for (int64_t layer = 0; layer < s_.layers; ++layer) {
      layers_.emplace_back();
      x = Cut(layer + 1, Layer(layer, x, layers_.back()));
    }
    return Loss(x);
  }

  // Of the sum of nats, by parameter; over a mesh, of all tokens.
  std::map<std::string, Value> Backward() {
    Value dx = LossBack();
    for (int64_t layer = s_.layers; layer-- > 0;) {
      dx = Cut(layer, LayerBack(layer, dx, layers_[static_cast<size_t>(layer)]));
    }
    EmbedBack(dx);
    for (auto& [name, gradient] : gradients_) gradient = SumOver(tokens_of_all_, gradient);
    return std::move(gradients_);
  }

 private:
  // What goes from the first `layers` to the others, or its gradient the other way.
  Value Cut(int64_t layers, const Value& x) {
    const bool is_cut = std::find(barriers_.begin(), barriers_.end(), layers) != barriers_.end();
    return is_cut ? b_.Barrier(x) : x;
  }
  Value F32(double value) { return b_.Constant({Element::kF32, {}}, value); }
  Value SumOver(const stablehlo::DeviceGroups& groups, const Value& x) {
    return groups.empty() ? x : b_.Sum(x, groups);
  }
  // An operand of every token, one after the other.
  Value Flat(std::string_view name) { return b_.Reshape(b_.Input(name), {tokens_}); }
  // A product in the model's dtype, summed in f32.
  Value Product(const Value& a, const Value& b, stablehlo::Contract2 axes = {}) {
    return b_.Dot(b_.Convert(a, element_), b_.Convert(b, element_), axes);
  }
  // y = x w gives dx = dy w^T and dw = x^T dy.
  Value Through(const Value& dy, const Value& w) { return Product(dy, w, {1, 1}); }
  void Gradient(const std::string& name, const Value& value) { gradients_[name] = value; }
  void GradientOfProduct(const std::string& name, const Value& x, const Value& dy) {
    Gradient(name, Product(x, dy, {0, 0}));
  }
  // The same of a layer's own matrices, for which something else may stand.
  Value LinearProduct(LayerKey key, const std::string& weight, const Values& operands, stablehlo::Contract2 axes = {}) {
    if (!layer_.Calls(key) || !MaySubstitute(weight)) return Product(operands[0], operands[1], axes);
    return CallProduct(b_, layer_, {b_.Convert(operands[0], element_), b_.Convert(operands[1], element_)}, axes);
  }
  Value Linear(LayerKey key, const std::string& weight, const Value& x) {
    return LinearProduct(key, weight, {x, b_.Input(weight)});
  }
  // The gradient of the matrix is kept, and that of x given.
  Value LinearBack(LayerKey key, const std::string& weight, const Value& x, const Value& dy) {
    Gradient(weight, LinearProduct(key, weight, {x, dy}, {0, 0}));
    return LinearProduct(key, weight, {dy, b_.Input(weight)}, {1, 1});
  }
  Value Columns(const Value& x, int64_t begin, int64_t end) {
    const int64_t from[] = {0, begin};
    const int64_t to[] = {x.type.dims[0], end};
    return b_.Slice(x, from, to);
  }
  // One number for each row, beside every column of x.
  Value Beside(const Value& per_row, const Value& x) { return b_.Spread(per_row, x.type.dims, {0}); }
  Value Across(const Value& per_column, const Value& x) { return b_.Spread(per_column, x.type.dims, {1}); }
  Value Sigmoid(const Value& x) { return b_.Unary("logistic", x); }

  // ---- embeddings

  Value Embed() {
    const Value x = b_.TakeRows(b_.Input(kEmbedding), Flat(kInputIds));
    if (!s_.structure) return x;
    Value sum;
    for (size_t i = 0; i < kStructureParts.size(); ++i) {
      StructureRows& rows = structure_[i];
      const Value ids = Flat(StructureInput(i));
      rows.ids = b_.Max(b_.Min(ids, b_.Int(kStructureParts[i].ids - 1)), b_.Int(0));
      rows.is_there = b_.Convert(b_.Is(Compare::kGe, ids, b_.Int(0)), Element::kF32);
      const Value taken = b_.TakeRows(b_.Input(kStructureParts[i].name), rows.ids);
      const Value part = b_.Mul(taken, Beside(rows.is_there, taken));
      sum = i == 0 ? part : b_.Add(sum, part);
    }
    structure_sum_ = sum;
    return b_.Add(x, Product(sum, b_.Input(kStructureOut)));
  }

  void EmbedBack(const Value& dx) {
    Gradient(std::string(kEmbedding), b_.SumRows(dx, Flat(kInputIds), s_.PaddedVocab()));
    if (!s_.structure) return;
    GradientOfProduct(std::string(kStructureOut), structure_sum_, dx);
    const Value dsum = Through(dx, b_.Input(kStructureOut));
    for (size_t i = 0; i < kStructureParts.size(); ++i) {
      const Value part = b_.Mul(dsum, Beside(structure_[i].is_there, dsum));
      Gradient(std::string(kStructureParts[i].name), b_.SumRows(part, structure_[i].ids, kStructureParts[i].ids));
    }
  }

  // ---- norms

  struct Norm {
    Value x, scale, y;  // scale: one over the root mean square of each row
  };
  Norm Normalise(const Value& x, const std::string& weight) {
    if (layer_.Calls(LayerKey::kNorm)) {
      const CalledNorm called = CallNorm(b_, layer_, {x, b_.Input(weight)}, s_.norm_eps);
      return {x, called.scale, called.y};
    }
    const Value mean = b_.Div(b_.Reduce(Reduction::kAdd, b_.Mul(x, x), {1}), F32(static_cast<double>(s_.width)));
    const Value scale = b_.Unary("rsqrt", b_.Add(mean, F32(s_.norm_eps)));
    return {x, scale, b_.Mul(b_.Mul(x, Beside(scale, x)), Across(b_.Input(weight), x))};
  }
  Value NormaliseBack(const Value& dy, const Norm& norm, const std::string& weight) {
    if (layer_.Calls(LayerKey::kNorm)) {
      const Values called = CallNormBack(b_, layer_, {dy, norm.x, norm.scale, b_.Input(weight)});
      Gradient(weight, called[1]);
      return called[0];
    }
    const Value x_hat = b_.Mul(norm.x, Beside(norm.scale, norm.x));
    Gradient(weight, b_.Reduce(Reduction::kAdd, b_.Mul(dy, x_hat), {0}));
    const Value dx_hat = b_.Mul(dy, Across(b_.Input(weight), dy));
    const Value mean =
        b_.Div(b_.Reduce(Reduction::kAdd, b_.Mul(dx_hat, x_hat), {1}), F32(static_cast<double>(s_.width)));
    return b_.Mul(b_.Sub(dx_hat, b_.Mul(x_hat, Beside(mean, x_hat))), Beside(norm.scale, dx_hat));
  }

  // ---- attention

  // Queries and keys turned by their position; the inverse turns gradients back. Values pass as they are. The two
  // halves of a head's dims turn together: (a, b) becomes (a cos - b sin, b cos + a sin).
  Value Rotate(const Value& x, bool inverse) {
    const std::vector<int64_t> dims = {tokens_, heads_, 2, s_.head_dim / 2};
    const Value halves = b_.Reshape(x, dims);
    const auto table = [&](int64_t first) {
      const Value rows = Columns(rotations_, first, first + s_.head_dim);
      return b_.Spread(b_.Reshape(rows, {tokens_, 2, s_.head_dim / 2}), dims, {0, 2, 3});
    };
    const Value straight = b_.Mul(halves, table(0));
    const Value crossed = b_.Mul(b_.Reverse(halves, 2), table(s_.head_dim));
    const Value turned = inverse ? b_.Sub(straight, crossed) : b_.Add(straight, crossed);
    const Value is_value =
        b_.Is(Compare::kGe, b_.Iota({Element::kI32, dims}, 1), b_.Int(s_.num_q_heads + s_.num_kv_heads));
    return b_.Select(is_value, halves, turned);
  }

  struct Mlp {
    Norm norm;
    Value in, activated;  // [N, 2 * mlp], [N, mlp]
  };
  struct LayerValues {
    Norm attention_norm;
    AttentionInputs inputs;
    Attended attended;
    Value gate, gated;  // [N, q dims]
    Value middle;       // what the MLP's norm takes
    Mlp mlp;            // empty where it is made again
  };

  Value Layer(int64_t layer, const Value& x, LayerValues& v) {
    const auto name = [&](std::string_view what) { return LayerName(layer, what); };
    v.attention_norm = Normalise(x, name("attention_norm"));
    const Value qkv = Linear(LayerKey::kLinearQkv, name("qkv"), v.attention_norm.y);
    const Value turned = b_.Reshape(Rotate(qkv, false), {s_.rows, s_.row_tokens, heads_, s_.head_dim});
    v.inputs.mask = mask_of_[static_cast<size_t>(layer) % mask_of_.size()];
    v.inputs.qkv = b_.Convert(turned, element_);
    if (s_.sink_logits) v.inputs.sink_logits = b_.Input(name("sink_logits"));
    v.attended = attention_.Forward(b_, v.inputs);
    v.gated = b_.Reshape(v.attended.o, {tokens_, s_.num_q_heads * s_.head_dim});
    if (s_.output_gate) {
      v.gate = Sigmoid(Product(v.attention_norm.y, b_.Input(name("gate"))));
      v.gated = b_.Mul(v.gated, v.gate);
    }
    v.middle = b_.Add(x, SumOver(columns_, Linear(LayerKey::kLinearProj, name("proj"), v.gated)));
    Mlp mlp = MlpForward(layer, v.middle);
    const Value out = Linear(LayerKey::kLinearFc2, name("fc2"), mlp.activated);
    if (!layer_.is_mlp_recomputed) v.mlp = std::move(mlp);
    return b_.Add(v.middle, SumOver(columns_, out));
  }

  Mlp MlpForward(int64_t layer, const Value& middle) {
    Mlp mlp;
    mlp.norm = Normalise(middle, LayerName(layer, "mlp_norm"));
    mlp.in = Linear(LayerKey::kLinearFc1, LayerName(layer, "fc1"), mlp.norm.y);
    const Value gate = MlpGate(mlp);
    mlp.activated = b_.Mul(b_.Mul(gate, Sigmoid(gate)), MlpUp(mlp));
    return mlp;
  }
  // Also what a forward made that kept nothing: made again of its input, which is given a zero of the gradient, so that
  // it is made when the gradient is there and no compiler takes it for what was made before. (Barriers some compilers
  // drop before they look for what is the same.)
  Mlp KeptMlp(int64_t layer, const LayerValues& v, const Value& dx) {
    if (!layer_.is_mlp_recomputed) return v.mlp;
    const int64_t begin[] = {0, 0};
    const int64_t end[] = {1, 1};
    const Value zero = b_.Mul(b_.Reshape(b_.Slice(dx, begin, end), {}), F32(0.0));
    return MlpForward(layer, b_.Add(v.middle, zero));
  }
  Value MlpGate(const Mlp& mlp) { return Columns(mlp.in, 0, s_.mlp_width); }
  Value MlpUp(const Mlp& mlp) { return Columns(mlp.in, s_.mlp_width, 2 * s_.mlp_width); }

  Value LayerBack(int64_t layer, const Value& dx, const LayerValues& v) {
    const auto name = [&](std::string_view what) { return LayerName(layer, what); };
    const Mlp mlp = KeptMlp(layer, v, dx);
    const Value dactivated = LinearBack(LayerKey::kLinearFc2, name("fc2"), mlp.activated, dx);
    const Value gate = MlpGate(mlp);
    const Value sigmoid = Sigmoid(gate);
    const Value dup = b_.Mul(dactivated, b_.Mul(gate, sigmoid));
    // The slope of x sigmoid(x).
    const Value slope = b_.Mul(sigmoid, b_.Add(F32(1.0), b_.Mul(gate, b_.Sub(F32(1.0), sigmoid))));
    const Value dgate = b_.Mul(b_.Mul(dactivated, MlpUp(mlp)), slope);
    const Value dmlp_in = b_.Concatenate({dgate, dup}, 1);
    const Value dmlp_norm = SumOver(columns_, LinearBack(LayerKey::kLinearFc1, name("fc1"), mlp.norm.y, dmlp_in));
    const Value dmiddle = b_.Add(dx, NormaliseBack(dmlp_norm, mlp.norm, name("mlp_norm")));

    const Value dgated = LinearBack(LayerKey::kLinearProj, name("proj"), v.gated, dmiddle);
    const Value o = b_.Reshape(v.attended.o, dgated.type.dims);
    const Value dout = s_.output_gate ? b_.Mul(dgated, v.gate) : dgated;
    const AttentionGradients back =
        attention_.Backward(b_, v.inputs, v.attended, b_.Reshape(dout, v.attended.o.type.dims));
    if (s_.sink_logits) Gradient(name("sink_logits"), back.sink_logits);
    const Value dqkv = b_.Reshape(Rotate(b_.Reshape(back.qkv, {tokens_, heads_ * s_.head_dim}), true),
                                  {tokens_, heads_ * s_.head_dim});
    Value dnorm = LinearBack(LayerKey::kLinearQkv, name("qkv"), v.attention_norm.y, dqkv);
    if (s_.output_gate) {
      const Value dopen = b_.Mul(b_.Mul(dgated, o), b_.Mul(v.gate, b_.Sub(F32(1.0), v.gate)));
      GradientOfProduct(name("gate"), v.attention_norm.y, dopen);
      dnorm = b_.Add(dnorm, Through(dopen, b_.Input(name("gate"))));
    }
    dnorm = SumOver(columns_, dnorm);
    return b_.Add(dmiddle, NormaliseBack(dnorm, v.attention_norm, name("attention_norm")));
  }

  // ---- the loss

  // Logits beyond the vocabulary, which only make the table's rows a round number, are cut off.
  Value Loss(const Value& x) {
    final_norm_ = Normalise(x, std::string(kFinalNorm));
    const Value raw = Product(final_norm_.y, b_.Input(kHead));
    logits_ = raw;
    if (s_.final_softcap > 0) {
      capped_ = b_.Tanh(b_.Div(raw, F32(s_.final_softcap)));
      logits_ = b_.Mul(capped_, F32(s_.final_softcap));
    }
    const Value column = b_.Iota({Element::kI32, raw.type.dims}, 1);
    if (s_.PaddedVocab() != s_.vocab) {
      logits_ = b_.Select(b_.Is(Compare::kLt, column, b_.Int(s_.vocab)), logits_, F32(-INFINITY));
    }
    is_target_ = b_.Is(Compare::kEq, column, Beside(Flat(kTargetIds), column));
    const Value max = b_.Reduce(Reduction::kMax, logits_, {1});
    const Value sum = b_.Reduce(Reduction::kAdd, b_.Exp(b_.Sub(logits_, Beside(max, logits_))), {1});
    lse_ = b_.Add(max, b_.Log(sum));
    const Value target = b_.Reduce(Reduction::kAdd, b_.Select(is_target_, logits_, F32(0.0)), {1});
    // A token that is not trained counts nothing, whatever its logits are.
    const Value mask = Flat(kLossMask);
    const Value nats = b_.Select(b_.Is(Compare::kGt, mask, F32(0.0)), b_.Sub(lse_, target), F32(0.0));
    const Value by_row = b_.Reduce(Reduction::kAdd, b_.Reshape(nats, {s_.rows, s_.row_tokens}), {1});
    return b_.Reduce(Reduction::kAdd, by_row, {0});
  }

  Value LossBack() {
    const Value chance = b_.Exp(b_.Sub(logits_, Beside(lse_, logits_)));
    Value dlogits = b_.Sub(chance, b_.Convert(is_target_, Element::kF32));
    if (s_.final_softcap > 0) dlogits = b_.Mul(dlogits, b_.Sub(F32(1.0), b_.Mul(capped_, capped_)));
    const Value is_trained = b_.Is(Compare::kGt, Flat(kLossMask), F32(0.0));
    dlogits = b_.Select(b_.Spread(is_trained, dlogits.type.dims, {0}), dlogits, F32(0.0));
    GradientOfProduct(std::string(kHead), final_norm_.y, dlogits);
    return NormaliseBack(Through(dlogits, b_.Input(kHead)), final_norm_, std::string(kFinalNorm));
  }

  const ModelSpec& s_;
  const AttentionSubstitute& attention_;
  const LayerOps& layer_;
  Builder& b_;
  const int64_t tokens_;
  const int64_t heads_;
  const Element element_;
  const stablehlo::DeviceGroups columns_;        // devices with other heads and columns of the same tokens
  const stablehlo::DeviceGroups tokens_of_all_;  // devices with the same parameters and other tokens
  const std::vector<int64_t> barriers_;
  std::vector<size_t> mask_of_;
  Value rotations_;
  struct StructureRows {
    Value ids, is_there;
  };
  std::array<StructureRows, kStructureParts.size()> structure_;
  Value structure_sum_;
  std::vector<LayerValues> layers_;
  Norm final_norm_;
  Value logits_, capped_, is_target_, lse_;
  std::map<std::string, Value> gradients_;
};

void Append(std::vector<NamedType>& to, const std::vector<NamedType>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

std::vector<NamedType> ParameterTypes(const ModelSpec& spec, std::string (*name)(const std::string&)) {
  std::vector<NamedType> types;
  for (const ParameterInfo& info : ParametersOf(spec)) types.push_back({name(info.name), {Element::kF32, info.dims}});
  return types;
}
std::string Own(const std::string& name) { return name; }

// A device tells its own share, and who adds them up sees that none is missing.
Value LossOf(Builder& b, const Layout& layout, const Value& loss) { return layout.mesh ? b.Reshape(loss, {1}) : loss; }

// The rotations are of every place that a document may have, whoever has the tokens.
std::vector<NamedType> RowInputsOf(const Layout& layout) {
  std::vector<NamedType> inputs = RowInputs(layout.own);
  inputs.back().type.dims[0] = layout.whole.row_tokens;
  return inputs;
}

}  // namespace

std::string ModuleNameOf(const Layout& layout, std::string_view pass) {
  ModelSpec spec = layout.whole;
  spec.masks.clear();
  return fmt::format("model_{}_{}", pass, Digest(spec));
}

std::string StructureInput(size_t part) { return fmt::format("structure_{}", part); }
std::string GradientName(const std::string& parameter) { return "g." + parameter; }
std::string FirstMoment(const std::string& parameter) { return "m." + parameter; }
std::string SecondMoment(const std::string& parameter) { return "v." + parameter; }

std::vector<float> Rotations(const ModelSpec& spec) {
  const auto half = static_cast<size_t>(spec.head_dim / 2);
  std::vector<float> table(static_cast<size_t>(spec.row_tokens) * 4 * half);
  for (size_t t = 0; t < static_cast<size_t>(spec.row_tokens); ++t) {
    float* row = table.data() + t * 4 * half;
    for (size_t i = 0; i < half; ++i) {
      const double turn =
          static_cast<double>(t) * std::pow(spec.rope_base, -static_cast<double>(i) / static_cast<double>(half));
      row[i] = row[half + i] = static_cast<float>(std::cos(turn));
      row[2 * half + i] = static_cast<float>(-std::sin(turn));
      row[3 * half + i] = static_cast<float>(std::sin(turn));
    }
  }
  return table;
}

std::vector<NamedType> RowInputs(const ModelSpec& spec) {
  const Type ids{Element::kI32, {spec.rows, spec.row_tokens}};
  std::vector<NamedType> inputs = {{std::string(kInputIds), ids},
                                   {std::string(kTargetIds), ids},
                                   {std::string(kLossMask), {Element::kF32, ids.dims}},
                                   {std::string(kPositions), ids}};
  for (size_t i = 0; spec.structure && i < kStructureParts.size(); ++i) inputs.push_back({StructureInput(i), ids});
  inputs.push_back({std::string(kRotations), {Element::kF32, {spec.row_tokens, 2 * spec.head_dim}}});
  return inputs;
}

Result<stablehlo::Program> LowerGradients(const Layout& layout, const AttentionSubstitute& attention,
                                          int64_t barrier_every, const LayerOps& layer) {
  std::vector<NamedType> inputs = ParameterTypes(layout.own, Own);
  const std::vector<NamedType> gradients = ParameterTypes(layout.own, GradientName);
  Append(inputs, gradients);
  inputs.push_back({std::string(kKeep), {Element::kI32, {}}});
  Append(inputs, RowInputsOf(layout));
  Append(inputs, attention.Inputs(true));
  const std::string name = ModuleNameOf(layout, "gradients");
  Builder b(name, {}, inputs);
  TESSERA_TRY(attention.Begin(b, true));
  Definition definition(layout, attention, barrier_every, layer, b);
  const Value loss = LossOf(b, layout, definition.Forward());
  const std::map<std::string, Value> made = definition.Backward();
  const Value is_kept = b.Is(Compare::kNe, b.Input(kKeep), b.Int(0));
  Values outputs;
  std::vector<NamedType> named = gradients;
  for (const ParameterInfo& info : ParametersOf(layout.own)) {
    const std::string gradient = GradientName(info.name);
    const Value before = b.Select(is_kept, b.Input(gradient), b.Constant({Element::kF32, info.dims}, 0.0));
    b.Donate(gradient, static_cast<int64_t>(outputs.size()));
    outputs.push_back(b.Add(before, made.at(info.name)));
  }
  outputs.push_back(loss);
  named.push_back({std::string(kLoss), loss.type});
  return FinishProgram(b, layout, {name, std::move(inputs), std::move(named)}, outputs);
}

Result<stablehlo::Program> LowerEvaluate(const Layout& layout, const AttentionSubstitute& attention,
                                         int64_t barrier_every, const LayerOps& layer) {
  std::vector<NamedType> inputs = ParameterTypes(layout.own, Own);
  Append(inputs, RowInputsOf(layout));
  Append(inputs, attention.Inputs(false));
  const std::string name = ModuleNameOf(layout, "evaluate");
  Builder b(name, {}, inputs);
  TESSERA_TRY(attention.Begin(b, false));
  Definition definition(layout, attention, barrier_every, layer, b);
  const Value loss = LossOf(b, layout, definition.Forward());
  return FinishProgram(b, layout, {name, std::move(inputs), {{std::string(kLoss), loss.type}}}, {loss});
}

}  // namespace tessera::model
