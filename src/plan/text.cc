// The plan as a short table for people: what it is for, what survived in each direction, and what it costs.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>

#include "base/spelling.h"
#include "tessera/plan.h"
#include "tessera/version.h"

namespace tessera {
namespace {

int64_t LongestRow(const Worklist& worklist) {
  uint64_t longest = 0;
  for (size_t row = 0; row + 1 < worklist.row_offsets.size(); ++row) {
    longest = std::max(longest, worklist.row_offsets[row + 1] - worklist.row_offsets[row]);
  }
  return static_cast<int64_t>(longest);
}

std::string Counted(int64_t number, std::string_view word, std::string_view words) {
  return fmt::format("{} {}", Grouped(number), number == 1 ? word : words);
}

}  // namespace

std::string Summary(const PlanView& plan) {
  std::string text;
  auto out = std::back_inserter(text);
  fmt::format_to(out, "plan          {}  (format {}, {} bytes)\n", ToHex(plan.fingerprint), kPlanVersion,
                 Grouped(static_cast<int64_t>(plan.bytes.size())));
  fmt::format_to(out, "contract key  {}\n", ToHex(plan.contract_key));
  fmt::format_to(out, "class key     {}\n", ToHex(plan.class_key));
  fmt::format_to(out, "mask digest   {}\n", ToHex(plan.mask_digest));
  fmt::format_to(out, "covers        {}, {}, {} x {}; {} (room for {})\n",
                 Counted(plan.batch, "batch row", "batch rows"), Counted(plan.num_q_heads, "query head", "query heads"),
                 Counted(plan.q_len, "query", "queries"), Counted(plan.kv_len, "key", "keys"),
                 Counted(plan.num_masks, "distinct mask", "distinct masks"), Grouped(plan.mask_capacity));
  fmt::format_to(out, "cleanups      {} (room for {}), {}\n\n", Grouped(int64_t{plan.NumCleanups()} - 1),
                 Grouped(plan.cleanup_capacity),
                 Counted(static_cast<int64_t>(plan.items.size()), "test in all", "tests in all"));
  fmt::format_to(out, "{:<9} {:>9} {:>7} {:>12} {:>12} {:>10} {:>10} {:>7} {:>8}\n", "direction", "tile", "rows",
                 "width", "empty", "partial", "full", "kept", "parts");
  for (size_t d = 0; d < kNumDirections; ++d) {
    const auto direction = static_cast<Direction>(d);
    const Worklist& worklist = plan.Of(direction);
    if (worklist.rows_per_mask == 0) {
      fmt::format_to(out, "{:<9} not in this plan\n", ToText(direction));
      continue;
    }
    const TileCounts counts = CountTiles(plan, direction);
    const int64_t kept = counts.partial + counts.full;
    const int64_t all = kept + counts.empty;
    fmt::format_to(out, "{:<9} {:>9} {:>7} {:>12} {:>12} {:>10} {:>10} {:>6.1f}% {:>8}\n", ToText(direction),
                   fmt::format("{}x{}", worklist.tile_q, worklist.tile_kv), Grouped(worklist.rows_per_mask),
                   fmt::format("{} of {}", LongestRow(worklist), worklist.width_capacity), Grouped(counts.empty),
                   Grouped(counts.partial), Grouped(counts.full),
                   all == 0 ? 0.0 : 100.0 * static_cast<double>(kept) / static_cast<double>(all),
                   Grouped(static_cast<int64_t>(worklist.parts.size())));
  }
  return text;
}

}  // namespace tessera
