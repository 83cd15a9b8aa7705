// The walk over a row's tiles, and the masks of partial ones. See worklist.h.
//
// An item lets each query see one run of keys: its rectangle cut by its diagonals, and by the query's document where
// documents are runs of tokens too. So the mask of a tile with one such item is one comparison, of how far a key lies
// behind the first that its query sees. Every other cleanup is written to memory first, item by item.
#include <limits>
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
constexpr int64_t kGeneralKeys = kFewKeys;
constexpr int64_t kLeast = std::numeric_limits<int32_t>::min();

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

  // Keys that an item lets each query see, [8, tile_q] both. `behind`: how far row r of the tile's keys lies behind the
  // first of them; `count`: of how many. Both are lowered by 2^31, so that a key before the first is far behind it and
  // one signed comparison does.
  struct Span {
    Value behind, count;
  };
  Span SpanOf(const Value& item, bool has_spans) {
    const Value needs = Field(item, ItemField::kNeeds);
    Value q_end = Field(item, ItemField::kQEnd);
    q_end = b_.Min(q_end, b_.Sub(b_.I32(spec_.q_len), q_begin_));
    Value kv_end = Field(item, ItemField::kKvEnd);
    kv_end = b_.Min(kv_end, b_.Sub(b_.I32(spec_.kv_len), kv_begin_));
    if (spec_.has_valid) {
      const Value batch = b_.Div(place_.pair, b_.I32(spec_.num_q_heads));
      const Value asked = b_.And(needs, b_.I32(kNeedsValid));
      const Value is_needed = b_.Is(Compare::kNe, asked, b_.I32(0));
      const auto limit = [&](const char* list, const Value& begin) {
        const Value left = b_.Sub(lists_.At(list, batch), begin);
        return b_.Select(is_needed, left, b_.I32(kFar));
      };
      q_end = b_.Min(q_end, limit("q_valid", q_begin_));
      kv_end = b_.Min(kv_end, limit("kv_valid", kv_begin_));
    }
    const Value query = b_.Iota({kSublanes, spec_.list.tile_q}, 1);
    Value begin = b_.Add(query, Field(item, ItemField::kDiagBegin));
    begin = b_.Max(begin, Spread(Field(item, ItemField::kKvBegin), query));
    Value end = b_.Add(query, Field(item, ItemField::kDiagEnd));
    end = b_.Min(end, Spread(kv_end, query));
    if (spec_.has_documents && has_spans) {
      // What is not asked for reaches far, on both sides.
      const Value asked = b_.And(needs, b_.I32(kNeedsDocuments));
      const Value unasked = b_.Sub(b_.I32(1), asked);
      const Value far = b_.Mul(unasked, b_.I32(kFar));
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
    end = b_.Select(is_query, end, begin);
    Value count = b_.Sub(end, begin);
    count = b_.Max(count, Spread(b_.I32(0), query));
    const Value behind = b_.Sub(b_.Iota(query.type.dims, 0), begin);
    const Value low = b_.Add(behind, b_.I32(kLeast));
    return {low, b_.Add(count, b_.I32(kLeast))};
  }

  // Of a block whose keys are counted from `first` of the tile on.
  Value Within(const Span& span, const Block& block, const Value& first) {
    const std::vector<int64_t> dims = block.mask_dims();
    const auto part = [&](const Value& x) { return b_.Slice(x, {0, block.q}, {kSublanes, block.num_q}); };
    const Value begin = b_.Add(first, b_.I32(block.key));
    const Value behind = b_.Broadcast(b_.Add(part(span.behind), begin), dims);
    const Value row = b_.Iota(dims, 0);
    const Value rows = b_.Mul(row, b_.I32(kSublanes));
    const Value there = b_.Add(behind, rows);
    return b_.Is(Compare::kLt, there, b_.Broadcast(part(span.count), dims));
  }

  // Writes to scratch which of kGeneralKeys keys, from `first` of the tile on, each query may see; `at` is their place
  // in the chunk.
  void WriteAllowed(const Value& cleanup, const Value& first, const Value& at) {
    const Value begin = lists_.At("cleanup_offsets", cleanup);
    const Value end = lists_.At("cleanup_offsets", b_.Add(cleanup, b_.I32(1)));
    const Value allowed = args_["allowed"];
    Fill(b_, allowed, 0);
    const Block block{0, spec_.list.tile_q, 0, kGeneralKeys};
    b_.For(begin, end, b_.I32(1), {}, [&](const Value& item, const Values&) {
      Value passes = Within(SpanOf(item, false), block, first);
      if (spec_.has_documents) passes = b_.And(passes, InDocument(item, at));
      if (spec_.stored_tiles > 0) passes = b_.And(passes, Stored(Field(item, ItemField::kPlane), first));
      const Value one = b_.Broadcast(b_.I32(1), block.mask_dims());
      b_.StoreAll(b_.Select(passes, one, b_.LoadAll(allowed)), allowed);
      return Values{};
    });
  }

 private:
  Value Field(const Value& item, ItemField field) {
    const Value first = b_.Mul(item, b_.I32(kItemFields));
    return lists_.At("items", b_.Add(first, b_.I32(static_cast<int64_t>(field))));
  }
  std::vector<int64_t> General() const { return Block{0, spec_.list.tile_q, 0, kGeneralKeys}.mask_dims(); }
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
    return b_.ShapeCast(TileLanes(b_, square, spec_.list.tile_q), General());
  }

  // Ids of queries are -1 and of keys -2 where there is no document. What is not asked for passes.
  Value InDocument(const Value& item, const Value& first) {
    const Value needs = Field(item, ItemField::kNeeds);
    const Value asked = b_.And(needs, b_.I32(kNeedsDocuments));
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
    const Value wide = b_.ShapeCast(b_.Convert(b_.ShapeCast(cells, dims), Element::kI32), General());
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
  vmem("allowed", Element::kI32, {kGeneralKeys / kSublanes, kSublanes, spec.list.tile_q});
  if (spec.stored_tiles == 0) return;
  vmem("cells", Element::kI8, {1, spec.list.tile_kv, spec.list.tile_q});
  scratch.push_back({"copied", mosaic::MemrefOf(mosaic::Space::kSemaphore, Element::kDmaSemaphore, {1})});
}

