// See worklist.h.
#include "lanes/xla/kernels/worklist.h"

#include <utility>

namespace tessera::kernels {

using mosaic::Builder;
using mosaic::Compare;
using mosaic::Element;
using mosaic::KernelArguments;
using mosaic::Value;
using mosaic::Values;

mosaic::Element AttentionSpec::cleanup_index() const {
  return cleanups <= 127 ? Element::kI8 : cleanups <= 32767 ? Element::kI16 : Element::kI32;
}

std::vector<mosaic::Memory> ScalarsOf(const AttentionSpec& spec) {
  const auto smem = [](Element element, std::vector<int64_t> dims) {
    return mosaic::MemrefOf(mosaic::Space::kSmem, element, std::move(dims));
  };
  const std::vector<int64_t> list = {spec.masks * spec.list.rows, spec.list.width};
  std::vector<mosaic::Memory> scalars = {{"mask_of", smem(Element::kI32, {spec.batch * spec.num_q_heads})},
                                         {"columns", smem(spec.index, list)},
                                         {"kinds", smem(Element::kI8, list)},
                                         {"cleanups", smem(spec.cleanup_index(), list)}};
  if (spec.has_documents) scalars.push_back({"document_next", smem(spec.index, list)});
  if (spec.stored_tiles > 0) scalars.push_back({"stored_next", smem(Element::kI32, list)});
  scalars.push_back({"cleanup_offsets", smem(Element::kI32, {spec.cleanups + 1})});
  scalars.push_back({"items", smem(Element::kI32, {spec.items * kItemFields})});
  if (spec.has_valid) {
    scalars.push_back({"q_valid", smem(Element::kI32, {spec.batch})});
    scalars.push_back({"kv_valid", smem(Element::kI32, {spec.batch})});
  }
  return scalars;
}

Values ScalarValues(const AttentionSpec& spec, const KernelArguments& args) {
  Values values;
  for (const mosaic::Memory& scalar : ScalarsOf(spec)) values.push_back(args[scalar.name]);
  return values;
}

Lists::Lists(Builder& b, const AttentionSpec& spec, const Values& scalars)
    : b_(b), spec_(spec), scalars_(scalars), names_(ScalarsOf(spec)) {}

const Value& Lists::Find(std::string_view name) const {
  size_t i = 0;
  while (names_[i].name != name) ++i;
  return scalars_[i];
}

Value Lists::Entry(std::string_view list, const Place& at) const {
  const Value mask = At("mask_of", at.pair);
  const Value row = b_.Add(b_.Mul(mask, b_.I32(spec_.list.rows)), at.row);
  const Value where[] = {row, at.slot};
  const Value entry = b_.LoadScalar(Find(list), where);
  return entry.type.element == Element::kI32 ? entry : b_.Convert(entry, Element::kI32);
}

Value Lists::At(std::string_view list, const Value& index) const {
  const Value where[] = {index};
  return b_.LoadScalar(Find(list), where);
}

namespace {

// Where the loads of a tile's mask begin: absolute numbers of its first query and key, and the first of the keys among
// those of the tile that are looked at now.
struct MaskAt {
  Place place;
  Value q_begin;
  Value kv_begin;
  int64_t first_key = 0;
};

// The pairs of one item, over the tile.
class ItemMask {
 public:
  ItemMask(Builder& b, const AttentionSpec& spec, const KernelArguments& args, const MaskAt& at, const Lists& lists)
      : b_(b), spec_(spec), args_(args), at_(at), lists_(lists) {
    dims_ = {spec.list.tile_q, spec.list.sub_tile_kv};
    if (at.place.is_transposed) std::swap(dims_[0], dims_[1]);
    row_ = b.Iota(dims_, at.place.is_transposed ? 1 : 0);
    column_ = b.Iota(dims_, at.place.is_transposed ? 0 : 1);
    if (at.first_key != 0) column_ = b.Add(column_, b.I32(at.first_key));
    distance_ = b.Sub(column_, row_);
    if (spec.has_valid) batch_ = b.Div(at.place.pair, b.I32(spec.num_q_heads));
  }

  const std::vector<int64_t>& dims() const { return dims_; }

