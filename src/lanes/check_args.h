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
  explicit TensorChecker(const Contract& contract);

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
  std::map<std::string, UsedTensor> uses_;
  std::span<const std::byte> workspace_;
  std::vector<Violation> violations_;
};

// Of a lane's own call. TSR-L004 for an instruction set that is neither "auto" nor the lane's, TSR-R007 without a
// contract or a plan or with fewer than one thread, TSR-C003 for lengths, heads or dims below one, TSR-P007 for a plan
// of another shape or without the directions needed, TSR-R001 for tensors and workspace, which the lane is asked about
// only once the shape is known to be good.
Status CheckForward(const LaneRequest& request, const ForwardArgs& args, const Lane& lane);
Status CheckBackward(const LaneRequest& request, const BackwardArgs& args, const Lane& lane);

}  // namespace tessera
