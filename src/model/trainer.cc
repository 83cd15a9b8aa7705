// A Trainer: programs made once, numbers on a device, and a step.
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <optional>

#include "base/try.h"
#include "engine/state.h"
#include "lanes/xla/place.h"
#include "lanes/xla/xla.h"
#include "model/attention.h"
#include "model/batch.h"
#include "model/check_state.h"
#include "model/choose.h"
#include "model/contracts.h"
#include "model/definition.h"
#include "model/device.h"
#include "tessera/model.h"

namespace tessera {

using lanes::xla::CompiledPass;
using model::DeviceArrays;

struct Trainer::Impl {
  ModelSpec spec;
  Target target;
  TrainerOptions options;
  std::shared_ptr<EngineState> engine;
  lanes::xla::Place place;
  std::vector<ParameterInfo> parameters;
  std::vector<Attention> attentions;
  std::unique_ptr<model::AttentionSubstitute> attention;
  std::vector<Substitute> substitutes;
  std::vector<std::string> notes;
  std::vector<ProgramUse> programs;
  DeviceUse device;
  std::optional<DeviceArrays> arrays;
  std::shared_ptr<const CompiledPass> gradients, evaluate, update;
  bool is_lost = false;  // a run failed that had taken over what it was to change

  Status Check() const {
    if (options.compile_only) {
      return Fail(ErrorCode::kPluginUnusable, "this model was compiled to be looked at, not to be run");
    }
    if (is_lost) return Fail(ErrorCode::kModelState, "an update failed half-way: set the state again");
    return {};
  }

  Status Make(std::shared_ptr<const CompiledPass>& into, stablehlo::Program program, const char* pass) {
    lanes::xla::State& xla = *engine->xla;
    if (place.topology != nullptr) {
      programs.push_back(TESSERA_TRY(
          xla.programs.CompileFor(*place.topology, lanes::xla::WrittenProgram{std::move(program), pass, options.xla})));
      return {};
    }
    lanes::xla::FoundProgram found = TESSERA_TRY(
        xla.programs.Make(place.session, lanes::xla::WrittenProgram{std::move(program), pass, options.xla}));
    programs.push_back(std::move(found.use));
    into = std::move(found.program);
    return {};
  }

  // With an attention by name; `refusal` is why it is not another.
  Status MakePrograms(const Engine& from, const std::string& name, const std::string& refusal) {
    model::Chosen chosen = TESSERA_TRY(model::ChooseAttention(from, spec, target, {name, options}, &place));
    if (!refusal.empty()) chosen.reason += fmt::format("; not {}: {}", model::PreferredAttention(target), refusal);
    attention = std::move(chosen.attention);
    attentions = std::move(chosen.attentions);
    substitutes = model::SubstitutesOf(chosen.name, chosen.reason);
    stablehlo::Program lowered = TESSERA_TRY(model::LowerGradients(spec, *attention, options.barrier_every));
    TESSERA_TRY(Make(gradients, std::move(lowered), "gradients"));
    stablehlo::Program moved = TESSERA_TRY(model::LowerUpdate(spec));
    return Make(update, std::move(moved), "update");
  }

  Status PutFloats(const std::string& name, std::vector<int64_t> dims, std::span<const float> values) {
    return arrays->Put({name, {stablehlo::Element::kF32, std::move(dims)}}, std::as_bytes(values));
  }

  Status PutZeros(std::string (*name)(const std::string&)) {
    for (const ParameterInfo& info : parameters) {
      const Tensor zeros = Tensor::Zeros(ElementType::kF32, info.dims);
      TESSERA_TRY(arrays->Put({name(info.name), {stablehlo::Element::kF32, info.dims}}, zeros.bytes));
    }
    return {};
  }

  Status PutState(const TensorMap& state) {
    for (const ParameterInfo& info : parameters) {
      for (const std::string& name : {info.name, model::FirstMoment(info.name), model::SecondMoment(info.name)}) {
        const auto at = state.find(name);
        if (at == state.end()) continue;
        TESSERA_TRY(arrays->Put({name, {stablehlo::Element::kF32, info.dims}}, at->second.bytes));
      }
    }
    return {};
  }

