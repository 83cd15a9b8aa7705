// A Trainer: programs made once, numbers on a device, and a step.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
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
#include "model/layout.h"
#include "model/limits.h"
#include "shard/audit_program.h"
#include "tessera/metric.h"
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
  model::Layout layout;
  std::optional<ShardingUse> sharding;
  std::vector<ParameterInfo> parameters;
  std::vector<Attention> attentions;
  std::unique_ptr<model::AttentionSubstitute> attention;
  model::LayerOps layer;
  std::vector<Substitute> substitutes;
  std::vector<std::string> notes;
  std::vector<ProgramUse> programs;
  DeviceUse device_use;
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

  // Compiling takes long, and nothing can end it once it has begun.
  Status MayMake(const char* pass) const {
    if (!options.should_stop || !options.should_stop()) return {};
    return Fail(ErrorCode::kPluginFailed, fmt::format("stopped before the program of {} was made", pass));
  }

  Status Make(std::shared_ptr<const CompiledPass>& into, stablehlo::Program program, const char* pass) {
    lanes::xla::State& xla = *engine->xla;
    shard::ProgramTensors tensors;
    for (const stablehlo::NamedType& input : program.inputs) tensors.arguments.push_back(input.name);
    for (const stablehlo::NamedType& output : program.outputs) tensors.results.push_back(output.name);
    lanes::xla::WrittenProgram written{std::move(program), pass, options.xla,
                                       layout.table ? ShardKey(*layout.table, "") : ""};
    if (place.topology != nullptr) {
      pjrt::OptimizedProgram inside;
      ProgramUse use = TESSERA_TRY(xla.programs.CompileFor(*place.topology, written, &inside));
      if (layout.table) TESSERA_TRY(Audit(tensors, inside, use));
      programs.push_back(std::move(use));
      return {};
    }
    lanes::xla::FoundProgram found = TESSERA_TRY(xla.programs.Make(place.session, std::move(written)));
    if (layout.table) {
      const pjrt::OptimizedProgram inside = TESSERA_TRY(found.program->executable.Optimized());
      TESSERA_TRY(Audit(tensors, inside, found.use));
    }
    if (found.use.note.find(CodeText(ErrorCode::kShardStale)) != std::string::npos) notes.push_back(found.use.note);
    programs.push_back(std::move(found.use));
    into = std::move(found.program);
    return {};
  }

  // What was compiled, for devices that are here or not, or found on disk, is what the specs say. One that was kept for
  // other specs is not found: the store holds the layout with the program.
  Status Audit(const shard::ProgramTensors& tensors, const pjrt::OptimizedProgram& inside, const ProgramUse& use) {
    const shard::ProgramLimits limits{.device_bytes = options.max_device_bytes, .temp_bytes = use.temp_bytes};
    shard::ProgramReport report = TESSERA_TRY(shard::AuditProgram(*layout.table, tensors, inside, limits));
    sharding->programs.push_back({use.pass, std::move(report.collectives), report.carried_bytes, report.device_bytes});
    return {};
  }

  // With an attention by name; `refusal` is why it is not another.
  Status MakePrograms(const Engine& from, const std::string& name, const std::string& refusal) {
    layout.own.row_tokens = spec.row_tokens;
    model::Chosen chosen = TESSERA_TRY(model::ChooseAttention(from, layout, target, {name, options}, &place));
    if (!refusal.empty()) chosen.reason += fmt::format("; not {}: {}", model::PreferredAttention(target), refusal);
    attention = std::move(chosen.attention);
    attentions = std::move(chosen.attentions);
    const model::ChosenLayer chosen_layer =
        TESSERA_TRY(model::ChooseLayer(from, layout.own, target, {options, refusal}, &place));
    layer = chosen_layer.ops;
    substitutes = model::SubstitutesOf(chosen, chosen_layer);
    TESSERA_TRY(LayOut());
    TESSERA_TRY(MayMake("gradients"));
    stablehlo::Program lowered = TESSERA_TRY(model::LowerGradients(layout, *attention, options.barrier_every, layer));
    TESSERA_TRY(Make(gradients, std::move(lowered), "gradients"));
    TESSERA_TRY(MayMake("update"));
    stablehlo::Program moved = TESSERA_TRY(model::LowerUpdate(layout));
    return Make(update, std::move(moved), "update");
  }

  // The third program, when it is first asked for.
  Status MakeEvaluate() {
    stablehlo::Program lowered = TESSERA_TRY(model::LowerEvaluate(layout, *attention, options.barrier_every, layer));
    return Make(evaluate, std::move(lowered), "evaluate");
  }

  // The table of specs, when it is known what attention takes.
  Status LayOut() {
    if (!layout.mesh) return {};
    layout.own.row_tokens = attention->RowTokens();
    TESSERA_TRY(model::SetOperands(layout, attention->Inputs(true), attention->SharedInputs()));
    sharding =
        ShardingUse{*layout.mesh, ShardFingerprint(*layout.table), FiguresOf(*layout.table), {}, attention->Context()};
    return {};
  }

  Status PutFloats(const std::string& name, std::vector<int64_t> dims, std::span<const float> values) {
    return arrays->Put({name, {stablehlo::Element::kF32, std::move(dims)}}, std::as_bytes(values));
  }

  // A parameter's own numbers, or those that go with it: all of it, or on each device what it has of it.
  Status PutParameter(const std::string& name, const std::vector<int64_t>& dims, std::span<const std::byte> bytes) {
    if (!layout.mesh) return arrays->Put({name, {stablehlo::Element::kF32, dims}}, bytes);
    for (int64_t device = 0; device < layout.NumDevices(); ++device) {
      const model::Pieces pieces = layout.PiecesOf(name, device);
      std::vector<int64_t> own = *LocalDims(*layout.table->Find(name), *layout.mesh);
      const std::vector<std::byte> cut = model::CutOut({dims}, bytes, pieces);
      TESSERA_TRY(arrays->PutOn(device, {name, {stablehlo::Element::kF32, std::move(own)}}, cut));
    }
    return {};
  }
  // Put together again. What several devices have must be the same on each: one that drifted is an error.
  Result<Tensor> GetParameter(const std::string& name, const std::vector<int64_t>& dims) const {
    Tensor tensor{ElementType::kF32, dims, {}};
    if (!layout.mesh) {
      tensor.bytes = TESSERA_TRY(arrays->Get(name));
      return tensor;
    }
    tensor = Tensor::Zeros(ElementType::kF32, dims);
    std::vector<model::Pieces> seen;
    for (int64_t device = 0; device < layout.NumDevices(); ++device) {
      const model::Pieces pieces = layout.PiecesOf(name, device);
      const std::vector<std::byte> own = TESSERA_TRY(arrays->Get(name, device));
      if (std::find(seen.begin(), seen.end(), pieces) == seen.end()) {
        model::PutBack({dims}, own, pieces, tensor.bytes);
        seen.push_back(pieces);
      } else if (model::CutOut({dims}, tensor.bytes, pieces) != own) {
        return Fail(ErrorCode::kShardProgram,
                    fmt::format("device {} has other numbers than those that should have the same", device), name);
      }
    }
    return tensor;
  }

  Status PutZeros(std::string (*name)(const std::string&)) {
    for (const ParameterInfo& info : parameters) {
      const Tensor zeros = Tensor::Zeros(ElementType::kF32, info.dims);
      TESSERA_TRY(PutParameter(name(info.name), info.dims, zeros.bytes));
    }
    return {};
  }

  Status PutState(const TensorMap& state) {
    for (const ParameterInfo& info : parameters) {
      for (const std::string& name : {info.name, model::FirstMoment(info.name), model::SecondMoment(info.name)}) {
        const auto at = state.find(name);
        if (at == state.end()) continue;
        TESSERA_TRY(PutParameter(name, info.dims, at->second.bytes));
      }
    }
    return {};
  }

  // Everything a program takes of a batch.
  struct BoundRows {
    std::vector<std::unique_ptr<model::BoundAttention>> attention;  // as long as the program runs; by place along data
    int64_t tokens = 0;
  };
  Result<BoundRows> PutRows(const RowBatch& rows, bool has_backward) {
    const model::RowOperands operands = TESSERA_TRY(model::ToOperands(spec, rows));
    BoundRows bound;
    bound.tokens = operands.tokens;
    for (int64_t first = 0; first < spec.rows; first += layout.own.rows) {
      const RowBatch some = layout.mesh ? model::SomeRows(rows, first, layout.own.rows) : RowBatch{};
      bound.attention.push_back(TESSERA_TRY(attention->Bind(layout.mesh ? some : rows, has_backward)));
    }
    TESSERA_TRY(attention->Agree(bound.attention));
    for (int64_t device = 0; device < layout.NumDevices(); ++device) {
      TESSERA_TRY(PutRowsOn(device, rows, operands, bound, has_backward));
    }
    for (const auto& one : bound.attention) CountUse(one->use);
    return bound;
  }

  // Devices along model have each some of the heads.
  void CountUse(const std::optional<ContextUse>& of_rows) {
    if (!of_rows || !sharding || !sharding->context) return;
    ContextUse& all = *sharding->context;
    for (size_t form = 0; form < all.batches.size(); ++form) all.batches[form] += of_rows->batches[form];
    all.worst_balance = std::max(all.worst_balance, of_rows->worst_balance);
    all.bytes += of_rows->bytes * layout.SizeOf(kModelAxis);
    all.allgather_bytes += of_rows->allgather_bytes * layout.SizeOf(kModelAxis);
  }

  // A device's tokens: of its rows, those that are its own, in its order.
  Status PutRowsOn(int64_t device, const RowBatch& rows, const model::RowOperands& operands, const BoundRows& bound,
                   bool has_backward) {
    const int64_t row_place = layout.PlaceOf(device, kDataAxis);
    const auto shard = static_cast<size_t>(layout.PlaceOf(device, kContextAxis));
    const model::BoundAttention& attended = *bound.attention[static_cast<size_t>(row_place)];
    const int64_t first = row_place * layout.own.rows * spec.row_tokens;
    const auto put = [&](std::string_view name, stablehlo::Element element, const auto& values) {
      std::vector<std::decay_t<decltype(values[0])>> own;
      if (attended.tokens.empty()) {
        own.assign(values.begin() + first, values.begin() + first + layout.own.rows * spec.row_tokens);
      } else {
        for (const int64_t token : attended.tokens[shard]) {
          own.push_back(token < 0 ? 0 : values[static_cast<size_t>(first + token)]);
        }
      }
      return arrays->PutOn(device, {std::string(name), {element, {layout.own.rows, layout.own.row_tokens}}},
                           std::as_bytes(std::span(own)));
    };
    constexpr auto kI32 = stablehlo::Element::kI32;
    TESSERA_TRY(put(model::kInputIds, kI32, rows.input_ids));
    TESSERA_TRY(put(model::kTargetIds, kI32, rows.target_ids));
    TESSERA_TRY(put(model::kPositions, kI32, operands.positions));
    TESSERA_TRY(put(model::kLossMask, stablehlo::Element::kF32, operands.loss_mask));
    for (size_t i = 0; spec.structure && i < rows.structure.size(); ++i) {
      TESSERA_TRY(put(model::StructureInput(i), kI32, rows.structure[i]));
    }
    const std::vector<stablehlo::NamedType> inputs = attention->Inputs(has_backward);
    for (size_t i = 0; i < inputs.size(); ++i) {
      TESSERA_TRY(arrays->PutOn(device, inputs[i], attended.operands[shard][i]));
    }
    return {};
  }

  // A number that every device has: all must say the same.
  template <class T>
  Result<T> Scalar(const std::string& name) const {
    const std::vector<std::byte> bytes = TESSERA_TRY(arrays->Get(name));
    for (int64_t device = 1; device < arrays->num_devices(); ++device) {
      if (TESSERA_TRY(arrays->Get(name, device)) == bytes) continue;
      return Fail(ErrorCode::kMetricIncomplete, fmt::format("devices 0 and {} say different numbers", device), name);
    }
    T value{};
    std::memcpy(&value, bytes.data(), sizeof(value));
    return value;
  }

  // Of all tokens: over a mesh, the sum of what devices say of their own. Those that have the same tokens must say the
  // same, and none may be missing.
  Result<double> Loss() const {
    const std::string name(model::kLoss);
    if (!layout.mesh) return TESSERA_TRY(Scalar<float>(name));
    std::vector<Result<MetricPart>> parts;
    std::map<std::pair<int64_t, int64_t>, float> said;
    for (int64_t device = 0; device < layout.NumDevices(); ++device) {
      const std::pair tokens(layout.PlaceOf(device, kDataAxis), layout.PlaceOf(device, kContextAxis));
      const auto bytes = arrays->Get(name, device);
      float value = 0.0F;
      if (bytes) std::memcpy(&value, bytes->data(), sizeof(value));
      const auto [at, is_new] = said.emplace(tokens, value);
      if (bytes && !is_new && std::memcmp(&at->second, &value, sizeof(value)) != 0) {
        return Fail(ErrorCode::kMetricIncomplete,
                    fmt::format("device {} says another number than one with the same tokens", device), name);
      }
      if (!bytes) {
        parts.emplace_back(tl::unexpected(bytes.error()));
      } else if (is_new) {
        parts.emplace_back(MetricPart{value, 1});
      }
    }
    return TESSERA_TRY(ReduceMetric(name, Reduction::kSum, parts)).value;
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
    const double loss = TESSERA_TRY(Loss());
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
  impl->layout = TESSERA_TRY(model::MakeLayout(spec, options.mesh));
  const int64_t devices = impl->layout.NumDevices();
  if (devices > model::kMaxModelDevices) {
    return Fail(ErrorCode::kMeshDevices,
                fmt::format("the mesh needs {} devices and a process has at most {}", devices, model::kMaxModelDevices),
                ToText(*options.mesh));
  }
  const lanes::xla::PlaceRequest request{impl->options.xla, target, options.compile_only, devices};
  if (const Decision open = lanes::xla::OpenPlace(*impl->engine->xla, request, &impl->place); !open.accepted) {
    return Fail(ErrorCode::kPluginUnusable,
                fmt::format("no program runs for {}: {} ({})", target.name, ReasonMeaning(open.reason), open.detail),
                std::string(ReasonText(open.reason)));
  }
  if (impl->place.topology != nullptr && static_cast<int64_t>(impl->place.topology->devices().size()) < devices) {
    return Fail(ErrorCode::kMeshDevices,
                fmt::format("the mesh needs {} devices and {} has {}", devices, impl->place.topology->name(),
                            impl->place.topology->devices().size()),
                ToText(*options.mesh));
  }
  impl->device_use = lanes::xla::UseOf(impl->place, impl->options.xla.device);
  impl->notes = model::NotesOf(spec, target);
  const std::string asked = TESSERA_TRY(model::AskedAttention(options));
  Status made = impl->MakePrograms(engine, asked, "");
  // A plugin may refuse calls into this process only when it compiles one.
  if (!made && asked == "auto" && impl->programs.empty()) {
    made = impl->MakePrograms(engine, std::string(kXlaChunked), made.error().message);
  }
  TESSERA_TRY(std::move(made));
  if (options.compile_only) {
    TESSERA_TRY(impl->MayMake("evaluate"));
    TESSERA_TRY(impl->MakeEvaluate());
    return Trainer(std::move(impl));
  }
  impl->arrays.emplace(impl->engine, impl->place.session, devices);
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
  result.grad_norm = TESSERA_TRY(impl_->Scalar<float>(std::string(model::kNorm)));
  result.updated = TESSERA_TRY(impl_->Scalar<int32_t>(std::string(model::kIsTaken))) != 0;
  result.grads_finite = result.updated;
  return result;
}

