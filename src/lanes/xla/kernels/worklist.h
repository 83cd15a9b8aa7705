// What our kernels share: where a step is in the plan, and the mask of a partial tile from its cleanup's items.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lanes/xla/kernels/attention.h"
#include "lanes/xla/kernels/splash_parts.h"

namespace tessera::kernels {

// A step's place: the (batch row, query head) pair, the row of tiles of its mask, and the slot in it.
struct Place {
  mosaic::Value pair, row, slot;
  bool is_transposed = false;  // rows of tiles are of keys, and scores are [keys, queries]
};

// Reads lists by name, of a kernel's body or of an index map.
class Lists {
 public:
  Lists(mosaic::Builder& b, const AttentionSpec& spec, const mosaic::Values& scalars);
  mosaic::Value Entry(std::string_view list, const Place& at) const;
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

// Some keys of a visited tile: sub_tile_kv of them, from `first` on. `mask` writes which pairs may attend, where the
// kernel wants it: i1, [queries, keys], or [keys, queries] of a transposed place; a full tile has none.
struct TileKeys {
  int64_t first = 0;
  std::function<std::optional<mosaic::Value>()> mask;
};
// Writes what a step does with its tile: `body` without a mask for full tiles and with one for partial ones, each over
// all keys of the tile. Padding does neither.
void VisitTile(mosaic::Builder& b, const AttentionSpec& spec, const mosaic::KernelArguments& args, const Place& place,
               const std::function<void(const TileKeys&)>& body);

// q k^T, scaled and capped. `raw` is scaled only.
struct Scores {
  mosaic::Value scores, raw;
};
Scores ScoresOf(mosaic::Builder& b, const AttentionSpec& spec, const mosaic::KernelArguments& args,
                const mosaic::Value& lhs, const mosaic::Value& rhs);
// Of a pair, recomputed from how far its score lies below the row's log-sum-exp: at most 1 (lanes/weights.h).
mosaic::Value Weight(mosaic::Builder& b, const mosaic::Value& exponent);
// Of the cap, times ds.
mosaic::Value Uncap(mosaic::Builder& b, const AttentionSpec& spec, const mosaic::KernelArguments& args,
                    const Scores& scores, const mosaic::Value& ds);

mosaic::Precision PrecisionOf(const AttentionSpec& spec);
mosaic::Value AsOperand(mosaic::Builder& b, const AttentionSpec& spec, const mosaic::Value& x);

mosaic::Value ScaleOf(mosaic::Builder& b, const mosaic::KernelArguments& args);

// What every kernel begins with: the grid of `pairs` x rows of tiles x `steps`, the plan's scalars, the score's window.
mosaic::KernelSpec CommonSpec(const AttentionSpec& spec, std::string name, int64_t pairs, int64_t steps);
mosaic::Window ScoreWindow();
mosaic::Memory Scratch(std::string name, std::vector<int64_t> dims);  // f32

// The windows of a kernel whose grid is (pair, query tile, slot): forward and dQ.
class RowWindows {
 public:
  explicit RowWindows(const AttentionSpec& spec) : spec_(spec) {}
  mosaic::Window Queries(std::string name, int64_t dim) const;
  mosaic::Window Keys(std::string name, int64_t dim) const;
  mosaic::Window Stat(std::string name) const;  // [pairs, 1, tokens]
  void AddMask(std::vector<mosaic::Window>& windows) const;
  void AddBackward(std::vector<mosaic::Window>& windows) const;  // q, k, v, do, lse, delta, and the mask's

 private:
  const AttentionSpec& spec_;
};

// And of one whose grid is (batch row and key head, key tile, slot of any head of the group): dK and dV.
class ColumnWindows {
 public:
  explicit ColumnWindows(const AttentionSpec& spec) : spec_(spec) {}
  static Place PlaceOf(mosaic::Builder& b, const AttentionSpec& spec, const mosaic::Values& grid);
  mosaic::Window Queries(std::string name, int64_t dim) const;
  mosaic::Window Keys(std::string name, int64_t dim) const;
  mosaic::Window Stat(std::string name) const;  // [pairs, 8, tokens]
  void AddMask(std::vector<mosaic::Window>& windows) const;
  void AddBackward(std::vector<mosaic::Window>& windows) const;  // q, k, v, do, lse, delta, and the mask's

 private:
  const AttentionSpec& spec_;
};

}  // namespace tessera::kernels