  // Everything a program takes of a batch.
  struct BoundRows {
    std::unique_ptr<model::BoundAttention> attention;  // as long as the program runs
    int64_t tokens = 0;
  };
  Result<BoundRows> PutRows(const RowBatch& rows, bool has_backward) {
    const model::RowOperands operands = TESSERA_TRY(model::ToOperands(spec, rows));
    BoundRows bound;
    bound.tokens = operands.tokens;
    bound.attention = TESSERA_TRY(attention->Bind(rows, has_backward));
    const int64_t tokens = spec.rows * spec.row_tokens;
    const auto put_ints = [&](std::string_view name, const std::vector<int32_t>& values) {
      return arrays->Put({std::string(name), {stablehlo::Element::kI32, {tokens}}}, std::as_bytes(std::span(values)));
    };
    TESSERA_TRY(put_ints(model::kInputIds, rows.input_ids));
    TESSERA_TRY(put_ints(model::kTargetIds, rows.target_ids));
    TESSERA_TRY(put_ints(model::kPositions, operands.positions));
    TESSERA_TRY(PutFloats(std::string(model::kLossMask), {tokens}, operands.loss_mask));
    for (size_t i = 0; spec.structure && i < rows.structure.size(); ++i) {
      TESSERA_TRY(put_ints(model::StructureInput(i), rows.structure[i]));
    }
    const std::vector<stablehlo::NamedType> inputs = attention->Inputs(has_backward);
    for (size_t i = 0; i < inputs.size(); ++i) TESSERA_TRY(arrays->Put(inputs[i], bound.attention->operands[i]));
    return bound;
  }

  template <class T>
  Result<T> Scalar(const std::string& name) const {
    const std::vector<std::byte> bytes = TESSERA_TRY(arrays->Get(name));
    T value{};
    std::memcpy(&value, bytes.data(), sizeof(value));
    return value;
  }

  // Adds a batch's gradients to those that are there, or puts them in their place.
  Result<EvalResult> AddGradients(const RowBatch& rows, bool keep) {
    const BoundRows bound = TESSERA_TRY(PutRows(rows, true));
    const int32_t flag = keep ? 1 : 0;
    TESSERA_TRY(
        arrays->Put({std::string(model::kKeep), {stablehlo::Element::kI32, {}}}, std::as_bytes(std::span(&flag, 1))));
    if (Status ran = arrays->Run(*gradients); !ran) {
      TESSERA_TRY(PutZeros(model::GradientName));  // what was there may have been taken over
      return tl::unexpected(std::move(ran.error()));
    }
    const float loss = TESSERA_TRY(Scalar<float>("loss"));
    return EvalResult{loss, bound.tokens};
  }

