// The lane object: a plan becomes a compiled program's operands once, tensors become them at every call.
#include "lanes/xla/xla.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <vector>

#include "base/math.h"
#include "base/try.h"
#include "lanes/check_args.h"
#include "lanes/xla/call.h"
#include "lanes/xla/chips.h"
#include "lanes/xla/interpreted.h"
#include "lanes/xla/kernel_tables.h"
#include "lanes/xla/operand_list.h"
#include "lanes/xla/pjrt/find_plugins.h"
#include "lanes/xla/place.h"
#include "lanes/xla/state.h"
#include "lanes/xla/transfer.h"

namespace tessera {
namespace {

namespace xla = lanes::xla;

constexpr std::string_view kIsa = "pjrt";

TensorAxes QueryAxes(const Shape& s, int64_t dim) { return {s.batch, s.num_q_heads, s.q_len, dim}; }
TensorAxes KeyAxes(const Shape& s, int64_t dim) { return {s.batch, s.num_kv_heads, s.kv_len, dim}; }
int64_t StatBytes(const Shape& s) { return s.batch * s.num_q_heads * s.q_len * 4; }

// Of the workspace; what follows is aligned.
int64_t DeltaBytes(const Shape& s) { return RoundUp(StatBytes(s), static_cast<int64_t>(kWorkspaceAlignment)); }

// Dense f32, one number for each token. Inputs are only read.
xla::PassTensor StatOf(std::span<const float> values, const TensorAxes& axes) {
  return {DenseView(values.data(), ElementType::kF32, {axes[0], axes[1], axes[2], 1}), axes};
}

void AddTo(std::string& note, const std::string& more) {
  if (!more.empty()) note += (note.empty() ? "" : "; ") + more;
}

// Programs that were made, or are to be written, and that nothing here can run.
class CompiledOnly final : public BoundLane {
 public:
  CompiledOnly(std::string kernel, DeviceUse device, std::vector<ProgramUse> programs)
      : kernel_(std::move(kernel)), device_(std::move(device)), programs_(std::move(programs)) {}
  int64_t WorkspaceBytes(Pass) const override { return 0; }
  Result<int64_t> Forward(const ForwardArgs&, const LaneCall&) const override { return Refuse(); }
  Result<int64_t> Backward(const BackwardArgs&, const LaneCall&) const override { return Refuse(); }
  Facts Describe() const override { return {kernel_, kIsa, device_, programs_}; }

 private:
  static Result<int64_t> Refuse() {
    return Fail(ErrorCode::kPluginUnusable, "these programs were made to be looked at, not to be run");
  }
  std::string kernel_;
  DeviceUse device_;
  std::vector<ProgramUse> programs_;
};

class BoundXla final : public BoundLane {
 public:
  BoundXla(std::shared_ptr<xla::State> state, const xla::Lowering& lowering, const Contract& contract)
      : state_(std::move(state)), lowering_(lowering), lane_(lowering.name), contract_(contract) {
    kernel_ = fmt::format("{}_{}", lane_, ToText(contract.shape.dtype));
  }
  void Add(Pass pass, std::unique_ptr<xla::BoundPass> bound) {
    (pass == Pass::kForward ? forward_ : backward_) = std::move(bound);
  }
  void SetDevice(DeviceUse device, int64_t threads) {
    device_ = std::move(device);
    threads_ = threads;
  }

  // The delta of a backward, and where outputs of parts wait.
  int64_t WorkspaceBytes(Pass pass) const override {
    if (pass == Pass::kForward) return forward_ == nullptr ? 0 : forward_->StagingBytes();
    return backward_ == nullptr ? 0 : DeltaBytes(contract_.shape) + backward_->StagingBytes();
  }

  Result<int64_t> Forward(const ForwardArgs& args, const LaneCall& call) const override {
    TESSERA_TRY(CheckForward(CheckOf(Pass::kForward), args, call));
    TESSERA_TRY(xla::CheckStatistics(lowering_, forward_->spec().has_stats, args));
    const Shape& s = contract_.shape;
    const TensorAxes stat = QueryAxes(s, 1);
    xla::PassTensors tensors = Inputs(args.q, args.k, args.v, args.sink_logits);
    tensors["o"] = {args.o, QueryAxes(s, s.dim_v)};
    tensors["lse"] = StatOf(args.lse, stat);
    tensors["max"] = StatOf(args.row_max, stat);
    return forward_->Run(tensors, call.workspace, call.tiles_done);
  }

