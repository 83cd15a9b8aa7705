// The lane object: what it accepts, and how it runs.
#include "lanes/reference/reference.h"

#include <string>
#include <vector>

#include "base/host.h"
#include "base/try.h"
#include "lanes/check_args.h"
#include "lanes/reference/walk.h"

namespace tessera {
namespace {

namespace ref = lanes::reference;

constexpr std::string_view kName = "reference";

class BoundReference final : public BoundLane {
 public:
  explicit BoundReference(const BindRequest& request) : contract_(request.contract), plan_(request.plan) {}

  int64_t WorkspaceBytes(Pass pass) const override {
    return pass == Pass::kForward ? ref::ForwardWorkspaceBytes(contract_) : ref::BackwardWorkspaceBytes(contract_);
  }
  Result<int64_t> Forward(const ForwardArgs& args, const LaneCall& call) const override {
    TESSERA_TRY(CheckForward(CheckOf(Pass::kForward), args, call));
    return ref::RunForward(contract_, plan_, args, call);
  }
  Result<int64_t> Backward(const BackwardArgs& args, const LaneCall& call) const override {
    TESSERA_TRY(CheckBackward(CheckOf(Pass::kBackward), args, call));
    return ref::RunBackward(contract_, plan_, args, call);
  }
  Facts Describe() const override { return {ref::kKernel, ref::kIsa, HostDevice(), {}}; }

 private:
  CallCheck CheckOf(Pass pass) const {
    return {.lane = kName, .contract = contract_, .workspace_bytes = WorkspaceBytes(pass)};
  }
  const Contract& contract_;
  const PlanView& plan_;
};

class Reference final : public Lane {
 public:
  std::string_view name() const override { return kName; }
  std::vector<std::string_view> Isas() const override { return {ref::kIsa}; }
  Decision Decide(const Contract&, const Target&) const override { return Decision::Yes(); }
  Decision DecidePlan(const Contract&, const PlanView&, const Target&) const override { return Decision::Yes(); }

  Result<std::unique_ptr<BoundLane>> Bind(const BindRequest& request) const override {
    TESSERA_TRY(CheckBind(request, {.lane = kName, .isas = {}}));
    return std::make_unique<BoundReference>(request);
  }
};

}  // namespace

std::unique_ptr<Lane> MakeReferenceLane() { return std::make_unique<Reference>(); }

}  // namespace tessera