  Status PutScalars(const StepScalars& now, int64_t tokens) {
    const OptimizerOptions& o = options.optimizer;
    const auto step = static_cast<double>(now.step);
    std::vector<float> values(model::kNumScalars);
    const auto set = [&](model::UpdateScalar which, double value) {
      values[static_cast<size_t>(which)] = static_cast<float>(value);
    };
    set(model::UpdateScalar::kStepSize, now.learning_rate / (1.0 - std::pow(o.beta1, step)));
    set(model::UpdateScalar::kKept, 1.0 - now.learning_rate * o.weight_decay);
    set(model::UpdateScalar::kSecondRoot, std::sqrt(1.0 - std::pow(o.beta2, step)));
    set(model::UpdateScalar::kBeta1, o.beta1);
    set(model::UpdateScalar::kBeta2, o.beta2);
    set(model::UpdateScalar::kEps, o.eps);
    set(model::UpdateScalar::kClipNorm, o.clip_norm);
    set(model::UpdateScalar::kPerToken, 1.0 / static_cast<double>(tokens));
    return PutFloats(std::string(model::kScalars), {model::kNumScalars}, values);
  }
};

namespace {

Status CheckOptions(const TrainerOptions& options) {
  const OptimizerOptions& o = options.optimizer;
  std::vector<Violation> violations;
  const auto expect = [&](const char* name, bool is_good, const char* expected, double found) {
    if (!is_good) violations.push_back({name, fmt::format("expected {}, found {}", expected, found)});
  };
  expect("beta1", o.beta1 >= 0 && o.beta1 < 1, "0 or more and less than 1", o.beta1);
  expect("beta2", o.beta2 >= 0 && o.beta2 < 1, "0 or more and less than 1", o.beta2);
  expect("eps", o.eps > 0 && std::isfinite(o.eps), "a positive number", o.eps);
  expect("weight_decay", o.weight_decay >= 0 && std::isfinite(o.weight_decay), "0 or more", o.weight_decay);
  expect("clip_norm", o.clip_norm >= 0 && std::isfinite(o.clip_norm), "0 for none, or more", o.clip_norm);
  expect("barrier_every", options.barrier_every >= 0, "0 for none, or more",
         static_cast<double>(options.barrier_every));
  expect("threads", options.threads >= 0, "0 or more", static_cast<double>(options.threads));
  if (violations.empty()) return {};
  return Fail(ErrorCode::kBadArgument, std::move(violations), "optimizer");
}

}  // namespace

Result<Trainer> Trainer::Create(const Engine& engine, const ModelSpec& spec, const Target& target,
                                const TrainerOptions& options) {
  if (std::vector<Violation> violations = Validate(spec); !violations.empty()) {
    return Fail(ErrorCode::kModelInvalid, std::move(violations));
  }
  TESSERA_TRY(CheckOptions(options));
  auto impl = std::make_unique<Impl>();
  impl->spec = spec;
  impl->target = target;
  impl->options = options;
  impl->engine = EngineAccess::Of(engine);
  impl->parameters = ParametersOf(spec);
  if (impl->options.xla.plugin.empty()) impl->options.xla.plugin = engine.options().plugin;
  const lanes::xla::PlaceRequest request{impl->options.xla, target, options.compile_only};
  if (const Decision open = lanes::xla::OpenPlace(*impl->engine->xla, request, &impl->place); !open.accepted) {
    return Fail(ErrorCode::kPluginUnusable,
                fmt::format("no program runs for {}: {} ({})", target.name, ReasonMeaning(open.reason), open.detail),
                std::string(ReasonText(open.reason)));
  }
  impl->device = lanes::xla::UseOf(impl->place, impl->options.xla.device);
  impl->notes = model::NotesOf(spec, target);
  Status made = impl->MakePrograms(engine, impl->options.attention, "");
  // A plugin may refuse calls into this process only when it compiles one.
  if (!made && impl->options.attention == "auto" && impl->programs.empty()) {
    made = impl->MakePrograms(engine, std::string(kXlaChunked), made.error().message);
  }
  TESSERA_TRY(std::move(made));
  if (options.compile_only) return Trainer(std::move(impl));
  impl->arrays.emplace(impl->engine, impl->place.session);
  TESSERA_TRY(impl->PutZeros(model::FirstMoment));
  TESSERA_TRY(impl->PutZeros(model::SecondMoment));
  TESSERA_TRY(impl->PutZeros(model::GradientName));
  TESSERA_TRY(impl->PutState(InitialParameters(spec, options.seed)));
  TESSERA_TRY(
      impl->PutFloats(std::string(model::kRotations), {spec.row_tokens, 2 * spec.head_dim}, model::Rotations(spec)));
  return Trainer(std::move(impl));
}

Trainer::Trainer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Trainer::Trainer(Trainer&&) noexcept = default;
Trainer& Trainer::operator=(Trainer&&) noexcept = default;
Trainer::~Trainer() = default;

Result<StepResult> Trainer::Step(std::span<const RowBatch* const> micro_batches, const StepScalars& scalars) {
  TESSERA_TRY(impl_->Check());
  if (micro_batches.empty() || scalars.step < 1 || !std::isfinite(scalars.learning_rate)) {
    return Fail(ErrorCode::kBadArgument, "a step needs a micro-batch, a number from 1 on and a finite learning rate");
  }
  StepResult result;
  for (size_t i = 0; i < micro_batches.size(); ++i) {
    const EvalResult one = TESSERA_TRY(impl_->AddGradients(*micro_batches[i], i > 0));
    result.loss_sum += one.loss_sum;
    result.tokens += one.tokens;
  }
  result.loss_finite = std::isfinite(result.loss_sum);
  result.updated = false;
  if (result.tokens == 0) return result;
  result.loss = result.loss_sum / static_cast<double>(result.tokens);
  TESSERA_TRY(impl_->PutScalars(scalars, result.tokens));
  if (Status ran = impl_->arrays->Run(*impl_->update); !ran) {
    impl_->is_lost = true;
    return tl::unexpected(std::move(ran.error()));
  }
  result.grad_norm = TESSERA_TRY(impl_->Scalar<float>("norm"));
  result.updated = TESSERA_TRY(impl_->Scalar<int32_t>("is_taken")) != 0;
  result.grads_finite = result.updated;
  return result;
}

Result<EvalResult> Trainer::Evaluate(const RowBatch& batch) {
  TESSERA_TRY(impl_->Check());
  if (impl_->evaluate == nullptr) {
    stablehlo::Program lowered =
        TESSERA_TRY(model::LowerEvaluate(impl_->spec, *impl_->attention, impl_->options.barrier_every));
    TESSERA_TRY(impl_->Make(impl_->evaluate, std::move(lowered), "evaluate"));
  }
  const Impl::BoundRows bound = TESSERA_TRY(impl_->PutRows(batch, false));
  TESSERA_TRY(impl_->arrays->Run(*impl_->evaluate));
  const float loss = TESSERA_TRY(impl_->Scalar<float>("loss"));
  return EvalResult{loss, bound.tokens};
}

Result<GradientsResult> Trainer::Gradients(const RowBatch& batch) {
  TESSERA_TRY(impl_->Check());
  const EvalResult loss = TESSERA_TRY(impl_->AddGradients(batch, false));
  GradientsResult result{loss.loss_sum, loss.tokens, {}};
  for (const ParameterInfo& info : impl_->parameters) {
    std::vector<std::byte> bytes = TESSERA_TRY(impl_->arrays->Get(model::GradientName(info.name)));
    result.gradients.emplace(info.name, Tensor{ElementType::kF32, info.dims, std::move(bytes)});
  }
  return result;
}

Result<TensorMap> Trainer::State() const {
  TESSERA_TRY(impl_->Check());
  TensorMap state;
  for (const ParameterInfo& info : impl_->parameters) {
    for (const std::string& name : {info.name, model::FirstMoment(info.name), model::SecondMoment(info.name)}) {
      std::vector<std::byte> bytes = TESSERA_TRY(impl_->arrays->Get(name));
      state.emplace(name, Tensor{ElementType::kF32, info.dims, std::move(bytes)});
    }
  }
  return state;
}

Status Trainer::SetState(const TensorMap& state) {
  if (impl_->options.compile_only) return impl_->Check();
  TESSERA_TRY(model::CheckState(impl_->spec, state));
  impl_->is_lost = true;  // until all of it is there
  TESSERA_TRY(impl_->PutState(state));
  impl_->is_lost = false;
  return {};
}

const ModelSpec& Trainer::spec() const { return impl_->spec; }
const Target& Trainer::target() const { return impl_->target; }
const std::vector<Substitute>& Trainer::substitutes() const { return impl_->substitutes; }
int64_t Trainer::compiles() const { return static_cast<int64_t>(impl_->programs.size()); }
const std::vector<ProgramUse>& Trainer::programs() const { return impl_->programs; }
const DeviceUse& Trainer::device() const { return impl_->device; }
const std::vector<std::string>& Trainer::notes() const { return impl_->notes; }

std::vector<std::string> Trainer::contract_keys() const {
  std::vector<std::string> keys;
  for (const Attention& attention : impl_->attentions) keys.push_back(attention.key().contract_key);
  return keys;
}

std::vector<std::string> Trainer::class_keys() const {
  std::vector<std::string> keys;
  for (const Attention& attention : impl_->attentions) keys.push_back(attention.key().class_key);
  return keys;
}

}  // namespace tessera
