// What the three Splash kernels share.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lanes/xla/kernels/splash.h"
#include "lanes/xla/mosaic/kernel.h"

namespace tessera::kernels {

inline constexpr int64_t kLanes = 128;
inline constexpr int64_t kSublanes = 8;
inline constexpr double kSplashMaskValue = static_cast<double>(-0.7F * 3.4028234663852886e38F);

// Where a step is in the worklists: [head, row, column] of data_next and its neighbours.
struct SplashStep {
  mosaic::Value head, row, column;
};

// A step's entries, read from scalar memory.
class SplashLists {
 public:
  SplashLists(mosaic::Builder& b, const SplashSpec& spec, const mosaic::Values& scalars, const SplashStep& at);
  mosaic::Value Data() const { return Read(0); }
  mosaic::Value Kind() const { return Read(1); }
  mosaic::Value Mask() const { return Read(2); }

 private:
  mosaic::Value Read(size_t list) const;
  mosaic::Builder& b_;
  const mosaic::Values& scalars_;
  mosaic::Values at_;
};

// The memrefs of the lists, for a grid that has [rows, columns] of them.
std::vector<mosaic::Memory> SplashScalars(const SplashSpec& spec, int64_t rows, int64_t columns);

// The number of the key head of a query head; nothing for keys without heads.
mosaic::Values KeyHead(mosaic::Builder& b, const SplashSpec& spec, const mosaic::Value& head);

// Keys of `bounds` tokens, or values, as the layout has them.
std::vector<int64_t> KeyBlock(const SplashSpec& spec, int64_t tokens, int64_t dim);

// `count` copies beside each other along the lanes; the first `width` lanes of them.
mosaic::Value TileLanes(mosaic::Builder& b, const mosaic::Value& x, int64_t width);

// Loads [tokens, dim] from a block that may have a leading axis of 1, from token `begin` on.
mosaic::Value LoadTokens(mosaic::Builder& b, const mosaic::Value& memref, const mosaic::Value& begin, int64_t tokens);
mosaic::Value LoadBlock(mosaic::Builder& b, const mosaic::Value& memref);
void StoreBlock(mosaic::Builder& b, const mosaic::Value& value, const mosaic::Value& memref);
// A branch on a condition as Pallas writes one; the order of operations is part of a program's identity.
void SplashWhen(mosaic::Builder& b, const mosaic::Value& condition, const std::function<void()>& then);
void Fill(mosaic::Builder& b, const mosaic::Value& memref, double value);

// Scores of a tile, capped and masked. `keys_in_lanes`: [queries, keys]; else [keys, queries].
struct SplashTile {
  mosaic::Value scores;       // as the product gave them
  mosaic::Value should_mask;  // of stored masks: i1, the tile is partial
  mosaic::Value slice_begin;  // of the keys in their block
  mosaic::Value first_key;    // of the keys among all
  int64_t num_keys = 0;
  bool keys_in_lanes = true;
};
mosaic::Value CapAndMask(mosaic::Builder& b, const SplashSpec& spec, const mosaic::KernelArguments& args,
                         const SplashTile& tile);
// dS of capped scores: times the derivative of the cap.
mosaic::Value CapGradient(mosaic::Builder& b, const SplashSpec& spec, const mosaic::Value& scores,
                          const mosaic::Value& ds);

}  // namespace tessera::kernels