  Value Passes(const Value& item) {
    const auto field = [&](ItemField f) {
      const Value first = b_.Mul(item, b_.I32(kItemFields));
      return lists_.At("items", b_.Add(first, b_.I32(static_cast<int64_t>(f))));
    };
    const Value needs = field(ItemField::kNeeds);
    Value q_end = field(ItemField::kQEnd);
    q_end = b_.Min(q_end, b_.Sub(b_.I32(spec_.q_len), at_.q_begin));
    Value kv_end = field(ItemField::kKvEnd);
    kv_end = b_.Min(kv_end, b_.Sub(b_.I32(spec_.kv_len), at_.kv_begin));
    if (spec_.has_valid) {
      const Value asked = b_.And(needs, b_.I32(kNeedsValid));
      const Value is_needed = b_.Is(Compare::kNe, asked, b_.I32(0));
      const auto limit = [&](const char* list, const Value& begin) {
        const Value left = b_.Sub(lists_.At(list, batch_), begin);
        return b_.Select(is_needed, left, b_.I32(1 << 30));
      };
      q_end = b_.Min(q_end, limit("q_valid", at_.q_begin));
      kv_end = b_.Min(kv_end, limit("kv_valid", at_.kv_begin));
    }
    Value allowed = Between(row_, field(ItemField::kQBegin), q_end);
    allowed = b_.And(allowed, Between(column_, field(ItemField::kKvBegin), kv_end));
    const Value diag_begin = field(ItemField::kDiagBegin);
    allowed = b_.And(allowed, Between(distance_, diag_begin, field(ItemField::kDiagEnd)));
    if (spec_.has_documents) allowed = b_.And(allowed, InDocument(needs, field(ItemField::kSinkCount)));
    if (spec_.stored_tiles > 0) allowed = b_.And(allowed, Stored(field(ItemField::kPlane)));
    return allowed;
  }

 private:
  Value Between(const Value& x, const Value& begin, const Value& end) {
    const Value is_after = b_.Is(Compare::kGe, x, begin);
    return b_.And(is_after, b_.Is(Compare::kLt, x, end));
  }

  // Ids of queries are -1 and of keys -2 where there is no document. What is not asked for passes.
  Value InDocument(const Value& needs, const Value& sink_count) {
    const Value zero = b_.Index(0);
    const Value first = b_.I32(at_.first_key);
    Value q, kv, rank;
    if (!at_.place.is_transposed) {
      q = TileLanes(b_, LoadBlock(b_, args_["q_documents"]), dims_[1]);
      const Value at[] = {zero, zero, first};
      kv = b_.ShapeCast(b_.Load(args_["kv_documents"], at, {1, 1, dims_[1]}), {1, dims_[1]});
      rank = b_.ShapeCast(b_.Load(args_["kv_ranks"], at, {1, 1, dims_[1]}), {1, dims_[1]});
    } else {
      const Value at[] = {zero, zero, zero};
      q = b_.ShapeCast(b_.Load(args_["q_documents"], at, {1, 1, dims_[1]}), {1, dims_[1]});
      kv = TileLanes(b_, LoadTokens(b_, args_["kv_documents"], first, dims_[0]), dims_[1]);
      rank = TileLanes(b_, LoadTokens(b_, args_["kv_ranks"], first, dims_[0]), dims_[1]);
    }
    // The difference is forgotten where documents are not asked for: integers spread where booleans may not.
    const Value asked = b_.And(needs, b_.I32(kNeedsDocuments));
    const Value q_ids = b_.Broadcast(q, dims_);
    const Value differs = b_.Mul(b_.Xor(q_ids, b_.Broadcast(kv, dims_)), asked);
    const Value is_same = b_.Is(Compare::kEq, differs, b_.I32(0));
    return b_.And(is_same, b_.Is(Compare::kLt, b_.Broadcast(rank, dims_), sink_count));
  }

  // A cell's bits are those of the cleanup's items; an item without a plane takes no notice.
  Value Stored(const Value& plane) {
    const Value zero = b_.Index(0);
    const Value first = b_.I32(at_.first_key);
    const Values in_lanes = {zero, zero, first};
    const Values in_rows = {zero, first, zero};
    const Value cells = b_.Load(args_["stored"], at_.place.is_transposed ? in_rows : in_lanes, {1, dims_[0], dims_[1]});
    const Value wide = b_.Convert(b_.ShapeCast(cells, dims_), Element::kI32);
    return b_.Is(Compare::kEq, b_.And(wide, plane), plane);
  }

