// See kernel_tables.h.
#include "lanes/xla/kernel_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <string>
#include <vector>

#include "base/math.h"
#include "lanes/xla/kernels/worklist.h"
#include "lanes/xla/mosaic/interpret.h"
#include "lanes/xla/splash_tables.h"

namespace tessera::lanes::xla {
namespace {

using kernels::AttentionSpec;
using kernels::ItemField;
using kernels::KeyFact;
using kernels::QueryFact;
using kernels::TileKind;
using stablehlo::Element;
using stablehlo::ProgramSpec;

mosaic::Element ElementOf(DType dtype) { return dtype == DType::kF32 ? mosaic::Element::kF32 : mosaic::Element::kBf16; }

mosaic::Element NarrowestOf(int64_t bound) {
  return bound <= 127 ? mosaic::Element::kI8 : bound <= 32767 ? mosaic::Element::kI16 : mosaic::Element::kI32;
}

// How many keys a body of a stock kernel scores at a time, where nobody says; chosen by hand, and not compared with
// others.
int64_t SubTile(int64_t tile_kv) { return tile_kv % 512 == 0 ? 512 : tile_kv % 256 == 0 ? 256 : kernels::kLanes; }

// More than any document has tokens, and little enough to be added to a token's number.
constexpr int32_t kAnyRank = 1 << 28;

// What chunks are cut for where a target has no limit: the largest that there is of a known one.
constexpr int64_t kMostVectorBytes = int64_t{32} << 20;

// Vector memory for the keys of a chunk, and in the backward for their gradients: windows come twice. Of what a kernel
// gets the backward has a part beside its chunk, for tiles of queries; larger ones leave their chunk less.
struct ChunkBytes {
  int64_t forward = 0;
  int64_t backward = 0;
  int64_t beside = 0;
};
ChunkBytes ChunkBytesOf(int64_t vector_bytes) {
  const int64_t limit = vector_bytes > 0 ? vector_bytes : kMostVectorBytes;
  return {.forward = std::min(limit / 2, int64_t{8} << 20), .backward = limit / 4 * 3, .beside = limit / 16 * 3};
}

// As many tiles of keys as fit, in chunks of the same size; one chunk where all do.
int64_t ChunkOf(const AttentionSpec& kernel, Direction direction, const ChunkBytes& bytes) {
  const int64_t tile = kernel.list.tile_kv;
  const int64_t tiles = CeilDiv(kernel.kv_len, tile);
  const int64_t dims = RoundUp(kernel.dim_qk, kernels::kLanes) + RoundUp(kernel.dim_v, kernels::kLanes);
  const int64_t of_sum = kernel.gives.of_keys ? 4 : 0;
  const int64_t of_element = kernel.element == mosaic::Element::kF32 ? 4 : 2;
  const int64_t key_bytes = 2 * dims * (of_element + of_sum);
  const int64_t of_row = (kernel.gives.of_keys ? 2 : 1) * of_element + (kernel.gives.of_queries ? 4 : 0);
  const int64_t row_bytes = 2 * kernel.list.tile_q * dims * of_row;
  const int64_t less = std::max<int64_t>(row_bytes - bytes.beside, 0);
  const int64_t budget = direction == Direction::kForward ? bytes.forward : bytes.backward - less;
  const int64_t most = std::max<int64_t>(budget / (key_bytes * tile), 1);
  return CeilDiv(tiles, CeilDiv(tiles, most)) * tile;
}

int64_t PlanesOf(const PlanView& plan, uint32_t cleanup) {
  const std::span<const CleanupItem> items = plan.Cleanup(cleanup);
  return std::count_if(items.begin(), items.end(), [](const CleanupItem& i) { return i.kind != ItemKind::kBand; });
}

// Fills the tables of one direction.
class Filler {
 public:
  Filler(const ProgramSpec& spec, const PlanView& plan, Direction direction, PlanTables& tables)
      : kernel_(KernelSpecOf(spec, direction)),
        plan_(plan),
        direction_(direction),
        list_(plan.Of(WalkOf(spec, direction))),
        tables_(tables) {
    for (int64_t b = 0; b < plan_.batch; ++b) facts_.push_back(SpreadTokenFacts(plan_, b));
  }

