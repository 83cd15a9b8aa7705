// Attention inside a model's programs: how a program says it, and what it takes of each batch. One class for each way;
// a Trainer chooses one when it is made.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "lanes/xla/lowerings.h"
#include "lanes/xla/pjrt/ffi.h"
#include "lanes/xla/stablehlo/builder.h"
#include "tessera/context.h"
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

// What rows bring: the bytes of every operand in the order of Inputs(), and whatever they point at. Where several
// devices share the tokens of a row each has operands of its own, and `tokens` says which it has.
class BoundAttention {
 public:
  virtual ~BoundAttention() = default;
  std::vector<std::vector<std::vector<std::byte>>> operands;  // [shard of the tokens][operand]
  // [shard][token of the shard]: its number in the rows, -1 for what only fills up. Empty: all, as they are.
  std::vector<std::vector<int64_t>> tokens;
  std::optional<ContextUse> use;  // of these rows, where they are shared
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
  // For a TPU's core, inside of what Begin added.
  virtual Result<std::vector<KernelText>> Kernels(bool) const { return std::vector<KernelText>(); }
  // `rows` are those of one device, all their tokens.
  virtual Result<std::unique_ptr<BoundAttention>> Bind(const RowBatch& rows, bool has_backward) const = 0;
  // What rows of all places along data must have in common, when each is bound: operands are there after it.
  virtual Status Agree(std::span<const std::unique_ptr<BoundAttention>>) const { return {}; }
  // Of the operands, those that are the same on every device.
  virtual std::set<std::string> SharedInputs() const { return {}; }
  // How tokens are shared, before there is a batch.
  virtual std::optional<ContextUse> Context() const { return std::nullopt; }
  // Tokens of a row that one device has.
  virtual int64_t RowTokens() const = 0;
};

// The layers' attentions, by distinct mask.
struct LayerAttention {
  ModelSpec spec;  // rows and heads of one device, tokens of a whole row
  std::vector<Attention> attentions;
  std::vector<MaskFacts> facts;
};

// Kernels of a lane of ours, called from inside the program on tensors of that memory: the host's or a GPU's.
std::unique_ptr<AttentionSubstitute> MakeCalledAttention(LayerAttention layers, const MemorySpace& space);
// What a plugin is to call for it.
std::span<const pjrt::HostFunction> AttentionFunctions();
// The programs of a lane of XLA's; a plan's tables are operands. TSR-L002 where its kernels have no form for a mask.
Result<std::unique_ptr<AttentionSubstitute>> MakeProgramAttention(LayerAttention layers, const Target& target,
                                                                  const lanes::xla::Lowering& lowering);
// The same where `shards` devices have each some of a row's tokens; `groups` are those that share rows. Loops, no
// kernels.
struct TokenShards {
  int64_t shards = 1;
  stablehlo::DeviceGroups groups;
  std::optional<CutForm> cut = {};  // absent: chosen, as the next
  std::optional<Exchange> exchange = {};
};
Result<std::unique_ptr<AttentionSubstitute>> MakeContextAttention(LayerAttention layers, const Target& target,
                                                                  const lanes::xla::Lowering& lowering,
                                                                  const TokenShards& tokens);

// What rows say to a mask: documents and valid tokens, each where it names them.
Batch BatchFor(const MaskFacts& facts, const RowBatch& rows);

}  // namespace tessera::model
