// See work.h. The plan cuts rows of masks; a row of forward and dq is one of these. A row of dkv belongs to a key head
// and has the rows of all its query heads, one after another: where together they are longer than a part, it is cut
// between heads, and a head's row that alone is longer into the plan's parts.
#include "lanes/cuda/work.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/math.h"
#include "base/try.h"
#include "contract/mask_sets.h"
#include "plan/tile_widths.h"

namespace tessera::lanes::cuda {
namespace {

// Keys and values that a group of heads keeps in the second-level cache at once.
constexpr int64_t kCacheBytes = int64_t{32} << 20;

// How the row that several heads have together is cut. `slots` of each head's own. Calls whole(first head, heads) where
// rows of neighbours make one piece and cut(head) where a head's row is cut itself, in their order; none for heads
// without slots. No other way to take neighbours together gives fewer pieces: so fewer slots never make more.
template <class Whole, class Cut>
void ForEachPiece(std::span<const int64_t> slots, int64_t part_slots, const Whole& whole, const Cut& cut) {
  size_t first = 0;
  int64_t together = 0;
  const auto end_piece = [&](size_t end) {
    if (together > 0) whole(first, end - first);
    first = end;
    together = 0;
  };
  for (size_t head = 0; head < slots.size(); ++head) {
    if (together + slots[head] > part_slots) end_piece(head);
    if (slots[head] > part_slots) {
      cut(head);
      first = head + 1;
    } else {
      together += slots[head];
    }
  }
  end_piece(slots.size());
}

// Of the rows of one head, or of a key head's query heads, those that are cut, and their parts; `slots[head][row]`.
struct CutRows {
  int64_t splits = 0;
  int64_t parts = 0;
};
CutRows CountCuts(const std::vector<std::span<const int64_t>>& slots, int64_t part_slots) {
  CutRows out;
  std::vector<int64_t> of_row(slots.size());
  for (size_t row = 0; row < slots[0].size(); ++row) {
    for (size_t head = 0; head < slots.size(); ++head) of_row[head] = slots[head][row];
    int64_t pieces = 0;
    ForEachPiece(
        of_row, part_slots, [&](size_t, size_t) { ++pieces; },
        [&](size_t head) { pieces += CeilDiv(of_row[head], part_slots); });
    if (pieces < 2) continue;
    ++out.splits;
    out.parts += pieces;
  }
  return out;
}

// Parts of a mask's rows, each row's together and in their order.
class PartsOfRows {
 public:
  explicit PartsOfRows(const Worklist& list) : first_(list.row_offsets.size(), 0), parts_(list.parts.size()) {
    for (const Part& part : list.parts) ++first_[part.row + size_t{1}];
    for (size_t row = 1; row < first_.size(); ++row) first_[row] += first_[row - 1];
    for (const Part& part : list.parts) parts_[first_[part.row] + part.part_of_row] = part;
  }
  std::span<const Part> Of(size_t row) const {
    return std::span(parts_).subspan(first_[row], first_[row + 1] - first_[row]);
  }

 private:
  std::vector<size_t> first_;
  std::vector<Part> parts_;
};

class WorkMaker {
 public:
  WorkMaker(const Contract& contract, const PlanView& plan, Direction direction, const IdleCells& idle)
      : shape_(contract.shape),
        plan_(plan),
        idle_(idle),
        list_(plan.Of(direction)),
        parts_(list_),
        is_dkv_(direction == Direction::kDkv),
        group_(shape_.num_q_heads / shape_.num_kv_heads) {}