  void Fill() {
    std::copy(plan_.mask_of.begin(), plan_.mask_of.end(), Table("mask_of").begin());
    Items();
    if (kernel_.has_documents) Documents(facts_);
    if (kernel_.has_range) OneDocuments();
    Slots();
    if (kernel_.has_valid) {
      Valid(plan_.q_valid, plan_.q_len, Table("q_valid"));
      Valid(plan_.kv_valid, plan_.kv_len, Table("kv_valid"));
    }
    LiveKeys();
  }

 private:
  std::vector<int32_t>& Table(std::string_view what) { return tables_.at(TableName(direction_, what)); }

  void Set(int64_t item, ItemField field, int64_t value) {
    items_[static_cast<size_t>(item * kernels::kItemFields + static_cast<int64_t>(field))] =
        static_cast<int32_t>(value);
  }

  void SetItem(int64_t at, const CleanupItem& item, int32_t plane) {
    Set(at, ItemField::kQBegin, item.q_begin);
    Set(at, ItemField::kQEnd, item.q_end);
    Set(at, ItemField::kKvBegin, item.kv_begin);
    Set(at, ItemField::kKvEnd, item.kv_end);
    // As far as no tile reaches, so that a token's number may be added.
    Set(at, ItemField::kDiagBegin, std::max(item.diag_begin, -kAnyRank));
    Set(at, ItemField::kDiagEnd, std::min(item.diag_end, kAnyRank));
    Set(at, ItemField::kPlane, plane);
    int32_t needs = 0;
    int32_t sink_count = kAnyRank;
    for (size_t c = 0; c < plan_.conditions.size(); ++c) {
      if ((item.conditions >> c & 1U) == 0) continue;
      const Condition& condition = plan_.conditions[c];
      if (condition.kind == ConditionKind::kValid) needs |= kernels::kNeedsValid;
      if (condition.kind == ConditionKind::kDocuments) needs |= kernels::kNeedsDocuments;
      if (condition.kind == ConditionKind::kSinkDocument) {
        needs |= kernels::kNeedsDocuments;
        sink_count = std::min(sink_count, condition.count);
      }
    }
    Set(at, ItemField::kNeeds, needs);
    Set(at, ItemField::kSinkCount, sink_count);
  }

  // The last cleanup is every pair of a tile: for full tiles that reach over the last token, which the lengths bound.
  void Items() {
    items_ = Table("items");
    std::vector<int32_t>& offsets = Table("cleanup_offsets");
    for (uint32_t cleanup = 0; cleanup < plan_.NumCleanups(); ++cleanup) {
      offsets[cleanup] = static_cast<int32_t>(plan_.cleanup_offsets[cleanup]);
      int32_t plane = 1;
      for (uint32_t i = plan_.cleanup_offsets[cleanup]; i < plan_.cleanup_offsets[cleanup + 1]; ++i) {
        const bool is_stored = plan_.items[i].kind != ItemKind::kBand;
        SetItem(i, plan_.items[i], is_stored ? plane : 0);
        if (is_stored) plane *= 2;
      }
    }
    const auto num_items = static_cast<int64_t>(plan_.items.size());
    CleanupItem whole;
    whole.q_end = static_cast<int32_t>(list_.tile_q);
    whole.kv_end = static_cast<int32_t>(list_.tile_kv);
    SetItem(num_items, whole, 0);
    offsets[plan_.NumCleanups()] = static_cast<int32_t>(num_items);
    std::fill(offsets.begin() + plan_.NumCleanups() + 1, offsets.end(), static_cast<int32_t>(num_items + 1));
    Table("items") = items_;
  }

  bool NeedsDocuments(uint32_t cleanup) const {
    for (uint32_t i = plan_.cleanup_offsets[cleanup]; i < plan_.cleanup_offsets[cleanup + 1]; ++i) {
      const size_t at = i * kernels::kItemFields + static_cast<size_t>(ItemField::kNeeds);
      if ((items_[at] & kernels::kNeedsDocuments) != 0) return true;
    }
    return false;
  }