void VisitFew(Builder& b, const TileKeys& keys, const std::function<void(const TileKeys&)>& body) {
  if (keys.count == kFewKeys) return body(keys);
  const Value zero = b.I32(0);
  const Value parts = b.I32(keys.count / kFewKeys);
  b.For(zero, parts, b.I32(1), {}, [&](const Value& part, const Values&) {
    const Value from = b.Mul(part, b.I32(kFewKeys));
    const Value first = b.AssumeMultiple(b.Add(keys.first, from), kLanes);
    body({first, kFewKeys, false, [&](const Block& block, const Value&) { return keys.mask(block, from); }});
    return Values{};
  });
}

namespace {

// A tile whose bounds do not say that its scores are in range is a full one. So is one whose bounds are NaN.
Value KindOf(Builder& b, const AttentionSpec& spec, const KernelArguments& args, const Place& place, const Value& kind,
             const Value& column) {
  if (!spec.has_range) return kind;
  const auto bound = [&](const char* name, const Value& tile) {
    const Value at[] = {b.Index(0), b.Index(0), tile};
    return b.LoadScalar(args[name], at);
  };
  const Value of_queries = bound("q_bounds", place.row);
  const Value most = b.F32(kMostInRange * kMostInRange);
  const Value is_in_range = b.Is(Compare::kLe, b.Mul(of_queries, bound("k_bounds", column)), most);
  const Value is_asked = b.Is(Compare::kEq, kind, b.I32(static_cast<int64_t>(TileKind::kRange)));
  const Value otherwise = b.Select(is_asked, b.I32(static_cast<int64_t>(TileKind::kFull)), kind);
  return b.Select(is_in_range, kind, otherwise);
}

// A tile of a pair, as the walk comes to it.
struct Seen {
  Value slot, column, is_full;
};

}  // namespace