  // By groups of key heads whose keys and values stay in the cache together; in a group the longest first; of equal
  // ones those of one row beside each other, so that the query heads of a key head share what they read.
  RowWork Make() {
    const int64_t head_bytes = shape_.kv_len * (shape_.dim_qk + shape_.dim_v) * 2;
    const int64_t key_heads = std::max<int64_t>(1, kCacheBytes / std::max<int64_t>(1, head_bytes));
    const int64_t stride = key_heads * (is_dkv_ ? 1 : group_);
    const int64_t heads = shape_.batch * (is_dkv_ ? shape_.num_kv_heads : shape_.num_q_heads);
    for (int64_t first = 0; first < heads; first += stride) {
      together_.clear();
      for (int64_t row = static_cast<int64_t>(list_.rows_per_mask) - 1; row >= 0; --row) {
        for (int64_t head = first; head < std::min(first + stride, heads); ++head) AddRow(row, head);
      }
      AppendLongestFirst();
    }
    return std::move(out_);
  }

 private:
  size_t RowOf(int64_t head, int64_t row) const {
    return static_cast<size_t>(plan_.mask_of[static_cast<size_t>(head)]) * list_.rows_per_mask +
           static_cast<size_t>(row);
  }
  int32_t CountOf(size_t row) const {
    return static_cast<int32_t>(list_.row_offsets[row + 1] - list_.row_offsets[row]);
  }

  void AddRow(int64_t row, int64_t head) {
    pieces_.clear();
    Work whole{};
    whole.row = static_cast<int32_t>(row);
    whole.head = static_cast<int32_t>(head);
    whole.part = -1;
    if (is_dkv_) {
      CutKeyHead(whole);
    } else {
      const size_t at = RowOf(head, row);
      whole.slot_begin = static_cast<int32_t>(list_.row_offsets[at]);
      whole.slot_count = CountOf(at);
      for (const Part& part : parts_.Of(at)) AddPiece(whole, part);
    }
    out_.tiles += whole.slot_count;
    if (pieces_.size() < 2) {
      together_.push_back(whole);
      together_.back().idle = IdleOf(whole);
      return;
    }
    out_.splits.push_back(
        {whole.row, whole.head, static_cast<int32_t>(out_.parts), static_cast<int32_t>(pieces_.size())});
    for (Work& piece : pieces_) {
      piece.part = static_cast<int32_t>(out_.parts++);
      piece.idle = IdleOf(piece);
      together_.push_back(piece);
    }
  }

  Idle IdleOf(const Work& work) const {
    if (work.slot_count == 0) return {};
    const int64_t batch = work.head / (is_dkv_ ? shape_.num_kv_heads : shape_.num_q_heads);
    if (work.col_heads == 0) return idle_.Of(batch, work.row, work.slot_begin, work.slot_begin + work.slot_count);
    const size_t row = RowOf(batch * shape_.num_q_heads + work.col_head, work.row);
    for (int64_t head = 1; head < work.col_heads; ++head) {
      if (RowOf(batch * shape_.num_q_heads + work.col_head + head, work.row) != row) return {};
    }
    return idle_.Of(batch, work.row, static_cast<int64_t>(list_.row_offsets[row]),
                    static_cast<int64_t>(list_.row_offsets[row + 1]));
  }

  void AddPiece(Work piece, const Part& part) {
    piece.slot_begin = static_cast<int32_t>(part.slot_begin);
    piece.slot_count = static_cast<int32_t>(part.slot_end - part.slot_begin);
    if (piece.slot_count > 0) pieces_.push_back(piece);
  }

