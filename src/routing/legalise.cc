// legalise: takes away every pick that has no legal key left, and says for each which rule forbade it. Picks of score
// have none to lose; picks that a caller brings may.
#include <fmt/format.h>

#include <algorithm>

#include "routing/routing.h"
#include "routing/rows.h"

namespace tessera::routing {
namespace {

bool HasWindow(const MaskExpr& expr) {
  if (expr.op == MaskExpr::Op::kTerm) return expr.term.kind == TermKind::kWindow || expr.term.kind == TermKind::kChunk;
  return std::any_of(expr.children.begin(), expr.children.end(), HasWindow);
}

// The document of each query in turn, and the keys of a block that are of it.
class RowFacts {
 public:
  RowFacts(const Contract& contract, const BatchRow& row)
      : row_(row),
        q_valid_(row.q_valid.value_or(contract.shape.q_len)),
        kv_valid_(row.kv_valid.value_or(contract.shape.kv_len)),
        has_ids_(!row.q_segments.empty() && !row.kv_segments.empty()) {}

  // Negative for padding.
  int32_t DocumentOf(int64_t q) const {
    if (q >= q_valid_) return -1;
    if (!has_ids_) return 0;
    const auto found = std::partition_point(row_.q_segments.begin(), row_.q_segments.end(),
                                            [q](const Segment& segment) { return segment.end <= q; });
    return found == row_.q_segments.end() || found->begin > q ? -1 : found->doc;
  }

  struct Keys {
    bool any_valid = false;
    bool any_of_document = false;
    int64_t first_of_document = 0;
  };
  Keys KeysOf(int32_t document, int64_t begin, int64_t end) const {
    end = std::min(end, kv_valid_);
    if (begin >= end) return {};
    if (!has_ids_) return {.any_valid = true, .any_of_document = true, .first_of_document = begin};
    Keys out;
    auto segment = std::partition_point(row_.kv_segments.begin(), row_.kv_segments.end(),
                                        [begin](const Segment& s) { return s.end <= begin; });
    for (; segment != row_.kv_segments.end() && segment->begin < end; ++segment) {
      if (segment->doc < 0) continue;
      out.any_valid = true;
      if (segment->doc != document) continue;
      out.any_of_document = true;
      out.first_of_document = std::max<int64_t>(segment->begin, begin);
      return out;
    }
    return out;
  }

 private:
  const BatchRow& row_;
  int64_t q_valid_;
  int64_t kv_valid_;
  bool has_ids_;
};

Status CheckMaps(const RoutingInput& input, const UnionMaps& maps) {
  const Shape& shape = input.contract->shape;
  const int64_t rows = maps.batch * maps.num_query_tiles * maps.num_kv_heads;
  const int64_t picks = maps.batch * maps.q_len * maps.num_kv_heads * maps.top_n;
  if (maps.batch != shape.batch || maps.num_kv_heads != shape.num_kv_heads || maps.q_len < shape.q_len ||
      maps.query_tile < 1 || maps.num_query_tiles * maps.query_tile != maps.q_len || maps.block_tokens < 1) {
    return Fail(ErrorCode::kPicksShape,
                fmt::format("unions for {} rows of {} queries and {} KV heads; the contract has {}, {} and {}",
                            maps.batch, maps.q_len, maps.num_kv_heads, shape.batch, shape.q_len, shape.num_kv_heads),
                "legalise");
  }
  if (static_cast<int64_t>(maps.union_sizes.size()) != rows ||
      static_cast<int64_t>(maps.union_block_indices.size()) != rows * maps.capacity ||
      static_cast<int64_t>(maps.query_union_indices.size()) != picks ||
      static_cast<int64_t>(maps.query_union_valid.size()) != picks) {
    return Fail(ErrorCode::kPicksShape, "the arrays of the unions do not have the sizes that their counts say",
                "legalise");
  }
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t size = maps.union_sizes[static_cast<size_t>(row)];
    bool good = size >= 0 && size <= maps.capacity;
    int32_t before = -1;
    for (int64_t n = 0; good && n < size; ++n) {
      const int32_t block = maps.union_block_indices[static_cast<size_t>(row * maps.capacity + n)];
      good = block > before && block < maps.num_blocks;
      before = block;
    }
    if (!good) {
      return Fail(ErrorCode::kPicksInvalid,
                  fmt::format("the union of tile {} does not hold ascending blocks below {}", row, maps.num_blocks),
                  "legalise");
    }
  }
  return {};
}

// Unions that hold only what some pick still uses; places move with them.
void Shrink(UnionMaps& maps) {
  std::vector<int32_t> moved(static_cast<size_t>(maps.capacity));
  const int64_t tiles = maps.batch * maps.num_query_tiles;
  for (int64_t row = 0; row < tiles * maps.num_kv_heads; ++row) {
    const int64_t head = row % maps.num_kv_heads;
    const int64_t first_query = row / maps.num_kv_heads * maps.query_tile;
    const auto each = [&](auto visit) {
      for (int64_t q = first_query; q < first_query + maps.query_tile; ++q) {
        const int64_t first = (q * maps.num_kv_heads + head) * maps.top_n;
        for (int64_t n = first; n < first + maps.top_n; ++n) {
          if (maps.query_union_valid[static_cast<size_t>(n)] != 0)
            visit(maps.query_union_indices[static_cast<size_t>(n)]);
        }
      }
    };
    std::fill(moved.begin(), moved.end(), -1);
    each([&](int32_t place) { moved[static_cast<size_t>(place)] = 0; });
    int32_t* blocks = maps.union_block_indices.data() + row * maps.capacity;
    int32_t size = 0;
    for (int32_t place = 0; place < maps.union_sizes[static_cast<size_t>(row)]; ++place) {
      if (moved[static_cast<size_t>(place)] < 0) continue;
      blocks[size] = blocks[place];
      moved[static_cast<size_t>(place)] = size++;
    }
    std::fill(blocks + size, blocks + maps.capacity, -1);
    maps.union_sizes[static_cast<size_t>(row)] = size;
    each([&](int32_t& place) { place = moved[static_cast<size_t>(place)]; });
  }
}

}  // namespace

