// What our kernels share: where a step is in the plan, its walk over the tiles of a row, and the masks of partial tiles
// from their cleanups' items. Scores are [keys, queries] everywhere.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lanes/xla/kernels/attention.h"
#include "lanes/xla/kernels/splash_parts.h"

namespace tessera::kernels {

// A step's place: the (batch row, query head) pair and its (batch row, key head), the row of tiles, the chunk of keys.
struct Place {
  mosaic::Value pair, head, row, chunk;
};
// Grids: (pair, row, chunk) of a kernel whose results are of queries; (head, chunk, row of any head of the group) where
// a chunk's gradients stay in memory until every query has added to them.
enum class Order : uint8_t { kByQuery, kByChunk };
Place PlaceOf(mosaic::Builder& b, const AttentionSpec& spec, Order order, const mosaic::Values& grid);

// Reads lists by name, of a kernel's body or of an index map.
class Lists {
 public:
  Lists(mosaic::Builder& b, const AttentionSpec& spec, const mosaic::Values& scalars);
  mosaic::Value Row(const Place& at) const;  // of all masks' rows
  mosaic::Value Entry(std::string_view list, const mosaic::Value& row, const mosaic::Value& slot) const;
  mosaic::Value At(std::string_view list, const mosaic::Value& index) const;

 private:
  const mosaic::Value& Find(std::string_view name) const;
  mosaic::Builder& b_;
  const AttentionSpec& spec_;
  const mosaic::Values& scalars_;
  std::vector<mosaic::Memory> names_;
};

std::vector<mosaic::Memory> ScalarsOf(const AttentionSpec& spec);
mosaic::Values ScalarValues(const AttentionSpec& spec, const mosaic::KernelArguments& args);

// A part of a visited tile's scores: queries from `q` on, and keys from `key` on, of the keys that are looked at.
struct Block {
  int64_t q = 0;
  int64_t num_q = 0;
  int64_t key = 0;
  int64_t num_keys = 0;
  std::vector<int64_t> mask_dims() const { return {num_keys / kSublanes, kSublanes, num_q}; }
};
// Keys of a visited tile, all or some: `first` is their place in the chunk. `mask` writes which pairs of a block, whose
// keys are counted from the i32 `from` on, may attend, where the kernel wants it: i1 [keys / 8, 8, queries]; a full
// tile has none.
struct TileKeys {
  mosaic::Value first;
  int64_t count = 0;
  bool is_in_range = false;
  std::function<std::optional<mosaic::Value>(const Block&, const mosaic::Value& from)> mask;
  std::optional<mosaic::Value> second = {};  // of two tiles' keys, the place of the later half
};
// The place in the chunk of a block's keys.
mosaic::Value KeysAt(mosaic::Builder& b, const TileKeys& keys, const Block& block);
// The same keys, in loops of kFewKeys at a time: for a body that need not be fast, and is shorter so.
inline constexpr int64_t kFewKeys = 128;
void VisitFew(mosaic::Builder& b, const TileKeys& keys, const std::function<void(const TileKeys&)>& body);
// Whether tiles that follow each other may come as one, and, where that is only known when it runs, when.
struct ByTwo {
  bool is_on = false;
  std::optional<mosaic::Value> when = {};
};
// Writes the walk over the row's tiles in the chunk: `body` without a mask for full ones and with one for others.
void VisitTiles(mosaic::Builder& b, const AttentionSpec& spec, const mosaic::KernelArguments& args, const Place& place,
                const ByTwo& by_two, const std::function<void(const TileKeys&)>& body);
// The scratch of that walk.
void AddMaskScratch(const AttentionSpec& spec, std::vector<mosaic::Memory>& scratch);

// `x` where the mask lets it, and `otherwise` elsewhere.
mosaic::Value Masked(mosaic::Builder& b, const std::optional<mosaic::Value>& mask, const mosaic::Value& x,
                     double otherwise);

// The blocks of the keys' scores, keys after keys, each for all queries.
std::vector<Block> BlocksOf(const AttentionSpec& spec, int64_t num_keys, const Blocking& by);

mosaic::Value ScoreNumber(mosaic::Builder& b, const mosaic::KernelArguments& args, ScoreField field);
// Of a product of keys and queries: what the softmax compares.
mosaic::Value Compared(mosaic::Builder& b, const AttentionSpec& spec, const mosaic::KernelArguments& args,
                       const mosaic::Value& product);

// `count` tokens from `first + offset` on: [tokens, dim] of a block [1, tokens, dim], or [dim, tokens] of [1, dim,
// tokens].
mosaic::Value LoadRows(mosaic::Builder& b, const mosaic::Value& memref, const mosaic::Value& first, int64_t count);
mosaic::Value LoadLanes(mosaic::Builder& b, const mosaic::Value& memref, const mosaic::Value& first, int64_t count);
mosaic::Value Along(mosaic::Builder& b, const mosaic::Value& first, int64_t offset);

mosaic::Precision PrecisionOf(const AttentionSpec& spec);
mosaic::Value AsOperand(mosaic::Builder& b, const AttentionSpec& spec, const mosaic::Value& x);

// What every kernel begins with: grid, the plan's scalars, the score's window.
mosaic::KernelSpec CommonSpec(const AttentionSpec& spec, std::string name, Order order);
mosaic::Window ScoreWindow(std::string name, int64_t numbers);
mosaic::Memory Scratch(std::string name, std::vector<int64_t> dims);  // f32

// Which block of each operand a step of the grid sees.
class Windows {
 public:
  Windows(const AttentionSpec& spec, Order order) : spec_(spec), order_(order) {}
  mosaic::Window Queries(std::string name, int64_t dim) const;       // [pairs, tokens, dim]
  mosaic::Window QueryLanes(std::string name, int64_t dim) const;    // [pairs, dim, tokens]
  mosaic::Window QueryNumbers(std::string name, int64_t dim) const;  // the same, f32
  mosaic::Window ChunkQueries(std::string name, int64_t dim) const;  // [chunks * pairs, dim, tokens], f32
  mosaic::Window Keys(std::string name, int64_t dim) const;          // [heads, tokens, dim]
  mosaic::Window KeyLanes(std::string name, int64_t dim) const;      // [heads, dim, tokens]
  void AddBounds(std::vector<mosaic::Window>& windows) const;        // in scalar memory
  void AddMask(std::vector<mosaic::Window>& windows) const;

 private:
  using Where = std::function<mosaic::Values(mosaic::Builder& b, const Place& at, const Lists& lists)>;
  mosaic::Window Make(std::string name, mosaic::Element element, std::vector<int64_t> bounds, Where where) const;
  mosaic::Value ChunkOf(mosaic::Builder& b, const Place& at, const Lists& lists) const;
  const AttentionSpec& spec_;
  const Order order_;
};

}  // namespace tessera::kernels
