#include "export/exports.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tessera {
namespace {

std::vector<Visit> SplashVisits(const Export& exported) {
  const bool is_dkv = exported.direction == Direction::kDkv;
  const std::vector<int64_t>& shape = exported.Find("data_next")->shape;
  const std::vector<int32_t> next = Ints(exported.Find("data_next"));
  const std::vector<int32_t> kinds = Ints(exported.Find("block_mask"));
  const Tensor* stored = exported.Find("mask_next");
  const std::vector<int32_t> ids = stored != nullptr ? Ints(stored) : std::vector<int32_t>(kinds.size(), 0);
  std::vector<Visit> visits;
  for (int64_t row = 0; row < shape[1]; ++row) {
    for (int64_t column = 0; column < shape[2]; ++column) {
      const int64_t at = row * shape[2] + column;
      if (kinds[at] != 0) visits.push_back({is_dkv ? next[at] : row, is_dkv ? column : next[at], kinds[at], ids[at]});
    }
  }
  return visits;
}

// `columns` of the grid as the kernel walks it: for dkv it is transposed.
std::vector<Visit> TokamaxVisits(const Export& exported, int64_t columns) {
  const bool is_dkv = exported.direction == Direction::kDkv;
  const std::vector<int32_t> kinds = Ints(exported.Find("block_mask"));
  const Tensor* stored = exported.Find("mask_next");
  const std::vector<int32_t> ids = stored != nullptr ? Ints(stored) : std::vector<int32_t>(kinds.size(), 0);
  const bool is_list = exported.Find("active_rows") != nullptr;
  const std::vector<int32_t> rows = is_list ? Ints(exported.Find("active_rows")) : std::vector<int32_t>();
  const std::vector<int32_t> cols = is_list ? Ints(exported.Find("active_cols")) : std::vector<int32_t>();
  const size_t count = is_list ? Ints(exported.Find("num_active_blocks")).front() : kinds.size();
  std::vector<Visit> visits;
  for (size_t i = 0; i < kinds.size(); ++i) {
    if (i >= count) {
      EXPECT_EQ(rows[i], -1) << "padding";
      EXPECT_EQ(kinds[i], -1);
      continue;
    }
    if (kinds[i] == 0) continue;
    const int64_t row = is_list ? rows[i] : static_cast<int64_t>(i) / columns;
    const int64_t column = is_list ? cols[i] : static_cast<int64_t>(i) % columns;
    visits.push_back({is_dkv ? column : row, is_dkv ? row : column, kinds[i], ids[i]});
  }
  return visits;
}

std::vector<Visit> FlexVisits(const Export& exported, int64_t batch_row) {
  std::vector<Visit> visits;
  for (const int32_t kind : {1, 2}) {
    const std::string prefix = kind == 1 ? "" : "full_";
    const std::vector<int64_t>& shape = exported.Find(prefix + "kv_indices")->shape;
    const std::vector<int32_t> counts = Ints(exported.Find(prefix + "kv_num_blocks"));
    const std::vector<int32_t> indices = Ints(exported.Find(prefix + "kv_indices"));
    const int64_t plane = shape[0] == 1 ? 0 : batch_row * shape[1];
    for (int64_t row = 0; row < shape[2]; ++row) {
      const int64_t line = plane * shape[2] + row;
      for (int64_t i = 0; i < counts[line]; ++i) visits.push_back({row, indices[line * shape[3] + i], kind, 0});
    }
  }
  return visits;
}

std::vector<Visit> PallasVisits(const Export& exported) {
  const std::vector<int64_t>& shape = exported.Find("data_next")->shape;
  const std::vector<int32_t> next = Ints(exported.Find("data_next"));
  const std::vector<int32_t> kinds = Ints(exported.Find("block_mask"));
  const Tensor* stored = exported.Find("mask_next");
  const std::vector<int32_t> ids = stored != nullptr ? Ints(stored) : std::vector<int32_t>(kinds.size(), 0);
  std::vector<Visit> visits;
  for (int64_t at = 0; at < shape[0] * shape[1]; ++at) {
    if (kinds[at] != 0) visits.push_back({at / shape[1], next[at], kinds[at], ids[at]});
  }
  return visits;
}

bool Computes(const std::optional<MaskFunction>& function, int64_t q, int64_t k) {
  if (!function) return true;
  const int64_t p = q + function->offset;
  switch (function->kind) {
    case MaskFunction::Kind::kCausal:
      return k <= p;
    case MaskFunction::Kind::kLocal:
      return (function->left < 0 || p - function->left <= k) && (function->right < 0 || k <= p + function->right);
    case MaskFunction::Kind::kChunkedCausal:
      return q / function->chunk == k / function->chunk && k <= q;
  }
  return false;
}

}  // namespace

