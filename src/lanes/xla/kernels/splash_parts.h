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

// Grids: (query head, query tile, slot), and (key tile, query head, slot) for dK and dV.
enum class SplashPass { kForward, kDq, kDkv };

// What the three kernels have in common: name, grid, scalars, and the operands in JAX's order. Results are each one's.
mosaic::KernelSpec SplashCommon(const SplashSpec& spec, SplashPass pass);
// A result as large as a block of queries, or of keys.
mosaic::Window SplashResult(const SplashSpec& spec, SplashPass pass, std::string name, int64_t dim);
// A running value, which JAX keeps as a result of one block.
mosaic::Window SplashRunning(std::string name, int64_t tokens, int64_t dim);

// Writes what a step does with its tile, unless it is padding. `is_full`, of stored masks: i1, nothing is masked.
struct SplashVisit {
  mosaic::Value is_full;
  mosaic::Value kv_tile;
};
void VisitSplashTile(mosaic::Builder& b, const SplashSpec& spec, const mosaic::KernelArguments& args, SplashPass pass,
                     const std::function<void(const SplashVisit&)>& body);

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
