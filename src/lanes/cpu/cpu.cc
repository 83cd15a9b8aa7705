// The lane object: what it accepts, which kernel runs, and the checks that stand before any output is written.
#include "lanes/cpu/cpu.h"

#include <fmt/format.h>

#include <algorithm>

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

  Decision Decide(const Contract&, const Target&) const override { return Decision::Yes(); }
  Decision DecidePlan(const Contract&, const PlanView&, const Target&) const override { return Decision::Yes(); }

  int64_t WorkspaceBytes(const LaneRequest& request, Pass pass) const override {
    const cpu::Kernel* kernel = cpu::FindKernel(request.contract->shape.dtype, request.isa);
    if (kernel == nullptr) return 0;
    return pass == Pass::kForward ? cpu::ForwardBytes(*kernel, request) : cpu::BackwardBytes(*kernel, request);
  }

  Result<RunStats> Forward(const LaneRequest& request, const ForwardArgs& args) const override {
    Result<const cpu::Kernel*> kernel = KernelFor(request);
    if (!kernel) return tl::unexpected(kernel.error());
    return RunStats{(*kernel)->name, (*kernel)->isa, cpu::RunForward(**kernel, request, args)};
  }

  Result<RunStats> Backward(const LaneRequest& request, const BackwardArgs& args) const override {
    Result<const cpu::Kernel*> kernel = KernelFor(request);
    if (!kernel) return tl::unexpected(kernel.error());
    return RunStats{(*kernel)->name, (*kernel)->isa, cpu::RunBackward(**kernel, request, args)};
  }

 private:
  Result<const cpu::Kernel*> KernelFor(const LaneRequest& request) const {
    const cpu::Kernel* kernel = cpu::FindKernel(request.contract->shape.dtype, request.isa);
    if (kernel != nullptr) return kernel;
    return Fail(
        ErrorCode::kIsaUnavailable,
        fmt::format("this machine has no instruction set \"{}\"; it has {}", request.isa, fmt::join(Isas(), ", ")),
        "cpu");
  }
};

}  // namespace

const Lane& CpuLane() {
  static const Cpu kLane;
  return kLane;
}

}  // namespace tessera