std::vector<Visit> VisitsOf(const Export& exported, int64_t batch_row) {
  switch (exported.library) {
    case Library::kSplash:
      return SplashVisits(exported);
    case Library::kTokamax: {
      // Whole grids are square in these tests, or lists.
      const Tensor* kinds = exported.Find("block_mask");
      int64_t columns = 1;
      while (columns * columns < kinds->NumElements()) ++columns;
      return TokamaxVisits(exported, columns);
    }
    case Library::kFlex:
      return FlexVisits(exported, batch_row);
    case Library::kPallas:
      return PallasVisits(exported);
  }
  return {};
}

Dense PairsOf(const Export& exported, const Shape& shape, const std::vector<Visit>& visits, int64_t batch_row) {
  const TileSize tile = exported.tile;
  const Tensor* blocks = exported.Find("partial_mask_blocks");
  const std::vector<int32_t> cells = blocks != nullptr ? Ints(blocks) : std::vector<int32_t>();
  std::vector<int32_t> q_ids(static_cast<size_t>(shape.batch * shape.q_len), 0);
  std::vector<int32_t> kv_ids(static_cast<size_t>(shape.batch * shape.kv_len), 0);
  if (exported.segment_ids) {
    q_ids = Ints(&exported.segment_ids->q);
    kv_ids = Ints(&exported.segment_ids->kv);
  }
  const bool is_dkv = exported.direction == Direction::kDkv;
  Dense dense(static_cast<size_t>(shape.q_len * shape.kv_len), 0);
  for (const Visit& visit : visits) {
    for (int64_t q = visit.q * tile.q; q < std::min((visit.q + 1) * tile.q, shape.q_len); ++q) {
      for (int64_t k = visit.kv * tile.kv; k < std::min((visit.kv + 1) * tile.kv, shape.kv_len); ++k) {
        bool may = visit.kind == 2;
        if (!may && blocks != nullptr) {
          const int64_t row = q - visit.q * tile.q;
          const int64_t column = k - visit.kv * tile.kv;
          const int64_t cell = is_dkv ? column * tile.q + row : row * tile.kv + column;
          may = cells[visit.stored * tile.q * tile.kv + cell] != 0;
        } else if (!may) {
          may = Computes(exported.mask_function, q, k) &&
                q_ids[batch_row * shape.q_len + q] == kv_ids[batch_row * shape.kv_len + k];
        }
        uint8_t& pair = dense[q * shape.kv_len + k];
        EXPECT_FALSE(may && pair != 0) << "a pair computed twice: " << q << ", " << k;
        pair = pair != 0 || may ? 1 : 0;
      }
    }
  }
  return dense;
}

std::string SignatureOf(const Export& exported) {
  std::string text;
  for (const ExportArray& array : exported.arrays) {
    text += array.name + " ";
    text += array.value ? fmt::format("{} {}\n", ToText(array.value->type), array.value->shape) : "none\n";
  }
  if (exported.segment_ids) {
    text += fmt::format("segment ids {} {}\n", exported.segment_ids->q.shape, exported.segment_ids->kv.shape);
  }
  return text;
}

}  // namespace tessera
