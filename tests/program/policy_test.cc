// Every statement of the mixed-document policy is held against what MakePlan does; a statement without a check here
// fails the test, and so does a check whose subject never occurs.
#include <fmt/format.h>

#include <functional>
#include <map>
#include <random>
#include <set>

#include "program_test.h"
#include "support/seed.h"
#include "tessera/tessera.h"

namespace tessera {
namespace {

using nlohmann::json;
constexpr int64_t kLength = 150;
constexpr int64_t kTile = 16;

Result<PlanResult> PlanOf(const std::string& expr, const std::vector<int32_t>& ids, TileSize tile = {kTile, kTile}) {
  const auto length = static_cast<int64_t>(ids.size());
  auto contract = ParseContract(
      fmt::format("version = 1\n[shape]\nq_len = {0}\nkv_len = {0}\ndim_qk = 8\ndim_v = 8\n[mask]\nexpr = \"{1}\"\n"
                  "[tiles]\nq = {2}\nkv = {3}\nreason = \"a test\"\n",
                  length, expr, tile.q, tile.kv));
  if (!contract) return tl::unexpected(contract.error());
  Batch batch;
  batch.doc_ids = IdRows{1, length, ids};
  return MakePlan(*contract, batch, *FindTarget("cpu"));
}

// Documents of random lengths (some shorter and some longer than a tile), sometimes with padding between and after.
std::vector<int32_t> RandomIds(std::mt19937& random) {
  std::vector<int32_t> ids;
  int32_t doc = 0;
  while (static_cast<int64_t>(ids.size()) < kLength) {
    const size_t tokens = 1 + random() % (random() % 2 == 0 ? 70 : 9);
    ids.insert(ids.end(), tokens, random() % 6 == 0 ? -1 : doc++);
  }
  ids.resize(kLength);
  return ids;
}

// The allowed pairs, straight from the definition of each expression the tests use.
bool Allowed(const std::string& expr, const std::vector<int32_t>& ids, int64_t i, int64_t j) {
  const int32_t doc = ids[static_cast<size_t>(i)];
  const bool same = doc >= 0 && doc == ids[static_cast<size_t>(j)];
  if (expr == "documents" || expr == "documents(equal)") return same;
  if (expr == "causal and documents") return same && j <= i;
  return same && j <= i && j >= i - 40;  // causal and window(40, 0) and documents
}
const std::vector<std::string> kExpressions = {"documents", "documents(equal)", "causal and documents",
                                               "causal and window(40, 0) and documents"};

enum class Kind { kEmpty, kPartial, kFull };
struct Tile {
  Kind planned = Kind::kEmpty;
  uint32_t cleanup = 0;
  bool every_pair_allowed = true;
  bool same_document = true;
  bool query_tile_homogeneous = false;
  bool key_tile_homogeneous = false;
  bool common_document = false;
};

Tile Inspect(const PlanView& plan, const std::string& expr, const std::vector<int32_t>& ids, int64_t row,
             int64_t column) {
  Tile tile;
  for (const Slot& slot : plan.Of(Direction::kForward).Row(static_cast<uint64_t>(row))) {
    if (slot.index != static_cast<uint32_t>(column)) continue;
    tile.cleanup = slot.cleanup;
    tile.planned = slot.cleanup == 0 ? Kind::kFull : Kind::kPartial;
  }
  std::set<int32_t> q_docs;
  std::set<int32_t> kv_docs;
  for (int64_t i = row * kTile; i < std::min(kLength, (row + 1) * kTile); ++i) {
    q_docs.insert(ids[static_cast<size_t>(i)]);
    for (int64_t j = column * kTile; j < std::min(kLength, (column + 1) * kTile); ++j) {
      kv_docs.insert(ids[static_cast<size_t>(j)]);
      tile.every_pair_allowed &= Allowed(expr, ids, i, j);
      const bool same = ids[static_cast<size_t>(i)] >= 0 && ids[static_cast<size_t>(i)] == ids[static_cast<size_t>(j)];
      tile.same_document &= same;
      tile.common_document |= same;
    }
  }
  tile.query_tile_homogeneous = q_docs.size() == 1;
  tile.key_tile_homogeneous = kv_docs.size() == 1;
  return tile;
}

using Visit = std::function<void(const PlanView&, const Tile&)>;

class MixedDocumentPolicy : public testing::Test {
 public:
  // Visits every tile of many random plans.
  void ForEachTile(const Visit& visit) {
    for (int round = 0; round < 10; ++round) {
      const std::vector<int32_t> ids = RandomIds(random_);
      for (const std::string& expr : kExpressions) {
        auto result = PlanOf(expr, ids);
        ASSERT_TRUE(result) << ToText(result.error());
        const PlanView& plan = result->plan.view();
        for (int64_t row = 0; row < (kLength + kTile - 1) / kTile; ++row) {
          for (int64_t column = 0; column < (kLength + kTile - 1) / kTile; ++column) {
            visit(plan, Inspect(plan, expr, ids, row, column));
          }
        }
      }
    }
  }

