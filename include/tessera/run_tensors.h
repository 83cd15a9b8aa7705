// The tensors of a call, in memory of the caller's, used where they are: nothing is copied.
#pragma once

#include <span>

#include "tessera/tensor.h"

#pragma GCC visibility push(default)
namespace tessera {

// Every q, k, v and dout has the contract's dtype, o and gradients any float type. Row statistics are dense f32 [batch,
// num_q_heads, q_len] and lie in the tensors' memory. Outputs must overlap neither each other nor an input; when a call
// fails, what they hold is unspecified. What a pass does not use is not looked at.
struct RunTensors {
  TensorRef q = {}, k = {}, v = {}, dout = {};  // dout: with backward
  std::span<const float> sink_logits = {};      // [num_q_heads], if and only if the contract says so
  TensorRef o = {};                             // written by a forward, read by a backward (not needed with delta)
  std::span<float> lse = {};                    // the same; a forward alone can do without
  std::span<float> row_max = {};                // wanted when not empty; a forward's
  std::span<const float> delta = {};            // a backward alone: sum of o * dout per row, when the caller has it
  TensorRef dq = {}, dk = {}, dv = {};          // with backward
  std::span<float> dsink_logits = {};           // wanted when not empty
};

}  // namespace tessera
#pragma GCC visibility pop
