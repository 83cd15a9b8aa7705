#include "lanes/cpu/norm.h"

#include <algorithm>

#include "base/math.h"
#include "lanes/workers.h"

namespace tessera::lanes::cpu {
namespace {

constexpr int64_t kBlockRows = 256;  // a sum of gradients goes so far, whoever computes it

}  // namespace

void Normalise(const Kernel& kernel, const NormRows& rows, int64_t threads) {
  RunUnits(threads, NormBlocks(rows.num_rows), [&](int64_t block, int64_t) {
    NormRows some = rows;
    const int64_t first = block * kBlockRows;
    some.num_rows = std::min(kBlockRows, rows.num_rows - first);
    some.x += first * rows.width;
    some.y += first * rows.width;
    some.scale += first;
    kernel.norm(some);
  });
}

int64_t NormBlocks(int64_t num_rows) { return CeilDiv(num_rows, kBlockRows); }

void NormaliseBack(const Kernel& kernel, const NormGradient& rows, float* scratch, int64_t threads) {
  RunUnits(threads, NormBlocks(rows.num_rows), [&](int64_t block, int64_t) {
    NormGradient some = rows;
    const int64_t first = block * kBlockRows;
    some.num_rows = std::min(kBlockRows, rows.num_rows - first);
    some.x += first * rows.width;
    some.dy += first * rows.width;
    some.dx += first * rows.width;
    some.scale += first;
    some.dweight = scratch + block * rows.width;
    std::fill_n(some.dweight, rows.width, 0.0F);
    kernel.norm_gradient(some);
  });
  std::fill_n(rows.dweight, rows.width, 0.0F);
  for (int64_t block = 0; block < NormBlocks(rows.num_rows); ++block) {
    for (int64_t i = 0; i < rows.width; ++i) rows.dweight[i] += scratch[block * rows.width + i];
  }
}

}  // namespace tessera::lanes::cpu
