// Mask terms of the tests' own, so that property tests meet registered terms in both forms, with and without
// parameters, per head and not.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "tessera/mask_term.h"

namespace tessera {

// stride(step, phase): the key is not after p and lies `phase` plus a multiple of `step` before it. phase is 0 when
// not given.
inline bool StrideAllows(const MaskTermInput& input, int64_t q, int64_t k) {
  const int64_t phase = input.parameters.size() > 1 ? input.parameters[1] : 0;
  const int64_t distance = q + input.offset - k;
  return distance >= phase && (distance - phase) % std::max<int64_t>(input.parameters[0], 1) == 0;
}

inline std::vector<MaskRun> StrideRuns(const MaskTermInput& input) {
  std::vector<MaskRun> runs;
  const int64_t step = std::max<int64_t>(input.parameters[0], 1);
  const int64_t phase = input.parameters.size() > 1 ? input.parameters[1] : 0;
  for (int64_t distance = phase; distance < input.q_len + input.offset; distance += step) {
    runs.push_back({.q_begin = 0,
                    .q_end = input.q_len,
                    .kv_begin = 0,
                    .kv_end = input.kv_len,
                    .diag_begin = input.offset - distance,
                    .diag_end = input.offset - distance + 1});
  }
  return runs;
}

inline MaskCover StrideCover(const MaskTermInput& input, const MaskRect& rect) {
  const int64_t phase = input.parameters.size() > 1 ? input.parameters[1] : 0;
  const int64_t nearest = rect.q_begin + input.offset - (rect.kv_end - 1);
  const int64_t farthest = rect.q_end - 1 + input.offset - rect.kv_begin;
  if (farthest < phase) return MaskCover::kEmpty;
  return nearest >= phase && input.parameters[0] <= 1 ? MaskCover::kFull : MaskCover::kMixed;
}

// islands(size): blocks of `size` along the rows, and for every row the first `size` keys, as two runs per block.
inline std::vector<MaskRun> IslandRuns(const MaskTermInput& input) {
  std::vector<MaskRun> runs;
  const int64_t size = std::max<int64_t>(input.parameters[0], 1);
  for (int64_t begin = 0; begin < input.q_len; begin += size) {
    const int64_t end = std::min(begin + size, input.q_len);
    runs.push_back({.q_begin = begin, .q_end = end, .kv_begin = 0, .kv_end = std::min(size, input.kv_len)});
    runs.push_back({.q_begin = begin,
                    .q_end = end,
                    .kv_begin = std::min(begin, input.kv_len),
                    .kv_end = std::min(begin + size, input.kv_len)});
  }
  return runs;
}

// specks: cells without any order, other ones for each head.
inline bool SpeckAllows(const MaskTermInput& input, int64_t q, int64_t k) {
  uint64_t x = static_cast<uint64_t>(q * 1315423911 + k * 2654435761 + input.head * 97 + input.offset);
  x = (x ^ x >> 15) * 0x9E3779B97F4A7C15U;
  return (x >> 40) % 3 == 0;
}

// The terms that tests read texts with: stride, stride_rects, islands and specks, and what a test adds.
inline MaskTerms& TestTerms() {
  static MaskTerms terms;
  static const bool is_filled = [] {
    std::vector<MaskTermSpec> specs(4);
    specs[0] = {.name = "stride", .version = 3, .min_parameters = 1, .max_parameters = 2};
    specs[0].runs = StrideRuns;
    specs[1] = {.name = "stride_rects", .version = 3, .min_parameters = 1, .max_parameters = 2};
    specs[1].cover = StrideCover;
    specs[1].allows = StrideAllows;
    specs[2] = {.name = "islands", .min_parameters = 1, .max_parameters = 1};
    specs[2].runs = IslandRuns;
    specs[3] = {.name = "specks", .per_head = true};
    specs[3].cover = [](const MaskTermInput&, const MaskRect&) { return MaskCover::kMixed; };
    specs[3].allows = SpeckAllows;
    for (const MaskTermSpec& spec : specs) {
      if (const Status status = terms.Register(spec); !status) {
        std::fprintf(stderr, "%s\n", ToText(status.error()).c_str());
        std::abort();
      }
    }
    return true;
  }();
  static_cast<void>(is_filled);
  return terms;
}

// The four, and nothing that a test added.
inline const std::vector<std::shared_ptr<const RegisteredTerm>>& OwnTerms() {
  static const std::vector<std::shared_ptr<const RegisteredTerm>> terms = {
      TestTerms().Find("stride"), TestTerms().Find("stride_rects"), TestTerms().Find("islands"),
      TestTerms().Find("specks")};
  return terms;
}

}  // namespace tessera
