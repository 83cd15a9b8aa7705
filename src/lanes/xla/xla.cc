// The lane object: from a plan and tensors to a compiled program's operands, and back.
#include "lanes/xla/xla.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <deque>

#include "lanes/check_args.h"
#include "lanes/xla/compile.h"
#include "lanes/xla/operands.h"
#include "lanes/xla/programs.h"
#include "lanes/xla/transfer.h"

namespace tessera {
namespace {

namespace xla = lanes::xla;

TensorAxes QueryAxes(const Shape& s, int64_t dim) { return {s.batch, s.num_q_heads, s.q_len, dim}; }
TensorAxes KeyAxes(const Shape& s, int64_t dim) { return {s.batch, s.num_kv_heads, s.kv_len, dim}; }
int64_t FloatBytes(const TensorAxes& axes) { return axes[0] * axes[1] * axes[2] * axes[3] * 4; }
int64_t StatBytes(const Shape& s) { return s.batch * s.num_q_heads * s.q_len * 4; }

// The arguments of one call, uploaded one by one in the program's order.
class Call {
 public:
  Call(const xla::Session& session, const xla::CompiledPass& program) : session_(session), program_(program) {}

  struct TensorArg {
    const TensorRef* ref = nullptr;
    TensorAxes axes{};
  };
  void Tensor(const char* name, const TensorRef& ref, const TensorAxes& axes) { tensors_[name] = {&ref, axes}; }
  void Floats(const char* name, std::span<const float> values) { bytes_[name] = std::as_bytes(values); }
  void Tables(const xla::PlanTables& tables) {
    for (const auto& [name, table] : tables) bytes_[name] = std::as_bytes(std::span(table));
  }

  Result<std::vector<pjrt::Buffer>> Run() {
    std::vector<pjrt::Buffer> buffers;
    for (size_t i = 0; i < program_.inputs.size(); ++i) {
      Result<pjrt::Buffer> buffer = Upload(program_.inputs[i].name, program_.executable.inputs()[i]);
      if (!buffer) return tl::unexpected(buffer.error());
      buffers.push_back(std::move(*buffer));
    }
    std::vector<const pjrt::Buffer*> args;
    for (const pjrt::Buffer& buffer : buffers) args.push_back(&buffer);
    return program_.executable.Execute(args, {.device = session_.device, .do_not_donate = {}});
  }

 private:
  Result<pjrt::Buffer> Upload(const std::string& name, const pjrt::TensorType& type) {
    if (const auto it = tensors_.find(name); it != tensors_.end()) {
      return xla::UploadTensor(*session_.client, *it->second.ref, it->second.axes, session_.device);
    }
    const auto it = bytes_.find(name);
    if (it == bytes_.end()) {
      return Fail(ErrorCode::kProgramMismatch, fmt::format("nothing was given for the program's operand {}", name));
    }
    return session_.client->Upload(type, it->second, session_.device);
  }

  const xla::Session& session_;
  const xla::CompiledPass& program_;
  std::map<std::string, TensorArg, std::less<>> tensors_;
  std::map<std::string, std::span<const std::byte>, std::less<>> bytes_;
};

// Outputs by the program's names.
class Outputs {
 public:
  Outputs(const xla::CompiledPass& program, std::vector<pjrt::Buffer> buffers)
      : program_(program), buffers_(std::move(buffers)) {}

  const pjrt::Buffer& operator[](std::string_view name) const {
    size_t i = 0;
    while (program_.outputs[i].name != name) ++i;
    return buffers_[i];
  }
  Status Floats(std::string_view name, std::span<float> into) const {
    if (into.empty()) return {};
    return (*this)[name].Download(std::as_writable_bytes(into));
  }
  Result<int64_t> Count(std::string_view name) const {
    int32_t count = 0;
    if (Status ok = (*this)[name].Download(std::as_writable_bytes(std::span(&count, 1))); !ok) {
      return tl::unexpected(ok.error());
    }
    return count;
  }

 private:
  const xla::CompiledPass& program_;
  std::vector<pjrt::Buffer> buffers_;
};

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
    const Decision fits = xla::CheckSize(stablehlo::SpecOf(contract, plan));
    if (!fits.accepted) return fits;
    xla::Session session;
    return xla::OpenSession(options, target.kind, &session);
  }

  // Where an output waits to be rounded and laid out, and the delta of a backward.
  int64_t WorkspaceBytes(const LaneRequest& request, Pass pass) const override {
    const Shape& s = request.contract->shape;
    if (pass == Pass::kForward) return FloatBytes(QueryAxes(s, s.dim_v));
    const int64_t staging = std::max(
        {FloatBytes(QueryAxes(s, s.dim_qk)), FloatBytes(KeyAxes(s, s.dim_qk)), FloatBytes(KeyAxes(s, s.dim_v))});
    return staging + StatBytes(s);
  }

