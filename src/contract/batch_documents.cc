#include "contract/batch_documents.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "base/checked.h"

namespace tessera {
namespace {

// Whether the first kCount ids are all `id`. Without an early exit and in lanes that do not wait for each other, so
// that compilers make it a few wide instructions.
template <size_t kCount>
bool AreAll(const int32_t* ids, int32_t id) {
  constexpr size_t kLanes = std::min<size_t>(kCount, 32);
  std::array<uint32_t, kLanes> difference{};
  for (size_t k = 0; k < kCount; k += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) difference[lane] |= static_cast<uint32_t>(ids[k + lane] ^ id);
  }
  uint32_t any = 0;
  for (const uint32_t lane : difference) any |= lane;
  return any == 0;
}

// The first index after `begin` whose id differs from ids[begin]: in long steps, then short ones, then one by one.
size_t FindChange(std::span<const int32_t> ids, size_t begin) {
  constexpr size_t kLong = 128;
  constexpr size_t kShort = 16;
  const int32_t id = ids[begin];
  size_t i = begin + 1;
  while (i + kLong <= ids.size() && AreAll<kLong>(ids.data() + i, id)) i += kLong;
  while (i + kShort <= ids.size() && AreAll<kShort>(ids.data() + i, id)) i += kShort;
  while (i < ids.size() && ids[i] == id) ++i;
  return i;
}

bool IsAscending(const std::vector<Segment>& segments) {
  int32_t last = -1;
  for (const Segment& segment : segments) {
    if (segment.doc < 0) continue;
    if (segment.doc <= last) return false;
    last = segment.doc;
  }
  return true;
}

// Fills in the ranks and returns the earliest segment whose id appeared before, or nothing.
const Segment* SetRanks(std::vector<Segment>* segments) {
  // Packers number documents upwards, so the common row needs no sort.
  if (IsAscending(*segments)) return nullptr;
  std::vector<uint32_t> order(segments->size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    const Segment& x = (*segments)[a];
    const Segment& y = (*segments)[b];
    return x.doc != y.doc ? x.doc < y.doc : x.begin < y.begin;
  });
  const Segment* first = nullptr;
  for (size_t i = 1; i < order.size(); ++i) {
    const Segment& before = (*segments)[order[i - 1]];
    Segment& segment = (*segments)[order[i]];
    if (segment.doc < 0 || segment.doc != before.doc) continue;
    segment.rank = before.rank + before.end - before.begin;
    if (first == nullptr || segment.begin < first->begin) first = &segment;
  }
  return first;
}

// Collects segments of documents that follow each other; empty documents take a number and no segment.
class SegmentList {
 public:
  explicit SegmentList(size_t count) { segments_.reserve(count + 1); }
  void Add(int32_t end) {
    if (end > begin_) segments_.push_back({begin_, end, doc_, 0});
    begin_ = end;
    ++doc_;
  }
  std::vector<Segment> Finish(int64_t len) {
    doc_ = -1;
    Add(static_cast<int32_t>(len));
    return std::move(segments_);
  }

 private:
  std::vector<Segment> segments_;
  int32_t begin_ = 0;
  int32_t doc_ = 0;
};

std::vector<Segment> SegmentsOfLengths(const std::vector<int32_t>& lengths, int64_t len) {
  SegmentList list(lengths.size());
  int32_t end = 0;
  for (const int32_t length : lengths) list.Add(end += length);
  return list.Finish(len);
}

std::vector<Segment> SegmentsOfEnds(const std::vector<int32_t>& ends, int64_t len) {
  SegmentList list(ends.size());
  for (size_t i = 1; i < ends.size(); ++i) list.Add(ends[i]);
  return list.Finish(len);
}

int64_t LengthOf(const Shape& shape, Side side) { return side == Side::kKv ? shape.kv_len : shape.q_len; }

class Checker {
 public:
  Checker(const Shape& shape, const Batch& batch) : shape_(shape), fields_(DocumentFields(batch)) {}

  std::vector<Violation> Check() {
    CheckSides();
    for (const DocumentField& field : fields_) CheckContent(field);
    return std::move(violations_);
  }

 private:
  void Violate(std::string field, std::string expected) {
    violations_.push_back({std::move(field), std::move(expected)});
  }

  std::vector<std::string_view> Given(Side side) const {
    std::vector<std::string_view> names;
    for (const DocumentField& field : fields_) {
      if (field.side == side && field.IsGiven()) names.push_back(field.name);
    }
    return names;
  }