  void CutKeyHead(Work& whole) {
    const int64_t batch_row = whole.head / shape_.num_kv_heads;
    whole.col_head = static_cast<int32_t>(whole.head % shape_.num_kv_heads * group_);
    whole.col_heads = static_cast<int32_t>(group_);
    const auto row_of = [&](int64_t head) {
      return RowOf(batch_row * shape_.num_q_heads + whole.col_head + head, whole.row);
    };
    slots_of_heads_.clear();
    for (int64_t i = 0; i < group_; ++i) slots_of_heads_.push_back(CountOf(row_of(i)));
    for (const int64_t slots : slots_of_heads_) whole.slot_count += static_cast<int32_t>(slots);
    Work piece = whole;
    ForEachPiece(
        slots_of_heads_, list_.part_slots,
        [&](size_t first, size_t heads) {
          piece.col_head = whole.col_head + static_cast<int32_t>(first);
          piece.col_heads = static_cast<int32_t>(heads);
          piece.slot_begin = 0;
          piece.slot_count = 0;
          for (size_t i = first; i < first + heads; ++i) piece.slot_count += static_cast<int32_t>(slots_of_heads_[i]);
          pieces_.push_back(piece);
        },
        [&](size_t head) {
          piece.col_head = whole.col_head + static_cast<int32_t>(head);
          piece.col_heads = 0;
          for (const Part& part : parts_.Of(row_of(static_cast<int64_t>(head)))) AddPiece(piece, part);
        });
  }

  // A counting sort: equal lengths keep their order.
  void AppendLongestFirst() {
    int32_t longest = 0;
    for (const Work& work : together_) longest = std::max(longest, work.slot_count);
    std::vector<size_t> start(static_cast<size_t>(longest) + 2, 0);
    const auto rank = [&](const Work& work) { return static_cast<size_t>(longest - work.slot_count); };
    for (const Work& work : together_) ++start[rank(work) + 1];
    for (size_t i = 1; i < start.size(); ++i) start[i] += start[i - 1];
    const size_t base = out_.work.size();
    out_.work.resize(base + together_.size());
    for (const Work& work : together_) out_.work[base + start[rank(work)]++] = work;
  }

  const Shape& shape_;
  const PlanView& plan_;
  const IdleCells& idle_;
  const Worklist& list_;
  const PartsOfRows parts_;
  const bool is_dkv_;
  const int64_t group_;
  std::vector<int64_t> slots_of_heads_;  // of the row at hand
  std::vector<Work> pieces_;             // of it too
  std::vector<Work> together_;           // of the group of heads at hand
  RowWork out_;
};

}  // namespace

Result<ClassWork> ClassWorkOf(const Contract& contract, const PlanView& plan, Direction direction) {
  const Shape& s = contract.shape;
  const Worklist& list = plan.Of(direction);
  const bool is_dkv = direction == Direction::kDkv;
  const int64_t group = is_dkv ? s.num_q_heads / s.num_kv_heads : 1;
  ClassWork out;
  out.rows = s.batch * s.num_q_heads / group * list.rows_per_mask;
  if (out.rows == 0 || group * list.width_capacity <= list.part_slots) return out;

  const MaskSets sets = TESSERA_TRY(BuildMaskSets(contract));
  const TileSize tile{list.tile_q, list.tile_kv};
  std::vector<std::vector<int64_t>> widest;  // by head class
  for (const HeadClass& head_class : sets.classes) {
    plan::TileWidths widths = plan::WidthsOf(head_class.holding.back(), tile, s.q_len, s.kv_len);
    widest.push_back(std::move(is_dkv ? widths.columns : widths.rows));
    for (int64_t& slots : widest.back()) slots = std::min<int64_t>(slots, list.width_capacity);
  }
  std::map<std::vector<uint32_t>, CutRows> cuts;  // by the classes of the heads that a row has
  for (auto head = sets.class_of_head.begin(); head != sets.class_of_head.end(); head += group) {
    const auto [at, is_new] = cuts.try_emplace(std::vector<uint32_t>(head, head + group));
    if (is_new) {
      std::vector<std::span<const int64_t>> slots;
      for (const uint32_t head_class : at->first) slots.emplace_back(widest[head_class]);
      at->second = CountCuts(slots, list.part_slots);
    }
    out.splits += s.batch * at->second.splits;
    out.parts += s.batch * at->second.parts;
  }
  return out;
}

RowWork MakeWork(const Contract& contract, const PlanView& plan, Direction direction, const IdleCells& idle) {
  return WorkMaker(contract, plan, direction, idle).Make();
}

}  // namespace tessera::lanes::cuda