Result<EvalResult> Trainer::Evaluate(const RowBatch& batch) {
  TESSERA_TRY(impl_->Check());
  if (impl_->evaluate == nullptr) TESSERA_TRY(impl_->MakeEvaluate());
  const Impl::BoundRows bound = TESSERA_TRY(impl_->PutRows(batch, false));
  TESSERA_TRY(impl_->arrays->Run(*impl_->evaluate));
  const double loss = TESSERA_TRY(impl_->Loss());
  return EvalResult{loss, bound.tokens};
}

Result<GradientsResult> Trainer::Gradients(const RowBatch& batch) {
  TESSERA_TRY(impl_->Check());
  const EvalResult loss = TESSERA_TRY(impl_->AddGradients(batch, false));
  GradientsResult result{loss.loss_sum, loss.tokens, {}};
  for (const ParameterInfo& info : impl_->parameters) {
    result.gradients.emplace(info.name, TESSERA_TRY(impl_->GetParameter(model::GradientName(info.name), info.dims)));
  }
  return result;
}

Result<TensorMap> Trainer::State() const {
  TensorMap state = TESSERA_TRY(Parameters());
  for (const ParameterInfo& info : impl_->parameters) {
    for (const std::string& name : {model::FirstMoment(info.name), model::SecondMoment(info.name)}) {
      state.emplace(name, TESSERA_TRY(impl_->GetParameter(name, info.dims)));
    }
  }
  return state;
}

Result<TensorMap> Trainer::Parameters() const {
  TESSERA_TRY(impl_->Check());
  TensorMap parameters;
  for (const ParameterInfo& info : impl_->parameters) {
    parameters.emplace(info.name, TESSERA_TRY(impl_->GetParameter(info.name, info.dims)));
  }
  return parameters;
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
const DeviceUse& Trainer::device() const { return impl_->device_use; }
const std::optional<ShardingUse>& Trainer::sharding() const { return impl_->sharding; }
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
