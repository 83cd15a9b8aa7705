// Exports: the same plan in the arrays of other people's kernels, array for array as those libraries build them.
//
// Goals: values, shapes, integer widths and padding equal to JAX Splash's MaskInfo, Tokamax's lists and
// FlexAttention's BlockMask, in time that follows surviving tiles and not T x T; the tiles between documents skipped,
// which those libraries cannot do themselves; and one set of shapes for every batch. What they cannot express is
// refused.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/batch.h"
#include "tessera/contract.h"
#include "tessera/plan.h"
#include "tessera/tensor.h"

#pragma GCC visibility push(default)

namespace tessera {

enum class Library : uint8_t { kSplash, kTokamax, kFlex, kPallas };
std::string_view ToText(Library library);  // "splash"
Result<Library> ParseLibrary(std::string_view name);

// Where the documents and valid lengths of a batch go.
enum class Segments : uint8_t {
  kRuntime,  // segment ids alone: no batch changes the arrays
  kBaked,    // the arrays and their stored tiles; the kernel needs no segment ids
  kSkip,     // the worklists, which skip the tiles between documents, and segment ids inside a tile: no tile is stored
};

struct ExportOptions {
  Library to = Library::kSplash;
  std::optional<TileSize> tile = {};          // default: the contract's
  Direction direction = Direction::kForward;  // or kDkv; flex and pallas have both in one
  bool store_tiles = false;                   // every partial tile as bits, also where the kernel could compute it
  Segments segments = Segments::kRuntime;
  bool fixed_shapes = false;  // every array at the capacities of the contract's class: one shape for all batches
  bool widen_class = false;   // with fixed_shapes: a batch that does not fit gets a wider class, not TSR-P003
  int64_t head_shards = 1;    // splash
  int64_t q_shards = 1;       // splash, tokamax
  int64_t kv_shards = 1;      // tokamax
  bool shrink = true;         // splash: drop empty tiles from the grid
  bool dynamic_grid = false;  // tokamax: lists of active tiles instead of the whole grid
  std::optional<int64_t> batch_row = {};  // splash, tokamax: which row, when rows differ
};

struct ExportArray {
  std::string name;
  std::optional<Tensor> value;  // absent where the library has None
};

// What the library's kernel computes by itself instead of reading stored tiles. A mask of every pair needs none.
struct MaskFunction {
  enum class Kind : uint8_t { kCausal, kLocal, kChunkedCausal };
  Kind kind = Kind::kCausal;
  int64_t left = -1;   // kLocal, inclusive; -1 = no limit
  int64_t right = -1;  // kLocal
  int64_t chunk = 0;   // kChunkedCausal
  int64_t offset = 0;  // kCausal, kLocal: added to the query's position
  bool operator==(const MaskFunction&) const = default;
};

// Two tokens may attend when their ids are equal. Padding has an id that the other side never has.
struct SegmentPair {
  Tensor q;   // I32 [batch, q_len]
  Tensor kv;  // I32 [batch, kv_len]
};

struct Export {
  Library library = Library::kSplash;
  Direction direction = Direction::kForward;
  TileSize tile;
  std::vector<ExportArray> arrays;  // in the library's own order
  std::optional<MaskFunction> mask_function;
  bool needs_segment_ids = false;          // the kernel must be given segment ids at run time
  std::optional<SegmentPair> segment_ids;  // those of the batch, when one was given
  std::vector<std::string> operands;       // pallas: the order a kernel takes them in, tensors of the call included
  TileCounts tiles;                        // over the exported batch rows and all heads

  const Tensor* Find(std::string_view name) const;  // null where absent
};

// The batch may be empty: baked segments need one, run-time ones do not.
Result<Export> MakeExport(const Contract& contract, const Batch& batch, const ExportOptions& options);

// {"library", "direction", "tile", "arrays": {name: {"dtype", "shape", "data"} or null}, ...}; data in row-major order.
std::string ToJson(const Export& exported);
// The arrays that are present, and the segment ids as q_segment_ids and kv_segment_ids.
TensorMap ToTensors(const Export& exported);

}  // namespace tessera
#pragma GCC visibility pop
