// The plan as the kernels read it, against the plan itself: every pair of every tile, by the code that the kernels mask
// with, and the order of work.
#include "lanes/cuda/image.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lanes/cuda/kernels.h"
#include "lanes/cuda/mask_words.h"
#include "support/random_batch.h"
#include "support/seed.h"
#include "tessera/tessera.h"

namespace tessera::lanes::cuda {
namespace {

constexpr KernelKind kKinds[] = {KernelKind::kForward, KernelKind::kDq, KernelKind::kDkv};

struct ImageView {
  const std::byte* bytes;
  const PlanHeader& header() const { return *reinterpret_cast<const PlanHeader*>(bytes); }
  template <class T>
  const T* At(Section section) const {
    return section == 0 ? nullptr : reinterpret_cast<const T*>(bytes + int64_t{section} * 16);
  }
};

// The mask of one row of tiles, from the image's slots and the words of every thread. No pair of it is in cells that
// are said to be idle.
template <int32_t Cols, bool KeysAreRows>
void FillRow(const ImageView& image, const PlanList& list, const Shape& shape, int64_t batch_row, int32_t row,
             std::pair<int32_t, int32_t> slots, const Idle& idle, int32_t tile_rows, std::vector<uint8_t>& dense) {
  const int32_t cells = (slots.second - slots.first) * (Cols / kCellTokens);
  for (const int half : {0, 1}) {
    ASSERT_LE(idle.lead[half] + idle.trail[half], cells);
    ASSERT_TRUE(tile_rows == 2 * kCellTokens || idle.lead[half] + idle.trail[half] == 0);
  }
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
            const int32_t cell = (s - slots.first) * (Cols / kCellTokens) + bit / (kCellTokens / 4);
            const int32_t half = (r + i) / kCellTokens;
            ASSERT_GE(cell, idle.lead[half]) << "row " << row << " has pairs in an idle cell";
            ASSERT_LT(cell, cells - idle.trail[half]) << "row " << row << " has pairs in an idle cell";
            const int64_t q = KeysAreRows ? col_token : row_token;
            const int64_t k = KeysAreRows ? row_token : col_token;
            ++dense[static_cast<size_t>(q * shape.kv_len + k)];  // more than once is wrong too
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
    const Idle idle = work.idle;
    if (kind == KernelKind::kDkv) {
      const int64_t key_head = batch_row * s.num_kv_heads + head / (s.num_q_heads / s.num_kv_heads);
      if (work.head != key_head) continue;
      const auto col_head = static_cast<int32_t>(head);
      if (col_head < work.col_head || col_head >= work.col_head + std::max(work.col_heads, 1)) continue;
      if (work.col_heads > 0) {
        const uint32_t* offsets =
            image.At<uint32_t>(list.row_offsets) + mask * static_cast<uint32_t>(list.rows_per_mask);
        slots = {static_cast<int32_t>(offsets[work.row]), static_cast<int32_t>(offsets[work.row + 1])};
        ASSERT_EQ(work.slot_count % HeadsApart(idle, work.col_heads), 0);
        if (HeadsApart(idle, work.col_heads) > 1) {
          ASSERT_EQ(slots.second - slots.first, work.slot_count / work.col_heads);
        }
      }
      FillRow<64, true>(image, list, s, batch_row, work.row, slots, idle, tile.rows, dense);
    } else if (work.head == batch_row * s.num_q_heads + head) {
      if (tile.cols == 128) {
        FillRow<128, false>(image, list, s, batch_row, work.row, slots, idle, tile.rows, dense);
      } else {
        FillRow<64, false>(image, list, s, batch_row, work.row, slots, idle, tile.rows, dense);
      }
    }
    if (testing::Test::HasFatalFailure()) return;
  }
}

void ExpectPairs(const Contract& contract, const PlanView& plan, const PlanImage& image) {
  const ImageView view{image.bytes.data()};
  for (const KernelKind kind : kKinds) {
    for (int64_t b = 0; b < contract.shape.batch; ++b) {
      for (int64_t h = 0; h < contract.shape.num_q_heads; ++h) {
        const Result<std::vector<uint8_t>> want = ToDense(plan, static_cast<Direction>(kind), b, h);
        ASSERT_TRUE(want.has_value());
        std::vector<uint8_t> got(want->size(), 0);
        FillList(view, kind, contract, b, h, got);
        if (testing::Test::HasFatalFailure()) return;
        const auto [at, other] = std::mismatch(got.begin(), got.end(), want->begin());
        if (at == got.end()) continue;
        const int64_t i = at - got.begin();
        FAIL() << ToText(static_cast<Direction>(kind)) << " batch row " << b << " head " << h << " q "
               << i / contract.shape.kv_len << " k " << i % contract.shape.kv_len << ": " << int{*at} << " times, not "
               << int{*other};
      }
    }
  }
}

// The slots that a row of this kind has over all of its heads.
int64_t SlotsOf(const Contract& contract, const PlanView& plan, KernelKind kind, const Work& work) {
  const Shape& s = contract.shape;
  const Worklist& list = plan.Of(static_cast<Direction>(kind));
  const int64_t group = kind == KernelKind::kDkv ? s.num_q_heads / s.num_kv_heads : 1;
  int64_t slots = 0;
  for (int64_t head = work.head * group; head < (work.head + 1) * group; ++head) {
    const size_t mask = plan.mask_of[static_cast<size_t>(head)];
    slots += static_cast<int64_t>(list.Row(mask * list.rows_per_mask + static_cast<size_t>(work.row)).size());
  }
  return slots;
}

// Every row is there once, whole or as parts that are neighbours and no longer than the class says; what is no longer
// than a part is whole; and there are no more of anything than the class books. Gives how many parts there are.
int64_t ExpectParts(const Contract& contract, const PlanView& plan, const PlanImage& image, KernelKind kind) {
  const ImageView view{image.bytes.data()};
  const PlanList& list = view.header().lists[static_cast<size_t>(kind)];
  const ClassWork& most = image.work[static_cast<size_t>(kind)];
  const int64_t part_slots = plan.Of(static_cast<Direction>(kind)).part_slots;
  SCOPED_TRACE(ToText(static_cast<Direction>(kind)));
  EXPECT_LE(list.split_count, most.splits);
  EXPECT_LE(list.work_count, most.work());
  std::map<std::pair<int32_t, int32_t>, int64_t> left;  // slots of a row of which no work was seen
  std::map<int32_t, Work> parts;
  for (int32_t w = 0; w < list.work_count; ++w) {
    const Work work = view.At<Work>(list.work)[w];
    const auto [at, is_first] = left.try_emplace({work.row, work.head}, SlotsOf(contract, plan, kind, work));
    if (work.part >= 0) {
      EXPECT_GT(at->second, part_slots) << "a short row is cut";
      EXPECT_TRUE(parts.emplace(work.part, work).second) << work.part;
      continue;
    }
    EXPECT_TRUE(is_first) << "a row twice";
    EXPECT_LE(work.slot_count, part_slots);
    at->second -= work.slot_count;
  }
  EXPECT_EQ(static_cast<int64_t>(left.size()), most.rows);
  int32_t next = 0;
  for (int32_t i = 0; i < list.split_count; ++i) {
    const Split split = view.At<Split>(list.splits)[i];
    EXPECT_EQ(split.first_part, next);
    EXPECT_GT(split.num_parts, 1);
    for (next = split.first_part; next < split.first_part + split.num_parts; ++next) {
      const Work& part = parts[next];
      EXPECT_EQ(std::pair(part.row, part.head), std::pair(split.row, split.head));
      EXPECT_GT(part.slot_count, 0);
      EXPECT_LE(part.slot_count, part_slots);
      left[{split.row, split.head}] -= part.slot_count;
    }
  }
  EXPECT_EQ(next, static_cast<int32_t>(parts.size()));
  for (const auto& [row, slots] : left) EXPECT_EQ(slots, 0) << "row " << row.first << " head " << row.second;
  EXPECT_LE(static_cast<int64_t>(parts.size()), most.parts);
  return static_cast<int64_t>(parts.size());
}

// Parts of each kernel's rows.
using Parts = std::array<int64_t, 3>;
Parts ExpectImage(const Contract& contract, const Batch& batch, const Target& target = FindTarget("h200").value(),
                  bool compares_pairs = true) {
  const Result<PlanResult> made = MakePlan(contract, batch, target, {});
  EXPECT_TRUE(made.has_value()) << ToText(made.error());
  if (!made) return {};
  const PlanView& plan = made->plan.view();
  const Result<PlanImage> image = MakeImage(contract, plan, {.forward = true, .backward = true});
  EXPECT_TRUE(image.has_value()) << ToText(image.error());
  if (!image) return {};
  Parts parts{};
  for (const KernelKind kind : kKinds) {
    parts[static_cast<size_t>(kind)] = ExpectParts(contract, plan, *image, kind);
    EXPECT_EQ(image->tiles[static_cast<size_t>(kind)], CountTiles(plan, static_cast<Direction>(kind)).full +
                                                           CountTiles(plan, static_cast<Direction>(kind)).partial);
  }
  if (compares_pairs) ExpectPairs(contract, plan, *image);
  return parts;
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

// At a window's edge the second half of a row's queries sees nothing of the first keys, at the diagonal the first half
// nothing of the last; documents end where they like.
TEST(CudaImage, IdleCells_AreFoundAtBothEnds) {
  const auto idle_of = [](const char* mask, const Batch& batch, KernelKind kind, int32_t row) {
    const Contract contract = MakeContract(mask, 2048, 2048, 128);
    const Result<PlanResult> made = MakePlan(contract, batch, FindTarget("h200").value(), {});
    EXPECT_TRUE(made.has_value()) << ToText(made.error());
    const Result<PlanImage> image = MakeImage(contract, made->plan.view(), {.forward = true, .backward = true});
    const ImageView view{image->bytes.data()};
    const PlanList& list = view.header().lists[static_cast<size_t>(kind)];
    for (int32_t w = 0; w < list.work_count; ++w) {
      const Work& work = view.At<Work>(list.work)[w];
      if (work.row == row && work.head == 0) {
        return fmt::format("{} {} {} {}", work.idle.lead[0], work.idle.lead[1], work.idle.trail[0], work.idle.trail[1]);
      }
    }
    return std::string("no such row");
  };
  const char* window = "window(1023, 0)";
  EXPECT_EQ(idle_of(window, {}, KernelKind::kForward, 12), "0 1 1 0");
  EXPECT_EQ(idle_of(window, {}, KernelKind::kDq, 12), "0 1 1 0");
  EXPECT_EQ(idle_of(window, {}, KernelKind::kDkv, 2), "0 1 1 0");
  EXPECT_EQ(idle_of("full", {}, KernelKind::kDq, 2), "0 0 0 0");
  Batch batch;  // documents of 200, 700 and 1148 tokens
  batch.doc_ids = IdRows{2, 2048, {}};
  for (int32_t t = 0; t < 2 * 2048; ++t) batch.doc_ids->values.push_back(t % 2048 < 200 ? 0 : t % 2048 < 900 ? 1 : 2);
  // Queries 128 to 191 are of the first document, 192 to 255 of both; keys 128 to 191 of the first, which ends at 200.
  EXPECT_EQ(idle_of("causal and documents", batch, KernelKind::kDq, 1), "0 0 1 0");
  EXPECT_EQ(idle_of("documents", batch, KernelKind::kDkv, 1), "0 0 11 0");
  EXPECT_EQ(idle_of("causal and documents", batch, KernelKind::kDq, 8), "0 0 1 0");
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
    EXPECT_EQ(static_cast<int64_t>(seen.size()), image->work[static_cast<size_t>(kind)].work());
    EXPECT_EQ(image->work[static_cast<size_t>(kind)].parts, 0);
    EXPECT_EQ(list.split_count, 0);
  }
  EXPECT_EQ(image->tiles[0], CountTiles(made->plan.view(), Direction::kForward).full +
                                 CountTiles(made->plan.view(), Direction::kForward).partial);
}

// Masks of every kind for each head, picks and bitmaps with them, in all directions; more workers cut more rows.
TEST(CudaImage, RandomContracts_AreThePlans) {
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  for (int round = 0; round < 40; ++round) {
    MaskSample sample = RandomMaskSample(rng, 300);
    Shape& shape = sample.contract.shape;
    shape.dim_qk = shape.dim_v = std::array{64, 128, 256}[rng() % 3];
    shape.dtype = DType::kBf16;
    SCOPED_TRACE(fmt::format("seed {} round {}\n{}", seed, round, ToToml(sample.contract)));
    ExpectImage(sample.contract, sample.batch);
    if (HasFailure()) return;
  }
}

// Long rows of few heads, and groups of many: what the class books is enough for any batch.
TEST(CudaImage, RandomParts_AreBookedByTheClass) {
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  std::array<int64_t, 3> cut{};
  for (int round = 0; round < 120; ++round) {
    const int64_t kv_heads = RandomInt(rng, 1, 2);
    Contract contract = MakeContract("causal", RandomInt(rng, 1, 4000), RandomInt(rng, 1, 4000));
    Shape& s = contract.shape;
    s.batch = RandomInt(rng, 1, 2);
    s.num_kv_heads = kv_heads;
    s.num_q_heads = kv_heads * RandomInt(rng, 1, 8);
    if (rng() % 2 == 0) s.kv_len = s.q_len;
    RandomMaskOptions options;
    options.q_len = s.q_len;
    options.kv_len = s.kv_len;
    options.documents = options.valid = options.sink_document = s.q_len == s.kv_len;
    options.blocks = rng() % 3 == 0;
    contract.mask.heads.clear();
    const int64_t masks = rng() % 2 == 0 ? 1 : s.num_q_heads;
    do {
      contract.mask.heads.clear();
      for (int64_t i = 0; i < masks; ++i) contract.mask.heads.push_back(RandomMask(rng, options));
    } while (!Validate(contract).empty());
    contract.mask.offset = s.kv_len - s.q_len + RandomInt(rng, -500, 500);
    const MaskFacts facts = DescribeMask(contract).value();
    Batch batch;
    if (facts.needs_documents) {
      batch.doc_ids = IdRows{s.batch, s.q_len, {}};
      for (int64_t b = 0; b < s.batch; ++b) {
        const std::vector<int32_t> ids = RandomDocIds(rng, s.q_len, false);
        batch.doc_ids->values.insert(batch.doc_ids->values.end(), ids.begin(), ids.end());
      }
    }
    if (facts.needs_valid) {
      batch.valid_tokens.emplace();
      for (int64_t b = 0; b < s.batch; ++b) batch.valid_tokens->push_back(RandomInt(rng, 0, s.q_len));
    }
    if (facts.needs_blocks) {
      const int64_t blocks = (s.kv_len + 63) / 64;
      Picks& picks = batch.picks.emplace();
      picks.block_tokens = 64;
      picks.shape = {s.batch, (s.q_len + contract.tiles.q - 1) / contract.tiles.q, s.num_kv_heads, blocks};
      const auto most = RandomInt(rng, 1, 4);  // of four blocks
      for (int64_t i = 0; i < picks.shape[0] * picks.shape[1] * picks.shape[2]; ++i) {
        for (int64_t block = 0; block < blocks; ++block) {
          if (RandomInt(rng, 1, 4) <= most) picks.blocks.push_back(static_cast<int32_t>(block));
        }
        picks.blocks.resize(static_cast<size_t>((i + 1) * blocks), -1);
      }
    }
    Target target = FindTarget("h200").value();
    target.workers = std::array{20, 132, 132, 1000}[rng() % 4];
    SCOPED_TRACE(fmt::format("seed {} round {} workers {}\n{}", seed, round, target.workers, ToToml(contract)));
    const Parts parts = ExpectImage(contract, batch, target, false);
    for (size_t kind = 0; kind < parts.size(); ++kind) cut[kind] += parts[kind] > 0 ? 1 : 0;
    if (HasFailure()) return;
  }
  for (const int64_t plans : cut) EXPECT_GT(plans, 3) << "the lengths of this test cut no rows any more";
}

// A mask whose rows are short but for a few: only these are cut, and no more is booked, since no batch changes it.
TEST(CudaImage, FewLongRows_BookWhatTheyUse) {
  struct Case {
    int64_t tokens, q_heads, kv_heads, most_mib;  // of the backward's parts
  };
  for (const Case& c : {Case{32768, 16, 16, 8}, Case{131072, 1, 1, 5}, Case{32768, 32, 8, 8}, Case{32768, 32, 1, 80}}) {
    SCOPED_TRACE(fmt::format("{} tokens, {} and {} heads", c.tokens, c.q_heads, c.kv_heads));
    Contract contract = MakeContract("causal and (window(1023, 0) or sink(4))", c.tokens, c.tokens);
    contract.shape.batch = 1;
    contract.shape.num_q_heads = c.q_heads;
    contract.shape.num_kv_heads = c.kv_heads;
    const Result<PlanResult> made = MakePlan(contract, {}, FindTarget("h200").value(), {});
    ASSERT_TRUE(made.has_value()) << ToText(made.error());
    const Result<PlanImage> image = MakeImage(contract, made->plan.view(), {.forward = false, .backward = true});
    ASSERT_TRUE(image.has_value()) << ToText(image.error());
    int64_t floats = 0;
    for (const KernelKind kind : {KernelKind::kDq, KernelKind::kDkv}) {
      const int64_t used = ExpectParts(contract, made->plan.view(), *image, kind);
      EXPECT_EQ(image->work[static_cast<size_t>(kind)].parts, used) << "nothing of it is a batch's to say";
      floats += used * PartFloats(kind, 128, kind == KernelKind::kDkv ? 256 : 128);
    }
    EXPECT_LE(4 * floats >> 20, c.most_mib);
    EXPECT_GT(floats, 0) << "no row is cut any more";
  }
}

TEST(CudaImage, MorePartsThanTheClassCanHave_AreRefused) {
  const Contract contract = MakeContract("full", 100, 3000);
  const Result<PlanResult> made = MakePlan(contract, {}, FindTarget("h200").value(), {});
  ASSERT_TRUE(made.has_value());
  PlanView plan = made->plan.view();
  Worklist& list = plan.worklists[static_cast<size_t>(Direction::kForward)];
  std::vector<Part> parts;  // of a slot each
  for (uint32_t slot = 0; slot < list.slots.size(); ++slot) parts.push_back({0, slot, slot + 1, slot});
  ASSERT_EQ(list.row_offsets.size(), 2U);
  list.parts = parts;
  const Result<PlanImage> image = MakeImage(contract, plan, {.forward = true, .backward = false});
  ASSERT_FALSE(image.has_value());
  EXPECT_EQ(image.error().code, ErrorCode::kPlanMalformed) << ToText(image.error());
}

TEST(CudaImage, FewRows_AreCutIntoParts) {
  const auto expect_parts = [](Contract contract, int64_t q_heads, int64_t kv_heads, KernelKind kind) {
    contract.shape.batch = 1;
    contract.shape.num_q_heads = q_heads;
    contract.shape.num_kv_heads = kv_heads;
    EXPECT_GT(ExpectImage(contract, {})[static_cast<size_t>(kind)], 0)
        << contract.shape.q_len << " x " << contract.shape.kv_len << ", " << ToText(static_cast<Direction>(kind));
  };
  for (const int64_t dim : {128, 256}) {
    expect_parts(MakeContract("causal", 70, 3000, dim), 2, 1, KernelKind::kForward);
    expect_parts(MakeContract("causal or sink(3)", 130, 2100, dim), 2, 2, KernelKind::kDq);
    expect_parts(MakeContract("full", 2100, 70, dim), 2, 1, KernelKind::kDkv);
  }
  // A key head with many query heads is cut between them; one with few, and long rows, within theirs too; and one whose
  // heads are of both kinds in both ways.
  expect_parts(MakeContract("causal", 190, 190), 16, 1, KernelKind::kDkv);
  expect_parts(MakeContract("causal or sink(9)", 2500, 150), 1, 1, KernelKind::kDkv);
  Contract mixed = MakeContract("full", 2500, 150);
  mixed.mask.heads.clear();
  for (const char* mask : {"chunk(100)", "full", "window(90, 5)", "sink(1)", "chunk(70)", "full"}) {
    mixed.mask.heads.push_back(ParseMaskExpr(mask).value());
  }
  expect_parts(mixed, 6, 1, KernelKind::kDkv);
}

}  // namespace
}  // namespace tessera::lanes::cuda
