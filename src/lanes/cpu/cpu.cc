// The lane object: what it accepts, which kernel runs, and the checks that stand before any output is written.
#include "lanes/cpu/cpu.h"

#include "lanes/check_args.h"
#include "lanes/cpu/isa.h"
#include "lanes/cpu/kernels.h"
#include "lanes/cpu/passes.h"

namespace tessera {
namespace {

namespace cpu = lanes::cpu;

class Cpu final : public Lane {
 public:
  std::string_view name() const override { return "cpu"; }

  std::vector<std::string_view> Isas() const override {
    std::vector<std::string_view> names;
    for (const cpu::Isa& isa : cpu::Isas()) {
      if (isa.available) names.push_back(isa.name);
    }
    return names;
  }

  Decision Decide(const Contract&, const Target&, const XlaOptions&) const override {
    return Isas().empty() ? Decision::No(ReasonCode::kCpuNoIsa) : Decision::Yes();
  }
  Decision DecidePlan(const Contract&, const PlanView&, const Target&, const XlaOptions&) const override {
    return Decision::Yes();
  }

  int64_t WorkspaceBytes(const LaneRequest& request, Pass pass) const override {
    const cpu::Kernel& kernel = KernelFor(request, pass);
    LaneRequest counting = request;
    counting.workspace = {};
    return pass == Pass::kForward ? cpu::ForwardBytes(kernel, counting) : cpu::BackwardBytes(kernel, counting);
  }

  Result<RunStats> Forward(const LaneRequest& request, const ForwardArgs& args) const override {
    if (Status ok = CheckForward(request, args, *this); !ok) return tl::unexpected(ok.error());
    const cpu::Kernel& kernel = KernelFor(request, Pass::kForward);
    return RunStats{kernel.name, kernel.isa, cpu::RunForward(kernel, request, args)};
  }

  Result<RunStats> Backward(const LaneRequest& request, const BackwardArgs& args) const override {
    if (Status ok = CheckBackward(request, args, *this); !ok) return tl::unexpected(ok.error());
    const cpu::Kernel& kernel = KernelFor(request, Pass::kBackward);
    return RunStats{kernel.name, kernel.isa, cpu::RunBackward(kernel, request, args)};
  }

 private:
  // Every instruction set has a kernel for every type and tile, its own or that of the one it builds on.
  static const cpu::Kernel& KernelFor(const LaneRequest& request, Pass pass) {
    const Worklist& list = request.plan->Of(pass == Pass::kForward ? Direction::kForward : Direction::kDkv);
    return *cpu::FindKernel(request.contract->shape.dtype, request.isa, list.tile_kv);
  }
};

}  // namespace

const Lane& CpuLane() {
  static const Cpu kLane;
  return kLane;
}

}  // namespace tessera
