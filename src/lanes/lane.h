// What every lane implements; fits one screen. A lane sees a contract, a plan and tensors: never the planner, the
// batch or another lane. It keeps no mutable state, so one lane object serves any number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "tessera/contract.h"
#include "tessera/error.h"
#include "tessera/lane.h"
#include "tessera/plan.h"
#include "tessera/target.h"
#include "tessera/tensor.h"
#include "tessera/xla.h"

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

struct RunStats {
  std::string_view kernel;
  std::string_view isa;  // one of Isas()
  int64_t tiles_executed = 0;
  XlaUse xla = {};             // of the lanes that go through XLA
  XlaProgramUse program = {};  // and what they ran
};

// Of a workspace, in bytes.
inline constexpr size_t kWorkspaceAlignment = 64;

struct LaneRequest {
  const Contract* contract = nullptr;
  const PlanView* plan = nullptr;
  int64_t threads = 1;
  std::string_view isa = "auto";   // or one of Isas(), that one and no other
  std::span<std::byte> workspace;  // aligned to kWorkspaceAlignment
  TargetKind target = TargetKind::kCpu;
  XlaOptions xla = {};  // for the lanes that go through XLA
};

enum class Pass : uint8_t { kForward, kBackward };

// What is compiled without being run, and for which machine.
struct CompileRequest {
  const Contract* contract = nullptr;
  const PlanView* plan = nullptr;
  const Target* target = nullptr;
  XlaOptions xla = {};
};

// A lane that runs compiled programs can also make them for a machine that is not here. Decisions are those of a Lane.
class Compiler {
 public:
  virtual ~Compiler() = default;
  virtual Decision Decide(const Contract& contract, const Target& target, const XlaOptions& xla) const = 0;
  virtual Decision DecidePlan(const Contract& contract, const PlanView& plan, const Target& target,
                              const XlaOptions& xla) const = 0;
  // The text alone, which needs nothing of the machine.
  virtual Result<ProgramText> Lower(const Contract& contract, const PlanView& plan, const Target& target,
                                    Pass pass) const = 0;
  // Always compiles, whatever is kept. The stats have no tiles.
  virtual Result<RunStats> Compile(const CompileRequest& request, Pass pass) const = 0;
};

class Lane {
 public:
  virtual ~Lane() = default;
  virtual std::string_view name() const = 0;
  // The instruction sets it can run with on this machine, best first; "auto" is the first.
  virtual std::vector<std::string_view> Isas() const = 0;
  // Looks at the contract and at what is on this machine, and loads nothing; the second may.
  virtual Decision Decide(const Contract& contract, const Target& target, const XlaOptions& xla) const = 0;
  virtual Decision DecidePlan(const Contract& contract, const PlanView& plan, const Target& target,
                              const XlaOptions& xla) const = 0;
  // What a pass of this request takes, whatever workspace it brings.
  virtual int64_t WorkspaceBytes(const LaneRequest& request, Pass pass) const = 0;
  virtual Result<RunStats> Forward(const LaneRequest& request, const ForwardArgs& args) const = 0;
  virtual Result<RunStats> Backward(const LaneRequest& request, const BackwardArgs& args) const = 0;
  // Null for a lane whose code is all there already.
  virtual const Compiler* compiler() const { return nullptr; }
};

}  // namespace tessera
