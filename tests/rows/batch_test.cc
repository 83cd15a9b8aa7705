// Batches of rows: the same shapes always, relations, pooling and neighbours against their plain definitions.
#include <gmock/gmock.h>

#include <cmath>

#include "documents.h"
#include "support/proves.h"
#include "support/run_program.h"
#include "support/seed.h"
#include "tessera/contract.h"
#include "tessera/row_batch.h"

namespace tessera {
namespace {

class Batches : public testing::Test {
 protected:
  std::vector<std::string> Pack(const std::string& text, int64_t row_tokens, int64_t shard_rows) {
    WriteWhole(folder_.File("d.jsonl"), text);
    PackOptions options;
    options.documents.row_tokens = row_tokens;
    options.documents.long_documents = LongDocuments::kSplit;
    options.shard_rows = shard_rows;
    const std::string out = folder_.File(fmt::format("out{}", ++packed_));
    auto manifest = PackFiles({folder_.File("d.jsonl")}, out, options);
    EXPECT_TRUE(manifest) << ToText(manifest.error());
    std::vector<std::string> shards;
    for (const ShardRecord& record : manifest->shards) shards.push_back(out + "/" + record.file);
    return shards;
  }
  TemporaryFolder folder_;
  int packed_ = 0;
};

std::string Keys(const RowBatch& batch) {
  std::string text;
  for (const auto& [name, tensor] : ToTensors(batch))
    text += fmt::format("{} {} [{}]\n", name, ToText(tensor.type), fmt::join(tensor.shape, ","));
  return text;
}

TEST_F(Batches, EveryBatch_HasTheSameKeysAndShapes) {
  Proves("R71 R77 B21");
  std::mt19937_64 random(PrintedSeed());
  // Rows with every column, with some and with none.
  std::string all;
  std::string none;
  for (int i = 0; i < 200; ++i) all += RandomLine(random, 60);
  for (int i = 0; i < 100; ++i) none += "{\"tokens\": [1, 2, 3]}\n";
  std::vector<std::string> shards = Pack(all, 64, 6);
  for (const std::string& shard : Pack(none, 64, 6)) shards.push_back(shard);
  auto loader = RowLoader::Open(shards, {.batch_rows = 2, .threads = 2, .relations = true});
  ASSERT_TRUE(loader) << ToText(loader.error());
  std::string keys;
  int64_t batches = 0;
  while (true) {
    auto batch = loader->Next();
    ASSERT_TRUE(batch);
    if (*batch == nullptr) break;
    ++batches;
    if (keys.empty()) keys = Keys(**batch);
    ASSERT_EQ(Keys(**batch), keys);
    EXPECT_EQ((*batch)->chunks[0].size(), size_t{2 * 128});
  }
  EXPECT_GT(batches, 20);
  EXPECT_THAT(keys, testing::HasSubstr("token_ast_node_type I32 [2,64]"));
  EXPECT_THAT(keys, testing::HasSubstr("semantic_block_starts I32 [2,128]"));
  EXPECT_THAT(keys, testing::HasSubstr("chunk_relation_mask I8 [2,9,128,128]"));
}

// Batches of any size have every row once, in order, wherever shards end.
TEST_F(Batches, Loader_CrossesShards) {
  Proves("R71");
  std::mt19937_64 random(PrintedSeed());
  std::string text;
  for (int i = 0; i < 150; ++i) text += RandomLine(random, 60);
  const std::vector<std::string> paths = Pack(text, 64, 5);
  std::vector<RowShard> shards;
  int64_t rows = 0;
  for (const std::string& path : paths) {
    auto shard = RowShard::Open(path);
    ASSERT_TRUE(shard);
    shards.push_back(std::move(*shard));
    rows += shards.back().rows();
  }
  ASSERT_GT(paths.size(), 4u);
  for (const int64_t batch_rows : {int64_t{1}, int64_t{3}, int64_t{7}, int64_t{11}, rows, rows + 1}) {
    auto loader = RowLoader::Open(paths, {.batch_rows = batch_rows, .threads = 2, .relations = batch_rows == 7});
    ASSERT_TRUE(loader) << ToText(loader.error());
    int64_t row = 0;
    while (true) {
      auto batch = loader->Next();
      ASSERT_TRUE(batch);
      if (*batch == nullptr) break;
      ASSERT_EQ((*batch)->rows, batch_rows);
      for (int64_t i = 0; i < batch_rows; ++i, ++row) {
        RowBatch one;
        const RowShard& shard = shards[static_cast<size_t>(row / 5)];
        ReadRows(shard, {row % 5, row % 5 + 1}, 1, one);
        const auto same = [&](const auto& list, const auto& expected) {
          const auto* const first = list.data() + static_cast<size_t>(i) * expected.size();
          return std::equal(expected.begin(), expected.end(), first);
        };
        EXPECT_TRUE(same((*batch)->input_ids, one.input_ids)) << row;
        EXPECT_TRUE(same((*batch)->doc_ids, one.doc_ids)) << row;
        EXPECT_TRUE(same((*batch)->token_chunk_ids, one.token_chunk_ids)) << row;
        EXPECT_TRUE(same((*batch)->platform_ids, one.platform_ids)) << row;
        for (size_t t = 0; t < one.token_chunk_ids.size(); ++t)
          ASSERT_EQ(one.token_chunk_valid[t] != 0, one.token_chunk_ids[t] >= 0);
        if (batch_rows == 7) {
          std::vector<int8_t> masks;
          RelationMasks(shard, {row % 5, row % 5 + 1}, 1, masks);
          EXPECT_TRUE(same((*batch)->chunk_relation_mask, masks)) << row;
        }
      }
    }
    EXPECT_EQ(row, rows / batch_rows * batch_rows);
    EXPECT_EQ(loader->rows_left_out(), rows % batch_rows);
  }
}

TEST_F(Batches, Rows_AreTheShards_AndWhatItLacksIsFilled) {
  Proves("R70 B1 B28");
  const auto shards = Pack("{\"tokens\": [5, 6, 7], \"token_chunk_starts\": [1]}\n{\"tokens\": [8, 9]}\n", 8, 4);
  auto shard = RowShard::Open(shards[0]);
  ASSERT_TRUE(shard);
  RowBatch batch;
  ReadRows(*shard, {0, 1}, 1, batch);
  EXPECT_THAT(batch.input_ids, testing::ElementsAre(5, 6, 7, 8, 9, 0, 0, 0));
  EXPECT_THAT(batch.structure[0], testing::Each(0));
  EXPECT_THAT(batch.structure[2], testing::Each(-1)) << "ast_depth";
  EXPECT_THAT(batch.token_chunk_ids, testing::ElementsAre(-1, 0, 0, -1, -1, -1, -1, -1));
  EXPECT_EQ(batch.chunk_valid[0], 1);
  EXPECT_EQ(batch.chunk_valid[1], 0);
  const Batch engine = ToBatch(batch);
  EXPECT_THAT(engine.doc_ids->values, testing::ElementsAre(1, 1, 1, 2, 2, -1, -1, -1));
  EXPECT_THAT(*engine.valid_tokens, testing::ElementsAre(5));
  EXPECT_FALSE(engine.valid_slots.has_value()) << "absent stays absent";
  auto contract = ParseContract(
      "version = 1\n[shape]\nq_len = 8\ndim_qk = 8\n[mask]\nexpr = \"causal and documents and valid\"\n"
      "[tiles]\nq = 8\nkv = 8\nreason = \"a test\"\n");
  ASSERT_TRUE(contract);
  auto resolved = ResolveBatch(*contract, engine);
  EXPECT_TRUE(resolved) << ToText(resolved.error());
}

TEST_F(Batches, Relations_AreThoseOfTheDefinition) {
  std::mt19937_64 random(PrintedSeed());
  std::string text;
  for (int i = 0; i < 40; ++i) text += RandomLine(random, 60);
  for (const std::string& path : Pack(text, 64, 8)) {
    auto shard = RowShard::Open(path);
    ASSERT_TRUE(shard);
    const int64_t width = ChunkWidth(64);
    std::vector<int8_t> masks;
    RelationMasks(*shard, {0, shard->rows()}, 2, masks);
    if (shard->chunk_starts().empty()) continue;
    for (int64_t row = 0; row < shard->rows(); ++row) {
      const auto at = [&](std::span<const int32_t> list, int64_t i) {
        return list[static_cast<size_t>(row * width + i)];
      };
      const auto document = [&](int64_t i) -> int32_t {
        if (at(shard->chunk_ends(), i) <= at(shard->chunk_starts(), i)) return 0;
        return shard->doc_ids()[static_cast<size_t>(row * 64 + at(shard->chunk_starts(), i))];
      };
      const auto has = [](std::span<const ChunkEdge> edges, int64_t from, int64_t to) {
        return std::find(edges.begin(), edges.end(), ChunkEdge{static_cast<int32_t>(from), static_cast<int32_t>(to)}) !=
               edges.end();
      };
      const auto calls = shard->call_edges(row);
      const auto types = shard->type_edges(row);
      for (int64_t i = 0; i < width; ++i) {
        for (int64_t j = 0; j < width; ++j) {
          const bool is_one = document(i) > 0 && document(i) == document(j);
          const int64_t levels = at(shard->chunk_dep_levels(), i) - at(shard->chunk_dep_levels(), j);
          const bool known = at(shard->chunk_dep_levels(), i) >= 0 && at(shard->chunk_dep_levels(), j) >= 0 && i != j;
          const bool first = at(shard->chunk_kinds(), i) == 1;
          const bool second = at(shard->chunk_kinds(), j) == 1;
          const bool expected[] = {i == j,
                                   has(calls, i, j),
                                   has(calls, j, i),
                                   has(types, i, j),
                                   has(types, j, i),
                                   known && levels == 0,
                                   known && std::abs(levels) == 1,
                                   first && !second,
                                   !first && second};
          for (int64_t r = 0; r < kNumRelations; ++r)
            ASSERT_EQ(masks[static_cast<size_t>(((row * kNumRelations + r) * width + i) * width + j)] != 0,
                      is_one && expected[r])
                << Relations()[static_cast<size_t>(r)] << " " << i << " " << j;
        }
      }
    }
  }
}

TEST(Structure, Pooling_IsTheMean_AndNeighboursAreTheFirst) {
  Proves("R75");
  std::mt19937_64 random(PrintedSeed());
  constexpr int64_t kTokens = 50;
  constexpr int64_t kDim = 3;
  constexpr int64_t kChunks = 20;
  std::vector<float> values(kTokens * kDim);
  std::vector<int32_t> ids(kTokens);
  for (float& value : values) value = static_cast<float>(random() % 1000) / 8.0F;
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % (kChunks + 1)) - 1;
  for (int64_t d = 0; d < kDim; ++d) values[static_cast<size_t>(d)] = std::nanf("");
  ids[0] = -1;  // in no chunk, so it reaches none
  std::vector<float> pooled(kChunks * kDim);
  PoolChunks(values, ids, {.dim = kDim, .num_chunks = kChunks}, pooled);
  for (int64_t c = 0; c < kChunks; ++c) {
    for (int64_t d = 0; d < kDim; ++d) {
      double sum = 0;
      int64_t count = 0;
      for (int64_t t = 0; t < kTokens; ++t) {
        if (ids[static_cast<size_t>(t)] != c) continue;
        sum += values[static_cast<size_t>(t * kDim + d)];
        ++count;
      }
      const double mean = count == 0 ? 0.0 : sum / static_cast<double>(count);
      EXPECT_NEAR(pooled[static_cast<size_t>(c * kDim + d)], mean, 1e-3);
    }
  }
  constexpr int64_t kMost = 4;
  std::vector<int8_t> adjacent(kChunks * kChunks);
  for (int8_t& cell : adjacent) cell = random() % 3 == 0 ? 1 : 0;
  std::vector<int8_t> chosen(adjacent.size());
  ChooseNeighbours(adjacent, kChunks, kMost, chosen);
  for (int64_t i = 0; i < kChunks; ++i) {
    // Stable top-K of the row: all neighbours score alike, so the first come first.
    std::vector<int64_t> order(kChunks);
    for (int64_t j = 0; j < kChunks; ++j) order[static_cast<size_t>(j)] = j;
    const auto score = [&](int64_t j) { return adjacent[static_cast<size_t>(i * kChunks + j)]; };
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return score(a) > score(b); });
    std::vector<int8_t> expected(kChunks, 0);
    for (int64_t k = 0; k < kMost; ++k) {
      if (score(order[static_cast<size_t>(k)]) != 0) expected[static_cast<size_t>(order[static_cast<size_t>(k)])] = 1;
    }
    EXPECT_EQ(std::vector<int8_t>(chosen.begin() + i * kChunks, chosen.begin() + (i + 1) * kChunks), expected);
  }
}

}  // namespace
}  // namespace tessera