  // One item that is a run of keys for each query: of documents that are runs of tokens, and without stored bits.
  TileKind KindOf(const Slot& slot, size_t row) const {
    const auto q_tile = static_cast<int64_t>(row % list_.rows_per_mask);
    const bool is_inside =
        (q_tile + 1) * kernel_.list.tile_q <= plan_.q_len && (slot.index + 1) * kernel_.list.tile_kv <= plan_.kv_len;
    if (slot.cleanup == 0 && is_inside) return IsOneDocument(slot, row) ? TileKind::kRange : TileKind::kFull;
    if (slot.cleanup == 0) return TileKind::kSpan;
    if (plan_.Cleanup(slot.cleanup).size() != 1 || PlanesOf(plan_, slot.cleanup) > 0) return TileKind::kGeneral;
    return are_runs_ || !NeedsDocuments(slot.cleanup) ? TileKind::kSpan : TileKind::kGeneral;
  }

  // A tile's document where every token has the same one, and all are valid; 0 where the mask names none; else -1.
  std::vector<int32_t> TileDocuments(const std::vector<int32_t>& documents, int64_t valid, int64_t tile) const {
    std::vector<int32_t> of_tiles;
    for (int64_t begin = 0; begin + tile <= valid; begin += tile) {
      if (documents.empty()) {
        of_tiles.push_back(0);
        continue;
      }
      const auto first = documents.begin() + begin;
      const bool is_one = std::all_of(first, first + tile, [&](int32_t document) { return document == *first; });
      of_tiles.push_back(is_one ? *first : -1);
    }
    return of_tiles;
  }

  void OneDocuments() {
    for (const TokenFacts& facts : facts_) {
      q_documents_.push_back(TileDocuments(facts.q_doc, facts.q_valid, kernel_.list.tile_q));
      kv_documents_.push_back(TileDocuments(facts.kv_doc, facts.kv_valid, kernel_.list.tile_kv));
    }
  }

  // In every row of the batch that has the mask: what decides how a document's scores are computed is its own.
  bool IsOneDocument(const Slot& slot, size_t row) const {
    if (!kernel_.has_range) return false;
    const auto q_tile = row % list_.rows_per_mask;
    for (size_t pair = 0; pair < plan_.mask_of.size(); ++pair) {
      if (plan_.mask_of[pair] != row / list_.rows_per_mask) continue;
      const size_t b = pair / static_cast<size_t>(plan_.num_q_heads);
      if (q_tile >= q_documents_[b].size() || slot.index >= kv_documents_[b].size()) return false;
      const int32_t document = q_documents_[b][q_tile];
      if (document < 0 || document != kv_documents_[b][slot.index]) return false;
    }
    return true;
  }

  void Slots() {
    const auto width = static_cast<size_t>(kernel_.list.width);
    for (size_t row = 0; row + 1 < list_.row_offsets.size(); ++row) {
      int32_t column = 0, stored = 0;
      const std::span<const Slot> slots = list_.Row(row);
      Begins(row, slots);
      for (size_t i = 0; i < width; ++i) {
        int32_t cleanup = 0;
        TileKind kind = TileKind::kNone;
        if (i < slots.size()) {
          const Slot& slot = slots[i];
          column = static_cast<int32_t>(slot.index);
          kind = KindOf(slot, row);
          cleanup = static_cast<int32_t>(slot.cleanup == 0 ? plan_.NumCleanups() : slot.cleanup);
          if (slot.cleanup != 0 && kernel_.stored_tiles > 0 && PlanesOf(plan_, slot.cleanup) > 0) {
            stored = StoredTile(slot.cleanup);
          }
        }
        const size_t at = row * width + i;
        Table("columns")[at] = column;
        Table("kinds")[at] = static_cast<int32_t>(kind);
        Table("cleanups")[at] = cleanup;
        if (kernel_.stored_tiles > 0) Table("stored_at")[at] = stored;
      }
    }
  }

