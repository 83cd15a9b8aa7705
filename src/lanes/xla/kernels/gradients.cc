// See gradients.h.
#include "lanes/xla/kernels/gradients.h"

#include <deque>
#include <utility>
#include <vector>

namespace tessera::kernels {

using mosaic::Value;

// A row's number for each query, along the lanes and over the block.
Value TileGradients::Row(const char* name, const Block& block) {
  const Value at[] = {b_.Index(0), b_.Index(0), b_.Index(block.q)};
  const Value row = b_.Load(args_[name], at, {1, 1, block.num_q});
  return b_.Broadcast(b_.ShapeCast(row, {1, block.num_q}), {block.num_keys, block.num_q});
}

void TileGradients::AddTo(const char* name, const Value& first, const Value& product) {
  const std::vector<int64_t> dims = {1, product.type.dims[0], product.type.dims[1]};
  const Value at[] = {b_.Index(0), b_.Index(0), first};
  const Value before = b_.Load(args_[name], at, dims);
  b_.Store(b_.Add(before, b_.ShapeCast(product, dims)), args_[name], at);
}

TileGradients::Products TileGradients::ProductsOf(const TileKeys& keys, const Block& block, bool is_ahead) {
  const Value there = Along(b_, keys.first, block.key);
  const Value here = b_.Index(block.q);
  const Value q = LoadRows(b_, args_["q"], here, block.num_q);
  const Value dout = LoadRows(b_, args_["do"], here, block.num_q);
  const Value k = LoadRows(b_, args_["k"], there, block.num_keys);
  const Value v = LoadRows(b_, args_["v"], there, block.num_keys);
  Products of{block, there, k, v, dout, b_.Matmul(k, q, 1, 1, PrecisionOf(spec_)), std::nullopt};
  if (is_ahead) of.dp = Dp(of);
  return of;
}

Value TileGradients::Dp(const Products& of) { return b_.Matmul(of.v, of.dout, 1, 1, PrecisionOf(spec_)); }

TileGradients::Weights TileGradients::WeightsOf(const TileKeys& keys, const Products& of) {
  const Block& block = of.block;
  const Value compared = Compared(b_, spec_, args_, of.product);
  const std::optional<Value> mask = keys.mask(block, b_.I32(0));
  const Value scores = b_.Mul(compared, ScoreNumber(b_, args_, ScoreField::kFactor));
  // No weight is above 1, as in every lane.
  const Value exponent = b_.Sub(scores, Row("lse", block));
  Value p = b_.Exp(b_.Min(exponent, b_.F32(0.0)));
  // On the results and not before: what a row may not see can make dP overflow, and a row whose own scores did has no
  // log-sum-exp; neither is undone by a weight of zero.
  p = Masked(b_, mask, p, 0);
  const Value dp = of.dp ? *of.dp : Dp(of);
  Value ds = b_.Mul(b_.Sub(dp, Row("delta", block)), p);
  if (spec_.has_softcap) {
    const Value one = b_.Broadcast(b_.F32(1.0), ds.type.dims);
    ds = b_.Mul(ds, b_.Sub(one, b_.Mul(compared, compared)));
  }
  ds = Masked(b_, mask, ds, 0);
  if (of.dp && spec_.gives.of_keys) p = AsOperand(b_, spec_, p);  // it waits, and is half as large so
  return {block, of.there, of.k, p, AsOperand(b_, spec_, ds)};
}

void TileGradients::AddWeights(const Weights& of) {
  const mosaic::Precision precision = PrecisionOf(spec_);
  const Block& block = of.block;
  const Value here = b_.Index(block.q);
  if (spec_.gives.of_keys) {
    const Value do_lanes = LoadLanes(b_, args_["do_lanes"], here, block.num_q);
    const Value p = of.p.type.element == spec_.element ? of.p : AsOperand(b_, spec_, of.p);
    AddTo("dv", of.there, b_.Matmul(do_lanes, p, 1, 1, precision));
    AddTo("dk", of.there, b_.Matmul(LoadLanes(b_, args_["q_lanes"], here, block.num_q), of.ds, 1, 1, precision));
  }
  if (spec_.gives.of_queries) AddTo("dq", here, b_.Matmul(of.k, of.ds, 0, 0, precision));
}

// Products of a block are written before the weights of the one before it, and the sums of that one after the weights
// of the next: the matrix unit then works while weights are computed.
void TileGradients::AddKeys(const TileKeys& keys) {
  const Blocking& by = spec_.backward;
  const std::vector<Block> blocks = BlocksOf(spec_, keys.count, by);
  const bool is_ahead = by.ahead > 0 && blocks.size() > 1;
  std::deque<Products> products;
  std::deque<Weights> weights;
  size_t next = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    while (next < blocks.size() && products.size() <= by.ahead) {
      products.push_back(ProductsOf(keys, blocks[next++], is_ahead));
    }
    weights.push_back(WeightsOf(keys, products.front()));
    products.pop_front();
    if (weights.size() <= by.behind) continue;
    AddWeights(weights.front());
    weights.pop_front();
  }
  for (const Weights& of : weights) AddWeights(of);
}

void AddGradientInputs(const AttentionSpec& spec, const Windows& windows, mosaic::KernelSpec& kernel) {
  kernel.inputs.push_back(windows.Queries("q", spec.dim_qk));
  kernel.inputs.push_back(windows.Keys("k", spec.dim_qk));
  kernel.inputs.push_back(windows.Keys("v", spec.dim_v));
  kernel.inputs.push_back(windows.Queries("do", spec.dim_v));
  if (spec.gives.of_keys) {
    kernel.inputs.push_back(windows.QueryLanes("q_lanes", spec.dim_qk));
    kernel.inputs.push_back(windows.QueryLanes("do_lanes", spec.dim_v));
  }
  kernel.inputs.push_back(windows.QueryNumbers("lse", kSublanes));
  kernel.inputs.push_back(windows.QueryNumbers("delta", kSublanes));
  windows.AddMask(kernel.inputs);
}

mosaic::Window AsSums(mosaic::Window window) {
  window.element = mosaic::Element::kF32;
  return window;
}

}  // namespace tessera::kernels
