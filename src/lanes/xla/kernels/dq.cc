// Our kernel for dQ alone, where dK and dV have one of their own (dkv.cc): see kernel_tables.h for when.
//
// Grid: (batch row, query head), query tile, chunk of keys. A tile's dQ stays in vector memory until every chunk has
// added to it, so nothing is added up around the kernel, and a chunk that the tile does not need is not fetched.
#include "lanes/xla/kernels/gradients.h"

namespace tessera::kernels {

using mosaic::Builder;
using mosaic::Compare;
using mosaic::KernelArguments;

Result<mosaic::Module> AttentionDq(const AttentionSpec& spec) {
  const Windows windows(spec, Order::kByQuery);
  mosaic::KernelSpec kernel = CommonSpec(spec, "tessera_dq", Order::kByQuery);
  AddGradientInputs(spec, windows, kernel);
  kernel.outputs = {AsSums(windows.QueryLanes("dq", spec.dim_qk))};
  AddMaskScratch(spec, kernel.scratch);
  return mosaic::BuildKernel(kernel, [&](Builder& b, const KernelArguments& args) {
    const Place place = PlaceOf(b, spec, Order::kByQuery, args.grid);
    TileGradients gradients(spec, b, args);
    b.When(b.Is(Compare::kEq, place.chunk, b.I32(0)), [&] { Fill(b, args["dq"], 0); });
    VisitTiles(b, spec, args, place, {}, [&](const TileKeys& keys) { gradients.AddKeys(keys); });
  });
}

}  // namespace tessera::kernels