  // Visits every pair of many random plans, decompressed.
  void ForEachPair(const std::function<void(int32_t, int32_t, bool allowed)>& visit) {
    for (int round = 0; round < 5; ++round) {
      const std::vector<int32_t> ids = RandomIds(random_);
      for (const std::string& expr : kExpressions) {
        auto result = PlanOf(expr, ids);
        ASSERT_TRUE(result) << ToText(result.error());
        auto dense = ToDense(result->plan.view(), Direction::kForward, 0, 0);
        ASSERT_TRUE(dense) << ToText(dense.error());
        for (size_t pair = 0; pair < dense->size(); ++pair) {
          visit(ids[pair / kLength], ids[pair % kLength], (*dense)[pair] != 0);
        }
      }
    }
  }

  void ExpectDense(const std::string& expr, const std::vector<int32_t>& ids, TileSize tile,
                   const std::function<bool(int64_t, int64_t)>& want) {
    auto result = PlanOf(expr, ids, tile);
    ASSERT_TRUE(result) << ToText(result.error());
    const auto length = static_cast<int64_t>(ids.size());
    for (const Direction direction : {Direction::kForward, Direction::kDq, Direction::kDkv}) {
      auto dense = ToDense(result->plan.view(), direction, 0, 0);
      ASSERT_TRUE(dense) << ToText(dense.error());
      for (int64_t pair = 0; pair < length * length; ++pair) {
        ASSERT_EQ((*dense)[static_cast<size_t>(pair)] != 0, want(pair / length, pair % length))
            << expr << " at query " << pair / length << ", key " << pair % length << ", tile " << tile.q << "x"
            << tile.kv;
      }
    }
  }

  void CheckCrossDocument(const json& statement);
  void CheckPadding(const json& statement);
  void CheckNoCommonDocument(const json& statement);
  void CheckMixedTile(const json& statement);
  void CheckFull(const json& statement);
  void CheckPartialCleanup(const json& statement);
  void CheckFullCleanup(const json& statement);
  void CheckBoundaries(const json& statement);
  void CheckTileSize(const json& statement);
  void CheckReappearing(const json& statement);
  void CheckSinkDocument(const json& statement);
  void CheckOrBranch(const json& statement);

