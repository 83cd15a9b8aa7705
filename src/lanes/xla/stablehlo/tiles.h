// What the forward and the backward programs share: operands, tiles in and out of tensors, scores and masks of a tile.
#pragma once

#include <functional>
#include <vector>

#include "base/math.h"
#include "lanes/xla/stablehlo/program.h"

namespace tessera::stablehlo {

Element ElementOf(DType dtype);

// Operands that every program of a class has, in order; `directions` are those whose worklists it walks.
std::vector<NamedType> CommonInputs(const ProgramSpec& spec, const std::vector<Direction>& directions);
std::string ListInput(Direction direction, const char* what);  // "slots_dkv"

// The module's name and the attributes it carries.
Builder BeginModule(const ProgramSpec& spec, std::string_view pass, const std::vector<NamedType>& inputs);
std::string ModuleName(std::string_view pass, std::string_view class_key);

// One (batch row, query head) or (batch row, kv head), as scalars of the program.
struct HeadAt {
  Value batch;
  Value head;
};

// What attention is of.
struct AttentionTensors {
  Value q;
  Value k;
  Value v;
};
// The rows of the part: o [per_part, tile_q, dim_v], lse and max [per_part, tile_q], and how many tiles that took.
Values ForwardRows(Builder& b, const ProgramSpec& spec, const AttentionTensors& tensors);
// And of a backward: dq [per_part, tile_q, dim_qk], dk and dv [per_part, tile_kv, dim], how many dkv tiles that took,
// and where there are sinks each row's share of their gradient.
struct GradientTensors {
  AttentionTensors of;
  Value dout;
  Value lse;
  Value delta;
};
Values BackwardRows(Builder& b, const ProgramSpec& spec, const GradientTensors& tensors);
std::vector<NamedType> BackwardInputs(const ProgramSpec& spec);

// A [batch, heads, tokens, dim] tensor or a [batch, heads, tokens] statistic with its tokens padded to whole tiles.
Value PadTokens(Builder& b, const Value& input, int64_t padded_tokens);

Value TileOf(Builder& b, const Value& tensor, const HeadAt& at, const Value& first_token, int64_t tokens);
Value StatOf(Builder& b, const Value& stat, const HeadAt& at, const Value& first_token, int64_t tokens);

// lanes/weights.h, as a program says it.
Value LeanLse(Builder& b, const Value& lse);
Value Weight(Builder& b, const Value& exponent);

// One row of the part: its place among the part's outputs, and where its tile stands.
struct PartRow {
  Value place;
  HeadAt head;  // of queries, or for dkv of keys
  Value row;
};
// body(row, carried) for the rows of the part.
Values ForRowsOfPart(Builder& b, const ProgramSpec& spec, Direction direction, const Values& init,
                     const std::function<Values(const PartRow&, const Values&)>& body);
// Puts a row's tile or statistic at its place.
Value Store(Builder& b, const Value& into, const Value& tile, const Value& place);

// The slots of one row of one worklist.
struct Row {
  Value first;  // slot
  Value count;
};
Row RowOf(Builder& b, const ProgramSpec& spec, Direction direction, const HeadAt& q_head, const Value& row);
struct SlotValues {
  Value index;
  Value item_begin;
  Value item_end;
};
SlotValues SlotOf(Builder& b, Direction direction, const Value& slot);

// What masks of one worklist's tiles are tested on; the tables have whole tiles. Empty where the class has no
// documents.
struct MaskTables {
  ListShape list;
  Value q_documents;
  Value kv_documents;
  Value kv_ranks;
};
MaskTables LoadTables(Builder& b, const ProgramSpec& spec, const ListShape& list);

// Where a tile stands.
struct TileAt {
  HeadAt q_head;
  HeadAt kv_head;
  Value q_begin;  // tokens
  Value kv_begin;
};

// Scores of a tile: scaled, capped, and -inf where the pair is not allowed. `slope` is the derivative of the capped by
// the scaled score; empty without softcap.
struct Scores {
  Value logits;
  Value slope;
};
Scores ScoresOf(Builder& b, const ProgramSpec& spec, const MaskTables& tables, const Value& q, const Value& k,
                const TileAt& at, const SlotValues& slot);
// Pairs that may attend: those whose logit is not -inf.
Value Visible(Builder& b, const Value& logits);

// A value that is not finite must not reach a pair that cannot see it, and zero times it would. So a row of tiles is
// summed as it comes, and only when the sum is not finite twice more: over finite values alone, and counting for each
// result the others that it sees.
struct Trial {
  Value is_careful;   // i1: any but the first
  Value is_counting;  // i1: the last
};
// run(trial) gives what it carries from `init`; of its results, those at `sums` are sums of SafeDot.
Values SumSafely(Builder& b, const Values& init, const std::vector<size_t>& sums,
                 const std::function<Values(const Trial&)>& run);

struct Weighted {
  Value weights;        // [q, kv], zero where not visible
  Value logits;         // of the same tile, for visibility
  bool by_key = false;  // sum over queries: weights transposed
};
// A tile's product, in f32. Small bf16 operands become f32 first, which changes no bit of it: XLA's compiler for CPUs
// that have bf16 units chooses code for some small products that takes none, and then gives up (2 x 4 by 4 x 10).
Value TileDot(Builder& b, const Value& lhs, const Value& rhs, Contract2 axes);
// weights x values, as the trial wants it.
Value SafeDot(Builder& b, const Weighted& lhs, const Value& rhs, const Trial& trial);

}  // namespace tessera::stablehlo
