// Our backward kernel: dQ, dK and dV at once, scores as [keys, queries]. P and dS are computed once and are the
// stationary operand of three products, whose results are [dim, tokens].
//
// Grid: (batch row, key head), chunk of keys, and then every query tile of every head of the group: a chunk's dK and
// dV stay in vector memory until all have added to them, and no key is copied. The softcap's derivative is part of dS.
// An empty row's log-sum-exp comes as +inf, which makes every weight of it 0; a large one comes leaning
// (lanes/weights.h).
#include <deque>

#include "lanes/xla/kernels/worklist.h"

namespace tessera::kernels {
namespace {

using mosaic::Builder;
using mosaic::Compare;
using mosaic::KernelArguments;
using mosaic::Value;

class Backward {
 public:
  Backward(const AttentionSpec& spec, Builder& b, const KernelArguments& args)
      : spec_(spec), b_(b), args_(args), place_(PlaceOf(b, spec, Order::kByChunk, args.grid)) {}

  void Write() {
    b_.When(b_.Is(Compare::kEq, args_.grid[2], b_.I32(0)), [&] {
      Fill(b_, args_["dk"], 0);
      Fill(b_, args_["dv"], 0);
    });
    Fill(b_, args_["dq"], 0);
    VisitTiles(b_, spec_, args_, place_, {}, [&](const TileKeys& keys) { AddKeys(keys); });
  }

 private:
  // A row's number for each query, along the lanes and over the block.
  Value Row(const char* name, const Block& block) {
    const Value at[] = {b_.Index(0), b_.Index(0), b_.Index(block.q)};
    const Value row = b_.Load(args_[name], at, {1, 1, block.num_q});
    return b_.Broadcast(b_.ShapeCast(row, {1, block.num_q}), {block.num_keys, block.num_q});
  }

  void AddTo(const char* name, const Value& first, const Value& product) {
    const std::vector<int64_t> dims = {1, product.type.dims[0], product.type.dims[1]};
    const Value at[] = {b_.Index(0), b_.Index(0), first};
    const Value before = b_.Load(args_[name], at, dims);
    b_.Store(b_.Add(before, b_.ShapeCast(product, dims)), args_[name], at);
  }

  // What the matrix unit gives first: scores before the softmax, and, where another block's weights are computed
  // meanwhile, dP.
  struct Products {
    Block block;
    Value there, k, v, dout, product;
    std::optional<Value> dp;
  };
  struct Weights {
    Block block;
    Value there, k, p, ds;
  };

  Products ProductsOf(const TileKeys& keys, const Block& block, bool is_ahead) {
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
  Value Dp(const Products& of) { return b_.Matmul(of.v, of.dout, 1, 1, PrecisionOf(spec_)); }

  Weights WeightsOf(const TileKeys& keys, const Products& of) {
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
    if (of.dp) p = AsOperand(b_, spec_, p);  // it waits, and is half as large so
    return {block, of.there, of.k, p, AsOperand(b_, spec_, ds)};
  }

  void AddWeights(const Weights& of) {
    const mosaic::Precision precision = PrecisionOf(spec_);
    const Block& block = of.block;
    const Value here = b_.Index(block.q);
    const Value do_lanes = LoadLanes(b_, args_["do_lanes"], here, block.num_q);
    const Value p = of.p.type.element == spec_.element ? of.p : AsOperand(b_, spec_, of.p);
    AddTo("dv", of.there, b_.Matmul(do_lanes, p, 1, 1, precision));
    AddTo("dk", of.there, b_.Matmul(LoadLanes(b_, args_["q_lanes"], here, block.num_q), of.ds, 1, 1, precision));
    AddTo("dq", here, b_.Matmul(of.k, of.ds, 0, 0, precision));
  }

  // Products of a block are written before the weights of the one before it, and the sums of that one after the weights
  // of the next: the matrix unit then works while weights are computed.
  void AddKeys(const TileKeys& keys) {
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

  const AttentionSpec& spec_;
  Builder& b_;
  const KernelArguments& args_;
  const Place place_;
};

}  // namespace

Result<mosaic::Module> AttentionBackward(const AttentionSpec& spec) {
  const Windows windows(spec, Order::kByChunk);
  mosaic::KernelSpec kernel = CommonSpec(spec, "tessera_backward", Order::kByChunk);
  kernel.inputs.push_back(windows.Queries("q", spec.dim_qk));
  kernel.inputs.push_back(windows.Keys("k", spec.dim_qk));
  kernel.inputs.push_back(windows.Keys("v", spec.dim_v));
  kernel.inputs.push_back(windows.Queries("do", spec.dim_v));
  kernel.inputs.push_back(windows.QueryLanes("q_lanes", spec.dim_qk));
  kernel.inputs.push_back(windows.QueryLanes("do_lanes", spec.dim_v));
  kernel.inputs.push_back(windows.QueryNumbers("lse", kSublanes));
  kernel.inputs.push_back(windows.QueryNumbers("delta", kSublanes));
  windows.AddMask(kernel.inputs);
  const auto sums = [&](mosaic::Window window) {
    window.element = mosaic::Element::kF32;
    return window;
  };
  kernel.outputs = {windows.ChunkQueries("dq", spec.dim_qk), sums(windows.KeyLanes("dk", spec.dim_qk)),
                    sums(windows.KeyLanes("dv", spec.dim_v))};
  AddMaskScratch(spec, kernel.scratch);
  return mosaic::BuildKernel(kernel, [&](Builder& b, const KernelArguments& args) { Backward(spec, b, args).Write(); });
}

}  // namespace tessera::kernels
