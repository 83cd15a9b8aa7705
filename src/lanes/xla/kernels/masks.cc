// The walk over a row's tiles, and the masks of partial ones. See worklist.h.
//
// An item lets each query see one run of keys: its rectangle cut by its diagonals, and by the query's document where
// documents are runs of tokens too. So the mask of a tile with one such item is two comparisons of a key's number with
// numbers of its query. Every other cleanup is written to memory first, item by item.
#include <utility>

#include "lanes/xla/kernels/worklist.h"

namespace tessera::kernels {
namespace {

using mosaic::Builder;
using mosaic::Compare;
using mosaic::Element;
using mosaic::KernelArguments;
using mosaic::Value;
using mosaic::Values;

constexpr int64_t kFar = 1 << 29;  // a place that no key has, and that may be added to one
constexpr int64_t kGeneralKeys = 128;

// Of one visited tile.
class TileMasks {
 public:
  TileMasks(Builder& b, const AttentionSpec& spec, const KernelArguments& args, const Lists& lists, const Place& place,
            const Value& column)
      : b_(b),
        spec_(spec),
        args_(args),
        lists_(lists),
        place_(place),
        q_begin_(b.Mul(place.row, b.I32(spec.list.tile_q))),
        kv_begin_(b.Mul(column, b.I32(spec.list.tile_kv))) {}

  // Keys that an item lets each query see: from begin to end, numbers in the tile, [1, tile_q] both.
  struct Span {
    Value begin, end;
  };
  Span SpanOf(const Value& item, bool has_spans) {
    const Value needs = Field(item, ItemField::kNeeds);
    Value q_end = b_.Min(Field(item, ItemField::kQEnd), b_.Sub(b_.I32(spec_.q_len), q_begin_));
    Value kv_end = b_.Min(Field(item, ItemField::kKvEnd), b_.Sub(b_.I32(spec_.kv_len), kv_begin_));
    if (spec_.has_valid) {
      const Value batch = b_.Div(place_.pair, b_.I32(spec_.num_q_heads));
      const Value is_needed = b_.Is(Compare::kNe, b_.And(needs, b_.I32(kNeedsValid)), b_.I32(0));
      const auto limit = [&](const char* list, const Value& begin) {
        const Value left = b_.Sub(lists_.At(list, batch), begin);
        return b_.Select(is_needed, left, b_.I32(kFar));
      };
      q_end = b_.Min(q_end, limit("q_valid", q_begin_));
      kv_end = b_.Min(kv_end, limit("kv_valid", kv_begin_));
    }
    const Value query = b_.Iota({kSublanes, spec_.list.tile_q}, 1);
    Value begin = b_.Max(b_.Add(query, Field(item, ItemField::kDiagBegin)),
                         Spread(Field(item, ItemField::kKvBegin), query));
    Value end = b_.Min(b_.Add(query, Field(item, ItemField::kDiagEnd)), Spread(kv_end, query));
    if (spec_.has_documents && has_spans) {
      // What is not asked for reaches far, on both sides.
      const Value asked = b_.And(needs, b_.I32(kNeedsDocuments));
      const Value far = b_.Mul(b_.Sub(b_.I32(1), asked), b_.I32(kFar));
      const auto place = [&](QueryFact fact) {
        const Value at = b_.Sub(Fact(fact, query), kv_begin_);
        return b_.Mul(at, asked);
      };
      const Value first = place(QueryFact::kSpanBegin);
      begin = b_.Max(begin, b_.Sub(first, far));
      end = b_.Min(end, b_.Add(place(QueryFact::kSpanEnd), far));
      end = b_.Min(end, b_.Add(b_.Add(first, Field(item, ItemField::kSinkCount)), far));
    }
    const Value is_after = b_.Is(Compare::kGe, query, Field(item, ItemField::kQBegin));
    const Value is_query = b_.And(is_after, b_.Is(Compare::kLt, query, q_end));
    end = b_.Select(is_query, end, b_.I32(-1));
    const auto row = [&](const Value& x) { return b_.Slice(x, {0, 0}, {1, spec_.list.tile_q}); };
    const Value begin_row = row(begin);
    return {begin_row, row(end)};
  }