  // One form for both sides where the lengths are equal, or one for each side; never two for the same side.
  void CheckSides() {
    const std::vector<std::string_view> both = Given(Side::kBoth);
    const std::vector<std::string_view> q = Given(Side::kQ);
    const std::vector<std::string_view> kv = Given(Side::kKv);
    for (const std::vector<std::string_view>& names : {both, q, kv}) {
      for (size_t i = 1; i < names.size(); ++i) {
        Violate(std::string(names[i]),
                fmt::format("must not be given together with {}: documents come in one form", names[0]));
      }
    }
    if (shape_.q_len != shape_.kv_len) {
      for (const std::string_view name : both) {
        Violate(std::string(name),
                fmt::format("must be absent: q_len and kv_len differ, so give q_{} and kv_{}", name, name));
      }
    } else if (!both.empty() && (!q.empty() || !kv.empty())) {
      std::vector<std::string_view> sides = q;
      sides.insert(sides.end(), kv.begin(), kv.end());
      Violate(std::string(both[0]), fmt::format("must not be given together with {}", fmt::join(sides, " or ")));
    }
    if (!both.empty()) return;
    if (q.empty() && kv.empty() && shape_.q_len == shape_.kv_len) {
      return Violate("doc_ids", "is missing: the mask needs it, or doc_lengths, or cu_seqlens");
    }
    // Half a pair is wrong even where the pair is not needed.
    if (q.empty()) RequireSide("q", kv);
    if (kv.empty()) RequireSide("kv", q);
  }

  // Asks for the form that the other side has.
  void RequireSide(std::string_view side, const std::vector<std::string_view>& other) {
    std::string_view form = other.empty() ? "q_doc_ids" : other[0];
    form.remove_prefix(form.find('_') + 1);
    Violate(fmt::format("{}_{}", side, form), "is missing: the mask needs the documents of both sides");
  }

  void CheckContent(const DocumentField& field) {
    if (!field.IsGiven()) return;
    const int64_t len = LengthOf(shape_, field.side);
    if (len > std::numeric_limits<int32_t>::max()) {
      Violate(std::string(field.name), "must have rows shorter than 2^31 tokens");
    } else if (field.ids != nullptr) {
      CheckIds(field.name, *field.ids, len);
    } else {
      CheckRows(field, field.lengths != nullptr ? *field.lengths : *field.ends, len);
    }
  }

  void CheckIds(std::string_view name, const IdRows& ids, int64_t len) {
    const std::optional<int64_t> count = CheckedMul(shape_.batch, len);
    const bool fits =
        ids.rows == shape_.batch && ids.len == len && count && *count == static_cast<int64_t>(ids.values.size());
    if (fits) return;
    Violate(std::string(name), fmt::format("must be [{}][{}], it is [{}][{}] with {} values", shape_.batch, len,
                                           ids.rows, ids.len, ids.values.size()));
  }

  void CheckRows(const DocumentField& field, const IntRows& rows, int64_t len) {
    if (static_cast<int64_t>(rows.size()) != shape_.batch) {
      return Violate(std::string(field.name),
                     fmt::format("must have {} lists, one per batch row; it has {}", shape_.batch, rows.size()));
    }
    for (size_t row = 0; row < rows.size(); ++row) {
      if (field.lengths != nullptr) {
        CheckLengths(field.name, rows[row], row, len);
      } else {
        CheckEnds(field.name, rows[row], row, len);
      }
    }
  }

  // Of each row only the first length that is wrong: those after it stand on it.
  void CheckLengths(std::string_view name, const std::vector<int32_t>& lengths, size_t row, int64_t len) {
    int64_t end = 0;
    for (size_t i = 0; i < lengths.size(); ++i) {
      end += lengths[i];
      if (lengths[i] >= 0 && end <= len) continue;
      return Violate(fmt::format("{}[{}][{}]", name, row, i),
                     lengths[i] < 0
                         ? fmt::format("must not be negative, it is {}", lengths[i])
                         : fmt::format("the lengths up to here add up to {}, the row has {} tokens", end, len));
    }
  }

