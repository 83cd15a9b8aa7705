// Our fused backward: dQ, dK and dV at once. P and dS are computed once and are the stationary operand of three
// products.
//
// Grid: (batch row, key head), chunk of keys, and then every query tile of every head of the group: a chunk's dK and
// dV stay in vector memory until all have added to them, and no key is copied. dQ comes for each chunk, and is added up
// around the kernel.
#include "lanes/xla/kernels/gradients.h"

namespace tessera::kernels {

using mosaic::Builder;
using mosaic::Compare;
using mosaic::KernelArguments;

Result<mosaic::Module> AttentionBackward(const AttentionSpec& spec) {
  const Windows windows(spec, Order::kByChunk);
  mosaic::KernelSpec kernel = CommonSpec(spec, "tessera_backward", Order::kByChunk);
  AddGradientInputs(spec, windows, kernel);
  kernel.outputs = {windows.ChunkQueries("dq", spec.dim_qk), AsSums(windows.KeyLanes("dk", spec.dim_qk)),
                    AsSums(windows.KeyLanes("dv", spec.dim_v))};
  AddMaskScratch(spec, kernel.scratch);
  return mosaic::BuildKernel(kernel, [&](Builder& b, const KernelArguments& args) {
    const Place place = PlaceOf(b, spec, Order::kByChunk, args.grid);
    TileGradients gradients(spec, b, args);
    b.When(b.Is(Compare::kEq, args.grid[2], b.I32(0)), [&] {
      Fill(b, args["dk"], 0);
      Fill(b, args["dv"], 0);
    });
    Fill(b, args["dq"], 0);
    VisitTiles(b, spec, args, place, {}, [&](const TileKeys& keys) { gradients.AddKeys(keys); });
  });
}

}  // namespace tessera::kernels
