// The lane object: what it accepts, and how it runs.
#include "lanes/reference/reference.h"

#include <algorithm>
#include <vector>

#include "lanes/check_args.h"
#include "lanes/reference/walk.h"

namespace tessera {
namespace {

namespace ref = lanes::reference;

class Reference final : public Lane {
 public:
  std::string_view name() const override { return "reference"; }
  std::vector<std::string_view> Isas() const override { return {ref::kIsa}; }

  Decision Decide(const Contract&, const Target&, const XlaOptions&) const override { return Decision::Yes(); }

  Decision DecidePlan(const Contract&, const PlanView&, const Target&, const XlaOptions&) const override {
    return Decision::Yes();
  }

  int64_t WorkspaceBytes(const LaneRequest& request, Pass pass) const override {
    return pass == Pass::kForward ? ref::ForwardWorkspaceBytes(*request.contract)
                                  : ref::BackwardWorkspaceBytes(*request.contract);
  }

  Result<RunStats> Forward(const LaneRequest& request, const ForwardArgs& args) const override {
    if (Status ok = CheckForward(request, args, *this); !ok) return tl::unexpected(ok.error());
    return ref::RunForward(request, args);
  }

  Result<RunStats> Backward(const LaneRequest& request, const BackwardArgs& args) const override {
    if (Status ok = CheckBackward(request, args, *this); !ok) return tl::unexpected(ok.error());
    return ref::RunBackward(request, args);
  }
};

}  // namespace

const Lane& ReferenceLane() {
  static const Reference kLane;
  return kLane;
}

}  // namespace tessera