Result<Legalised> Legalise(const RoutingInput& input, const UnionMaps& maps) {
  if (Status checked = CheckRoutingInput(input, NeedsTensors::kNo, "legalise"); !checked) {
    return tl::unexpected(std::move(checked.error()));
  }
  if (Status checked = CheckMaps(input, maps); !checked) return tl::unexpected(std::move(checked.error()));
  const Contract& contract = *input.contract;
  const Shape& shape = contract.shape;
  const bool has_window = std::any_of(contract.mask.heads.begin(), contract.mask.heads.end(), HasWindow);
  Legalised out{.maps = maps};
  LegaliseReport& report = out.report;

  for (int64_t b = 0; b < maps.batch; ++b) {
    const RowFacts facts(contract, (*input.rows)[static_cast<size_t>(b)]);
    for (int64_t head = 0; head < maps.num_kv_heads; ++head) {
      LegalRows legal((*input.legal)[static_cast<size_t>(b * maps.num_kv_heads + head)]);
      for (int64_t q = 0; q < maps.q_len; ++q) {
        const int64_t first = ((b * maps.q_len + q) * maps.num_kv_heads + head) * maps.top_n;
        const int64_t row = (b * maps.num_query_tiles + q / maps.query_tile) * maps.num_kv_heads + head;
        for (int64_t n = first; n < first + maps.top_n; ++n) {
          if (maps.query_union_valid[static_cast<size_t>(n)] == 0) continue;
          const int32_t place = maps.query_union_indices[static_cast<size_t>(n)];
          if (place < 0 || place >= maps.union_sizes[static_cast<size_t>(row)]) {
            return Fail(ErrorCode::kPicksInvalid,
                        fmt::format("query {} of batch row {}, KV head {}, points at place {} of a union of {}", q, b,
                                    head, place, maps.union_sizes[static_cast<size_t>(row)]),
                        "legalise");
          }
          const int64_t block = maps.union_block_indices[static_cast<size_t>(row * maps.capacity + place)];
          const int64_t begin = block * maps.block_tokens;
          const int64_t end = std::min(begin + maps.block_tokens, shape.kv_len);
          ++report.picks;
          if (q < shape.q_len && legal.HasKeyIn(q, begin, end)) {
            ++report.kept;
            continue;
          }
          out.maps.query_union_indices[static_cast<size_t>(n)] = -1;
          out.maps.query_union_valid[static_cast<size_t>(n)] = 0;
          const int32_t document = facts.DocumentOf(q);
          const RowFacts::Keys keys = facts.KeysOf(document, begin, end);
          if (document < 0 || !keys.any_valid) {
            ++report.padding;
          } else if (!keys.any_of_document) {
            ++report.documents;
          } else if (keys.first_of_document > q + contract.mask.offset) {
            ++report.causality;
          } else {
            ++(has_window ? report.window : report.other);
          }
        }
      }
    }
  }
  if (report.kept < report.picks) Shrink(out.maps);
  return out;
}

}  // namespace tessera::routing
