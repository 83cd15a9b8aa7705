// The lane object: from a plan and tensors to a compiled program's operands, and back.
#include "lanes/xla/xla.h"

#include <algorithm>
#include <vector>

#include "lanes/check_args.h"
#include "lanes/xla/call.h"
#include "lanes/xla/compile.h"
#include "lanes/xla/operands.h"
#include "lanes/xla/programs.h"
#include "lanes/xla/stablehlo/tiles.h"
#include "lanes/xla/transfer.h"

namespace tessera {
namespace {

namespace xla = lanes::xla;

TensorAxes QueryAxes(const Shape& s, int64_t dim) { return {s.batch, s.num_q_heads, s.q_len, dim}; }
TensorAxes KeyAxes(const Shape& s, int64_t dim) { return {s.batch, s.num_kv_heads, s.kv_len, dim}; }
int64_t StatBytes(const Shape& s) { return s.batch * s.num_q_heads * s.q_len * 4; }

// Of the workspace; what follows is aligned.
int64_t DeltaBytes(const Shape& s) { return stablehlo::CeilTo(StatBytes(s), kWorkspaceAlignment); }

// Dense f32, one number for each token.
TensorRef StatRef(std::span<float> values, const TensorAxes& axes) {
  return {.type = ElementType::kF32,
          .data = std::as_writable_bytes(values).data(),
          .batch_stride = axes[1] * axes[2],
          .head_stride = axes[2],
          .token_stride = 1};
}

stablehlo::ProgramSpec SpecOf(const LaneRequest& request) {
  return stablehlo::SpecOf(*request.contract, *request.plan, request.target);
}

// Scale and softcap as the program takes them.
struct ScoreOperands {
  explicit ScoreOperands(const Score& score)
      : scale(static_cast<float>(score.scale)), softcap(static_cast<float>(score.softcap)) {}
  float scale;
  float softcap;
};

class Xla final : public Lane {
 public:
  std::string_view name() const override { return "xla_chunked"; }
  std::vector<std::string_view> Isas() const override { return {"pjrt"}; }

  Decision Decide(const Contract&, const Target& target, const XlaOptions& options) const override {
    return xla::ChoosePlugin(options, target.kind).decision;
  }

  Decision DecidePlan(const Contract& contract, const PlanView& plan, const Target& target,
                      const XlaOptions& options) const override {
    const Decision fits = xla::CheckSize(stablehlo::SpecOf(contract, plan, target.kind));
    if (!fits.accepted) return fits;
    xla::Session session;
    return xla::OpenSession(options, target.kind, &session);
  }

  // The delta of a backward, and where outputs of parts wait.
  int64_t WorkspaceBytes(const LaneRequest& request, Pass pass) const override {
    const int64_t staging = xla::StagingBytes(SpecOf(request), pass, request.threads);
    return pass == Pass::kForward ? staging : DeltaBytes(request.contract->shape) + staging;
  }

  Result<RunStats> Forward(const LaneRequest& request, const ForwardArgs& args) const override {
    if (Status ok = CheckForward(request, args, *this); !ok) return tl::unexpected(ok.error());
    const Shape& s = request.contract->shape;
    const stablehlo::ProgramSpec spec = SpecOf(request);
    Result<Begun> begun = Begin(request, spec, Pass::kForward);
    if (!begun) return tl::unexpected(begun.error());
    const xla::PlanTables tables = xla::MakeTables(spec, *request.plan, begun->found.program->inputs);
    const ScoreOperands score(request.contract->score);
    xla::PassCall call(begun->session, *begun->found.program, spec);
    AddCommon(call, s, score, args.q, args.k, args.v, args.sink_logits, tables);
    const TensorAxes stat = QueryAxes(s, 1);
    call.Output({.name = "o", .into = args.o, .axes = QueryAxes(s, s.dim_v)});
    call.Output({.name = "lse", .into = StatRef(args.lse, stat), .axes = stat});
    call.Output({.name = "max", .into = StatRef(args.row_max, stat), .axes = stat});
    return Finish(
        *begun, s.dtype,
        call.Run(xla::HeaviestFirst(spec, *request.plan, Pass::kForward), request.threads, request.workspace));
  }

