// Integer arrays on their way out: filled as int32, then narrowed as the libraries narrow them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "export/limits.h"
#include "export/mask_form.h"
#include "export/tile_grid.h"
#include "tessera/export.h"

namespace tessera::exports {

struct IntArray {
  std::vector<int64_t> shape;
  std::vector<int32_t> values;  // row-major

  static IntArray Filled(std::vector<int64_t> shape, int32_t value);
  // At the narrowest of 8, 16 and 32 bits that holds the largest value; an array of no elements stays at 32. With
  // `bound`, the largest that any batch could bring, so that the width is the same for all of them.
  Tensor Narrowed(std::optional<int64_t> bound = {}) const;
  Tensor AsInt32() const;
};

// 0, 1, ... q_len - 1: the query positions a kernel's mask function is given.
Tensor QSequence(int64_t q_len);

// Refuses arrays beyond kMaxArrayBytes before they are made.
Status CheckCells(double cells, int64_t arrays, const char* where);

// Gives every step of a grid, in visit order, the stored tile of the first partial step at or after it, wrapping at the
// end, so that fetches run ahead; `none` where there is no partial step.
template <class Step>
void LookAhead(std::vector<Step>& steps, int32_t none) {
  int32_t next = none;
  // Backwards twice round, so that the last steps learn of the first partial one.
  for (size_t i = 2 * steps.size(); i-- > 0;) {
    Step& step = steps[i % steps.size()];
    if (step.stored != GridTile::kFull) next = step.stored;
    step.mask_next = next;
  }
}

// The next array in the library's own order, moved: some hold an entry per token.
inline void Add(Export& out, const char* name, Tensor value) { out.arrays.push_back({name, std::move(value)}); }
// An array that the library has as None unless `present`.
template <class Make>
void AddWhen(bool present, Export& out, const char* name, const Make& make) {
  out.arrays.push_back({name, present ? std::optional<Tensor>(make()) : std::nullopt});
}

// Everything a library's writer needs. One batch row, except for flex.
struct Source {
  const Contract* contract = nullptr;
  const ExportOptions* options = nullptr;
  const PlanView* plan = nullptr;
  TileSize tile;
  int64_t batch_row = 0;
  bool is_baked = false;         // run-time facts of the batch are in the plan, and stored tiles hold them
  bool per_row = false;          // flex: the mask names run-time facts that enter its arrays, so it has a batch axis
  bool stores_no_tiles = false;  // Segments::kSkip
  std::optional<MaskFunction> function = {};   // with stores_no_tiles: what the kernel computes; none = every pair
  std::optional<ClassShape> class_shape = {};  // the sizes of every array, where they are fixed

  // The largest value an index array may hold in some batch, where shapes and widths are fixed.
  std::optional<int64_t> Bound(int64_t largest) const {
    return class_shape ? std::optional<int64_t>(largest) : std::nullopt;
  }
};

// Slots in a row of fixed-shape arrays (transposed: in a column): the class's, which the grid must fit; or a wider
// class's where the caller chose that.
Result<int64_t> FixedWidth(const Source& source, const TileGrid& grid, bool transposed);
// Tiles in partial_mask_blocks: as many as there are, or what the class has room for.
Result<int64_t> StoredCount(const Source& source, const StoredTiles& stored);
// Refuses room for so many stored tiles that it would pass kMaxArrayBytes.
Status CheckRoom(const Source& source, int64_t count);

// Numbers the heads of the row by what their masks allow: a plan may keep two masks apart that this batch makes equal.
// Arrays of fixed shape keep them apart too, because another batch would.
Result<std::vector<uint32_t>> ContentOfHeads(const Source& source);
// An error where heads have different masks and the library has one for all.
Status CheckOneMask(const Source& source);

Status WriteSplash(const Source& source, Export& out);
Status WriteTokamax(const Source& source, Export& out);
Status WriteFlex(const Source& source, Export& out);
Status WritePallas(const Source& source, Export& out);

}  // namespace tessera::exports