  // Where a row's slots of each chunk begin; and which chunk to have in memory where the row needs none: the last that
  // it needed, so that nothing is fetched.
  void Begins(size_t row, std::span<const Slot> slots) {
    const int64_t chunks = kernel_.chunks();
    int32_t* begins = Table("begins").data() + static_cast<int64_t>(row) * (chunks + 1);
    int32_t kept = slots.empty() ? 0 : static_cast<int32_t>(slots[0].index * kernel_.list.tile_kv / kernel_.chunk_kv);
    for (int64_t chunk = 0, slot = 0; chunk < chunks; ++chunk) {
      begins[chunk] = static_cast<int32_t>(slot);
      const int64_t end = (chunk + 1) * kernel_.chunk_kv / kernel_.list.tile_kv;
      while (slot < static_cast<int64_t>(slots.size()) && slots[static_cast<size_t>(slot)].index < end) ++slot;
      begins[chunk + 1] = static_cast<int32_t>(slot);
      if (begins[chunk + 1] > begins[chunk]) kept = static_cast<int32_t>(chunk);
      if (chunks > 1) Table("chunk_next")[static_cast<size_t>(static_cast<int64_t>(row) * chunks + chunk)] = kept;
    }
  }

  // A cleanup's cells: bit p is set where its p-th stored item has the pair.
  int32_t StoredTile(uint32_t cleanup) {
    const auto [found, is_new] = stored_of_.emplace(cleanup, static_cast<int32_t>(stored_of_.size()));
    if (!is_new) return found->second;
    const int64_t cells = kernel_.list.tile_q * kernel_.list.tile_kv;
    int32_t* tile = Table("stored").data() + found->second * cells;
    const int64_t row_words = (list_.tile_kv + 63) / 64;
    int32_t plane = 1;
    for (const CleanupItem& item : plan_.Cleanup(cleanup)) {
      if (item.kind == ItemKind::kBand) continue;
      const uint64_t* words = plan_.bit_words.data() + plan_.bit_tile_offsets[item.bits];
      for (int64_t r = 0; r < static_cast<int64_t>(list_.tile_q); ++r) {
        for (int64_t c = 0; c < static_cast<int64_t>(list_.tile_kv); ++c) {
          const bool is_set = item.kind == ItemKind::kRows ? (words[r / 64] >> (r % 64) & 1U) != 0
                                                           : (words[r * row_words + c / 64] >> (c % 64) & 1U) != 0;
          if (is_set) tile[c * kernel_.list.tile_q + r] |= plane;
        }
      }
      plane *= 2;
    }
    return found->second;
  }

  // Negative ids belong to no document; -1 for a query and -2 for a key, so that none equals another. A query's span is
  // its document's keys, where they are a run.
  void Documents(const std::vector<TokenFacts>& facts) {
    for (int64_t b = 0; b < plan_.batch; ++b) {
      const TokenFacts& of = facts[static_cast<size_t>(b)];
      const int64_t q_tokens = kernel_.q_tokens();
      const int64_t kv_tokens = kernel_.kv_tokens();
      int32_t* q = Table("q_documents").data() + b * kernels::kSublanes * q_tokens;
      int32_t* kv = Table("kv_documents").data() + b * kernels::kSublanes * kv_tokens;
      const auto row = [](auto fact) { return static_cast<int64_t>(fact); };
      std::fill_n(q + row(QueryFact::kDocument) * q_tokens, q_tokens, -1);
      std::fill_n(kv + row(KeyFact::kDocument) * kv_tokens, kv_tokens, -2);
      std::map<int32_t, std::pair<int32_t, int32_t>> spans;
      for (size_t t = 0; t < of.kv_doc.size(); ++t) {
        const auto at = static_cast<int32_t>(t);
        if (of.kv_doc[t] < 0) continue;
        kv[row(KeyFact::kDocument) * kv_tokens + at] = of.kv_doc[t];
        kv[row(KeyFact::kRank) * kv_tokens + at] = of.kv_rank[t];
        auto& [begin, end] = spans.emplace(of.kv_doc[t], std::pair(at, at)).first->second;
        are_runs_ = are_runs_ && end == at && of.kv_rank[t] == at - begin;
        end = at + 1;
      }
      for (size_t t = 0; t < of.q_doc.size(); ++t) {
        const auto at = static_cast<int64_t>(t);
        if (of.q_doc[t] < 0) continue;
        q[row(QueryFact::kDocument) * q_tokens + at] = of.q_doc[t];
        const auto found = spans.find(of.q_doc[t]);
        if (found == spans.end()) continue;  // nothing to see: an empty span
        q[row(QueryFact::kSpanBegin) * q_tokens + at] = found->second.first;
        q[row(QueryFact::kSpanEnd) * q_tokens + at] = found->second.second;
      }
    }
  }