  void CheckEnds(std::string_view name, const std::vector<int32_t>& ends, size_t row, int64_t len) {
    const auto violate = [&](size_t i, std::string expected) {
      Violate(fmt::format("{}[{}][{}]", name, row, i), std::move(expected));
    };
    if (ends.empty()) return Violate(fmt::format("{}[{}]", name, row), "must begin with 0, it is empty");
    if (ends[0] != 0) return violate(0, fmt::format("must be 0, where the row begins; it is {}", ends[0]));
    for (size_t i = 1; i < ends.size(); ++i) {
      if (ends[i] < ends[i - 1]) {
        return violate(i, fmt::format("must not be below the one before it, {}; it is {}", ends[i - 1], ends[i]));
      }
      if (ends[i] > len) return violate(i, fmt::format("must be at most {}, the row's tokens; it is {}", len, ends[i]));
    }
  }

  const Shape& shape_;
  const std::array<DocumentField, 9> fields_;
  std::vector<Violation> violations_;
};

// The field that a side's documents are in, or one that is not given.
DocumentField FieldOf(const Batch& batch, Side side) {
  for (const DocumentField& field : DocumentFields(batch)) {
    if ((field.side == Side::kBoth || field.side == side) && field.IsGiven()) return field;
  }
  return {};
}

template <class T>
const T* Get(const std::optional<T>& value) {
  return value ? &*value : nullptr;
}

}  // namespace

std::array<DocumentField, 9> DocumentFields(const Batch& batch) {
  return {{
      {.name = "doc_ids", .side = Side::kBoth, .ids = Get(batch.doc_ids)},
      {.name = "doc_lengths", .side = Side::kBoth, .lengths = Get(batch.doc_lengths)},
      {.name = "cu_seqlens", .side = Side::kBoth, .ends = Get(batch.cu_seqlens)},
      {.name = "q_doc_ids", .side = Side::kQ, .ids = Get(batch.q_doc_ids)},
      {.name = "q_doc_lengths", .side = Side::kQ, .lengths = Get(batch.q_doc_lengths)},
      {.name = "q_cu_seqlens", .side = Side::kQ, .ends = Get(batch.q_cu_seqlens)},
      {.name = "kv_doc_ids", .side = Side::kKv, .ids = Get(batch.kv_doc_ids)},
      {.name = "kv_doc_lengths", .side = Side::kKv, .lengths = Get(batch.kv_doc_lengths)},
      {.name = "kv_cu_seqlens", .side = Side::kKv, .ends = Get(batch.kv_cu_seqlens)},
  }};
}

bool HasDocuments(const Batch& batch, Side side) {
  if (side != Side::kBoth) return FieldOf(batch, side).IsGiven();
  return HasDocuments(batch, Side::kQ) || HasDocuments(batch, Side::kKv);
}

std::vector<Violation> CheckDocuments(const Shape& shape, const Batch& batch) { return Checker(shape, batch).Check(); }

SideSegments SegmentsOf(const Shape& shape, const Batch& batch, Side side, size_t row) {
  const DocumentField field = FieldOf(batch, side);
  const int64_t len = LengthOf(shape, side);
  SideSegments out{.field = field.name};
  if (field.ids != nullptr) {
    const auto size = static_cast<size_t>(len);
    out.segments = FindSegments(std::span(field.ids->values).subspan(row * size, size));
    out.again = SetRanks(&out.segments);
  } else if (field.lengths != nullptr) {
    out.segments = SegmentsOfLengths((*field.lengths)[row], len);
  } else if (field.ends != nullptr) {
    out.segments = SegmentsOfEnds((*field.ends)[row], len);
  }
  return out;
}

std::vector<Segment> FindSegments(std::span<const int32_t> ids) {
  std::vector<Segment> segments;
  for (size_t begin = 0; begin < ids.size();) {
    const size_t end = FindChange(ids, begin);
    const int32_t doc = std::max(ids[begin], -1);
    if (doc < 0 && !segments.empty() && segments.back().doc < 0) {
      segments.back().end = static_cast<int32_t>(end);
    } else {
      segments.push_back({static_cast<int32_t>(begin), static_cast<int32_t>(end), doc, 0});
    }
    begin = end;
  }
  return segments;
}

void CopyDocumentIds(const Shape& shape, const Batch& batch, Side side, size_t row, int32_t* out) {
  const DocumentField field = FieldOf(batch, side);
  if (field.ids != nullptr) {
    const int32_t* ids = field.ids->values.data() + row * static_cast<size_t>(field.ids->len);
    std::copy(ids, ids + field.ids->len, out);
    return;
  }
  for (const Segment& segment : SegmentsOf(shape, batch, side, row).segments) {
    std::fill(out + segment.begin, out + segment.end, segment.doc);
  }
}

}  // namespace tessera
