// What the kernels of the backward share: a visited tile's P and dS, computed once for all the gradients that a kernel
// gives (AttentionSpec::gives), and what it adds to each of them. Scores are [keys, queries]; P and dS are the
// stationary operand of the products that follow, whose results are [dim, tokens].
//
// The softcap's derivative is part of dS. An empty row's log-sum-exp comes as +inf, which makes every weight of it 0; a
// large one comes leaning (lanes/weights.h).
#pragma once

#include <optional>

#include "lanes/xla/kernels/worklist.h"

namespace tessera::kernels {

class TileGradients {
 public:
  TileGradients(const AttentionSpec& spec, mosaic::Builder& b, const mosaic::KernelArguments& args)
      : spec_(spec), b_(b), args_(args) {}
  // Adds what the keys give, a tile's or a part of it.
  void AddKeys(const TileKeys& keys);

 private:
  // What the matrix unit gives first: scores before the softmax, and, where another block's weights are computed
  // meanwhile, dP.
  struct Products {
    Block block;
    mosaic::Value there, k, v, dout, product;
    std::optional<mosaic::Value> dp;
  };
  struct Weights {
    Block block;
    mosaic::Value there, k, p, ds;
  };
  mosaic::Value Row(const char* name, const Block& block);
  void AddTo(const char* name, const mosaic::Value& first, const mosaic::Value& product);
  Products ProductsOf(const TileKeys& keys, const Block& block, bool is_ahead);
  mosaic::Value Dp(const Products& of);
  Weights WeightsOf(const TileKeys& keys, const Products& of);
  void AddWeights(const Weights& of);

  const AttentionSpec& spec_;
  mosaic::Builder& b_;
  const mosaic::KernelArguments& args_;
};

// The windows of its operands, in their order: q, k, v, do, [q and do as lanes, for the gradients of keys], lse, delta,
// and those of the mask.
void AddGradientInputs(const AttentionSpec& spec, const Windows& windows, mosaic::KernelSpec& kernel);
// The same window of f32.
mosaic::Window AsSums(mosaic::Window window);

}  // namespace tessera::kernels