  Builder& b_;
  const AttentionSpec& spec_;
  const KernelArguments& args_;
  const MaskAt& at_;
  const Lists& lists_;
  std::vector<int64_t> dims_;
  Value row_, column_, distance_, batch_;
};

Value MaskOf(Builder& b, const AttentionSpec& spec, const KernelArguments& args, const MaskAt& at) {
  const Values scalars = ScalarValues(spec, args);
  const Lists lists(b, spec, scalars);
  const Value cleanup = lists.Entry("cleanups", at.place);
  const Value begin = lists.At("cleanup_offsets", cleanup);
  const Value end = lists.At("cleanup_offsets", b.Add(cleanup, b.I32(1)));
  ItemMask item(b, spec, args, at, lists);
  const Value none = b.Broadcast(b.I32(0), item.dims());
  const Value one = b.Broadcast(b.I32(1), item.dims());
  const Values any = b.For(begin, end, b.I32(1), {none}, [&](const Value& i, const Values& carried) {
    return Values{b.Select(item.Passes(i), one, carried[0])};
  });
  return b.Is(Compare::kNe, any[0], b.I32(0));
}

}  // namespace

void VisitTile(Builder& b, const AttentionSpec& spec, const KernelArguments& args, const Place& place,
               const std::function<void(const TileKeys&)>& body) {
  const ListSpec& list = spec.list;
  const Values scalars = ScalarValues(spec, args);
  const Lists lists(b, spec, scalars);
  const Value kind = lists.Entry("kinds", place);
  b.When(b.Is(Compare::kEq, kind, b.I32(2)), [&] {
    for (int64_t first = 0; first < list.tile_kv; first += list.sub_tile_kv) body({first, [] { return std::nullopt; }});
  });
  b.When(b.Is(Compare::kEq, kind, b.I32(1)), [&] {
    const Value column = lists.Entry("columns", place);
    const Value other = b.Mul(column, b.I32(place.is_transposed ? list.tile_q : list.tile_kv));
    for (int64_t first = 0; first < list.tile_kv; first += list.sub_tile_kv) {
      body({first, [&]() -> std::optional<Value> {
              const Value own = b.Mul(place.row, b.I32(place.is_transposed ? list.tile_kv : list.tile_q));
              const MaskAt at{place, place.is_transposed ? other : own, place.is_transposed ? own : other, first};
              return MaskOf(b, spec, args, at);
            }});
    }
  });
}

mosaic::Precision PrecisionOf(const AttentionSpec& spec) {
  return spec.element == Element::kF32 ? mosaic::Precision::kFp32 : mosaic::Precision::kDefault;
}

Value AsOperand(Builder& b, const AttentionSpec& spec, const Value& x) {
  return spec.element == Element::kF32 ? x : b.Convert(x, spec.element);
}

namespace {
Value Score(Builder& b, const KernelArguments& args, int64_t which) {
  const Value at[] = {b.Index(0), b.Index(which)};
  return b.LoadScalar(args["score"], at);
}
}  // namespace

Scores ScoresOf(Builder& b, const AttentionSpec& spec, const KernelArguments& args, const Value& lhs,
                const Value& rhs) {
  const Value product = b.Matmul(lhs, rhs, 1, 1, PrecisionOf(spec));
  const Value raw = b.Mul(product, Score(b, args, 0));
  if (!spec.has_softcap) return {raw, raw};
  const Value cap = Score(b, args, 1);
  return {b.Mul(b.Tanh(b.Div(raw, cap)), cap), raw};
}

Value Weight(Builder& b, const Value& exponent) { return b.Exp(b.Min(exponent, b.F32(0.0))); }

Value Uncap(Builder& b, const AttentionSpec& spec, const KernelArguments& args, const Scores& scores, const Value& ds) {
  if (!spec.has_softcap) return ds;
  const Value share = b.Div(scores.scores, Score(b, args, 1));
  const Value one = b.Broadcast(b.F32(1.0), share.type.dims);
  return b.Mul(ds, b.Sub(one, b.Mul(share, share)));
}

Value ScaleOf(Builder& b, const KernelArguments& args) { return Score(b, args, 0); }

}  // namespace tessera::kernels