  Result<RunStats> Forward(const LaneRequest& request, const ForwardArgs& args) const override {
    if (Status ok = CheckForward(request, args, *this); !ok) return tl::unexpected(ok.error());
    const Shape& s = request.contract->shape;
    const stablehlo::ProgramSpec spec = stablehlo::SpecOf(*request.contract, *request.plan);
    Result<Begun> begun = Begin(request, spec, Pass::kForward);
    if (!begun) return tl::unexpected(begun.error());
    const xla::PlanTables tables = xla::MakeTables(spec, *request.plan, begun->found.program->inputs);
    const ScoreOperands score(request.contract->score);
    Call call(begun->session, *begun->found.program);
    AddCommon(call, s, score, args.q, args.k, args.v, args.sink_logits, tables);
    Result<std::vector<pjrt::Buffer>> run = call.Run();
    if (!run) return tl::unexpected(run.error());
    const Outputs out(*begun->found.program, std::move(*run));
    if (Status ok = xla::DownloadTensor(out["o"], args.o, QueryAxes(s, s.dim_v), request.workspace); !ok) {
      return tl::unexpected(ok.error());
    }
    if (Status ok = out.Floats("lse", args.lse); !ok) return tl::unexpected(ok.error());
    if (Status ok = out.Floats("max", args.row_max); !ok) return tl::unexpected(ok.error());
    return Finish(*begun, out, s.dtype);
  }

  Result<RunStats> Backward(const LaneRequest& request, const BackwardArgs& args) const override {
    if (Status ok = CheckBackward(request, args, *this); !ok) return tl::unexpected(ok.error());
    const Shape& s = request.contract->shape;
    const stablehlo::ProgramSpec spec = stablehlo::SpecOf(*request.contract, *request.plan);
    Result<Begun> begun = Begin(request, spec, Pass::kBackward);
    if (!begun) return tl::unexpected(begun.error());
    const xla::PlanTables tables = xla::MakeTables(spec, *request.plan, begun->found.program->inputs);
    const ScoreOperands score(request.contract->score);

    const auto stat_bytes = static_cast<size_t>(StatBytes(s));
    const std::span<std::byte> staging = request.workspace.first(request.workspace.size() - stat_bytes);
    std::span<const float> delta = args.delta;
    if (delta.empty()) {
      const std::span<float> sums(reinterpret_cast<float*>(request.workspace.last(stat_bytes).data()), stat_bytes / 4);
      xla::FillDelta(args.o, args.dout, args.lse, QueryAxes(s, s.dim_v), sums);
      delta = sums;
    }
    Call call(begun->session, *begun->found.program);
    AddCommon(call, s, score, args.q, args.k, args.v, args.sink_logits, tables);
    call.Tensor("do", args.dout, QueryAxes(s, s.dim_v));
    call.Floats("lse", args.lse);
    call.Floats("delta", delta);
    Result<std::vector<pjrt::Buffer>> run = call.Run();
    if (!run) return tl::unexpected(run.error());
    const Outputs out(*begun->found.program, std::move(*run));
    struct Gradient {
      const char* name;
      const TensorRef& into;
      TensorAxes axes;
    };
    for (const Gradient& g : {Gradient{"dq", args.dq, QueryAxes(s, s.dim_qk)},
                              {"dk", args.dk, KeyAxes(s, s.dim_qk)},
                              {"dv", args.dv, KeyAxes(s, s.dim_v)}}) {
      if (Status ok = xla::DownloadTensor(out[g.name], g.into, g.axes, staging); !ok) return tl::unexpected(ok.error());
    }
    if (Status ok = out.Floats("dsink_logits", args.dsink_logits); !ok) return tl::unexpected(ok.error());
    return Finish(*begun, out, s.dtype);
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

  static void AddCommon(Call& call, const Shape& s, const ScoreOperands& score, const TensorRef& q, const TensorRef& k,
                        const TensorRef& v, std::span<const float> sink_logits, const xla::PlanTables& tables) {
    call.Tensor("q", q, QueryAxes(s, s.dim_qk));
    call.Tensor("k", k, KeyAxes(s, s.dim_qk));
    call.Tensor("v", v, KeyAxes(s, s.dim_v));
    call.Floats("scale", std::span(&score.scale, 1));
    call.Floats("softcap", std::span(&score.softcap, 1));
    call.Floats("sink_logits", sink_logits);
    call.Tables(tables);
  }

  // The program counts its own tiles, so the receipt says what ran and not what was planned.
  static Result<RunStats> Finish(const Begun& begun, const Outputs& out, DType dtype) {
    const Result<int64_t> tiles = out.Count("tiles");
    if (!tiles) return tl::unexpected(tiles.error());
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
