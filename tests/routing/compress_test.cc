// compress alone: which keys are in which mean, and for which block and meta-block it speaks.
#include "routing/cases.h"
#include "support/proves.h"

namespace tessera::routing {
namespace {

// 13 keys whose value is their number, in compression blocks of 4 every 2, selected blocks of 8, meta-blocks of 2.
RoutingCase NumberedKeys() {
  RoutingCase out;
  out.contract.shape.q_len = out.contract.shape.kv_len = 13;
  out.contract.shape.dim_qk = 3;
  out.contract.mask.heads.resize(1);
  out.contract.routing = Routing{.selected_block = 8, .block_stride = 2, .compression_block = 4, .top_n = 1};
  out.contract.routing->hierarchical = true;
  out.contract.routing->meta_ratio = 2;
  out.rows.resize(1);
  out.q = Tensor::Zeros(ElementType::kF32, {1, 1, 13, 3});
  out.k = Tensor::Zeros(ElementType::kF32, {1, 1, 13, 3});
  for (int64_t j = 0; j < 13; ++j) out.SetK(0, 0, j, static_cast<double>(j));
  return out;
}

std::string TextOf(const CompressedKeys& keys) {
  std::string out;
  const CompressedRow& row = keys.rows[0];
  for (const DocumentMeans& document : row.documents) {
    for (int32_t m = document.mean_begin; m < document.mean_end; ++m) {
      const Mean& mean = row.means[static_cast<size_t>(m)];
      const float value = row.values[static_cast<size_t>(m * keys.dim)];
      out += std::to_string(mean.compression) + ":" + std::to_string(mean.first) + "-" + std::to_string(mean.last) +
             "@" + std::to_string(mean.block) + "=" + std::to_string(value).substr(0, 4) + " ";
    }
    out += "| ";
  }
  return out;
}

TEST(RoutingCompress, OneDocument_IsCutAtTheEnd) {
  Proves("R19");
  RoutingCase at = NumberedKeys();
  SetMask(at, [](int64_t, int64_t p, int64_t j) { return j <= p; });
  const Result<CompressedKeys> keys = Compress(at.Input());
  ASSERT_TRUE(keys.has_value()) << ToText(keys.error());
  EXPECT_EQ(keys->dim, 16);
  EXPECT_EQ(TextOf(*keys),
            "0:0-3@0=1.50 1:2-5@0=3.50 2:4-7@0=5.50 3:6-9@0=7.50 4:8-11@1=9.50 5:10-12@1=11.0 6:12-12@1=12.0 | ");
  ASSERT_EQ(keys->rows[0].metas.size(), 4U) << "the last one is ragged";
  EXPECT_EQ(keys->rows[0].metas[3].mean_end - keys->rows[0].metas[3].mean_begin, 1);
  // Two means stand out alike, so the representative is midway; one alone is its own.
  EXPECT_EQ(keys->rows[0].representatives[0], 2.5F);
  EXPECT_EQ(keys->rows[0].representatives[3 * 16], 12.0F);
  EXPECT_EQ(keys->rows[0].values[3], 0.0F) << "padded with zeros";
}

TEST(RoutingCompress, DocumentsPaddingAndValidity_AreKeptApart) {
  RoutingCase at = NumberedKeys();
  at.q_docs = at.kv_docs = {{7, 7, 7, 5, 5, -1, -1, 7, 7, 7, 5, 5, 5}};
  at.rows[0].q_segments = at.rows[0].kv_segments = ToSegments(at.q_docs[0]);
  at.rows[0].kv_valid = 12;
  at.rows[0].q_valid = 9;
  SetMask(at, [](int64_t, int64_t p, int64_t j) { return j <= p; });
  const Result<CompressedKeys> keys = Compress(at.Input());
  ASSERT_TRUE(keys.has_value()) << ToText(keys.error());
  EXPECT_EQ(TextOf(*keys),
            "0:0-2@0=1.00 1:2-2@0=2.00 2:7-7@0=7.00 3:7-9@0=8.00 4:8-9@1=8.50 | "
            "0:3-3@0=3.00 1:3-4@0=3.50 2:4-4@0=4.00 4:10-11@1=10.5 5:10-11@1=10.5 | ");
  std::string stretches;
  for (const QueryStretch& s : keys->rows[0].stretches) {
    stretches += std::to_string(s.begin) + "-" + std::to_string(s.end) + "=" + std::to_string(s.document) + " ";
  }
  EXPECT_EQ(stretches, "0-3=0 3-5=1 5-7=-1 7-9=0 9-13=-1 ");
}

TEST(RoutingCompress, ARowWithoutValidKeys_HasNoMeans) {
  RoutingCase at = NumberedKeys();
  at.rows[0].kv_valid = 0;
  SetMask(at, [](int64_t, int64_t p, int64_t j) { return j <= p; });
  const Result<CompressedKeys> keys = Compress(at.Input());
  ASSERT_TRUE(keys.has_value());
  EXPECT_TRUE(keys->rows[0].means.empty());
  const PickRows picks = PicksOf(at.Input());
  EXPECT_EQ(picks.blocks, std::vector<int32_t>(13, -1));
}

}  // namespace
}  // namespace tessera::routing
