// What the forward and the backward programs share: operands, tiles in and out of tensors, scores and masks of a tile.
#pragma once

#include <functional>
#include <vector>

#include "lanes/xla/stablehlo/program.h"

namespace tessera::stablehlo {

Element ElementOf(DType dtype);
int64_t CeilTo(int64_t value, int64_t step);

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

// A [batch, heads, tokens, dim] tensor whose tokens were padded to whole tiles.
struct Tokens {
  Value tensor;
  Value is_dirty;  // i1: some value of it is not finite
};
Tokens LoadTokens(Builder& b, const Value& input, int64_t padded_tokens);
// A tensor or a [batch, heads, tokens] statistic alone.
Value PadTokens(Builder& b, const Value& input, int64_t padded_tokens);

Value TileOf(Builder& b, const Value& tensor, const HeadAt& at, const Value& first_token, int64_t tokens);
Value StatOf(Builder& b, const Value& stat, const HeadAt& at, const Value& first_token, int64_t tokens);
Value StoreTile(Builder& b, const Value& tensor, const Value& tile, const HeadAt& at, const Value& first_token);
Value StoreStat(Builder& b, const Value& stat, const Value& row, const HeadAt& at, const Value& first_token);
// Back to the shape that callers know.
Value Trim(Builder& b, const Value& padded, int64_t tokens);

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

// weights x values, where a value that is not finite reaches only results whose pair is visible. Costs a test of one
// flag when every value is finite.
struct Weighted {
  Value weights;        // [q, kv], zero where not visible
  Value logits;         // of the same tile, for visibility
  bool by_key = false;  // sum over queries: weights transposed
};
Value SafeDot(Builder& b, const Weighted& lhs, const Value& rhs, const Value& is_dirty);

}  // namespace tessera::stablehlo
