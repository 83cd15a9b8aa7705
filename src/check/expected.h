// What a correct run gives: attention and its gradients as the contract says them, row by row, and beside each value
// how far a correct lane may be from it before its output is cast (docs/numerics.md).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "tessera/batch.h"
#include "tessera/check.h"
#include "tessera/contract.h"
#include "tessera/error.h"
#include "tessera/tensor.h"

namespace tessera::check {

// A bound of zero means that the value is exact: an empty row, or a key that no row sees.
struct ExpectedTensor {
  std::vector<int64_t> shape;
  std::vector<double> value;
  std::vector<double> bound;
};

// Of a head, or of chosen rows: above it both functions below refuse.
inline constexpr int64_t kMaxPairs = int64_t{1} << 26;

struct Expected {
  ExpectedTensor o;           // in the layout of the inputs
  ExpectedTensor lse;         // [batch, num_q_heads, q_len]
  ExpectedTensor max;         // the row maximum of the logits, sink logit not counted
  ExpectedTensor dq, dk, dv;  // in the layout of the inputs; empty without a backward, as dsink
  ExpectedTensor dsink;       // [num_q_heads]; empty without sink logits
};
// Inputs: q, k, v, sink_logits where the contract has them, and for a backward `do`. Gradients come from the explicit
// probabilities of each row.
struct Question {
  const Contract& contract;
  const Batch& batch;
  const TensorMap& inputs;
  bool backward = false;
};
Result<Expected> Expect(const Question& question, const CheckOptions& options = {});

struct RowPlace {
  int64_t batch_row = 0;
  int64_t head = 0;
  int64_t i = 0;
};
// The chosen rows only, for lengths at which the whole result is out of reach: o [rows, dim_v], lse and max [rows], and
// with a backward dq [rows, dim_qk].
Result<Expected> ExpectRows(const Question& question, const std::vector<RowPlace>& rows,
                            const CheckOptions& options = {});

// The one comparison. Positions of NaN and of infinities first, then values that must be exact (bound zero), then every
// other element against its bound and the rounding of the output's own type.
Comparison Compare(std::string_view name, const Tensor& got, const ExpectedTensor& want);

}  // namespace tessera::check