void VisitTiles(Builder& b, const AttentionSpec& spec, const KernelArguments& args, const Place& place,
                const ByTwo& by_two, const std::function<void(const TileKeys&)>& body) {
  const ListSpec& list = spec.list;
  const Values scalars = ScalarValues(spec, args);
  const Lists lists(b, spec, scalars);
  const Value row = lists.Row(place);
  const Value at = b.Add(b.Mul(row, b.I32(spec.chunks() + 1)), place.chunk);
  const Value begin = lists.At("begins", at);
  const Value end = lists.At("begins", b.Add(at, b.I32(1)));
  const auto place_of = [&](const Value& column) {
    const Value begins_at = b.Mul(column, b.I32(list.tile_kv));
    return b.Sub(begins_at, b.Mul(place.chunk, b.I32(spec.chunk_kv)));
  };
  const auto no_mask = [](const Block&, const Value&) { return std::nullopt; };
  const auto visit = [&](const Value& slot, const Values&) {
    const Value listed = lists.Entry("kinds", row, slot);
    const Value column = lists.Entry("columns", row, slot);
    const Value kind = KindOf(b, spec, args, place, listed, column);
    const Value first = place_of(column);
    const auto when = [&](TileKind of, const std::function<void()>& then) {
      b.When(b.Is(Compare::kEq, kind, b.I32(static_cast<int64_t>(of))), then);
    };
    when(TileKind::kFull, [&] { body({first, list.tile_kv, false, no_mask}); });
    if (spec.has_range) when(TileKind::kRange, [&] { body({first, list.tile_kv, true, no_mask}); });
    when(TileKind::kSpan, [&] {
      TileMasks masks(b, spec, args, lists, place, column);
      const Value cleanup = lists.Entry("cleanups", row, slot);
      const TileMasks::Span span = masks.SpanOf(lists.At("cleanup_offsets", cleanup), true);
      body({first, list.tile_kv, false, [&](const Block& block, const Value& from) -> std::optional<Value> {
              return masks.Within(span, block, from);
            }});
    });
    when(TileKind::kGeneral, [&] {
      TileMasks masks(b, spec, args, lists, place, column);
      const Value cleanup = lists.Entry("cleanups", row, slot);
      if (spec.stored_tiles > 0) {
        const Value stored = lists.Entry("stored_at", row, slot);
        const Value none = b.I32(0);
        const Value from = b.SliceRef(args["stored"], Values{stored, none, none}, {1, list.tile_kv, list.tile_q});
        const Value copied = b.SqueezeRef(b.SliceRef(args["copied"], Values{none}, {1}), {});
        b.StartCopy(from, args["cells"], copied);
        b.WaitCopy(from, args["cells"], copied);
      }
      const Value zero = b.I32(0);
      const Value parts = b.I32(list.tile_kv / kGeneralKeys);
      b.For(zero, parts, b.I32(1), {}, [&](const Value& part, const Values&) {
        const Value key = b.Mul(part, b.I32(kGeneralKeys));
        const Value there = b.AssumeMultiple(b.Add(first, key), kLanes);
        masks.WriteAllowed(cleanup, key, there);
        body({there, kGeneralKeys, false, [&](const Block& block, const Value&) -> std::optional<Value> {
                const Value from[] = {b.Index(block.key / kSublanes), b.Index(0), b.Index(block.q)};
                const Value cells = b.Load(args["allowed"], from, block.mask_dims());
                return b.Is(Compare::kNe, cells, b.I32(0));
              }});
        return Values{};
      });
    });
    return Values{};
  };
  if (!by_two.is_on || list.width == 1) {
    b.For(begin, end, b.I32(1), {}, visit);
    return;
  }
  // Two by two: tiles that follow each other are one body, which waits for the matrix unit at its begin and at its end
  // once for both. Of a full tile beside a masked one, the masked one comes first, and it alone is masked.
  b.For(begin, end, b.I32(2), {}, [&](const Value& slot, const Values&) {
    const Value last = b.Sub(end, b.I32(1));
    const Value after = b.Min(b.Add(slot, b.I32(1)), last);
    Value are_two = b.Is(Compare::kLt, slot, last);
    if (by_two.when) are_two = b.And(are_two, *by_two.when);
    const auto look = [&](const Value& listed) {
      const Value column = lists.Entry("columns", row, listed);
      const Value kind = KindOf(b, spec, args, place, lists.Entry("kinds", row, listed), column);
      const auto is = [&](TileKind of) { return b.Is(Compare::kEq, kind, b.I32(static_cast<int64_t>(of))); };
      const Value is_full = is(TileKind::kFull);
      are_two = b.And(are_two, b.Or(is_full, is(TileKind::kSpan)));
      return Seen{listed, column, is_full};
    };
    const Seen one = look(slot);
    const Seen other = look(after);
    const auto span_of = [&](TileMasks& masks, const Value& listed) {
      return masks.SpanOf(lists.At("cleanup_offsets", lists.Entry("cleanups", row, listed)), true);
    };
    const auto visit_both = [&](const Value& first, const Value& second, const auto& mask) {
      const Value begins = place_of(first);
      body({begins, 2 * list.tile_kv, false, mask, place_of(second)});
    };
    const Value are_full = b.And(one.is_full, other.is_full);
    const Value is_one_full = b.Xor(one.is_full, other.is_full);
    const Value is_any_full = b.Or(one.is_full, other.is_full);
    b.When(b.And(are_two, are_full), [&] { visit_both(one.column, other.column, no_mask); });
    b.When(b.And(are_two, is_one_full), [&] {
      const Value masked_slot = b.Select(one.is_full, other.slot, one.slot);
      const Value masked = b.Select(one.is_full, other.column, one.column);
      const Value full = b.Select(one.is_full, one.column, other.column);
      TileMasks masks(b, spec, args, lists, place, masked);
      const TileMasks::Span span = span_of(masks, masked_slot);
      visit_both(masked, full, [&](const Block& block, const Value& from) -> std::optional<Value> {
        if (block.key >= list.tile_kv) return std::nullopt;
        return masks.Within(span, block, from);
      });
    });
    b.When(b.And(are_two, b.Xor(is_any_full, b.Bool(true))), [&] {
      TileMasks masks[] = {{b, spec, args, lists, place, one.column}, {b, spec, args, lists, place, other.column}};
      const TileMasks::Span first = span_of(masks[0], one.slot);
      const TileMasks::Span second = span_of(masks[1], other.slot);
      visit_both(one.column, other.column, [&](Block block, const Value& from) -> std::optional<Value> {
        if (block.key < list.tile_kv) return masks[0].Within(first, block, from);
        block.key -= list.tile_kv;
        return masks[1].Within(second, block, from);
      });
    });
    b.When(b.Xor(are_two, b.Bool(true)), [&] {
      const Value until = b.Min(b.Add(slot, b.I32(2)), end);
      b.For(slot, until, b.I32(1), {}, visit);
    });
    return Values{};
  });
}

}  // namespace tessera::kernels