  Result<int64_t> Backward(const BackwardArgs& args, const LaneCall& call) const override {
    TESSERA_TRY(CheckBackward(CheckOf(Pass::kBackward), args, call));
    const Shape& s = contract_.shape;
    const TensorAxes stat = QueryAxes(s, 1);
    std::span<const float> delta = args.delta;
    if (delta.empty()) {
      const std::span<float> sums(reinterpret_cast<float*>(call.workspace.data()),
                                  static_cast<size_t>(StatBytes(s)) / 4);
      xla::FillDelta({args.o, args.dout, args.lse, QueryAxes(s, s.dim_v)}, threads_, sums);
      delta = sums;
    }
    const int64_t rows = backward_->spec().RowsOf(Direction::kDq).rows;
    std::vector<float> sink_shares(args.dsink_logits.empty() ? 0 : static_cast<size_t>(rows));
    xla::PassTensors tensors = Inputs(args.q, args.k, args.v, args.sink_logits);
    tensors["do"] = {args.dout, QueryAxes(s, s.dim_v)};
    tensors["lse"] = StatOf(args.lse, stat);
    tensors["delta"] = StatOf(delta, stat);
    tensors["dq"] = {args.dq, QueryAxes(s, s.dim_qk)};
    tensors["dk"] = {args.dk, KeyAxes(s, s.dim_qk)};
    tensors["dv"] = {args.dv, KeyAxes(s, s.dim_v)};
    tensors["dsink_logits"] = StatOf(sink_shares, {1, 1, rows, 1});
    const std::span<std::byte> staging = call.workspace.subspan(static_cast<size_t>(DeltaBytes(s)));
    const int64_t tiles = TESSERA_TRY(backward_->Run(tensors, staging, call.tiles_done));
    AddSinkShares(sink_shares, args.dsink_logits);
    return tiles;
  }

  Facts Describe() const override {
    Facts facts{kernel_, kIsa, device_, {}};
    for (const xla::BoundPass* pass : {forward_.get(), backward_.get()}) {
      if (pass != nullptr) facts.programs.push_back(pass->use());
    }
    return facts;
  }

 private:
  CallCheck CheckOf(Pass pass) const {
    return {.lane = lane_, .contract = contract_, .workspace_bytes = WorkspaceBytes(pass)};
  }

  xla::PassTensors Inputs(const TensorRef& q, const TensorRef& k, const TensorRef& v,
                          std::span<const float> sink_logits) const {
    const Shape& s = contract_.shape;
    return {{"q", {q, QueryAxes(s, s.dim_qk)}},
            {"k", {k, KeyAxes(s, s.dim_qk)}},
            {"v", {v, KeyAxes(s, s.dim_v)}},
            {"sink_logits", StatOf(sink_logits, {1, 1, s.num_q_heads, 1})}};
  }

  // A head's gradient is the sum over its rows of tiles, in their order.
  void AddSinkShares(std::span<const float> shares, std::span<float> dsink_logits) const {
    const int64_t rows_per_head = backward_->spec().Of(Direction::kDq).rows;
    std::vector<double> sums(dsink_logits.size(), 0.0);
    for (size_t row = 0; row < shares.size(); ++row) {
      sums[row / static_cast<size_t>(rows_per_head) % sums.size()] += static_cast<double>(shares[row]);
    }
    std::transform(sums.begin(), sums.end(), dsink_logits.begin(), [](double sum) { return static_cast<float>(sum); });
  }

  std::shared_ptr<xla::State> state_;  // whose clients and programs are used
  const xla::Lowering& lowering_;
  std::string_view lane_;
  const Contract& contract_;
  std::string kernel_;
  DeviceUse device_;
  int64_t threads_ = 1;
  std::unique_ptr<xla::BoundPass> forward_;
  std::unique_ptr<xla::BoundPass> backward_;
};

class Xla final : public Lane {
 public:
  Xla(const xla::Lowering& lowering, std::shared_ptr<xla::State> state, XlaLaneOptions options)
      : lowering_(lowering), state_(std::move(state)), options_(std::move(options)) {}

  std::string_view name() const override { return lowering_.name; }
  std::vector<std::string_view> Isas() const override { return {kIsa}; }

