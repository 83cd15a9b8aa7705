// The sparse exchange among context.h's programs: keys of others brought in rounds of one-tile permutes, and what they
// get of gradients given back along the same pairs.
#pragma once

#include <utility>

#include "lanes/xla/stablehlo/builder.h"
#include "lanes/xla/stablehlo/context.h"

namespace tessera::stablehlo {

// A device's operands: of every round the tile that is sent and where the one that comes goes, and the rounds that
// steps begin with, which are the same on every device of the program.
struct TileRounds {
  Value sends;
  Value receives;
  Value bounds;
};
// With the names they have in a program of attention alone.
TileRounds RoundsOf(const Builder& b);

// `steps` of the spec name the devices of the program: all that are on some pair take all rounds of its step.
class TileExchange {
 public:
  TileExchange(Builder& b, const ContextSpec& spec, TileRounds rounds)
      : b_(b), spec_(spec), rounds_(std::move(rounds)) {}

  // [batch, heads, tokens of a device, dim]: with those that came behind them, and one tile that nobody reads.
  std::pair<Value, Value> Bring(const Value& k, const Value& v);
  // Of queries, in the spec's room for them: q and do [batch, heads, tokens, dim], lse and delta [batch, heads,
  // tokens].
  Values BringRows(const Values& own);
  // Of what Bring made, in f32: of a device's own tokens.
  std::pair<Value, Value> GiveBack(const Value& dk, const Value& dv);

 private:
  Value Entry(const Value& table, const Value& at);
  std::vector<Value> SentAt(const Value& round);
  std::vector<Value> ReceivedAt(const Value& round, int64_t room);
  std::vector<Value> At(const Value& tile, int64_t tiles_of_row);

  Builder& b_;
  const ContextSpec& spec_;
  const TileRounds rounds_;
};

}  // namespace tessera::stablehlo
