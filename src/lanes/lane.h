// What every lane implements; fits one screen. A lane sees a contract, a plan and tensors: never the planner, the
// batch or another lane. It is made with its own options and never changes, so one object serves any number of threads.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "tessera/contract.h"
#include "tessera/error.h"
#include "tessera/lane.h"
#include "tessera/meter.h"
#include "tessera/plan.h"
#include "tessera/target.h"
#include "tessera/tensor.h"

namespace tessera {

// Row statistics ([batch, num_q_heads, q_len], f32, dense) and sink logits ([num_q_heads], f32) are plain spans;
// an empty span means "not given" or "not wanted".
struct ForwardArgs {
  TensorRef q, k, v;
  std::span<const float> sink_logits;
  TensorRef o;
  std::span<float> lse;
  std::span<float> row_max;
};

struct BackwardArgs {
  TensorRef q, k, v, o, dout;
  std::span<const float> sink_logits;
  std::span<const float> lse;
  std::span<const float> delta;  // sum of o * do per row; computed from o when not given
  TensorRef dq, dk, dv;
  std::span<float> dsink_logits;
};

enum class Pass : uint8_t { kForward, kBackward };
constexpr std::string_view ToText(Pass pass) { return pass == Pass::kForward ? "forward" : "backward"; }

// Of a workspace, in bytes.
inline constexpr size_t kWorkspaceAlignment = 64;

// What a call brings beside its tensors.
struct LaneCall {
  // Aligned to kWorkspaceAlignment, in the tensors' memory. A lane whose memory is a device's has workspace of its own
  // for calls that bring none.
  std::span<std::byte> workspace = {};
  void* stream = nullptr;                 // of the tensors' device; null: the default one, or none
  std::span<const std::byte> image = {};  // Lane::Image of another plan, in the tensors' memory: it runs instead
  // Tensors of the host may be copied to a lane's device and back: of a one-shot run alone, which says how much was.
  bool may_copy = false;
  int64_t* copied_bytes = nullptr;
  std::atomic<int64_t>* tiles_done = nullptr;  // counted up by lanes that can, for who watches
  CrossingUse* crossing = nullptr;             // of lanes that hand tensors to another runtime
};

// A lane on one plan: all that does not depend on tensors is done. Calls may come from several threads at once, each
// with a workspace of its own.
class BoundLane {
 public:
  virtual ~BoundLane() = default;
  virtual int64_t WorkspaceBytes(Pass pass) const = 0;
  // Both give the number of tiles they ran.
  virtual Result<int64_t> Forward(const ForwardArgs& args, const LaneCall& call) const = 0;
  virtual Result<int64_t> Backward(const BackwardArgs& args, const LaneCall& call) const = 0;
  // What a receipt says of it.
  struct Facts {
    std::string_view kernel;
    std::string_view isa;  // one of Isas()
    DeviceUse device;
    std::vector<ProgramUse> programs;
  };
  virtual Facts Describe() const = 0;
};

// This machine's processor and memory, for lanes whose code runs there.
DeviceUse HostDevice();

// Contract and plan outlive what is bound to them.
struct BindRequest {
  const Contract& contract;
  const PlanView& plan;
  const Target& target;
  std::span<const Pass> passes;  // those that will be called; others need not be ready
  // Of this lane, and of the plan's class: what it has on a device is written over, in the stream's order.
  const BoundLane* earlier = nullptr;
  void* stream = nullptr;
  int64_t chips = 1;          // that a program is written for; what is bound runs on one
  RunMeter* meter = nullptr;  // counts programs, of lanes that compile any
};

class Lane {
 public:
  virtual ~Lane() = default;
  virtual std::string_view name() const = 0;
  // The instruction sets it can run with on this machine, best first; "auto" is the first.
  virtual std::vector<std::string_view> Isas() const = 0;
  // Looks at the contract and at what is on this machine, and loads nothing; the second may.
  virtual Decision Decide(const Contract& contract, const Target& target) const = 0;
  virtual Decision DecidePlan(const Contract& contract, const PlanView& plan, const Target& target) const = 0;
  virtual Result<std::unique_ptr<BoundLane>> Bind(const BindRequest& request) const = 0;
  // The text of the program that a pass would compile, which needs nothing of the machine; TSR-L002 for a lane whose
  // code is all there already.
  virtual Result<ProgramText> Lower(const BindRequest& request, Pass pass) const;
  // The plan as kernels of a device read it there, for LaneCall::image; TSR-L002 for a lane that reads plans as they
  // are.
  virtual Result<std::vector<std::byte>> Image(const BindRequest& request) const;
};

}  // namespace tessera
