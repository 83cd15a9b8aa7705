// The lane object: what it accepts, which kernel runs, and the checks that stand before any output is written.
#include "lanes/cpu/cpu.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/try.h"
#include "lanes/check_args.h"
#include "lanes/cpu/isa.h"
#include "lanes/cpu/kernels.h"
#include "lanes/cpu/passes.h"

namespace tessera {
namespace {

namespace cpu = lanes::cpu;

constexpr std::string_view kName = "cpu";

class BoundCpu final : public BoundLane {
 public:
  BoundCpu(const BindRequest& request, std::string_view isa, int64_t threads) : contract_(request.contract) {
    // Every instruction set has a kernel for every type and tile, its own or that of the one it builds on.
    const auto kernel = [&](Direction direction) -> const cpu::Kernel& {
      return *cpu::FindKernel(contract_.shape.dtype, isa, request.plan.Of(direction).tile_kv);
    };
    for (const Pass pass : request.passes) {
      if (pass == Pass::kForward) forward_.emplace(kernel(Direction::kForward), request, threads);
      if (pass == Pass::kBackward) backward_.emplace(kernel(Direction::kDkv), request, threads);
    }
  }

  int64_t WorkspaceBytes(Pass pass) const override {
    if (pass == Pass::kForward) return forward_ ? forward_->workspace_bytes : 0;
    return backward_ ? backward_->workspace_bytes : 0;
  }
  Result<int64_t> Forward(const ForwardArgs& args, const LaneCall& call) const override {
    TESSERA_TRY(CheckForward(CheckOf(Pass::kForward), args, call));
    return cpu::RunForward(*forward_, args, call);
  }
  Result<int64_t> Backward(const BackwardArgs& args, const LaneCall& call) const override {
    TESSERA_TRY(CheckBackward(CheckOf(Pass::kBackward), args, call));
    return cpu::RunBackward(*backward_, args, call);
  }
  Facts Describe() const override {
    const cpu::Kernel& kernel = forward_ ? forward_->kernel : backward_->kernel;
    return {kernel.name, kernel.isa, HostDevice(), {}};
  }

 private:
  CallCheck CheckOf(Pass pass) const {
    return {.lane = kName, .contract = contract_, .workspace_bytes = WorkspaceBytes(pass)};
  }
  const Contract& contract_;
  std::optional<cpu::ForwardSetup> forward_;
  std::optional<cpu::BackwardSetup> backward_;
};

class Cpu final : public Lane {
 public:
  explicit Cpu(CpuOptions options) : options_(std::move(options)) {}

  std::string_view name() const override { return kName; }

  std::vector<std::string_view> Isas() const override {
    std::vector<std::string_view> names;
    for (const cpu::Isa& isa : cpu::Isas()) {
      const bool is_ours = options_.machine_isa.empty() || cpu::Includes(options_.machine_isa, isa.name);
      if (isa.available && is_ours) names.push_back(isa.name);
    }
    return names;
  }

  Decision Decide(const Contract&, const Target&) const override {
    return Isas().empty() ? Decision::No(ReasonCode::kCpuNoIsa) : Decision::Yes();
  }
  Decision DecidePlan(const Contract&, const PlanView&, const Target&) const override { return Decision::Yes(); }

  Result<std::unique_ptr<BoundLane>> Bind(const BindRequest& request) const override {
    const std::vector<std::string_view> isas = Isas();
    TESSERA_TRY(CheckBind(request, {.lane = kName, .isas = isas, .isa = options_.isa, .threads = options_.threads}));
    // Left to the lane, it is the best that counts as this machine's.
    const std::string_view isa = options_.isa == "auto" && !options_.machine_isa.empty() ? isas.front() : options_.isa;
    return std::make_unique<BoundCpu>(request, isa, options_.threads);
  }

 private:
  CpuOptions options_;
};

}  // namespace

std::unique_ptr<Lane> MakeCpuLane(CpuOptions options) { return std::make_unique<Cpu>(std::move(options)); }

}  // namespace tessera
