// Our backward kernel: dQ, dK and dV at once, scores as [keys, queries]. P and dS are computed once and are the
// stationary operand of three products, whose results are [dim, tokens].
//
// Grid: (batch row, key head), chunk of keys, and then every query tile of every head of the group: a chunk's dK and
// dV stay in vector memory until all have added to them, and no key is copied. The softcap's derivative is part of dS.
// An empty row's log-sum-exp comes as +inf, which makes every weight of it 0; a large one comes leaning
// (lanes/weights.h).
#include <map>

#include "lanes/xla/kernels/worklist.h"

namespace tessera::kernels {
namespace {

using mosaic::Builder;
using mosaic::Compare;
using mosaic::KernelArguments;
using mosaic::Value;

constexpr int64_t kBlockQ = 1024;
constexpr int64_t kBlockKeys = 512;

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
    VisitTiles(b_, spec_, args_, place_, [&](const TileKeys& keys) {
      for (const Block& block : BlocksOf(spec_, keys.count, kBlockQ, kBlockKeys)) AddBlock(keys, block);
    });
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

  void AddBlock(const TileKeys& keys, const Block& block) {
    const mosaic::Precision precision = PrecisionOf(spec_);
    const Value there = Along(b_, keys.first, block.key);
    const Value here = b_.Index(block.q);
    const Value q = LoadRows(b_, args_["q"], here, block.num_q);
    const Value dout = LoadRows(b_, args_["do"], here, block.num_q);
    const Value k = LoadRows(b_, args_["k"], there, block.num_keys);
    const Value v = LoadRows(b_, args_["v"], there, block.num_keys);
    const Value compared = Compared(b_, spec_, args_, b_.Matmul(k, q, 1, 1, precision));
    const std::optional<Value> mask = keys.mask(block, b_.I32(0));
    const Value scores = b_.Mul(compared, ScoreNumber(b_, args_, ScoreField::kFactor));
    // No weight is above 1, as in every lane.
    const Value exponent = b_.Sub(scores, Row("lse", block));
    Value p = b_.Exp(b_.Min(exponent, b_.F32(0.0)));
    // On the results and not before: what a row may not see can make dP overflow, and a row whose own scores did has no
    // log-sum-exp; neither is undone by a weight of zero.
    p = Masked(b_, mask, p, 0);
    const Value dp = b_.Matmul(v, dout, 1, 1, precision);
    Value ds = b_.Mul(b_.Sub(dp, Row("delta", block)), p);
    if (spec_.has_softcap) {
      const Value one = b_.Broadcast(b_.F32(1.0), ds.type.dims);
      ds = b_.Mul(ds, b_.Sub(one, b_.Mul(compared, compared)));
    }
    ds = Masked(b_, mask, ds, 0);
    const Value ds_operand = AsOperand(b_, spec_, ds);
    const Value do_lanes = LoadLanes(b_, args_["do_lanes"], here, block.num_q);
    AddTo("dv", there, b_.Matmul(do_lanes, AsOperand(b_, spec_, p), 1, 1, precision));
    AddTo("dk", there, b_.Matmul(LoadLanes(b_, args_["q_lanes"], here, block.num_q), ds_operand, 1, 1, precision));
    AddTo("dq", here, b_.Matmul(k, ds_operand, 0, 0, precision));
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