  // Of a block: keys between the two, `first_key` the number in the tile of the keys that blocks count from.
  Value Within(const Span& span, const Block& block) {
    const std::vector<int64_t> dims = {block.num_keys, block.num_q};
    const Value key = b_.Iota(dims, 0);
    const auto bound = [&](const Value& x) {
      const Value part = b_.Slice(x, {0, block.q}, {1, block.num_q});
      return b_.Broadcast(b_.Sub(part, b_.I32(block.key)), dims);
    };
    const Value is_after = b_.Is(Compare::kGe, key, bound(span.begin));
    return b_.And(is_after, b_.Is(Compare::kLt, key, bound(span.end)));
  }

  // Writes to scratch which of kGeneralKeys keys, from `first` of the tile on, each query may see; `at` is their place
  // in the chunk.
  void WriteAllowed(const Value& cleanup, const Value& first, const Value& at) {
    const Value begin = lists_.At("cleanup_offsets", cleanup);
    const Value end = lists_.At("cleanup_offsets", b_.Add(cleanup, b_.I32(1)));
    const Value allowed = args_["allowed"];
    Fill(b_, allowed, 0);
    const std::vector<int64_t> dims = allowed.type.dims;
    b_.For(begin, end, b_.I32(1), {}, [&](const Value& item, const Values&) {
      const Span span = SpanOf(item, false);
      const Value key = b_.Add(b_.Iota(dims, 0), b_.Broadcast(first, dims));
      const Value is_after = b_.Is(Compare::kGe, key, b_.Broadcast(span.begin, dims));
      Value passes = b_.And(is_after, b_.Is(Compare::kLt, key, b_.Broadcast(span.end, dims)));
      if (spec_.has_documents) passes = b_.And(passes, InDocument(item, at));
      if (spec_.stored_tiles > 0) passes = b_.And(passes, Stored(Field(item, ItemField::kPlane), first));
      const Value one = b_.Broadcast(b_.I32(1), dims);
      b_.StoreAll(b_.Select(passes, one, b_.LoadAll(allowed)), allowed);
      return Values{};
    });
  }

 private:
  Value Field(const Value& item, ItemField field) {
    const Value first = b_.Mul(item, b_.I32(kItemFields));
    return lists_.At("items", b_.Add(first, b_.I32(static_cast<int64_t>(field))));
  }
  Value Spread(const Value& scalar, const Value& like) { return b_.Broadcast(scalar, like.type.dims); }

  Value Fact(QueryFact fact, const Value& like) {
    const Value at[] = {b_.Index(0), b_.Index(static_cast<int64_t>(fact)), b_.Index(0)};
    const int64_t tile_q = spec_.list.tile_q;
    return b_.Broadcast(b_.ShapeCast(b_.Load(args_["q_documents"], at, {1, 1, tile_q}), {1, tile_q}), like.type.dims);
  }

  // A number of each key, from the lanes to the rows and over all queries.
  Value KeyNumber(KeyFact fact, const Value& first) {
    const Value at[] = {b_.Index(0), b_.Index(static_cast<int64_t>(fact)), first};
    const Value row = b_.ShapeCast(b_.Load(args_["kv_documents"], at, {1, 1, kGeneralKeys}), {1, kGeneralKeys});
    const Value square = b_.Transpose(b_.Broadcast(row, {kLanes, kGeneralKeys}), {1, 0});
    return TileLanes(b_, square, spec_.list.tile_q);
  }

  // Ids of queries are -1 and of keys -2 where there is no document. What is not asked for passes.
  Value InDocument(const Value& item, const Value& first) {
    const Value asked = b_.And(Field(item, ItemField::kNeeds), b_.I32(kNeedsDocuments));
    const Value kv = KeyNumber(KeyFact::kDocument, first);
    const Value differs = b_.Mul(b_.Xor(Fact(QueryFact::kDocument, kv), kv), asked);
    const Value is_same = b_.Is(Compare::kEq, differs, b_.I32(0));
    const Value rank = b_.Mul(KeyNumber(KeyFact::kRank, first), asked);
    return b_.And(is_same, b_.Is(Compare::kLt, rank, Field(item, ItemField::kSinkCount)));
  }

  // A cell's bits are those of the cleanup's items; an item without a plane takes no notice.
  Value Stored(const Value& plane, const Value& first) {
    const Value at[] = {b_.Index(0), b_.AssumeMultiple(first, kGeneralKeys), b_.Index(0)};
    const std::vector<int64_t> dims = {kGeneralKeys, spec_.list.tile_q};
    const Value cells = b_.Load(args_["cells"], at, {1, dims[0], dims[1]});
    const Value wide = b_.Convert(b_.ShapeCast(cells, dims), Element::kI32);
    return b_.Is(Compare::kEq, b_.And(wide, plane), plane);
  }

