// The documents of a batch in any of their forms (ids, lengths, ends): which fields there are, whether they fit a
// contract's lengths, and the segments of a row. Lengths and ends become segments directly; only ids cost per token.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/batch.h"

namespace tessera {

enum class Side : uint8_t { kBoth, kQ, kKv };

// One field of a batch that can hold documents: at most one of the pointers is set, none when the field is absent.
struct DocumentField {
  std::string_view name;
  Side side = Side::kBoth;
  const IdRows* ids = nullptr;
  const IntRows* lengths = nullptr;
  const IntRows* ends = nullptr;  // 0, then the end of each document
  bool IsGiven() const { return ids != nullptr || lengths != nullptr || ends != nullptr; }
};
// Every such field, those of both sides first.
std::array<DocumentField, 9> DocumentFields(const Batch& batch);
// Of that side; kBoth: of either.
bool HasDocuments(const Batch& batch, Side side = Side::kBoth);

// What is wrong with the documents of a batch whose mask looks at them: sides, forms, shapes and ranges.
std::vector<Violation> CheckDocuments(const Shape& shape, const Batch& batch);

// The segments of a batch row, ranks filled in, of a batch that CheckDocuments accepts.
struct SideSegments {
  std::string_view field;  // where they come from
  std::vector<Segment> segments = {};
  const Segment* again = nullptr;  // the earliest one whose id appeared before
};
SideSegments SegmentsOf(const Shape& shape, const Batch& batch, Side side, size_t row);

// The stretches of equal id in one row, in order. Neighbouring padding ids become one stretch with doc -1, whatever
// negative numbers they had; ranks are 0.
std::vector<Segment> FindSegments(std::span<const int32_t> ids);

// One id per token of a row, -1 for padding, for those who must write documents as tokens; `out` has the row's length.
// Of a side that HasDocuments, in a batch that CheckDocuments accepts.
void CopyDocumentIds(const Shape& shape, const Batch& batch, Side side, size_t row, int32_t* out);

}  // namespace tessera
