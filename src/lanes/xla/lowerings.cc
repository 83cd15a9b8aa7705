#include "lanes/xla/lowerings.h"

#include <fmt/format.h>

#include <limits>

#include "lanes/xla/store/limits.h"
#include "lanes/xla/xla.h"

namespace tessera::lanes::xla {
namespace {

Result<stablehlo::Program> LowerChunked(const stablehlo::ProgramSpec& spec, Pass pass) {
  return pass == Pass::kForward ? stablehlo::LowerForward(spec) : stablehlo::LowerBackward(spec);
}

PlanTables ChunkedTables(const stablehlo::ProgramSpec& spec, const PlanView& plan,
                         const std::vector<stablehlo::NamedType>& inputs) {
  return MakeTables(spec, plan, inputs);
}

constexpr std::string_view kForwardOperands[] = {"q", "k", "v", "scale", "softcap", "sink_logits"};
constexpr std::string_view kBackwardOperands[] = {"q",           "k",  "v",   "scale", "softcap",
                                                  "sink_logits", "do", "lse", "delta"};
constexpr OutputForm kForwardOutputs[] = {{"o"}, {"lse"}, {"max"}};
constexpr OutputForm kBackwardOutputs[] = {
    {"dq", Direction::kDq}, {"dk", Direction::kDkv}, {"dv", Direction::kDkv}, {"dsink_logits", Direction::kDq, true}};

constexpr Lowering kLowerings[] = {
    {.name = kXlaChunked,
     .forward = {kForwardOperands, kForwardOutputs},
     .backward = {kBackwardOperands, kBackwardOutputs},
     .lower = LowerChunked,
     .tables = ChunkedTables},
};

}  // namespace

std::span<const Lowering> Lowerings() { return kLowerings; }

const Lowering* FindLowering(std::string_view name) {
  for (const Lowering& lowering : kLowerings) {
    if (lowering.name == name) return &lowering;
  }
  return nullptr;
}

Decision CheckSize(const stablehlo::ProgramSpec& spec) {
  for (const stablehlo::ListShape& list : spec.lists) {
    // A program has several matrices of a tile's scores at a time.
    if (list.tile_q * list.tile_kv > kMaxTileScores) {
      return Decision::No(ReasonCode::kXlaTooLarge,
                          fmt::format("a tile of {} x {} has more than {} scores; smaller tiles make it fit",
                                      list.tile_q, list.tile_kv, kMaxTileScores));
    }
    const double rows = static_cast<double>(spec.shape.batch * spec.shape.num_q_heads) * static_cast<double>(list.rows);
    if (rows > std::numeric_limits<int32_t>::max()) {
      return Decision::No(
          ReasonCode::kXlaTooLarge,
          fmt::format("all heads together have {:.0f} rows of tiles, more than 2^31; larger tiles make fewer", rows));
    }
    const double slots = static_cast<double>(spec.masks) * static_cast<double>(list.rows) *
                         static_cast<double>(list.width) * stablehlo::kSlotColumns;
    if (slots > std::numeric_limits<int32_t>::max()) {
      return Decision::No(ReasonCode::kXlaTooLarge,
                          fmt::format("its padded worklist has {:.0f} numbers, more than 2^31; a tighter "
                                      "capacity.width or larger tiles make it smaller",
                                      slots));
    }
  }
  return Decision::Yes();
}

}  // namespace tessera::lanes::xla