  Builder& b_;
  const AttentionSpec& spec_;
  const KernelArguments& args_;
  const Lists& lists_;
  const Place& place_;
  const Value q_begin_, kv_begin_;
};

}  // namespace

void AddMaskScratch(const AttentionSpec& spec, std::vector<mosaic::Memory>& scratch) {
  const auto vmem = [&](std::string name, Element element, std::vector<int64_t> dims) {
    scratch.push_back({std::move(name), mosaic::MemrefOf(mosaic::Space::kVmem, element, std::move(dims))});
  };
  vmem("allowed", Element::kI32, {kGeneralKeys, spec.list.tile_q});
  if (spec.stored_tiles == 0) return;
  vmem("cells", Element::kI8, {1, spec.list.tile_kv, spec.list.tile_q});
  scratch.push_back({"copied", mosaic::MemrefOf(mosaic::Space::kSemaphore, Element::kDmaSemaphore, {1})});
}

void VisitTiles(Builder& b, const AttentionSpec& spec, const KernelArguments& args, const Place& place,
                const std::function<void(const TileKeys&)>& body) {
  const ListSpec& list = spec.list;
  const Values scalars = ScalarValues(spec, args);
  const Lists lists(b, spec, scalars);
  const Value row = lists.Row(place);
  const Value at = b.Add(b.Mul(row, b.I32(spec.chunks() + 1)), place.chunk);
  const Value begin = lists.At("begins", at);
  const Value end = lists.At("begins", b.Add(at, b.I32(1)));
  b.For(begin, end, b.I32(1), {}, [&](const Value& slot, const Values&) {
    const Value kind = lists.Entry("kinds", row, slot);
    const Value column = lists.Entry("columns", row, slot);
    const Value begins_at = b.Mul(column, b.I32(list.tile_kv));
    const Value first = b.Sub(begins_at, b.Mul(place.chunk, b.I32(spec.chunk_kv)));
    const auto when = [&](TileKind of, const std::function<void()>& then) {
      b.When(b.Is(Compare::kEq, kind, b.I32(static_cast<int64_t>(of))), then);
    };
    when(TileKind::kFull, [&] {
      body({first, list.tile_kv, [](const Block&) { return std::nullopt; }});
    });
    when(TileKind::kSpan, [&] {
      TileMasks masks(b, spec, args, lists, place, column);
      const Value cleanup = lists.Entry("cleanups", row, slot);
      const TileMasks::Span span = masks.SpanOf(lists.At("cleanup_offsets", cleanup), true);
      body({first, list.tile_kv, [&](const Block& block) -> std::optional<Value> { return masks.Within(span, block); }});
    });
    when(TileKind::kGeneral, [&] {
      TileMasks masks(b, spec, args, lists, place, column);
      const Value cleanup = lists.Entry("cleanups", row, slot);
      if (spec.stored_tiles > 0) {
        const Value stored = lists.Entry("stored_at", row, slot);
        const Value zero = b.I32(0);
        const Value from = b.SliceRef(args["stored"], Values{stored, zero, zero}, {1, list.tile_kv, list.tile_q});
        const Value copied = b.SqueezeRef(b.SliceRef(args["copied"], Values{zero}, {1}), {});
        b.StartCopy(from, args["cells"], copied);
        b.WaitCopy(from, args["cells"], copied);
      }
      b.For(b.I32(0), b.I32(list.tile_kv / kGeneralKeys), b.I32(1), {}, [&](const Value& part, const Values&) {
        const Value key = b.Mul(part, b.I32(kGeneralKeys));
        const Value there = b.AssumeMultiple(b.Add(first, key), kLanes);
        masks.WriteAllowed(cleanup, key, there);
        body({there, kGeneralKeys, [&](const Block& block) -> std::optional<Value> {
                const Value from[] = {b.Index(block.key), b.Index(block.q)};
                const Value cells = b.Load(args["allowed"], from, {block.num_keys, block.num_q});
                return b.Is(Compare::kNe, cells, b.I32(0));
              }});
        return Values{};
      });
    });
    return Values{};
  });
}

}  // namespace tessera::kernels