  static void Valid(std::span<const int32_t> counts, int64_t len, std::vector<int32_t>& out) {
    for (size_t b = 0; b < counts.size(); ++b) out[b] = counts[b] < 0 ? static_cast<int32_t>(len) : counts[b];
  }

  // A key is live when an item of a tile could let a query see it. Others are made zero before a kernel multiplies
  // them by weights of zero, so that padding is inert whatever is in it.
  void LiveKeys() {
    std::vector<int32_t>& live = Table("kv_live");
    for (size_t pair = 0; pair < plan_.mask_of.size(); ++pair) {
      const auto b = static_cast<int64_t>(pair) / plan_.num_q_heads;
      for (size_t row = 0; row < list_.rows_per_mask; ++row) {
        for (const Slot& slot : list_.Row(plan_.mask_of[pair] * list_.rows_per_mask + row)) {
          const int64_t begin = static_cast<int64_t>(slot.index) * list_.tile_kv;
          Mark(slot, begin, facts_[static_cast<size_t>(b)], live.data() + b * kernel_.kv_tokens());
        }
      }
    }
  }

  void Mark(const Slot& slot, int64_t begin, const TokenFacts& facts, int32_t* live) const {
    const int64_t end = std::min(begin + static_cast<int64_t>(list_.tile_kv), plan_.kv_len);
    if (slot.cleanup == 0) return std::fill(live + begin, live + end, 1);
    for (uint32_t i = plan_.cleanup_offsets[slot.cleanup]; i < plan_.cleanup_offsets[slot.cleanup + 1]; ++i) {
      const CleanupItem& item = plan_.items[i];
      const int32_t needs = items_[i * kernels::kItemFields + static_cast<size_t>(ItemField::kNeeds)];
      int64_t last = std::min(end, begin + item.kv_end);
      if ((needs & kernels::kNeedsValid) != 0) last = std::min(last, facts.kv_valid);
      for (int64_t t = begin + item.kv_begin; t < last; ++t) {
        const bool has_document = !facts.kv_doc.empty() && facts.kv_doc[static_cast<size_t>(t)] >= 0;
        if ((needs & kernels::kNeedsDocuments) == 0 || has_document) live[t] = 1;
      }
    }
  }

