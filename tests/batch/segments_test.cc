// Segments of long rows against a token-by-token count, and the segment ids TPU kernels take.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "base/test_files.h"
#include "contract/batch_documents.h"
#include "contract/batch_resolve.h"
#include "support/proves.h"
#include "support/seed.h"

namespace tessera {
namespace {

using testing::ElementsAre;

TEST(SegmentIds, KnownRow_GivesGoldenValues) {
  Proves("R65 R68 B30");
  EXPECT_THAT(SegmentIds({5, 5, 7, 7, 5, -1, -1}), ElementsAre(0, 0, 1, 1, 2, 3, 3));
  EXPECT_THAT(SegmentIds({}), ElementsAre());
  EXPECT_THAT(SegmentIds({-1}), ElementsAre(0));
  EXPECT_THAT(SegmentIds({-1, -2, 0}), ElementsAre(0, 1, 2));
}

TEST(SegmentIds, AnyRow_CountsChangesAndKeepsLength) {
  Proves("R65");
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    std::vector<int32_t> ids(1 + random() % 50);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % 4) - 1;
    const std::vector<int32_t> segments = SegmentIds(ids);
    ASSERT_EQ(segments.size(), ids.size());
    ASSERT_EQ(segments[0], 0);
    for (size_t i = 1; i < ids.size(); ++i) ASSERT_EQ(segments[i] - segments[i - 1], ids[i] != ids[i - 1] ? 1 : 0);
  }
}

// What the fast scan must equal, one token at a time.
std::vector<Segment> SlowSegments(const std::vector<int32_t>& ids) {
  std::vector<Segment> segments;
  std::map<int32_t, int32_t> seen;
  for (size_t i = 0; i < ids.size(); ++i) {
    const int32_t doc = ids[i] < 0 ? -1 : ids[i];
    const auto at = static_cast<int32_t>(i);
    if (segments.empty() || segments.back().doc != doc) segments.push_back({at, at, doc, doc < 0 ? 0 : seen[doc]});
    segments.back().end = at + 1;
    ++seen[doc];
  }
  return segments;
}

// Stretches of every length around the scan's block sizes, ids that repeat, and padding in between.
std::vector<int32_t> RandomRow(std::mt19937_64& random, size_t len, int32_t num_ids) {
  std::vector<int32_t> ids;
  while (ids.size() < len) {
    const size_t stretch =
        std::min(len - ids.size(), static_cast<size_t>(1 + random() % (random() % 3 == 0 ? 600 : 20)));
    const int32_t id = static_cast<int32_t>(random() % static_cast<uint64_t>(num_ids + 2)) - 2;
    ids.insert(ids.end(), stretch, id);
  }
  return ids;
}

TEST(Segments, RandomRows_EqualTokenByTokenCount) {
  Proves("R68 B28 B30");
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 random(seed);
  Contract contract;
  contract.shape = {.batch = 1, .dim_qk = 8, .dim_v = 8};
  const MaskFacts facts{.needs_documents = true, .documents_may_reappear = true};
  for (int round = 0; round < 500; ++round) {
    const size_t len = 1 + random() % 3000;
    const std::vector<int32_t> ids = RandomRow(random, len, 1 + static_cast<int32_t>(random() % 12));
    contract.shape.q_len = contract.shape.kv_len = static_cast<int64_t>(len);
    Batch batch;
    batch.doc_ids = IdRows{1, static_cast<int64_t>(len), ids};
    const Result<std::vector<BatchRow>> rows = ResolveBatchWith(contract, facts, batch);
    ASSERT_TRUE(rows) << ToText(rows.error());
    const std::vector<Segment> slow = SlowSegments(ids);
    ASSERT_EQ((*rows)[0].q_segments, slow);
    ASSERT_EQ((*rows)[0].kv_segments, slow);
    // Without leave to reappear, the row is refused exactly when some id does.
    const bool reappears = std::any_of(slow.begin(), slow.end(), [](const Segment& s) { return s.rank > 0; });
    ASSERT_EQ(ResolveBatchWith(contract, {.needs_documents = true}, batch).has_value(), !reappears);
  }
}

TEST(Segments, ExtremeIds_AreOrdinary) {
  const std::vector<int32_t> ids = {INT32_MAX, INT32_MAX, INT32_MIN, 0, INT32_MIN, INT32_MIN};
  EXPECT_THAT(FindSegments(ids), ElementsAre(Segment{0, 2, INT32_MAX, 0}, Segment{2, 3, -1, 0}, Segment{3, 4, 0, 0},
                                             Segment{4, 6, -1, 0}));
  EXPECT_TRUE(FindSegments({}).empty());
}

TEST(Segments, MillionDistinctIds_AreHandled) {
  std::vector<int32_t> ids(1 << 20);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(ids.size() - i);
  Contract contract;
  contract.shape = {.batch = 1, .q_len = 1 << 20, .kv_len = 1 << 20, .dim_qk = 8, .dim_v = 8};
  Batch batch;
  batch.doc_ids = IdRows{1, 1 << 20, ids};
  const Result<std::vector<BatchRow>> rows = ResolveBatchWith(contract, {.needs_documents = true}, batch);
  ASSERT_TRUE(rows);
  EXPECT_EQ((*rows)[0].q_segments.size(), ids.size());
  batch.doc_ids->values.back() = batch.doc_ids->values.front();
  EXPECT_FALSE(ResolveBatchWith(contract, {.needs_documents = true}, batch));
}

}  // namespace
}  // namespace tessera
