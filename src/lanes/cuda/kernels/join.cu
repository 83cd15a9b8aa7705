// Rows that were cut, put together: the sums of their parts, added in the order of the parts, become what a whole row's end
// would have written. A block has kJoinRows tokens of a row of tiles, eight lanes a token.
#include "lanes/cuda/kernels/softmax.cuh"

namespace tessera::lanes::cuda {
namespace {

using T = ptx::TESSERA_CUDA_TYPE;

// Forward: what the parts' statistics come to. A part without a key for this token counts for nothing.
__device__ __forceinline__ RowTotals Add(const RowTotals* parts, int count, int64_t stride) {
  RowTotals all{0.0F, -INFINITY, -INFINITY, 0.0F};
  const auto at = [&](int i) { return __ldcg(reinterpret_cast<const float4*>(parts) + i * stride); };
  for (int i = 0; i < count; ++i) {
    const float4 x = at(i);
    if (x.w == 0.0F) continue;
    all.shift = ptx::MaxNan(all.shift, x.y);
    all.top = ptx::MaxNan(all.top, x.z);
    all.is_seen = 1.0F;
  }
  const float safe = all.shift == -INFINITY ? 0.0F : all.shift;
  for (int i = 0; i < count; ++i) {
    const float4 x = at(i);
    if (x.w != 0.0F) all.sum = fmaf(x.x, ptx::Exp2(x.y - safe), all.sum);
  }
  return all;
}

}  // namespace
}  // namespace tessera::lanes::cuda

extern "C" __global__ void __launch_bounds__(256)
    TESSERA_CUDA_NAME(const __grid_constant__ tessera::lanes::cuda::JoinParams p) {
  using namespace tessera::lanes::cuda;
  const PlanList& list = p.plan->lists[p.kind];
  const int slabs = (p.part_rows + kJoinRows - 1) / kJoinRows;
  const int index = static_cast<int>(blockIdx.x) / slabs;
  if (index >= list.split_count) return;
  const Split split = SectionOf<Split>(p.plan, list.splits)[index];
  const int local = (static_cast<int>(blockIdx.x) - index * slabs) * kJoinRows + (threadIdx.x >> 3);
  const int token = split.row * p.tile_rows + local;
  if (local >= p.part_rows || token >= p.len) return;
  const int batch = split.head / p.heads;
  const int head = split.head - batch * p.heads;
  const int lane = threadIdx.x & 7;
  const bool is_forward = p.kind == static_cast<int>(KernelKind::kForward);
  const int dims = p.dims[0] + p.dims[1];
  const int64_t part_floats = PartFloats(static_cast<KernelKind>(p.kind), p.part_rows, dims);
  const float* const parts = p.parts + split.first_part * part_floats;
  const RowTotals* const totals =
      reinterpret_cast<const RowTotals*>(parts + static_cast<int64_t>(p.part_rows) * dims) + local;
  const int64_t stride = part_floats / kPartStatistics;

  RowTotals all{};
  RowEnd end{};
  float safe = 0.0F;
  if (is_forward) {
    all = Add(totals, split.num_parts, stride);
    end = EndRow(all, p.sinks == nullptr ? nullptr : p.sinks + head);
    safe = all.shift == -INFINITY ? 0.0F : all.shift;
    if (lane == 0) {
      const int64_t at = static_cast<int64_t>(split.head) * p.len + token;
      if (p.lse != nullptr) p.lse[at] = end.lse;
      if (p.row_max != nullptr) p.row_max[at] = end.top;
    }
  }
  for (int d = 4 * lane; d < dims; d += 32) {
    float4 sum{0, 0, 0, 0};
    const float* from = parts + static_cast<int64_t>(local) * dims + d;
#pragma unroll 4
    for (int i = 0; i < split.num_parts; ++i, from += part_floats) {
      const float4 x = __ldcg(reinterpret_cast<const float4*>(from));
      float weight = 1.0F;
      if (is_forward) {
        const float4 part = __ldcg(reinterpret_cast<const float4*>(totals) + i * stride);
        if (part.w == 0.0F) continue;
        weight = ptx::Exp2(part.y - safe);
      }
      sum.x = fmaf(x.x, weight, sum.x);
      sum.y = fmaf(x.y, weight, sum.y);
      sum.z = fmaf(x.z, weight, sum.z);
      sum.w = fmaf(x.w, weight, sum.w);
    }
    const int which = d < p.dims[0] ? 0 : 1;
    const float factor = is_forward ? end.factor : p.factors[which];
    uint2 out;
    out.x = ptx::Pack(T{}, sum.x * factor, sum.y * factor);
    out.y = ptx::Pack(T{}, sum.z * factor, sum.w * factor);
    auto* to = const_cast<uint16_t*>(RowOf(p.out[which], batch, head, token)) + d - (which == 0 ? 0 : p.dims[0]);
    *reinterpret_cast<uint2*>(to) = out;
  }
}
