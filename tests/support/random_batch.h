// Random masks with random lengths, heads, offsets and a batch that fits, for property tests of planner and lanes.
#pragma once

#include <algorithm>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "support/random_mask.h"
#include "support/seed.h"
#include "tessera/batch.h"
#include "tessera/contract.h"

namespace tessera {

// Documents of random length at any offset; sometimes with padding ids between or after them. `reappear` brings ids
// back later in the row.
inline std::vector<int32_t> RandomDocIds(std::mt19937_64& rng, int64_t len, bool reappear) {
  std::vector<int32_t> ids;
  int32_t next = static_cast<int32_t>(RandomInt(rng, 0, 5));
  const int64_t longest = RandomInt(rng, 1, std::max<int64_t>(1, len));
  while (static_cast<int64_t>(ids.size()) < len) {
    const int64_t count = RandomInt(rng, 1, longest);
    const bool padding = RandomInt(rng, 0, 5) == 0;
    const int32_t id = padding ? -1 : reappear ? static_cast<int32_t>(RandomInt(rng, 0, 2)) : next++;
    for (int64_t i = 0; i < count && static_cast<int64_t>(ids.size()) < len; ++i) ids.push_back(id);
  }
  return ids;
}

// Documents of random length, some of them empty, with padding behind them or not.
inline std::vector<int32_t> RandomDocLengths(std::mt19937_64& rng, int64_t len) {
  std::vector<int32_t> lengths;
  const int64_t longest = RandomInt(rng, 1, std::max<int64_t>(1, len));
  while (RandomInt(rng, 0, 9) != 0) {
    lengths.push_back(static_cast<int32_t>(RandomInt(rng, 0, std::min(longest, len))));
    len -= lengths.back();
  }
  return lengths;
}

// The same documents as their ends.
inline std::vector<int32_t> EndsOf(const std::vector<int32_t>& lengths) {
  std::vector<int32_t> ends{0};
  for (const int32_t length : lengths) ends.push_back(ends.back() + length);
  return ends;
}

struct MaskSample {
  Contract contract;
  Batch batch;
};

// Distinct blocks for each query or query tile, neighbours often alike; some places stay empty.
inline Picks RandomPicks(std::mt19937_64& rng, const Contract& contract) {
  const Shape& shape = contract.shape;
  Picks picks;
  picks.block_tokens = RandomInt(rng, 1, shape.kv_len);
  const int64_t num_blocks = (shape.kv_len + picks.block_tokens - 1) / picks.block_tokens;
  const int64_t top_n = RandomInt(rng, 1, num_blocks);
  const int64_t tiles = (shape.q_len + contract.tiles.q - 1) / contract.tiles.q;
  picks.shape = {shape.batch, RandomInt(rng, 0, 3) == 0 ? tiles : shape.q_len, shape.num_kv_heads, top_n};
  std::vector<int32_t> order(static_cast<size_t>(num_blocks));
  std::iota(order.begin(), order.end(), 0);
  for (int64_t row = 0; row < picks.shape[0] * picks.shape[1] * picks.shape[2]; ++row) {
    if (row == 0 || RandomInt(rng, 0, 2) == 0) std::shuffle(order.begin(), order.end(), rng);
    const int64_t count = RandomInt(rng, 0, top_n);
    for (int64_t n = 0; n < top_n; ++n) {
      picks.blocks.push_back(n < count ? order[static_cast<size_t>(n)] : static_cast<int32_t>(RandomInt(rng, -3, -1)));
    }
  }
  return picks;
}

// Small lengths, so that every pair can be looked at.
inline MaskSample RandomMaskSample(std::mt19937_64& rng, int64_t max_len = 48, bool blocks = true) {
  MaskSample out;
  Contract& contract = out.contract;
  contract.shape.batch = RandomInt(rng, 1, 2);
  contract.shape.q_len = RandomInt(rng, 1, max_len);
  contract.shape.kv_len = RandomInt(rng, 0, 1) == 0 ? contract.shape.q_len : RandomInt(rng, 1, max_len);
  contract.shape.num_kv_heads = RandomInt(rng, 1, 2);
  contract.shape.num_q_heads = contract.shape.num_kv_heads * RandomInt(rng, 1, 2);
  contract.shape.dim_qk = 4;
  contract.shape.dim_v = 4;
  contract.score.scale = 0.5;
  contract.mask.offset =
      RandomInt(rng, 0, 2) == 0 ? RandomInt(rng, -max_len, max_len) : contract.shape.kv_len - contract.shape.q_len;
  RandomMaskOptions options;
  options.q_len = contract.shape.q_len;
  options.kv_len = contract.shape.kv_len;
  options.bitmap_heads = contract.shape.num_q_heads;
  options.bitmap = RandomInt(rng, 0, 2) == 0;
  options.registered = RandomInt(rng, 0, 2) == 0;
  options.documents = RandomInt(rng, 0, 2) != 0;
  options.documents_equal = !options.documents;
  options.blocks = blocks && RandomInt(rng, 0, 2) == 0;
  if (options.blocks && RandomInt(rng, 0, 1) == 0) {  // so that picks of query tiles have several rows
    contract.tiles = {RandomInt(rng, 3, 64), RandomInt(rng, 3, 64)};
    contract.tiles_reason = "short rows";
  }
  const bool per_head = RandomInt(rng, 0, 2) == 0;
  do {
    contract.mask.heads.clear();
    for (int64_t head = 0; head < (per_head ? contract.shape.num_q_heads : 1); ++head) {
      contract.mask.heads.push_back(RandomMask(rng, options));
    }
  } while (!Validate(contract).empty());  // too many distinct run-time terms

  const Result<MaskFacts> facts = DescribeMask(contract);
  const auto ids = [&](int64_t len) {
    IdRows rows{contract.shape.batch, len, {}};
    for (int64_t b = 0; b < contract.shape.batch; ++b) {
      const std::vector<int32_t> row = RandomDocIds(rng, len, facts->documents_may_reappear);
      rows.values.insert(rows.values.end(), row.begin(), row.end());
    }
    return rows;
  };
  // One of the three forms for each side.
  const auto documents_of = [&](int64_t len, std::optional<IdRows>& as_ids, std::optional<IntRows>& as_lengths,
                                std::optional<IntRows>& as_ends) {
    const int64_t form = RandomInt(rng, 0, 3);
    if (form < 2) {
      as_ids = ids(len);
      return;
    }
    IntRows rows;
    for (int64_t b = 0; b < contract.shape.batch; ++b) {
      const std::vector<int32_t> lengths = RandomDocLengths(rng, len);
      rows.push_back(form == 2 ? lengths : EndsOf(lengths));
    }
    (form == 2 ? as_lengths : as_ends) = std::move(rows);
  };
  const auto counts = [&](int64_t len) {
    std::vector<int64_t> values;
    for (int64_t b = 0; b < contract.shape.batch; ++b) values.push_back(RandomInt(rng, 0, len));
    return values;
  };
  const bool same = contract.shape.q_len == contract.shape.kv_len;
  // What is named but has no effect at these lengths may come or stay away.
  const bool documents = facts->needs_documents || (facts->names_documents && RandomInt(rng, 0, 1) == 0);
  const bool valid = facts->needs_valid || (facts->names_valid && RandomInt(rng, 0, 1) == 0);
  Batch& batch = out.batch;
  if (documents && same) documents_of(contract.shape.q_len, batch.doc_ids, batch.doc_lengths, batch.cu_seqlens);
  if (documents && !same) {
    documents_of(contract.shape.q_len, batch.q_doc_ids, batch.q_doc_lengths, batch.q_cu_seqlens);
    documents_of(contract.shape.kv_len, batch.kv_doc_ids, batch.kv_doc_lengths, batch.kv_cu_seqlens);
  }
  if (facts->needs_blocks || (facts->names_blocks && RandomInt(rng, 0, 1) == 0)) {
    out.batch.picks = RandomPicks(rng, contract);
  }
  if (valid && same) out.batch.valid_tokens = counts(contract.shape.q_len);
  if (valid && !same) {
    out.batch.q_valid_tokens = counts(contract.shape.q_len);
    out.batch.kv_valid_tokens = counts(contract.shape.kv_len);
  }
  return out;
}

}  // namespace tessera
