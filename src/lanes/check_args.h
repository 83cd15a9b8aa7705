// The checks that stand before any output byte is written, the same for every lane and for dispatch: pointers, types,
// strides, overlaps, row statistics, workspace, threads, and whether the plan is one for this contract. What cannot be
// checked, that the memory is there, is the caller's word.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lanes/lane.h"

namespace tessera {

using TensorAxes = std::array<int64_t, 4>;  // [batch, heads, tokens, dim]

// One tensor that a run uses, in either form.
struct UsedTensor {
  const TensorRef* ref = nullptr;
  TensorAxes axes{};
  std::span<const float> floats;
  bool is_output = false;
};

// Collects the tensors of a run, and every complaint about them, so that one call tells all.
class TensorChecker {
 public:
  // Of tensors that must all lie in `space`.
  explicit TensorChecker(const Contract& contract, MemorySpace space = {});

  struct FloatsNeed {
    bool required = false;
    bool is_output = false;
  };
  // Of the contract's dtype.
  void Input(const char* name, const TensorRef& ref, const TensorAxes& axes);
  // Of any float type: a caller may want gradients that are not rounded to the inputs' dtype.
  void Strided(const char* name, const TensorRef& ref, const TensorAxes& axes, bool is_output);
  void RowStat(const char* name, std::span<const float> floats, const FloatsNeed& need);
  // One value per query head, if and only if the contract has sink logits.
  void Sinks(const char* name, std::span<const float> floats, const FloatsNeed& need);
  void Workspace(std::span<const std::byte> workspace, int64_t want);
  void Add(std::string name, std::string expected);

  // What has passed so far.
  const std::map<std::string, UsedTensor>& uses() const { return uses_; }
  // Every complaint, those about shared memory last: an output must overlap neither another tensor nor the workspace.
  std::vector<Violation> Finish();

  TensorAxes q_axes, k_axes, v_axes, o_axes;

 private:
  void Floats(const char* name, std::span<const float> floats, int64_t want, const FloatsNeed& need);

  const Contract& contract_;
  MemorySpace space_;
  std::map<std::string, UsedTensor> uses_;
  std::span<const std::byte> workspace_;
  std::vector<Violation> violations_;
};

// Before a lane binds. TSR-L004 for an instruction set that is neither "auto" nor one of `isas`, TSR-R007 for fewer
// than one thread, TSR-C003 for lengths, heads or dims below one, TSR-P007 for a plan of another shape or without the
// directions that the passes need.
struct BindCheck {
  std::string_view lane;
  std::span<const std::string_view> isas;
  std::string_view isa = "auto";
  int64_t threads = 1;
};
Status CheckBind(const BindRequest& request, const BindCheck& check);

// Before a bound lane's call: TSR-R001 for tensors and workspace, and for tensors in a memory that is not the lane's;
// TSR-R007 for a stream or an image that the lane would have to ignore.
struct CallCheck {
  std::string_view lane;
  const Contract& contract;
  int64_t workspace_bytes = 0;
  MemorySpace space = {};
  bool takes_stream = false;
  bool takes_image = false;
};
Status CheckForward(const CallCheck& check, const ForwardArgs& args, const LaneCall& call);
Status CheckBackward(const CallCheck& check, const BackwardArgs& args, const LaneCall& call);

}  // namespace tessera
