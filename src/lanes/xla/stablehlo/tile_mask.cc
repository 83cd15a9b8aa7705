// Scores of a tile and who may attend: the plan's cleanup items, read from a table and tested on a whole tile at a
// time.
#include <limits>

#include "lanes/xla/stablehlo/tiles.h"

namespace tessera::stablehlo {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

Type Matrix(Element element, const ListShape& list) { return {element, {list.tile_q, list.tile_kv}}; }

// Bits of 32-bit words, lowest first, along a new last axis.
Value BitsOf(Builder& b, const Value& words) {
  std::vector<int64_t> dims = words.type.dims;
  std::vector<int64_t> axes;
  for (size_t i = 0; i < dims.size(); ++i) axes.push_back(static_cast<int64_t>(i));
  dims.push_back(32);
  const Type type{Element::kUi32, dims};
  const Value place = b.Iota(type, static_cast<int64_t>(dims.size()) - 1);
  const Value shifted = b.ShiftRight(b.Spread(words, dims, axes), place);
  const Value bit = b.And(shifted, b.Constant({Element::kUi32, {}}, 1));
  return b.Is(Compare::kNe, bit, b.Constant({Element::kUi32, {}}, 0));
}

// One item's table row as scalars.
class Item {
 public:
  Item(Builder& b, const Value& number) : b_(b) {
    const Value at[] = {number, b.Int(0)};
    row_ = b.Reshape(b.SliceAt(b.Input("items"), at, {1, kItemColumns}), {kItemColumns});
  }
  Value operator[](ItemColumn column) const {
    const int64_t begin[] = {static_cast<int64_t>(column)};
    const int64_t end[] = {begin[0] + 1};
    return b_.Reshape(b_.Slice(row_, begin, end), {});
  }
  Value Needs(int32_t condition) const {
    const Value conditions = (*this)[ItemColumn::kConditions];
    const Value asked = b_.And(conditions, b_.Int(condition));
    return b_.Is(Compare::kNe, asked, b_.Int(0));
  }

 private:
  Builder& b_;
  Value row_;
};

class TileMask {
 public:
  TileMask(Builder& b, const ProgramSpec& spec, const MaskTables& tables, const TileAt& at)
      : b_(b), spec_(spec), tables_(tables), list_(tables.list), at_(at) {}

  // Pairs that pass any of the items.
  Value Any(const SlotValues& slot) {
    const Value none = b_.Constant(Matrix(Element::kI1, list_), 0);
    return b_.For(slot.item_begin, slot.item_end, {none}, [&](const Value& i, const Values& carried) {
      return Values{b_.Or(carried[0], Passes(Item(b_, i)))};
    })[0];
  }

 private:
  Value Passes(const Item& item) {
    const Value allowed = WithBits(item, InBand(item));
    return spec_.has_documents ? b_.And(allowed, InDocument(item)) : allowed;
  }

  // Each row's keys [begin, end): the item's rectangle and diagonals, within the lengths and the valid counts.
  Value InBand(const Item& item) {
    const Type rows{Element::kI32, {list_.tile_q}};
    const Value row = b_.Iota(rows, 0);
    const Value diag_begin = b_.Add(row, item[ItemColumn::kDiagBegin]);
    const Value begin = b_.Max(diag_begin, item[ItemColumn::kKvBegin]);
    const Value diag_end = b_.Add(row, item[ItemColumn::kDiagEnd]);
    Value end = b_.Min(diag_end, item[ItemColumn::kKvEnd]);
    end = b_.Min(end, b_.Sub(b_.Int(spec_.shape.kv_len), at_.kv_begin));
    Value row_end = item[ItemColumn::kQEnd];
    row_end = b_.Min(row_end, b_.Sub(b_.Int(spec_.shape.q_len), at_.q_begin));
    if (spec_.has_valid) {
      const Value needs = item.Needs(kNeedsValid);
      end = b_.Min(end, b_.Sub(Limit(needs, "kv_valid"), at_.kv_begin));
      row_end = b_.Min(row_end, b_.Sub(Limit(needs, "q_valid"), at_.q_begin));
    }
    const Value has_begun = b_.Is(Compare::kGe, row, item[ItemColumn::kQBegin]);
    const Value has_row = b_.And(has_begun, b_.Is(Compare::kLt, row, row_end));
    end = b_.Select(has_row, end, b_.Int(0));
    const std::vector<int64_t> dims = {list_.tile_q, list_.tile_kv};
    const Value column = b_.Iota(Matrix(Element::kI32, list_), 1);
    const Value is_past_begin = b_.Is(Compare::kGe, column, b_.Spread(begin, dims, {0}));
    return b_.And(is_past_begin, b_.Is(Compare::kLt, column, b_.Spread(end, dims, {0})));
  }

  // The batch row's valid count where it is asked for, else no limit.
  Value Limit(const Value& needs, const char* input) {
    const Value at[] = {at_.q_head.batch};
    const Value count = b_.Reshape(b_.SliceAt(b_.Input(input), at, {1}), {});
    return b_.Select(needs, count, b_.Int(1 << 30));
  }

