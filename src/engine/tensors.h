// The tensors of a run: which ones a contract calls for, in which shape, and the strided views lanes take.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lanes/lane.h"
#include "tessera/contract.h"
#include "tessera/run.h"
#include "tessera/tensor.h"

namespace tessera {

// Name, type and shape of one tensor of a run.
struct TensorSpec {
  std::string name;
  ElementType type = ElementType::kF32;
  std::vector<int64_t> shape;
};

// q, k, v, [sink_logits], [do].
std::vector<TensorSpec> InputSpecs(const Contract& contract, bool backward, Layout layout);
// The same as a run's options call for them: a backward alone also takes o and lse.
std::vector<TensorSpec> InputSpecs(const Contract& contract, const RunOptions& options);
// o, lse, [max] of a forward and dq, dk, dv, [dsink_logits] of a backward.
std::vector<TensorSpec> OutputSpecs(const Contract& contract, const RunOptions& options);

// Every input that is missing, superfluous, or of the wrong type, shape or size.
std::vector<Violation> CheckInputs(const TensorMap& inputs, const std::vector<TensorSpec>& specs);

// Makes the outputs that the options call for, zeroed, and binds them and the checked inputs.
RunTensors BindTensors(const Contract& contract, const TensorMap& inputs, const RunOptions& options,
                       TensorMap& outputs);

// The same check for memory of the caller's, outputs included. What the run does not use is not looked at.
std::vector<Violation> CheckTensors(const Contract& contract, const RunTensors& tensors,
                                    const AttentionOptions& options);
// Digests of checked tensors, equal to Digest of a TensorMap that holds the same values as [B,H,T,D].
std::string DigestInputs(const Contract& contract, const RunTensors& tensors, const AttentionOptions& options);
std::string DigestOutputs(const Contract& contract, const RunTensors& tensors, const AttentionOptions& options);

// An f32 tensor as a span; empty when the map has no such tensor.
std::span<const float> FloatsOf(const TensorMap& tensors, const std::string& name);
std::span<float> FloatsOf(TensorMap& tensors, const std::string& name);

std::string_view ToText(Layout layout);  // "bhtd"

}  // namespace tessera
