// The plan as the kernels read it, against the plan itself: every pair of every tile, by the code that the kernels mask
// with, and the order of work.
#include "lanes/cuda/image.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lanes/cuda/kernels.h"
#include "lanes/cuda/mask_words.h"
#include "support/seed.h"
#include "tessera/tessera.h"

namespace tessera::lanes::cuda {
namespace {

struct ImageView {
  const std::byte* bytes;
  const PlanHeader& header() const { return *reinterpret_cast<const PlanHeader*>(bytes); }
  template <class T>
  const T* At(Section section) const {
    return section == 0 ? nullptr : reinterpret_cast<const T*>(bytes + int64_t{section} * 16);
  }
};

// The mask of one row of tiles, from the image's slots and the words of every thread.
template <int32_t Cols, bool KeysAreRows>
void FillRow(const ImageView& image, const PlanList& list, const Shape& shape, int64_t batch_row, int32_t row,
             std::pair<int32_t, int32_t> slots, int32_t tile_rows, std::vector<uint8_t>& dense) {
  const ValidTokens valid = image.At<ValidTokens>(image.header().valid)[batch_row];
  const auto row_tokens = static_cast<int32_t>(KeysAreRows ? shape.kv_len : shape.q_len);
  const auto col_tokens = static_cast<int32_t>(KeysAreRows ? shape.q_len : shape.kv_len);
  MaskTables tables{
      image.At<Item>(list.items),       image.At<TokenSpan>(list.spans),  image.At<uint64_t>(image.header().bits),
      KeysAreRows ? valid.kv : valid.q, KeysAreRows ? valid.q : valid.kv, col_tokens};
  const TokenSpan* tokens = image.At<TokenSpan>(list.tokens);
  for (int32_t s = slots.first; s < slots.second; ++s) {
    const Slot slot = image.At<Slot>(list.slots)[s];
    for (int32_t r = 0; r < tile_rows; r += 2) {
      for (int32_t quad = 0; quad < 4; ++quad) {
        RowPair rows{{r, r + 1}, row * tile_rows, {}};
        for (int i = 0; i < 2 && tokens != nullptr; ++i) {
          rows.span[i] = tokens[(batch_row * list.rows_per_mask + row) * tile_rows + r + i];
        }
        Words words{{~0U, ~0U}};
        if (slot.cleanup != 0) {
          words = CleanupWords<Cols, KeysAreRows>(tables, slot.cleanup, tables.items[slot.cleanup - 1], rows,
                                                  slot.index * Cols, quad);
        }
        for (int i = 0; i < 2; ++i) {
          const int64_t row_token = int64_t{row} * tile_rows + r + i;
          for (int32_t bit = 0; bit < Cols / 4; ++bit) {
            const int64_t col_token = int64_t{slot.index} * Cols + bit / 2 * 8 + 2 * quad + bit % 2;
            if ((words.word[i] >> bit & 1U) == 0 || row_token >= row_tokens) continue;
            ASSERT_LT(col_token, col_tokens) << "a word reaches past the length";
            const int64_t q = KeysAreRows ? col_token : row_token;
            const int64_t k = KeysAreRows ? row_token : col_token;
            dense[static_cast<size_t>(q * shape.kv_len + k)] = 1;
          }
        }
      }
    }
  }
}

void FillList(const ImageView& image, KernelKind kind, const Contract& contract, int64_t batch_row, int64_t head,
              std::vector<uint8_t>& dense) {
  const Shape& s = contract.shape;
  const PlanList& list = image.header().lists[static_cast<size_t>(kind)];
  const Tile tile = TileOf(kind, static_cast<int32_t>(s.dim_qk));
  const uint32_t mask = image.At<uint32_t>(image.header().mask_of)[batch_row * s.num_q_heads + head];
  for (int32_t w = 0; w < list.work_count; ++w) {
    const Work work = image.At<Work>(list.work)[w];
    std::pair<int32_t, int32_t> slots{work.slot_begin, work.slot_begin + work.slot_count};
    if (kind == KernelKind::kDkv) {
      const int64_t key_head = batch_row * s.num_kv_heads + head / (s.num_q_heads / s.num_kv_heads);
      if (work.head != key_head) continue;
      const uint32_t* offsets = image.At<uint32_t>(list.row_offsets) + mask * static_cast<uint32_t>(list.rows_per_mask);
      slots = {static_cast<int32_t>(offsets[work.row]), static_cast<int32_t>(offsets[work.row + 1])};
      FillRow<64, true>(image, list, s, batch_row, work.row, slots, tile.rows, dense);
    } else if (work.head == batch_row * s.num_q_heads + head) {
      if (tile.cols == 128) {
        FillRow<128, false>(image, list, s, batch_row, work.row, slots, tile.rows, dense);
      } else {
        FillRow<64, false>(image, list, s, batch_row, work.row, slots, tile.rows, dense);
      }
    }
    if (testing::Test::HasFatalFailure()) return;
  }
}

void ExpectImage(const Contract& contract, const Batch& batch) {
  const Target target = FindTarget("h200").value();
  const Result<PlanResult> made = MakePlan(contract, batch, target, {});
  ASSERT_TRUE(made.has_value()) << ToText(made.error());
  const PlanView& plan = made->plan.view();
  const Result<PlanImage> image = MakeImage(contract, plan, {.forward = true, .backward = true});
  ASSERT_TRUE(image.has_value()) << ToText(image.error());
  const ImageView view{image->bytes.data()};
  for (const KernelKind kind : {KernelKind::kForward, KernelKind::kDq, KernelKind::kDkv}) {
    for (int64_t b = 0; b < contract.shape.batch; ++b) {
      for (int64_t h = 0; h < contract.shape.num_q_heads; ++h) {
        const Result<std::vector<uint8_t>> want = ToDense(plan, static_cast<Direction>(kind), b, h);
        ASSERT_TRUE(want.has_value());
        std::vector<uint8_t> got(want->size(), 0);
        FillList(view, kind, contract, b, h, got);
        if (testing::Test::HasFatalFailure()) return;
        for (size_t i = 0; i < got.size(); ++i) {
          ASSERT_EQ(got[i], (*want)[i]) << ToText(static_cast<Direction>(kind)) << " batch row " << b << " head " << h
                                        << " q " << i / static_cast<size_t>(contract.shape.kv_len) << " k "
                                        << i % static_cast<size_t>(contract.shape.kv_len);
        }
      }
    }
  }
}

Contract MakeContract(const std::string& mask, int64_t q_len, int64_t kv_len, int64_t dim = 128) {
  Contract contract;
  contract.shape = {.batch = 2,
                    .q_len = q_len,
                    .kv_len = kv_len,
                    .num_q_heads = 4,
                    .num_kv_heads = 2,
                    .dim_qk = dim,
                    .dim_v = dim == 192 ? 128 : dim,
                    .dtype = DType::kBf16};
  contract.mask.heads = {ParseMaskExpr(mask).value()};
  contract.mask.offset = kv_len - q_len;
  contract.score.scale = 0.1;
  return contract;
}

TEST(CudaImage, TilesOfTheTarget_AreTheKernels) {
  const Target target = FindTarget("h200").value();
  for (const int64_t dim : {64, 128, 192, 256}) {
    const Contract contract = MakeContract("causal", 300, 300, dim);
    const Result<ClassShape> shape = MakeClassShape(contract, target);
    ASSERT_TRUE(shape.has_value());
    for (const KernelKind kind : {KernelKind::kForward, KernelKind::kDq, KernelKind::kDkv}) {
      const Tile want = TileOf(kind, static_cast<int32_t>(dim));
      const TileSize got = shape->tiles[static_cast<size_t>(kind)];
      const bool is_dkv = kind == KernelKind::kDkv;
      EXPECT_EQ(is_dkv ? got.kv : got.q, want.rows) << dim;
      EXPECT_EQ(is_dkv ? got.q : got.kv, want.cols) << dim;
    }
  }
}

TEST(CudaImage, EveryPair_IsThePlans) {
  for (const int64_t dim : {128, 192, 256}) {
    for (const char* mask : {"causal", "full", "window(40, 7)", "chunk(100)", "prefix(33) or causal",
                             "causal and (window(50, 0) or sink(5))"}) {
      SCOPED_TRACE(fmt::format("{} at dim {}", mask, dim));
      ExpectImage(MakeContract(mask, 333, 333, dim), {});
      ExpectImage(MakeContract(mask, 1, 200, dim), {});
      ExpectImage(MakeContract(mask, 200, 65, dim), {});
    }
  }
}

TEST(CudaImage, DocumentsValidityAndSinks_AreThePlans) {
  Batch batch;
  IdRows ids{2, 300, {}};
  for (int32_t b = 0; b < 2; ++b) {
    for (int32_t t = 0; t < 300; ++t) ids.values.push_back(t >= 290 ? -1 : t / (b == 0 ? 37 : 130));
  }
  batch.doc_ids = ids;
  for (const char* mask :
       {"causal and documents", "documents", "causal and documents and (window(30, 0) or sink(4, document))"}) {
    SCOPED_TRACE(mask);
    ExpectImage(MakeContract(mask, 300, 300), batch);
  }
  batch.valid_tokens = std::vector<int64_t>{250, 0};
  ExpectImage(MakeContract("causal and documents and valid", 300, 300), batch);
  // Documents that come back, with the first tokens of each.
  for (int32_t& id : batch.doc_ids->values) id = id < 0 ? -1 : id % 3;
  batch.valid_tokens.reset();
  ExpectImage(MakeContract("causal and documents(equal)", 300, 300), batch);
  ExpectImage(MakeContract("documents(equal) and (window(20, 20) or sink(50, document))", 300, 300), batch);
}

TEST(CudaImage, RandomMasks_AreThePlans) {
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  for (int round = 0; round < 40; ++round) {
    const int64_t q_len = static_cast<int64_t>(rng() % 300) + 1;
    Contract contract = MakeContract("causal", q_len, rng() % 2 == 0 ? q_len : static_cast<int64_t>(rng() % 300) + 1,
                                     std::array{128, 192, 256}[rng() % 3]);
    contract.mask.heads = {ParseMaskExpr(fmt::format("window({}, {}) or sink({}) or chunk({})", rng() % 90, rng() % 40,
                                                     rng() % 70, rng() % 150 + 1))
                               .value()};
    SCOPED_TRACE(fmt::format("seed {} round {}: {}", seed, round, ToText(contract.mask.heads[0])));
    ExpectImage(contract, {});
    if (HasFatalFailure()) return;
  }
}

TEST(CudaImage, Bitmaps_AreThePlans) {
  std::mt19937_64 rng(PrintedSeed());
  auto bitmap = std::make_shared<Bitmap>();
  bitmap->q_len = bitmap->kv_len = 200;
  bitmap->heads = 1;
  bitmap->cells.resize(200 * 200);
  for (auto& cell : bitmap->cells) cell = rng() % 3 == 0 ? 1 : 0;
  bitmap->digest = std::string(32, '0');
  Contract contract = MakeContract("causal", 200, 200);
  MaskExpr expr;
  expr.term.kind = TermKind::kBitmap;
  expr.term.bitmap = bitmap;
  expr.term.path = "bitmap.npy";
  contract.mask.heads = {expr};
  ExpectImage(contract, {});
}

TEST(CudaImage, Work_IsEveryRowOnceLongestFirst) {
  const Contract contract = MakeContract("causal", 1000, 1000);
  const Result<PlanResult> made = MakePlan(contract, {}, FindTarget("h200").value(), {});
  ASSERT_TRUE(made.has_value());
  const Result<PlanImage> image = MakeImage(contract, made->plan.view(), {.forward = true, .backward = true});
  ASSERT_TRUE(image.has_value());
  const ImageView view{image->bytes.data()};
  for (const KernelKind kind : {KernelKind::kForward, KernelKind::kDq, KernelKind::kDkv}) {
    const PlanList& list = view.header().lists[static_cast<size_t>(kind)];
    EXPECT_EQ(list.work_count, list.rows_per_mask * 2 * (kind == KernelKind::kDkv ? 2 : 4));
    std::set<std::pair<int32_t, int32_t>> seen;
    int32_t last = INT32_MAX;
    for (int32_t w = 0; w < list.work_count; ++w) {
      const Work work = view.At<Work>(list.work)[w];
      EXPECT_TRUE(seen.emplace(work.row, work.head).second);
      EXPECT_LE(work.slot_count, last);  // one group of heads: all fit the cache
      last = work.slot_count;
    }
    EXPECT_EQ(static_cast<int64_t>(seen.size()), image->work[static_cast<size_t>(kind)]);
  }
  EXPECT_EQ(image->tiles[0], CountTiles(made->plan.view(), Direction::kForward).full +
                                 CountTiles(made->plan.view(), Direction::kForward).partial);
}

}  // namespace
}  // namespace tessera::lanes::cuda