  const uint64_t seed_ = PrintedSeed();
  std::mt19937 random_{seed_};
};

void MixedDocumentPolicy::CheckCrossDocument(const json& statement) {
  EXPECT_EQ(statement, "rejected");
  int64_t seen = 0;
  int64_t allowed_inside = 0;
  ForEachPair([&](int32_t q_doc, int32_t kv_doc, bool allowed) {
    if (q_doc == kv_doc) allowed_inside += allowed ? 1 : 0;
    if (q_doc == kv_doc) return;
    ++seen;
    EXPECT_FALSE(allowed);
  });
  EXPECT_GT(seen, 0);
  EXPECT_GT(allowed_inside, 0);
}

void MixedDocumentPolicy::CheckPadding(const json& statement) {
  EXPECT_EQ(statement, "padding: belongs to no document and sees nothing");
  int64_t seen = 0;
  ForEachPair([&](int32_t q_doc, int32_t kv_doc, bool allowed) {
    if (q_doc >= 0 && kv_doc >= 0) return;
    ++seen;
    EXPECT_FALSE(allowed);
  });
  EXPECT_GT(seen, 0);
}

void MixedDocumentPolicy::CheckNoCommonDocument(const json& statement) {
  EXPECT_EQ(statement, "not_in_worklist");
  int64_t seen = 0;
  ForEachTile([&](const PlanView&, const Tile& tile) {
    if (tile.common_document) return;
    ++seen;
    EXPECT_EQ(tile.planned, Kind::kEmpty);
  });
  EXPECT_GT(seen, 0);
}

void MixedDocumentPolicy::CheckMixedTile(const json& statement) {
  EXPECT_EQ(statement, "partial_only");
  int64_t partial = 0;
  ForEachTile([&](const PlanView&, const Tile& tile) {
    if (tile.query_tile_homogeneous && tile.key_tile_homogeneous) return;
    EXPECT_NE(tile.planned, Kind::kFull);
    partial += tile.planned == Kind::kPartial ? 1 : 0;
  });
  EXPECT_GT(partial, 0);
}

void MixedDocumentPolicy::CheckFull(const json& statement) {
  ASSERT_TRUE(statement.is_array());
  const std::map<std::string, bool Tile::*> properties = {{"every_pair_allowed", &Tile::every_pair_allowed},
                                                          {"same_document", &Tile::same_document},
                                                          {"query_tile_homogeneous", &Tile::query_tile_homogeneous},
                                                          {"key_tile_homogeneous", &Tile::key_tile_homogeneous}};
  EXPECT_EQ(statement.size(), properties.size());
  int64_t full = 0;
  ForEachTile([&](const PlanView&, const Tile& tile) {
    bool every = true;
    for (const json& name : statement) {
      ASSERT_EQ(properties.count(name.get<std::string>()), 1u) << name;
      every &= tile.*properties.at(name.get<std::string>());
    }
    // Required, and together enough.
    EXPECT_EQ(tile.planned == Kind::kFull, every);
    full += every ? 1 : 0;
  });
  EXPECT_GT(full, 0);
}

void MixedDocumentPolicy::CheckPartialCleanup(const json& statement) {
  EXPECT_EQ(statement, true);
  int64_t seen = 0;
  ForEachTile([&](const PlanView& plan, const Tile& tile) {
    if (tile.planned != Kind::kPartial) return;
    ++seen;
    ASSERT_LT(tile.cleanup, plan.NumCleanups());
    EXPECT_FALSE(plan.Cleanup(tile.cleanup).empty());
  });
  EXPECT_GT(seen, 0);
}

void MixedDocumentPolicy::CheckFullCleanup(const json& statement) {
  EXPECT_EQ(statement, false);
  int64_t seen = 0;
  ForEachTile([&](const PlanView& plan, const Tile& tile) {
    if (!tile.every_pair_allowed) return;
    ++seen;
    EXPECT_EQ(tile.planned, Kind::kFull);
    EXPECT_EQ(tile.cleanup, 0u);
    EXPECT_TRUE(plan.Cleanup(0).empty());
  });
  EXPECT_GT(seen, 0);
}

void MixedDocumentPolicy::CheckBoundaries(const json& statement) {
  EXPECT_EQ(statement, "any_offset");
  for (size_t cut = 1; cut < 48; ++cut) {
    std::vector<int32_t> ids(48, 1);
    std::fill_n(ids.begin(), cut, 0);
    const std::string expr = "causal and documents";
    ExpectDense(expr, ids, {kTile, kTile}, [&](int64_t i, int64_t j) { return Allowed(expr, ids, i, j); });
  }
}

void MixedDocumentPolicy::CheckTileSize(const json& statement) {
  EXPECT_EQ(statement, false);
  const std::vector<int32_t> ids = RandomIds(random_);
  for (const TileSize tile : {TileSize{16, 16}, TileSize{32, 8}, TileSize{7, 13}, TileSize{256, 256}}) {
    for (const std::string& expr : kExpressions) {
      ExpectDense(expr, ids, tile, [&](int64_t i, int64_t j) { return Allowed(expr, ids, i, j); });
    }
  }
}

void MixedDocumentPolicy::CheckReappearing(const json& statement) {
  std::vector<int32_t> ids(60, 0);
  std::fill_n(ids.begin() + 20, 20, 1);
  auto refused = PlanOf("causal and documents", ids);
  ASSERT_FALSE(refused);
  EXPECT_EQ(statement["documents"], "error " + std::string(CodeText(refused.error().code)));
  EXPECT_EQ(statement["documents(equal)"], "same_document");
  ExpectDense("documents(equal)", ids, {kTile, kTile},
              [&](int64_t i, int64_t j) { return Allowed("documents(equal)", ids, i, j); });
  EXPECT_EQ(statement.size(), 2u);
}

void MixedDocumentPolicy::CheckSinkDocument(const json& statement) {
  EXPECT_EQ(statement, "first tokens of the query's own document only");
  const std::vector<int32_t> ids = RandomIds(random_);
  ExpectDense("sink(3, document)", ids, {kTile, kTile}, [&](int64_t i, int64_t j) {
    const int32_t doc = ids[static_cast<size_t>(j)];
    const auto rank = std::count(ids.begin(), ids.begin() + j, doc);
    return doc >= 0 && doc == ids[static_cast<size_t>(i)] && rank < 3;
  });
}

void MixedDocumentPolicy::CheckOrBranch(const json& statement) {
  EXPECT_EQ(statement, "may allow pairs across documents");
  const std::vector<int32_t> ids = RandomIds(random_);
  ExpectDense("documents or sink(4)", ids, {kTile, kTile},
              [&](int64_t i, int64_t j) { return j < 4 || Allowed("documents", ids, i, j); });
}

TEST_F(MixedDocumentPolicy, EveryStatement_IsWhatThePlannerDoes) {
  Proves("R3 R4");
  using Check = void (MixedDocumentPolicy::*)(const json&);
  const std::map<std::string, Check> checks = {
      {"cross_document_pair", &MixedDocumentPolicy::CheckCrossDocument},
      {"negative_id", &MixedDocumentPolicy::CheckPadding},
      {"tile_without_common_document", &MixedDocumentPolicy::CheckNoCommonDocument},
      {"mixed_tile", &MixedDocumentPolicy::CheckMixedTile},
      {"full_requires", &MixedDocumentPolicy::CheckFull},
      {"partial_tile_names_cleanup", &MixedDocumentPolicy::CheckPartialCleanup},
      {"full_tile_names_cleanup", &MixedDocumentPolicy::CheckFullCleanup},
      {"document_boundaries", &MixedDocumentPolicy::CheckBoundaries},
      {"tile_size_changes_meaning", &MixedDocumentPolicy::CheckTileSize},
      {"reappearing_id", &MixedDocumentPolicy::CheckReappearing},
      {"sink_document", &MixedDocumentPolicy::CheckSinkDocument},
      {"or_branch_without_documents", &MixedDocumentPolicy::CheckOrBranch},
  };
  const std::set<std::string> headings = {"policy", "version", "scope"};
  const json policy = ParseJson(MixedDocumentPolicyJson());
  ASSERT_TRUE(policy.is_object());
  for (const auto& [name, statement] : policy.items()) {
    if (headings.count(name) == 1) continue;
    SCOPED_TRACE(name);
    ASSERT_EQ(checks.count(name), 1u) << "a statement that nothing holds against behaviour";
    (this->*checks.at(name))(statement);
  }
  EXPECT_EQ(policy.size(), checks.size() + headings.size());
}

}  // namespace
}  // namespace tessera
