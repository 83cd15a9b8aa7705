// The one comparison of a lane's output with the oracle. Tolerances are derived, never chosen: docs/numerics.md.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "oracle/oracle.h"

namespace tessera {

struct Comparison {
  std::string name;
  bool pass = false;
  double max_error = 0.0;
  // The element that comes closest to, or goes furthest beyond, its tolerance; -1 when there are no elements.
  int64_t worst = -1;
  double got = 0.0;
  double want = 0.0;
  double tolerance = 0.0;
  std::string text;  // one line
};

// Positions of NaN and of infinities first, then values that must be exact (bound zero), then every other element
// against its bound and the rounding of the output's own type.
Comparison Compare(std::string_view name, const Tensor& got, const OracleTensor& want);

struct CheckOptions {
  OracleOptions oracle;
  // Above this many multiplications the forward result and dq are checked on chosen rows only, and dk, dv and
  // dsink_logits not at all; the report says so.
  int64_t max_work = int64_t{1} << 34;
  int64_t sample_rows = 64;
  uint64_t sample_seed = 1;
};
struct CheckReport {
  bool pass = false;
  bool sampled = false;
  std::vector<std::string> unchecked;  // outputs that were too large to check
  std::vector<Comparison> outputs;
  std::string text;  // one line per output
};

// Checks every one of o, lse, max, dq, dk, dv, dsink_logits that `outputs` holds; `inputs` needs `do` for gradients.
Result<CheckReport> CheckOutputs(const Contract& contract, const Batch& batch, const TensorMap& inputs,
                                 const TensorMap& outputs, const CheckOptions& options = {});

}  // namespace tessera
