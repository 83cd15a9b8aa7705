// Random masks with random lengths, heads, offsets and a batch that fits, for property tests of planner and lanes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "support/random_mask.h"
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

struct MaskSample {
  Contract contract;
  Batch batch;
};

// Small lengths, so that every pair can be looked at.
inline MaskSample RandomMaskSample(std::mt19937_64& rng, int64_t max_len = 48) {
  MaskSample out;
  Contract& contract = out.contract;
  contract.shape.batch = RandomInt(rng, 1, 2);
  contract.shape.q_len = RandomInt(rng, 1, max_len);
  contract.shape.kv_len = RandomInt(rng, 0, 1) == 0 ? contract.shape.q_len : RandomInt(rng, 1, max_len);
  contract.shape.num_kv_heads = 1;
  contract.shape.num_q_heads = RandomInt(rng, 1, 2);
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
  const auto counts = [&](int64_t len) {
    std::vector<int64_t> values;
    for (int64_t b = 0; b < contract.shape.batch; ++b) values.push_back(RandomInt(rng, 0, len));
    return values;
  };
  const bool same = contract.shape.q_len == contract.shape.kv_len;
  // What is named but has no effect at these lengths may come or stay away.
  const bool documents = facts->needs_documents || (facts->names_documents && RandomInt(rng, 0, 1) == 0);
  const bool valid = facts->needs_valid || (facts->names_valid && RandomInt(rng, 0, 1) == 0);
  if (documents && same) out.batch.doc_ids = ids(contract.shape.q_len);
  if (documents && !same) {
    out.batch.q_doc_ids = ids(contract.shape.q_len);
    out.batch.kv_doc_ids = ids(contract.shape.kv_len);
  }
  if (valid && same) out.batch.valid_tokens = counts(contract.shape.q_len);
  if (valid && !same) {
    out.batch.q_valid_tokens = counts(contract.shape.q_len);
    out.batch.kv_valid_tokens = counts(contract.shape.kv_len);
  }
  return out;
}

// A seed that differs from run to run and is printed, so that a failure can be repeated: TESSERA_SEED=N.
inline uint64_t PrintedSeed() {
  const char* given = std::getenv("TESSERA_SEED");
  const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
  testing::Test::RecordProperty("seed", std::to_string(seed));
  return seed;
}

}  // namespace tessera
