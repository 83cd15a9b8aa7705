#include "routing/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "routing/picks.h"

namespace tessera::routing {
namespace {

int64_t CountPicks(const PickRows& picks) {
  return std::ranges::count_if(picks.blocks, [](int32_t block) { return block >= 0; });
}

std::string NanNote(int64_t count) { return count == 0 ? "" : fmt::format("; {} scores were NaN", count); }

}  // namespace

std::string Describe(const Scored& scored) {
  size_t means = 0;
  size_t metas = 0;
  for (const CompressedRow& row : scored.keys.rows) {
    means += row.means.size();
    metas += row.metas.size();
  }
  std::string text = fmt::format("{} means of keys", means);
  if (scored.is_final) {
    text += fmt::format(", all scored: {} picks", CountPicks(scored.picks));
  } else {
    text += fmt::format(" in {} meta-blocks, of which each query keeps up to {}", metas, scored.meta_keep);
  }
  return text + NanNote(scored.nan_scores);
}

std::string Describe(const PickRows& picks) {
  return fmt::format("{} picks of blocks of {} keys, up to {} per query{}", CountPicks(picks), picks.block_tokens,
                     picks.top_n, NanNote(picks.nan_scores));
}

std::string Describe(const UnionMaps& maps) {
  const UnionSizes sizes = SizesOf(maps);
  return fmt::format("{} tiles of {} queries need {:.1f} blocks each, at most {} (room for {})",
                     maps.union_sizes.size(), maps.query_tile, sizes.mean, sizes.widest, maps.capacity);
}

std::string Describe(const Legalised& legalised) {
  const LegaliseReport& report = legalised.report;
  std::string text = fmt::format("{} of {} picks kept", report.kept, report.picks);
  const auto add = [&](int64_t count, std::string_view why) {
    if (count > 0) text += fmt::format(", {} gone for {}", count, why);
  };
  add(report.padding, "padding");
  add(report.documents, "documents");
  add(report.causality, "causality");
  add(report.window, "the window");
  add(report.other, "other terms");
  return text;
}

std::string Dump(const Scored& scored) {
  std::string out;
  for (size_t b = 0; b < scored.keys.rows.size(); ++b) {
    for (const Mean& mean : scored.keys.rows[b].means) {
      fmt::format_to(std::back_inserter(out), "batch row {}: mean of keys {}..{}, for block {}\n", b, mean.first,
                     mean.last, mean.block);
    }
  }
  return out;
}

std::string Dump(const PickRows& picks) {
  std::string out;
  for (int64_t b = 0; b < picks.batch; ++b) {
    for (int64_t q = 0; q < picks.q_len; ++q) {
      for (int64_t head = 0; head < picks.num_kv_heads; ++head) {
        fmt::format_to(std::back_inserter(out), "batch row {} query {} KV head {}:", b, q, head);
        for (const int32_t block : picks.Of(b, q, head)) {
          if (block >= 0) fmt::format_to(std::back_inserter(out), " {}", block);
        }
        out += '\n';
      }
    }
  }
  return out;
}

std::string Dump(const UnionMaps& maps) {
  std::string out;
  for (size_t row = 0; row < maps.union_sizes.size(); ++row) {
    const int64_t tile = static_cast<int64_t>(row) / maps.num_kv_heads;
    fmt::format_to(std::back_inserter(out), "batch row {} tile {} KV head {}:", tile / maps.num_query_tiles,
                   tile % maps.num_query_tiles, static_cast<int64_t>(row) % maps.num_kv_heads);
    for (int32_t n = 0; n < maps.union_sizes[row]; ++n) {
      const size_t at = row * static_cast<size_t>(maps.capacity) + static_cast<size_t>(n);
      fmt::format_to(std::back_inserter(out), " {}", maps.union_block_indices[at]);
    }
    out += '\n';
  }
  return out;
}

std::string Dump(const Legalised& legalised) { return Dump(legalised.maps); }

}  // namespace tessera::routing