  const AttentionSpec kernel_;
  const PlanView& plan_;
  const Direction direction_;
  const Worklist& list_;
  PlanTables& tables_;
  std::vector<TokenFacts> facts_;
  bool are_runs_ = true;                                          // every document's keys
  std::vector<std::vector<int32_t>> q_documents_, kv_documents_;  // of each row of the batch, of each tile
  std::vector<int32_t> items_;
  std::map<uint32_t, int32_t> stored_of_;
};

}  // namespace

namespace {
kernels::Gradients GivenBy(const ProgramSpec& spec, Direction direction) {
  if (direction == Direction::kForward || spec.band) return {};
  if (!spec.is_backward_apart) return {.of_queries = true, .of_keys = true};
  return {.of_queries = direction == Direction::kDq, .of_keys = direction == Direction::kDkv};
}
}  // namespace

Direction WalkOf(const ProgramSpec& spec, Direction direction) {
  return direction == Direction::kDkv && !spec.band ? Direction::kDq : direction;
}

AttentionSpec KernelSpecOf(const ProgramSpec& spec, Direction direction) {
  const Shape& s = spec.shape;
  const stablehlo::ListShape& list = spec.Of(WalkOf(spec, direction));
  // A tile that is shorter than the registers' covers all tokens there are (CheckKernelPlan): the rest is padding.
  const int64_t tile_q = RoundUp(list.tile_q, kernels::kLanes);
  const int64_t tile_kv = RoundUp(list.tile_kv, kernels::kLanes);
  AttentionSpec kernel{
      .batch = s.batch,
      .num_q_heads = s.num_q_heads,
      .num_kv_heads = s.num_kv_heads,
      .q_len = s.q_len,
      .kv_len = s.kv_len,
      .dim_qk = s.dim_qk,
      .dim_v = s.dim_v,
      .element = ElementOf(s.dtype),
      .list = {.tile_q = tile_q,
               .tile_kv = tile_kv,
               .rows = list.rows,
               .width = std::max<int64_t>(list.width, 1),
               .sub_tile_kv = spec.sub_tile_kv > 0 ? spec.sub_tile_kv : SubTile(tile_kv)},
      .masks = spec.masks,
      .cleanups = spec.items + 1,
      .items = spec.items,
      .stored_tiles = spec.stored_tiles,
      .has_softcap = spec.has_softcap,
      .has_sink_logits = spec.has_sink_logits && direction == Direction::kForward,
      .has_documents = spec.has_documents,
      .has_valid = spec.has_valid,
      .is_wide = spec.is_wide && direction == Direction::kForward,
      // A softcap bounds the scores by itself; f32 multiplies too slowly for the softmax to matter.
      .has_range = direction == Direction::kForward && s.dtype == DType::kBf16 && !spec.has_softcap && !spec.band,
      .has_stats = spec.has_stats,
      .gives = GivenBy(spec, direction)};
  if (spec.sub_tile_kv > 0) {
    for (kernels::Blocking* by : {&kernel.online, &kernel.bounded, &kernel.backward}) by->keys = spec.sub_tile_kv;
  }
  kernel.chunk_kv =
      spec.band ? RoundUp(s.kv_len, tile_kv) : ChunkOf(kernel, direction, ChunkBytesOf(spec.vector_bytes));
  const bool is_transposed = WalkOf(spec, direction) == Direction::kDkv;
  kernel.index = NarrowestOf(is_transposed ? kernel.q_tokens() / tile_q : kernel.kv_tokens() / tile_kv);
  return kernel;
}

Result<mosaic::Module> KernelOf(const ProgramSpec& spec, Direction direction) {
  if (spec.band) return SplashKernelOf(spec, direction);
  return KernelOf(CallSpecOf(spec, direction, CallsOf(spec, direction)[0]), direction);
}

std::vector<CallRows> CallsOf(const ProgramSpec& spec, Direction direction) {
  const int64_t rows = spec.Of(WalkOf(spec, direction)).rows;
  const int64_t each = CeilDiv(rows, spec.calls[static_cast<size_t>(direction)]);
  std::vector<CallRows> calls;
  for (int64_t begin = 0; begin < rows; begin += each) calls.push_back({begin, std::min(begin + each, rows)});
  return calls;
}

AttentionSpec CallSpecOf(const ProgramSpec& spec, Direction direction, const CallRows& rows) {
  AttentionSpec kernel = KernelSpecOf(spec, direction);
  kernel.list.rows = rows.end - rows.begin;
  const int64_t tile = kernel.list.tile_q;
  kernel.q_len = std::min(kernel.q_len - rows.begin * tile, kernel.list.rows * tile);
  return kernel;
}

OperandShare ShareOf(std::string_view operand) {
  for (const char* list : {"columns", "kinds", "cleanups", "stored_at"}) {
    if (operand == list) return {Share::kRows, 0};
  }
  if (operand == "begins" || operand == "chunk_next") return {Share::kRowNumbers, 0};
  if (operand == "q_valid") return {Share::kValid, 0};
  if (operand == "q" || operand == "do") return {Share::kTokens, 1};
  if (operand == "q_bounds") return {Share::kTiles, 2};
  for (const char* lanes : {"q_lanes", "do_lanes", "lse", "delta", "q_documents"}) {
    if (operand == lanes) return {Share::kTokens, 2};
  }
  return {};
}

std::vector<std::string> OperandOrder(const AttentionSpec& kernel, Direction direction) {
  std::vector<std::string> names;
  for (const mosaic::Memory& scalar : kernels::ScalarsOf(kernel)) names.push_back(scalar.name);
  names.emplace_back("score");
  if (kernel.has_sink_logits) names.emplace_back("sink_logits");
  if (kernel.has_range) {
    for (const char* name : {"q_bounds", "k_bounds"}) names.emplace_back(name);
  }
  for (const char* name : {"q", "k", "v"}) names.emplace_back(name);
  if (direction != Direction::kForward) {
    names.emplace_back("do");
    if (kernel.gives.of_keys) {
      for (const char* name : {"q_lanes", "do_lanes"}) names.emplace_back(name);
    }
    for (const char* name : {"lse", "delta"}) names.emplace_back(name);
  }
  if (kernel.has_documents) {
    for (const char* name : {"q_documents", "kv_documents"}) names.emplace_back(name);
  }
  if (kernel.stored_tiles > 0) names.emplace_back("stored");
  return names;
}

std::span<const Direction> DirectionsOf(const ProgramSpec& spec, Pass pass) {
  static constexpr Direction kAll[] = {Direction::kForward, Direction::kDq, Direction::kDkv};
  const std::span<const Direction> all(kAll);
  if (pass == Pass::kForward) return all.first(1);
  return spec.band || spec.is_backward_apart ? all.subspan(1) : all.subspan(1, 1);
}

Result<mosaic::Module> KernelOf(const AttentionSpec& kernel, Direction direction) {
  if (direction == Direction::kForward) return kernels::AttentionForward(kernel);
  if (!kernel.gives.of_keys) return kernels::AttentionDq(kernel);
  return kernel.gives.of_queries ? kernels::AttentionBackward(kernel) : kernels::AttentionDkv(kernel);
}

std::string TableName(Direction direction, std::string_view what) {
  return fmt::format("{}_{}", what, ToText(direction));
}

std::vector<stablehlo::NamedType> TableInputs(const ProgramSpec& spec, Direction direction) {
  if (spec.band) return SplashTableInputs(spec, direction);
  const AttentionSpec k = KernelSpecOf(spec, direction);
  std::vector<stablehlo::NamedType> inputs;
  const auto add = [&](const char* what, std::vector<int64_t> dims) {
    inputs.push_back({TableName(direction, what), {Element::kI32, std::move(dims)}});
  };
  for (const mosaic::Memory& scalar : kernels::ScalarsOf(k)) add(scalar.name.c_str(), scalar.type.dims);
  if (k.has_documents) {
    add("q_documents", {k.batch, kernels::kSublanes, k.q_tokens()});
    add("kv_documents", {k.batch, kernels::kSublanes, k.kv_tokens()});
  }
  if (k.stored_tiles > 0) add("stored", {k.stored_tiles, k.list.tile_kv, k.list.tile_q});
  add("kv_live", {k.batch, k.kv_tokens()});
  return inputs;
}

PlanTables KernelTables(const ProgramSpec& spec, const PlanView& plan,
                        const std::vector<stablehlo::NamedType>& inputs) {
  PlanTables tables;
  for (const stablehlo::NamedType& input : inputs) {
    if (stablehlo::IsFloat(input.type.element)) continue;
    tables[input.name].assign(static_cast<size_t>(stablehlo::NumElements(input.type)), 0);
  }
  for (const Direction direction : {Direction::kForward, Direction::kDq, Direction::kDkv}) {
    if (tables.count(TableName(direction, "kv_live")) == 0) continue;
    if (spec.band) {
      FillSplashTables(spec, plan, direction, tables);
    } else {
      Filler(spec, plan, direction, tables).Fill();
    }
  }
  return tables;
}

StoredNeed StoredNeedOf(const PlanView& plan) {
  StoredNeed need;
  for (uint32_t cleanup = 0; cleanup < plan.NumCleanups(); ++cleanup) {
    const int64_t planes = PlanesOf(plan, cleanup);
    need.planes = std::max(need.planes, planes);
    need.tiles += planes > 0 ? 1 : 0;
  }
  return need;
}

int64_t StoredCapacity(const PlanView& plan) {
  const int64_t tiles = StoredNeedOf(plan).tiles;
  return tiles == 0 ? 0 : static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(tiles)));
}

}  // namespace tessera::lanes::xla
