// Attention inside a model's programs: how a program says it, and what it takes of each batch. One class for each way;
// a Trainer chooses one when it is made.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "lanes/xla/pjrt/plugin.h"
#include "lanes/xla/stablehlo/builder.h"
#include "tessera/engine.h"
#include "tessera/model.h"

namespace tessera::model {

using stablehlo::Builder;
using stablehlo::NamedType;
using stablehlo::Value;

// q, k and v of every head of a token lie side by side, as the product that makes them leaves them:
// [rows, row_tokens, num_q_heads + 2 * num_kv_heads, head_dim].
struct Attended {
  Value o;    // f32 [rows, row_tokens, num_q_heads, head_dim]
  Value lse;  // f32 [rows, num_q_heads, row_tokens]
};
struct AttentionInputs {
  size_t mask = 0;  // which of the model's distinct masks
  Value qkv;
  Value sink_logits;  // used where the model has them
};
struct AttentionGradients {
  Value qkv;  // f32, as qkv lies
  Value sink_logits;
};

// What a batch brings: the bytes of every operand in the order of Inputs(), and whatever they point at.
class BoundAttention {
 public:
  virtual ~BoundAttention() = default;
  std::vector<std::vector<std::byte>> operands;
};

class AttentionSubstitute {
 public:
  virtual ~AttentionSubstitute() = default;
  // Operands of a program beside the tensors; a program without a backward has those of a forward alone.
  virtual std::vector<NamedType> Inputs(bool has_backward) const = 0;
  // Before the first Forward of a program.
  virtual Status Begin(Builder& b, bool has_backward) const = 0;
  virtual Attended Forward(Builder& b, const AttentionInputs& in) const = 0;
  virtual AttentionGradients Backward(Builder& b, const AttentionInputs& in, const Attended& out,
                                      const Value& dout) const = 0;
  virtual Result<std::unique_ptr<BoundAttention>> Bind(const RowBatch& rows, bool has_backward) const = 0;
};

// The layers' attentions, by distinct mask.
struct LayerAttention {
  ModelSpec spec;
  std::vector<Attention> attentions;
  std::vector<MaskFacts> facts;
};

// Our cpu lane, called from inside the program. Registers what the plugin is to call.
Result<std::unique_ptr<AttentionSubstitute>> MakeHostAttention(LayerAttention layers, const pjrt::Plugin& plugin);
// Loops over tiles in the program's own language; a plan's tables are operands.
Result<std::unique_ptr<AttentionSubstitute>> MakeChunkedAttention(LayerAttention layers, const Target& target);

// What rows say to a mask: documents and valid tokens, each where it names them.
Batch BatchFor(const MaskFacts& facts, const RowBatch& rows);

}  // namespace tessera::model