  Decision Decide(const Contract&, const Target& target) const override {
    if (IsInterpreted() || options_.emit_only) return Decision::Yes();
    if (options_.xla.interpret && !options_.compile_only) return Decision::No(ReasonCode::kNothingToInterpret);
    if (xla::NeedsTopology(target) && options_.compile_only && target.topology.empty()) {
      std::string known;
      for (const Target& other : Targets()) known += other.topology.empty() ? "" : " " + other.name;
      return Decision::No(ReasonCode::kXlaNoTopology,
                          fmt::format("the target is \"{}\", and known are{}", target.name, known));
    }
    const xla::Purpose purpose = options_.compile_only ? xla::Purpose::kCompile : xla::Purpose::kRun;
    return xla::ChoosePlugin(options_.xla, state_->settings.folder, target.kind, purpose).decision;
  }

  Decision DecidePlan(const Contract& contract, const PlanView& plan, const Target& target) const override {
    const stablehlo::ProgramSpec spec = SpecOf(contract, plan, target);
    Decision fits = xla::CheckSize(spec);
    if (fits.accepted && lowering_.has_kernels) fits = xla::CheckKernelPlan(spec, plan, target);
    if (!fits.accepted || IsInterpreted() || options_.emit_only) return fits;
    xla::Place where;
    return Open(target, &where);
  }

  Result<std::unique_ptr<BoundLane>> Bind(const BindRequest& request) const override {
    const std::vector<std::string_view> isas = Isas();
    TESSERA_TRY(CheckBind(request, {.lane = name(), .isas = isas, .threads = options_.threads}));
    TESSERA_TRY(CheckWishes(request));
    const stablehlo::ProgramSpec spec = SpecOf(request.contract, request.plan, request.target);
    if (IsInterpreted()) return xla::BindInterpreted(lowering_, request, spec, options_.threads);
    if (options_.emit_only)
      return std::make_unique<CompiledOnly>(KernelName(request), DeviceUse{}, std::vector<ProgramUse>{});
    xla::Place where;
    if (const Decision decision = Open(request.target, &where); !decision.accepted) {
      return Fail(ErrorCode::kPluginUnusable, decision.detail);
    }
    if (options_.compile_only) return CompileOnly(request, where, spec);
    auto bound = std::make_unique<BoundXla>(state_, lowering_, request.contract);
    bound->SetDevice(xla::UseOf(where.session), options_.threads);
    CountPrograms(request);
    for (const Pass pass : request.passes) {
      xla::FoundProgram found =
          TESSERA_TRY(state_->programs.Find(where.session, {lowering_, spec, pass, options_.xla}));
      AddTo(found.use.note, NoteOf(spec, pass));
      xla::PlanTables tables = lowering_.tables(spec, request.plan, found.program->inputs);
      bound->Add(pass, TESSERA_TRY(xla::BoundPass::Make({.session = where.session,
                                                         .form = &lowering_.Of(pass),
                                                         .spec = spec,
                                                         .found = std::move(found),
                                                         .tables = std::move(tables),
                                                         .score = request.contract.score,
                                                         .order = xla::HeaviestFirst(spec, request.plan, pass),
                                                         .threads = options_.threads})));
      if (request.meter != nullptr) ++request.meter->done;
    }
    return bound;
  }

  Result<ProgramText> Lower(const BindRequest& request, Pass pass) const override {
    TESSERA_TRY(CheckWishes(request));
    const stablehlo::ProgramSpec whole = SpecOf(request.contract, request.plan, request.target);
    const stablehlo::ProgramSpec spec = TESSERA_TRY(SpecOver(request.chips, whole, request.target));
    Decision fits = xla::CheckSize(spec);
    if (fits.accepted && lowering_.has_kernels) fits = xla::CheckKernelPlan(spec, request.plan, request.target);
    if (!fits.accepted) {
      return Fail(ErrorCode::kLaneRefused, fmt::format("{}: {} ({}; {})", name(), ReasonText(fits.reason),
                                                       ReasonMeaning(fits.reason), fits.detail));
    }
    stablehlo::Program program = TESSERA_TRY(lowering_.lower(spec, pass));
    const xla::PlanTables tables = lowering_.tables(whole, request.plan, program.inputs);
    ProgramText text{.name = program.name,
                     .text = {},
                     .pass = std::string(ToText(pass)),
                     .lane = std::string(name()),
                     .parts = program.parts,
                     .chips = spec.chips,
                     .operands = xla::OperandList(program, tables, request.contract.score),
                     .results = xla::ResultList(program)};
    if (spec.chips > 1) {
      for (ProgramOperand& operand : text.operands) operand.chip_axis = xla::ChipAxis(spec, operand.name);
      for (ProgramOperand& result : text.results) {
        result.chip_axis = result.name != "tiles" && spec.chips_share_heads ? 1 : 0;
      }
    }
    if (lowering_.kernels != nullptr) text.kernels = TESSERA_TRY(lowering_.kernels(spec, pass));
    text.note = NoteOf(spec, pass);
    text.text = std::move(program.text);
    return text;
  }

