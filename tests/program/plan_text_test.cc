// The plan's text forms say what the plan holds: JSON, the map, and the summary.
#include <fmt/format.h>

#include <random>

#include "program_test.h"
#include "support/seed.h"
#include "tessera/tessera.h"

namespace tessera {
namespace {

using nlohmann::json;

PlanResult PlanOf(const std::string& expr, int64_t q_len, int64_t kv_len, int64_t tile, const Batch& batch = {}) {
  auto contract = ParseContract(fmt::format(
      "version = 1\n[shape]\nq_len = {}\nkv_len = {}\nnum_q_heads = 2\nnum_kv_heads = 1\ndim_qk = 8\ndim_v = 8\n"
      "[mask]\nexpr = \"{}\"\n[tiles]\nq = {}\nkv = {}\nreason = \"a test\"\n",
      q_len, kv_len, expr, tile, tile));
  EXPECT_TRUE(contract) << ToText(contract.error());
  auto result = MakePlan(*contract, batch, *FindTarget("cpu"));
  EXPECT_TRUE(result) << ToText(result.error());
  return std::move(*result);
}

// The cells of a map, two characters each, without labels and legend.
std::vector<std::vector<std::string>> CellsOf(const std::string& map) {
  std::vector<std::vector<std::string>> rows;
  std::istringstream lines(map);
  const std::string bar = "│";
  for (std::string line; std::getline(lines, line);) {
    const size_t at = line.find(bar);
    if (at == std::string::npos) continue;
    std::vector<std::string> row;
    for (size_t i = at + bar.size(); i < line.size();) {
      const size_t bytes = line[i] == ' ' ? 3 : 6;  // " ·", or one glyph twice
      row.push_back(line.substr(i, bytes));
      i += bytes;
    }
    rows.push_back(row);
  }
  return rows;
}

TEST(DrawTiles, SmallPlan_OneCellPerTile) {
  const PlanResult result = PlanOf("causal and window(20, 0)", 100, 100, 10);
  const auto cells = CellsOf(DrawTiles(result.plan.view(), 0, 1, 40, 40));
  ASSERT_EQ(cells.size(), 10u);
  for (size_t row = 0; row < 10; ++row) {
    ASSERT_EQ(cells[row].size(), 10u);
    for (size_t column = 0; column < 10; ++column) {
      // Window 20 over tiles of 10: the diagonal and two tiles back are partial, one back is full.
      const std::string want = column > row || column + 2 < row ? " ·" : column + 1 == row ? "██" : "▒▒";
      EXPECT_EQ(cells[row][column], want) << row << ", " << column;
    }
  }
}

TEST(DrawTiles, LargePlan_IsDownSampledWithCounts) {
  const PlanResult result = PlanOf("causal", 64 * 50, 64 * 50, 64);
  const std::string map = DrawTiles(result.plan.view(), 0, 0, 20, 10);
  const auto cells = CellsOf(map);
  ASSERT_EQ(cells.size(), 10u);
  for (size_t row = 0; row < 10; ++row) {
    ASSERT_EQ(cells[row].size(), 10u) << "a square map stays square";
    EXPECT_EQ(cells[row][row], "▒▒");  // 15 of 25 tiles kept
    EXPECT_TRUE(row == 0 || cells[row][row - 1] == "██") << row;
    EXPECT_TRUE(row == 9 || cells[row][row + 1] == " ·") << row;
  }
  EXPECT_NE(map.find("one cell is 5 x 5 tiles"), std::string::npos) << map;
  EXPECT_NE(map.find("tiles: 1225 full, 50 partial, 1225 empty"), std::string::npos) << map;
}

TEST(DrawTiles, NoSuchHead_IsEmpty) {
  const PlanResult result = PlanOf("causal", 64, 64, 16);
  EXPECT_EQ(DrawTiles(result.plan.view(), 0, 2, 10, 10), "");
  EXPECT_EQ(DrawTiles(result.plan.view(), -1, 0, 10, 10), "");
  EXPECT_NE(DrawTiles(result.plan.view(), 0, 0, 0, 0), "");
}

TEST(PlanJson, EveryPartOfThePlan_IsThere) {
  const uint64_t seed = PrintedSeed();
  std::mt19937 random(seed);
  Batch batch;
  batch.doc_ids = IdRows{1, 130, {}};
  for (int32_t doc = 0; batch.doc_ids->values.size() < 130; ++doc) {
    batch.doc_ids->values.insert(batch.doc_ids->values.end(), 1 + random() % 60, doc);
  }
  batch.doc_ids->values.resize(130);
  batch.valid_tokens = std::vector<int64_t>{static_cast<int64_t>(random() % 131)};
  const PlanResult result = PlanOf("causal and documents and valid or sink(3, document)", 130, 130, 16, batch);
  const PlanView& plan = result.plan.view();
  const json document = ParseJson(ToJson(plan));
  ASSERT_TRUE(document.is_object());
  EXPECT_EQ(document["version"], kPlanVersion);
  EXPECT_EQ(document["fingerprint"], ToHex(plan.fingerprint));
  EXPECT_EQ(document["contract_key"], ToHex(plan.contract_key));
  EXPECT_EQ(document["class_key"], ToHex(plan.class_key));
  EXPECT_EQ(document["mask_digest"], ToHex(plan.mask_digest));
  EXPECT_EQ(document["metadata_bytes"], MetadataBytes(plan));
  EXPECT_EQ(document["mask_of"], json::parse(fmt::format("[[{}]]", fmt::join(plan.mask_of, ","))));
  EXPECT_EQ(document["q_valid"][0], batch.valid_tokens->front());
  ASSERT_EQ(document["cleanups"].size(), plan.NumCleanups());
  EXPECT_EQ(document["cleanups"][0], json::array());
  size_t items = 0;
  for (const json& cleanup : document["cleanups"]) items += cleanup.size();
  EXPECT_EQ(items, plan.items.size());
  EXPECT_EQ(document["conditions"].size(), plan.conditions.size());
  ASSERT_EQ(document["directions"].size(), kNumDirections);
  for (size_t d = 0; d < kNumDirections; ++d) {
    const auto direction = static_cast<Direction>(d);
    const Worklist& worklist = plan.Of(direction);
    const json& text = document["directions"][std::string(ToText(direction))];
    EXPECT_EQ(text["tile"], json::parse(fmt::format("[{},{}]", worklist.tile_q, worklist.tile_kv)));
    EXPECT_EQ(text["width_capacity"], worklist.width_capacity);
    EXPECT_EQ(text["parts"].size(), worklist.parts.size());
    EXPECT_EQ(text["tile_counts"]["partial"], CountTiles(plan, direction).partial);
    ASSERT_EQ(text["rows"].size(), static_cast<size_t>(plan.num_masks));
    for (size_t mask = 0; mask < text["rows"].size(); ++mask) {
      ASSERT_EQ(text["rows"][mask].size(), worklist.rows_per_mask);
      for (size_t row = 0; row < worklist.rows_per_mask; ++row) {
        const auto slots = worklist.Row(mask * worklist.rows_per_mask + row);
        ASSERT_EQ(text["rows"][mask][row].size(), slots.size());
        for (size_t i = 0; i < slots.size(); ++i) {
          const json want = {slots[i].index, slots[i].cleanup == 0 ? "full" : "partial", slots[i].cleanup};
          EXPECT_EQ(text["rows"][mask][row][i], want);
        }
      }
    }
  }
}

TEST(PlanJson, AbsentValidity_IsNullAndZeroIsZero) {
  Batch zero;
  zero.valid_tokens = std::vector<int64_t>{0};
  EXPECT_EQ(ParseJson(ToJson(PlanOf("causal and valid", 64, 64, 16, zero).plan.view()))["kv_valid"], json::array({0}));
  const json absent = ParseJson(ToJson(PlanOf("causal", 64, 64, 16).plan.view()))["kv_valid"];
  for (const json& count : absent) EXPECT_TRUE(count.is_null());
}

TEST(Summary, Counts_AreThePlans) {
  const PlanResult result = PlanOf("causal", 64 * 50, 64 * 50, 64);
  const std::string text = Summary(result.plan.view());
  // Two heads: 2 x 50 partial on the diagonal, 2 x 1225 below it.
  EXPECT_NE(text.find("2,450"), std::string::npos) << text;
  EXPECT_NE(text.find(" 100 "), std::string::npos) << text;
  EXPECT_NE(text.find(ToHex(result.plan.view().fingerprint)), std::string::npos) << text;
}

}  // namespace
}  // namespace tessera
