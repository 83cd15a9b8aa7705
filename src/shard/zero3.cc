#include <algorithm>

#include "shard/spec.h"

namespace tessera::shard {

void CutByZero3(const Mesh& mesh, ShardRow& row) {
  const int64_t data = mesh.SizeOf(kDataAxis);
  if (data < 2 || row.tensor.role != TensorRole::kParameter || !row.spec || row.is_pinned) return;
  SpecAxes& axes = *row.spec;
  const std::vector<int64_t>& dims = row.tensor.dims;
  if (axes.size() != dims.size()) return;  // the audit has something to say
  for (const std::vector<std::string>& own : axes) {
    if (std::find(own.begin(), own.end(), kDataAxis) != own.end()) return;
  }
  std::optional<size_t> best;
  for (size_t dim = 0; dim < dims.size(); ++dim) {
    const bool is_free = axes[dim].empty() && dims[dim] >= kMinZeroDim && dims[dim] % data == 0;
    if (is_free && (!best || dims[dim] > dims[*best])) best = dim;
  }
  if (!best) return;
  axes[*best] = {std::string(kDataAxis)};
  row.zero_dim = best;
}

}  // namespace tessera::shard
