// See chips.h.
#include "lanes/xla/chips.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>

namespace tessera::lanes::xla {

Result<stablehlo::ProgramSpec> SpecOfChip(const stablehlo::ProgramSpec& whole, int64_t chips) {
  stablehlo::ProgramSpec own = whole;
  Shape& s = own.shape;
  own.chips = chips;
  own.chips_share_heads = s.num_kv_heads % chips == 0;
  if (own.chips_share_heads) {
    s.num_q_heads /= chips;
    s.num_kv_heads /= chips;
    return own;
  }
  if (s.batch % chips == 0) {
    s.batch /= chips;
    return own;
  }
  return Fail(ErrorCode::kLaneRefused,
              fmt::format("{} chips cannot share {} key heads evenly, nor {} rows of the batch", chips, s.num_kv_heads,
                          s.batch),
              "chips");
}

int64_t ChipAxis(const stablehlo::ProgramSpec& of_chip, std::string_view input) {
  constexpr std::string_view kOfPairs[] = {"q", "k", "v", "do", "lse", "delta"};
  constexpr std::string_view kOfRows[] = {"q_valid_",      "kv_valid_", "q_documents_",
                                          "kv_documents_", "kv_ranks_", "kv_live_"};  // and the direction
  const bool is_of_pairs = std::find(std::begin(kOfPairs), std::end(kOfPairs), input) != std::end(kOfPairs);
  if (is_of_pairs || input.starts_with("mask_of_")) return of_chip.chips_share_heads ? 1 : 0;
  if (input == "sink_logits") return of_chip.chips_share_heads ? 0 : -1;
  const bool is_of_rows = std::any_of(std::begin(kOfRows), std::end(kOfRows),
                                      [&](std::string_view table) { return input.starts_with(table); });
  return is_of_rows && !of_chip.chips_share_heads ? 0 : -1;
}

}  // namespace tessera::lanes::xla
