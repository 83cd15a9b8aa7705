// balance: cuts long rows into parts and orders parts longest first, so that workers taking them in order finish
// together. The order is fixed by lengths and row numbers alone. Empty rows get a part too: someone must write zeros.
#include <algorithm>

#include "planner/stages.h"

namespace tessera::planner {

std::vector<Part> Balance(std::span<const uint64_t> row_offsets, int64_t part_slots) {
  const size_t num_rows = row_offsets.empty() ? 0 : row_offsets.size() - 1;
  uint64_t longest = 1;
  for (size_t row = 0; row < num_rows; ++row) longest = std::max(longest, row_offsets[row + 1] - row_offsets[row]);
  const uint64_t limit = std::min(static_cast<uint64_t>(part_slots), longest);
  // Counting sort by length, longest first; equal lengths keep row order.
  std::vector<uint32_t> start(limit + 2, 0);
  uint64_t num_parts = 0;
  const auto for_each_part = [&](const auto& visit) {
    for (size_t row = 0; row < num_rows; ++row) {
      uint64_t begin = row_offsets[row];
      const uint64_t end = row_offsets[row + 1];
      uint32_t part_of_row = 0;
      do {
        // Equal shares, so that a row one slot over the limit does not leave a part of one slot.
        const uint64_t left = end - begin;
        const uint64_t shares = left <= limit ? 1 : (left + limit - 1) / limit;
        const uint64_t length = shares == 1 ? left : (left + shares - 1) / shares;
        visit(Part{static_cast<uint32_t>(row), static_cast<uint32_t>(begin), static_cast<uint32_t>(begin + length),
                   part_of_row++});
        begin += length;
      } while (begin < end);
    }
  };
  for_each_part([&](const Part& part) {
    ++start[limit - (part.slot_end - part.slot_begin) + 1];
    ++num_parts;
  });
  for (size_t i = 1; i < start.size(); ++i) start[i] += start[i - 1];
  std::vector<Part> parts(num_parts);
  for_each_part([&](const Part& part) { parts[start[limit - (part.slot_end - part.slot_begin)]++] = part; });
  return parts;
}

std::vector<Part> RowOrder(std::span<const uint64_t> row_offsets) {
  std::vector<Part> parts;
  for (size_t row = 0; row + 1 < row_offsets.size(); ++row) {
    parts.push_back({static_cast<uint32_t>(row), static_cast<uint32_t>(row_offsets[row]),
                     static_cast<uint32_t>(row_offsets[row + 1]), 0});
  }
  return parts;
}

Status VerifyParts(std::span<const uint64_t> row_offsets, std::span<const Part> parts) {
  const auto fail = [](std::string message) { return Fail(ErrorCode::kStageInvariant, std::move(message), "balance"); };
  std::vector<uint64_t> covered(row_offsets.begin(), row_offsets.end());
  std::vector<uint32_t> count(covered.size(), 0);
  for (const Part& part : parts) {
    if (part.row + size_t{1} >= covered.size() || part.slot_begin != covered[part.row])
      return fail("a part is misplaced");
    if (part.part_of_row != count[part.row]++) return fail("parts of a row are out of order");
    covered[part.row] = part.slot_end;
  }
  for (size_t row = 0; row + 1 < covered.size(); ++row) {
    if (covered[row] != row_offsets[row + 1] || count[row] == 0) return fail("a row is not covered");
  }
  return {};
}

}  // namespace tessera::planner