 private:
  bool IsInterpreted() const { return lowering_.has_kernels && options_.xla.interpret && !options_.compile_only; }

  stablehlo::ProgramSpec SpecOf(const Contract& contract, const PlanView& plan, const Target& target) const {
    stablehlo::ProgramSpec spec = stablehlo::SpecOf(contract, plan, target.kind);
    if (lowering_.has_kernels && !lowering_.has_band) spec.stored_tiles = xla::StoredCapacity(plan);
    if (lowering_.has_band) {
      if (const Result<MaskFacts> facts = DescribeMask(contract)) spec.band = BandOf(contract, *facts);
    }
    spec.has_stats = options_.xla.statistics || !lowering_.has_kernels || lowering_.has_band;
    if (lowering_.has_kernels) xla::FitTarget(spec, target, options_.xla.tpu_backward);
    return spec;
  }

  Result<stablehlo::ProgramSpec> SpecOver(int64_t chips, const stablehlo::ProgramSpec& whole,
                                          const Target& target) const {
    if (chips == 1) return whole;
    if (!lowering_.has_kernels) {
      return Fail(ErrorCode::kLaneRefused, fmt::format("{} has no programs for several chips", name()), "chips");
    }
    stablehlo::ProgramSpec own = TESSERA_TRY(xla::SpecOfChip(whole, chips));
    xla::FitTarget(own, target, options_.xla.tpu_backward);
    return own;
  }

  std::string NoteOf(const stablehlo::ProgramSpec& spec, Pass pass) const {
    return lowering_.has_kernels ? xla::ChoiceNote(spec, pass, options_.xla.tpu_backward) : "";
  }

  // What options ask that no program can be.
  Status CheckWishes(const BindRequest& request) const {
    const std::string& backward = options_.xla.tpu_backward;
    if (backward != "auto" && backward != "fused" && backward != "apart") {
      return Fail(ErrorCode::kBadArgument, fmt::format("auto, fused or apart, found {}", backward), "tpu_backward");
    }
    const bool has_backward =
        std::find(request.passes.begin(), request.passes.end(), Pass::kBackward) != request.passes.end();
    if (options_.xla.statistics || !has_backward || !lowering_.has_kernels) return {};
    return Fail(ErrorCode::kBadArgument, "a backward needs the log-sum-exp of its forward", "statistics");
  }

  std::string KernelName(const BindRequest& request) const {
    return fmt::format("{}_{}", name(), ToText(request.contract.shape.dtype));
  }

  Decision Open(const Target& target, xla::Place* place) const {
    return xla::OpenPlace(*state_, {options_.xla, target, options_.compile_only}, place);
  }

  static void CountPrograms(const BindRequest& request) {
    if (request.meter != nullptr) request.meter->Begin(RunStep::kCompile, static_cast<int64_t>(request.passes.size()));
  }

  Result<std::unique_ptr<BoundLane>> CompileOnly(const BindRequest& request, const xla::Place& where,
                                                 const stablehlo::ProgramSpec& spec) const {
    std::vector<ProgramUse> programs;
    CountPrograms(request);
    for (const Pass pass : request.passes) {
      const xla::ProgramQuestion question{lowering_, spec, pass, options_.xla};
      programs.push_back(TESSERA_TRY(where.topology != nullptr
                                         ? state_->programs.CompileFor(*where.topology, question)
                                         : state_->programs.CompileAnew(where.session, question)));
      AddTo(programs.back().note, NoteOf(spec, pass));
      if (request.meter != nullptr) ++request.meter->done;
    }
    DeviceUse device = xla::UseOf(where, options_.xla.device);
    return std::make_unique<CompiledOnly>(KernelName(request), std::move(device), std::move(programs));
  }

  const xla::Lowering& lowering_;
  std::shared_ptr<xla::State> state_;
  XlaLaneOptions options_;
};

}  // namespace

std::shared_ptr<xla::State> MakeXlaState(XlaSettings settings) {
  return std::make_shared<xla::State>(std::move(settings));
}

std::unique_ptr<Lane> MakeXlaLane(std::string_view name, std::shared_ptr<xla::State> state, XlaLaneOptions options) {
  return std::make_unique<Xla>(*xla::FindLowering(name), std::move(state), std::move(options));
}

}  // namespace tessera
