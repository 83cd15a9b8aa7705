// What stands for the layer spec's keys beside attention: how a program says a norm, a product and the MLP. One value,
// chosen when a Trainer is made; the default is the definition's own operations everywhere.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lanes/xla/pjrt/ffi.h"
#include "lanes/xla/stablehlo/builder.h"

namespace tessera::model {

enum class LayerKey : uint8_t { kNorm, kLinearQkv, kLinearProj, kLinearFc1, kLinearFc2, kLayerNormMlp };
inline constexpr std::array<std::string_view, 6> kLayerKeys = {"norm",       "linear_qkv", "linear_proj",
                                                               "linear_fc1", "linear_fc2", "layernorm_mlp"};

struct LayerOps {
  // Calls of this process, with a kernel by its place in the lane's table.
  std::array<bool, kLayerKeys.size()> is_called = {};
  bool is_mlp_recomputed = false;
  int64_t norm_kernel = 0;
  int64_t product_kernel = 0;
  int64_t threads = 1;

  bool Calls(LayerKey key) const { return is_called[static_cast<size_t>(key)]; }
};

// a b, or with either turned round as `axes` say: [rows, columns] in f32, of operands in the model's type.
stablehlo::Value CallProduct(stablehlo::Builder& b, const LayerOps& ops, const stablehlo::Values& operands,
                             stablehlo::Contract2 axes);

struct CalledNorm {
  stablehlo::Value y;
  stablehlo::Value scale;  // [rows]: one over the root mean square
};
CalledNorm CallNorm(stablehlo::Builder& b, const LayerOps& ops, const stablehlo::Values& x_and_weight, double eps);
// dy, x, scale, weight -> dx, dweight
stablehlo::Values CallNormBack(stablehlo::Builder& b, const LayerOps& ops, const stablehlo::Values& operands);

// What a plugin is to call for them.
std::span<const pjrt::HostFunction> LayerFunctions();

}  // namespace tessera::model
