// A model's programs as StableHLO: the one definition, whatever machine it is compiled for. What a target has of its
// own is the attention and the layer's operations that are given.
#pragma once

#include <string>
#include <vector>

#include "lanes/xla/stablehlo/program.h"
#include "model/attention.h"
#include "model/layer.h"
#include "model/layout.h"
#include "tessera/model.h"

namespace tessera::model {

// Names of operands beside the parameters, which have their own.
inline constexpr std::string_view kInputIds = "input_ids";  // i32 [rows, row_tokens], as the next
inline constexpr std::string_view kTargetIds = "target_ids";
inline constexpr std::string_view kLossMask = "loss_mask";   // f32 [rows, row_tokens]
inline constexpr std::string_view kPositions = "positions";  // i32 [rows, row_tokens]: of a token in its document
inline constexpr std::string_view kRotations = "rotations";  // f32 [row_tokens, 2 * head_dim], see Rotations
inline constexpr std::string_view kKeep = "keep_gradients";  // i32: whether gradients are added to those that are there
inline constexpr std::string_view kScalars = "scalars";      // f32 [kNumScalars]
inline constexpr std::string_view kLoss = "loss";            // the sum of nats; over a mesh [1], of a device's tokens
inline constexpr std::string_view kNorm = "norm";
inline constexpr std::string_view kIsTaken = "is_taken";
// Of the definition without its masks: windows are operands, so that those of one class have one text, compiled once.
std::string ModuleNameOf(const Layout& layout, std::string_view pass);
std::string StructureInput(size_t part);                 // i32 [rows, row_tokens]
std::string GradientName(const std::string& parameter);  // "g.wte"
std::string FirstMoment(const std::string& parameter);   // "m.wte"
std::string SecondMoment(const std::string& parameter);  // "v.wte"

// Of every position and half a head's dims: cos, cos, then -sin, sin.
std::vector<float> Rotations(const ModelSpec& spec);

// Operands of a batch, the same for every program that reads rows.
std::vector<stablehlo::NamedType> RowInputs(const ModelSpec& spec);

// Parameters, their gradients so far, `keep`, rows, attention's operands -> gradients (in place of those given), the
// sum of nats. Over a mesh a gradient is that of all devices' tokens. Cut by barriers every so many layers
// (barriers.h), as the next.
Result<stablehlo::Program> LowerGradients(const Layout& layout, const AttentionSubstitute& attention,
                                          int64_t barrier_every = 0, const LayerOps& layer = {});
// Parameters, rows, attention's operands -> the sum of nats.
Result<stablehlo::Program> LowerEvaluate(const Layout& layout, const AttentionSubstitute& attention,
                                         int64_t barrier_every = 0, const LayerOps& layer = {});

// The numbers of an update, in `scalars`.
enum class UpdateScalar : uint8_t {
  kStepSize,    // learning rate over 1 - beta1^step
  kKept,        // 1 - learning rate * decay
  kSecondRoot,  // sqrt(1 - beta2^step)
  kBeta1,
  kBeta2,
  kEps,
  kClipNorm,  // 0: none
  kPerToken,  // 1 over the number of tokens
};
inline constexpr int64_t kNumScalars = 8;
// Parameters, first and second moments (each in place), gradients, `scalars` -> the same three, the norm of the
// gradient of the mean loss, and whether the update was taken: 1, or 0 where that norm is not finite.
Result<stablehlo::Program> LowerUpdate(const Layout& layout);

}  // namespace tessera::model
