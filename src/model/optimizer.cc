// AdamW: decay first, then moments. Everything that changes from step to step, and everything one may want to change
// between runs, is data. A gradient that is not finite leaves everything as it was.
#include <algorithm>

#include "base/try.h"
#include "model/definition.h"

namespace tessera::model {
namespace {

using stablehlo::Compare;
using stablehlo::Element;
using stablehlo::Reduction;
using stablehlo::Type;
using stablehlo::Values;

class Update {
 public:
  Update(Builder& b, const Layout& layout) : b_(b), layout_(layout) {}

  // The norm of all gradients together, of the mean loss. What a device has a part of is summed over those that have
  // the others; what all have is counted once.
  Value Norm(const std::vector<ParameterInfo>& parameters) {
    Value sum, of_parts;
    for (const ParameterInfo& info : parameters) {
      const Value gradient = b_.Mul(b_.Input(GradientName(info.name)), Scalar(UpdateScalar::kPerToken));
      std::vector<int64_t> axes;
      for (size_t axis = 0; axis < info.dims.size(); ++axis) axes.push_back(static_cast<int64_t>(axis));
      const Value squares = b_.Reduce(Reduction::kAdd, b_.Mul(gradient, gradient), axes);
      Value& to = IsCut(info.name) ? of_parts : sum;
      to = to.name.empty() ? squares : b_.Add(to, squares);
    }
    if (!of_parts.name.empty()) sum = b_.Add(sum, b_.Sum(of_parts, layout_.Groups({kModelAxis})));
    norm_ = b_.Unary("sqrt", sum);
    is_good_ = b_.IsFinite(norm_);
    // Only a norm that is too large is divided by: one of zero never is.
    const Value clip = Scalar(UpdateScalar::kClipNorm);
    const Value is_clipped = b_.And(b_.Is(Compare::kGt, clip, F32(0.0)), b_.Is(Compare::kGt, norm_, clip));
    const Value shrink = b_.Select(is_clipped, b_.Div(clip, norm_), F32(1.0));
    factor_ = b_.Mul(Scalar(UpdateScalar::kPerToken), shrink);
    return norm_;
  }

  struct Moved {
    Value parameter, first, second;
  };
  Moved Move(const ParameterInfo& info) {
    const Value gradient = b_.Mul(b_.Input(GradientName(info.name)), factor_);
    const Value before = b_.Input(info.name);
    const Value first_before = b_.Input(FirstMoment(info.name));
    const Value second_before = b_.Input(SecondMoment(info.name));
    const Value kept = info.has_decay ? b_.Mul(before, Scalar(UpdateScalar::kKept)) : before;
    const Value first = Blend(first_before, gradient, Scalar(UpdateScalar::kBeta1));
    const Value second = Blend(second_before, b_.Mul(gradient, gradient), Scalar(UpdateScalar::kBeta2));
    const Value root = b_.Div(b_.Unary("sqrt", second), Scalar(UpdateScalar::kSecondRoot));
    const Value step = b_.Div(b_.Mul(first, Scalar(UpdateScalar::kStepSize)), b_.Add(root, Scalar(UpdateScalar::kEps)));
    return {b_.Select(is_good_, b_.Sub(kept, step), before), b_.Select(is_good_, first, first_before),
            b_.Select(is_good_, second, second_before)};
  }

  Value IsTaken() { return b_.Convert(is_good_, Element::kI32); }

 private:
  bool IsCut(const std::string& parameter) const {
    const ShardRow* row = layout_.table ? layout_.table->Find(parameter) : nullptr;
    if (row == nullptr || layout_.SizeOf(kModelAxis) == 1) return false;
    return std::any_of(row->spec->begin(), row->spec->end(), [](const auto& axes) { return !axes.empty(); });
  }
  Value F32(double value) { return b_.Constant({Element::kF32, {}}, value); }
  Value Scalar(UpdateScalar which) {
    const auto at = static_cast<int64_t>(which);
    const int64_t begin[] = {at};
    const int64_t end[] = {at + 1};
    return b_.Reshape(b_.Slice(b_.Input(kScalars), begin, end), {});
  }
  Value Blend(const Value& before, const Value& now, const Value& beta) {
    return b_.Add(b_.Mul(before, beta), b_.Mul(now, b_.Sub(F32(1.0), beta)));
  }

  Builder& b_;
  const Layout& layout_;
  Value norm_, is_good_, factor_;
};

}  // namespace

Result<stablehlo::Program> LowerUpdate(const Layout& layout) {
  const std::vector<ParameterInfo> parameters = ParametersOf(layout.own);
  std::vector<NamedType> inputs;
  std::vector<NamedType> named;
  const auto add = [&](std::string (*name)(const std::string&), bool is_output) {
    for (const ParameterInfo& info : parameters) {
      inputs.push_back({name(info.name), {Element::kF32, info.dims}});
      if (is_output) named.push_back(inputs.back());
    }
  };
  add([](const std::string& name) { return name; }, true);
  add(FirstMoment, true);
  add(SecondMoment, true);
  add(GradientName, false);
  inputs.push_back({std::string(kScalars), {Element::kF32, {kNumScalars}}});
  const std::string name = ModuleNameOf(layout, "update");
  Builder b(name, {}, inputs);
  Update update(b, layout);
  const Value norm = update.Norm(parameters);
  Values moved, first, second;
  for (const ParameterInfo& info : parameters) {
    const Update::Moved next = update.Move(info);
    moved.push_back(next.parameter);
    first.push_back(next.first);
    second.push_back(next.second);
  }
  Values outputs = std::move(moved);
  outputs.insert(outputs.end(), first.begin(), first.end());
  outputs.insert(outputs.end(), second.begin(), second.end());
  for (size_t i = 0; i < outputs.size(); ++i) b.Donate(inputs[i].name, static_cast<int64_t>(i));
  outputs.push_back(norm);
  outputs.push_back(update.IsTaken());
  named.push_back({std::string(kNorm), norm.type});
  named.push_back({std::string(kIsTaken), outputs.back().type});
  return FinishProgram(b, layout, {name, std::move(inputs), std::move(named)}, outputs);
}

}  // namespace tessera::model
