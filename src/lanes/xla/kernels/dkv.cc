// Our kernel for dK and dV alone, where dQ has one of its own (dq.cc): see kernel_tables.h for when.
//
// Grid: that of the fused backward, and so its lists: a chunk of keys stays in vector memory, with its dK and dV, until
// every query tile of every head of the group has added to them.
#include "lanes/xla/kernels/gradients.h"

namespace tessera::kernels {

using mosaic::Builder;
using mosaic::Compare;
using mosaic::KernelArguments;

Result<mosaic::Module> AttentionDkv(const AttentionSpec& spec) {
  const Windows windows(spec, Order::kByChunk);
  mosaic::KernelSpec kernel = CommonSpec(spec, "tessera_dkv", Order::kByChunk);
  AddGradientInputs(spec, windows, kernel);
  kernel.outputs = {AsSums(windows.KeyLanes("dk", spec.dim_qk)), AsSums(windows.KeyLanes("dv", spec.dim_v))};
  AddMaskScratch(spec, kernel.scratch);
  return mosaic::BuildKernel(kernel, [&](Builder& b, const KernelArguments& args) {
    const Place place = PlaceOf(b, spec, Order::kByChunk, args.grid);
    TileGradients gradients(spec, b, args);
    b.When(b.Is(Compare::kEq, args.grid[2], b.I32(0)), [&] {
      Fill(b, args["dk"], 0);
      Fill(b, args["dv"], 0);
    });
    VisitTiles(b, spec, args, place, {}, [&](const TileKeys& keys) { gradients.AddKeys(keys); });
  });
}

}  // namespace tessera::kernels