  Value InDocument(const Item& item) {
    const std::vector<int64_t> dims = {list_.tile_q, list_.tile_kv};
    const Value q = b_.Spread(Ids(tables_.q_documents, at_.q_begin, list_.tile_q), dims, {0});
    const Value kv = b_.Spread(Ids(tables_.kv_documents, at_.kv_begin, list_.tile_kv), dims, {1});
    const Value are_equal = b_.Is(Compare::kEq, q, kv);
    const Value same = b_.Or(are_equal, b_.Not(item.Needs(kNeedsDocuments)));
    const Value ranks = Ids(tables_.kv_ranks, at_.kv_begin, list_.tile_kv);
    const Value early = b_.Is(Compare::kLt, ranks, item[ItemColumn::kSinkCount]);
    return b_.And(same, b_.Spread(early, dims, {1}));
  }

  // A tile's stretch of a [batch, tokens] table; past the last token, whatever: the band ends there.
  Value Ids(const Value& table, const Value& first_token, int64_t tokens) {
    const Value at[] = {at_.q_head.batch, first_token};
    return b_.Reshape(b_.SliceAt(table, at, {1, tokens}), {tokens});
  }

  Value WithBits(const Item& item, const Value& band) {
    const Value kind = item[ItemColumn::kKind];
    const auto is_kind = [&](ItemKind want) { return b_.Is(Compare::kEq, kind, b_.Int(static_cast<int64_t>(want))); };
    const auto as_it_is = [&] { return Values{band}; };
    return b_.If(is_kind(ItemKind::kBand), as_it_is, [&] {
      return b_.If(
          is_kind(ItemKind::kRows), [&] { return Values{b_.And(band, RowBits(item))}; },
          [&] { return Values{b_.And(band, TileBits(item))}; });
    })[0];
  }

  Value Words(const Item& item, int64_t count) {
    const Value at[] = {item[ItemColumn::kWord]};
    return b_.SliceAt(b_.Input("words"), at, {count});
  }

  Value RowBits(const Item& item) {
    const int64_t padded = RoundUp(list_.tile_q, 64);
    const Value bits = b_.Reshape(BitsOf(b_, Words(item, padded / 32)), {padded});
    const int64_t begin[] = {0};
    const int64_t end[] = {list_.tile_q};
    return b_.Spread(b_.Slice(bits, begin, end), {list_.tile_q, list_.tile_kv}, {0});
  }

  Value TileBits(const Item& item) {
    const Value words = b_.Reshape(Words(item, list_.tile_q * list_.row_words), {list_.tile_q, list_.row_words});
    const int64_t needed = CeilDiv(list_.tile_kv, 32);
    const int64_t first[] = {0, 0};
    const int64_t last[] = {list_.tile_q, needed};
    const Value bits = b_.Reshape(BitsOf(b_, b_.Slice(words, first, last)), {list_.tile_q, needed * 32});
    const int64_t begin[] = {0, 0};
    const int64_t end[] = {list_.tile_q, list_.tile_kv};
    return b_.Slice(bits, begin, end);
  }

  Builder& b_;
  const ProgramSpec& spec_;
  const MaskTables& tables_;
  const ListShape& list_;
  const TileAt& at_;
};

}  // namespace

MaskTables LoadTables(Builder& b, const ProgramSpec& spec, const ListShape& list) {
  MaskTables tables;
  tables.list = list;
  if (!spec.has_documents) return tables;
  const auto whole_tiles = [&](const char* input, int64_t tile) {
    const Value& table = b.Input(input);
    return b.PadEnd(table, {table.type.dims[0], RoundUp(table.type.dims[1], tile)});
  };
  tables.q_documents = whole_tiles("q_documents", list.tile_q);
  tables.kv_documents = whole_tiles("kv_documents", list.tile_kv);
  tables.kv_ranks = whole_tiles("kv_ranks", list.tile_kv);
  return tables;
}

Scores ScoresOf(Builder& b, const ProgramSpec& spec, const MaskTables& tables, const Value& q, const Value& k,
                const TileAt& at, const SlotValues& slot) {
  Scores out;
  Value logits = b.Mul(TileDot(b, q, k, {1, 1}), b.Input("scale"));
  if (spec.has_softcap) {
    const Value& cap = b.Input("softcap");
    const Value bent = b.Tanh(b.Div(logits, cap));
    logits = b.Mul(bent, cap);
    const Value one = b.Constant(bent.type, 1.0);
    out.slope = b.Sub(one, b.Mul(bent, bent));
  }
  const Value is_full = b.Is(Compare::kEq, slot.item_begin, slot.item_end);
  out.logits = b.If(
      is_full, [&] { return Values{logits}; },
      [&] {
        const Value allowed = TileMask(b, spec, tables, at).Any(slot);
        return Values{b.Select(allowed, logits, b.Constant({Element::kF32, {}}, -kInf))};
      })[0];
  return out;
}

Value Visible(Builder& b, const Value& logits) {
  return b.Is(Compare::kNe, logits, b.Constant({Element::kF32, {}}, -kInf));
}

}  // namespace tessera::stablehlo