  Result<RunStats> Backward(const LaneRequest& request, const BackwardArgs& args) const override {
    if (Status ok = CheckBackward(request, args, *this); !ok) return tl::unexpected(ok.error());
    const Shape& s = request.contract->shape;
    const stablehlo::ProgramSpec spec = SpecOf(request);
    Result<Begun> begun = Begin(request, spec, Pass::kBackward);
    if (!begun) return tl::unexpected(begun.error());
    const xla::PlanTables tables = xla::MakeTables(spec, *request.plan, begun->found.program->inputs);
    const ScoreOperands score(request.contract->score);

    std::span<const float> delta = args.delta;
    if (delta.empty()) {
      const std::span<float> sums(reinterpret_cast<float*>(request.workspace.data()),
                                  static_cast<size_t>(StatBytes(s)) / 4);
      xla::FillDelta({args.o, args.dout, args.lse, QueryAxes(s, s.dim_v)}, request.threads, sums);
      delta = sums;
    }
    const int64_t rows = spec.RowsOf(Direction::kDq).rows;
    std::vector<float> sink_shares(args.dsink_logits.empty() ? 0 : static_cast<size_t>(rows));
    const TensorAxes shares{1, 1, rows, 1};

    xla::PassCall call(begun->session, *begun->found.program, spec);
    AddCommon(call, s, score, args.q, args.k, args.v, args.sink_logits, tables);
    call.Tensor("do", args.dout, QueryAxes(s, s.dim_v));
    call.Floats("lse", args.lse);
    call.Floats("delta", delta);
    call.Output({"dq", Direction::kDq, args.dq, QueryAxes(s, s.dim_qk)});
    call.Output({"dk", Direction::kDkv, args.dk, KeyAxes(s, s.dim_qk)});
    call.Output({"dv", Direction::kDkv, args.dv, KeyAxes(s, s.dim_v)});
    call.Output({"dsink_logits", Direction::kDq, StatRef(sink_shares, shares), shares, true});
    Result<int64_t> tiles = call.Run(xla::HeaviestFirst(spec, *request.plan, Pass::kBackward), request.threads,
                                     request.workspace.subspan(static_cast<size_t>(DeltaBytes(s))));
    if (tiles) AddSinkShares(spec, sink_shares, args.dsink_logits);
    return Finish(*begun, s.dtype, std::move(tiles));
  }

  const Compiler* compiler() const override { return &xla::XlaCompiler(); }

 private:
  struct Begun {
    xla::Session session;
    xla::FoundProgram found;
  };
  static Result<Begun> Begin(const LaneRequest& request, const stablehlo::ProgramSpec& spec, Pass pass) {
    Begun begun;
    const Decision decision = xla::OpenSession(request.xla, request.target, &begun.session);
    if (!decision.accepted) {
      return Fail(ErrorCode::kPluginUnusable, decision.detail);
    }
    Result<xla::FoundProgram> found = xla::FindProgram(begun.session, spec, pass, request.xla);
    if (!found) return tl::unexpected(found.error());
    begun.found = std::move(*found);
    return begun;
  }

  static void AddCommon(xla::PassCall& call, const Shape& s, const ScoreOperands& score, const TensorRef& q,
                        const TensorRef& k, const TensorRef& v, std::span<const float> sink_logits,
                        const xla::PlanTables& tables) {
    call.Tensor("q", q, QueryAxes(s, s.dim_qk));
    call.Tensor("k", k, KeyAxes(s, s.dim_qk));
    call.Tensor("v", v, KeyAxes(s, s.dim_v));
    call.Floats("scale", std::span(&score.scale, 1));
    call.Floats("softcap", std::span(&score.softcap, 1));
    call.Floats("sink_logits", sink_logits);
    call.Tables(tables);
  }

  // A head's gradient is the sum over its rows of tiles, in their order.
  static void AddSinkShares(const stablehlo::ProgramSpec& spec, std::span<const float> shares,
                            std::span<float> dsink_logits) {
    const int64_t rows_per_head = spec.Of(Direction::kDq).rows;
    std::vector<double> sums(dsink_logits.size(), 0.0);
    for (size_t row = 0; row < shares.size(); ++row) {
      sums[row / static_cast<size_t>(rows_per_head) % sums.size()] += static_cast<double>(shares[row]);
    }
    std::transform(sums.begin(), sums.end(), dsink_logits.begin(), [](double sum) { return static_cast<float>(sum); });
  }

  // The program counts its own tiles, so the receipt says what ran and not what was planned.
  static Result<RunStats> Finish(const Begun& begun, DType dtype, Result<int64_t> tiles) {
    if (!tiles) return tl::unexpected(std::move(tiles.error()));
    RunStats stats{xla::KernelName(dtype), "pjrt", *tiles};
    stats.xla = xla::UseOf(begun.session);
    stats.program = begun.found.use;
    return stats;
  }
};

}  // namespace

const Lane& XlaLane() {
  static const Xla kLane;
  return kLane;
}

}  // namespace tessera
