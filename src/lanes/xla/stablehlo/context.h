// Attention over tokens that several devices share, as one program: what a device needs of others is brought first, and
// then its rows are walked as the program of one device walks them, tiles ascending, so that every bit is the same.
// What is needed is data: tiles to send, where they go, and how often each step is taken.
#pragma once

#include <cstdint>
#include <vector>

#include "lanes/xla/stablehlo/program.h"

namespace tessera::stablehlo {

// gather: everybody gets all keys. heads: tokens of all devices for some of the heads. sparse: rounds of one-tile
// permutes. ring: whole shards from device to device, each attended to as it comes, and what that gives merged.
enum class ContextKind : uint8_t { kGather, kHeads, kSparse, kRing };

struct ContextSpec {
  ContextKind kind = ContextKind::kGather;
  Shape shape;        // of all devices together; lengths are those of the padded tokens
  ProgramSpec local;  // what a device walks: see LocalSpec
  int64_t devices = 1;
  int64_t tokens = 0;    // that a device has of each batch row
  int64_t tile = 0;      // that is sent at once
  int64_t received = 0;  // sparse: tiles of others that a device has room for, of each batch row
  int64_t rounds = 0;    // sparse: that the tables have room for
  // A backward brings rows to who has the keys they touch, and gives nothing back: gather and sparse, in rounds.
  bool brings_rows = false;
  int64_t row_received = 0;               // query tiles of others that a device has room for, of each batch row
  int64_t row_rounds = 0;                 // that their tables have room for
  bool is_ragged = false;                 // sparse: all at once, by a collective that takes counts as data
  std::vector<DevicePairs> steps = {};    // sparse: the pairs of each; ring: of each hop
  std::vector<DevicePairs> returns = {};  // ring: from who has a shard's keys after a hop to whose they are
};
// Operands that a ring has of every hop, its own keys being hop 0: "slots_forward_hop2".
std::string HopInput(const std::string& name, int64_t hop);
bool IsOfHop(const std::string& name);  // of an operand's plain name
// Fills in `local` from the class of the program of one device.
void SetLocalSpec(const ProgramSpec& whole, ContextSpec& spec);

struct ContextProgram {
  Program program;  // inputs and outputs of one device
  DeviceAxis devices;
};
// A ring's differ in the last bits from one device's: shards are merged by their log-sum-exp, in f32, in the order of
// the hops.
// Inputs as LowerForward, of one device: q, k and v have its own tokens; sparse also has sends and receives [rounds],
// and bounds [steps + 1], the round each step begins with; ragged has others in their place (context_ragged.h).
// Outputs o [batch, heads, tokens, dim_v] in the input's type,
// lse [batch, heads, tokens] in f32, and tiles [1]; with heads, lse has all tokens of a device's heads.
// `walk` is what a device runs on what it has when all is brought, where that is no program of this folder's: one of
// spec.local with the same names and outputs, as TPU kernels have it. Its tables are each device's own, around a ring
// those of each hop.
Result<ContextProgram> LowerContextForward(const ContextSpec& spec, const Program* walk = nullptr);
// What a forward brings and no more, where devices walk their rows by calls of their own: inputs k, v, with heads q,
// and the exchange's; outputs brought_k and brought_v, what a device then has, and with heads brought_q. There is none
// around a ring.
Result<ContextProgram> LowerContextBring(const ContextSpec& spec);
// Inputs as LowerBackward and the exchange's, of one device's tokens. Keys are brought as for a forward; what they get
// of gradients is given back to who has them in f32, and added there in a fixed order: by gather those of all devices
// in their order, by sparse a device's own first and then those of each round; by heads nothing is added that one
// device would not add. Where rows are brought (brings_rows), dQ is as ever, and a device walks its own keys with the
// rows that came: every bit is one device's. Sparse has row_sends, row_receives and row_bounds for them. Outputs of a
// device's tokens: dq, dk, dv [batch, heads, tokens, dim] in f32, tiles [1], and with sinks dsink_logits [heads of a
// device].
Result<ContextProgram> LowerContextBackward(const ContextSpec& spec, const Program* walk = nullptr);

}  // namespace tessera::stablehlo
