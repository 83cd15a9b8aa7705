// The dense oracle: attention as the contract says it, pair by pair, in double precision. It reads the contract, the
// raw batch and the inputs, and knows nothing of plans, tiles, runs, lanes or the program's own check, so that an error
// in those cannot hide here. Not a goal: speed. Sizes above a limit are refused.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/batch.h"
#include "tessera/contract.h"
#include "tessera/error.h"
#include "tessera/mask_term.h"
#include "tessera/tensor.h"

namespace tessera {

// The runs that a registered term of the contract gives for one head.
struct OracleRuns {
  const MaskTermSpec* term = nullptr;
  std::vector<int64_t> parameters = {};
  int64_t head = 0;
  std::vector<MaskRun> runs = {};
};

// What one batch row says of its tokens, read straight off the raw batch.
struct OracleFacts {
  std::vector<int32_t> q_doc;  // empty when the batch brings no ids
  std::vector<int32_t> kv_doc;
  std::vector<int64_t> kv_rank;  // how many earlier tokens of the row have the same id
  int64_t q_valid = 0;           // the whole length when the batch brings no counts
  int64_t kv_valid = 0;
  std::vector<OracleRuns> runs = {};  // of registered terms that are given as runs
  std::vector<int32_t> picks = {};    // [q_len, num_kv_heads, top_n]; negative = none
  int64_t top_n = 0;
  int64_t block_tokens = 1;
};
Result<OracleFacts> MakeOracleFacts(const Contract& contract, const Batch& batch, int64_t batch_row);

// Whether query i of `head` may see key j: the mask expression itself, evaluated for one pair.
bool Allowed(const Contract& contract, const OracleFacts& facts, int64_t head, int64_t i, int64_t j);

// [q_len, kv_len], 1 = may attend. Refuses more than kOracleMaxPairs cells.
inline constexpr int64_t kOracleMaxPairs = int64_t{1} << 26;
Result<std::vector<uint8_t>> DenseMask(const Contract& contract, const Batch& batch, int64_t batch_row, int64_t head);

struct OracleTensor {
  std::vector<int64_t> shape = {};
  std::vector<double> value = {};
};

struct OracleForwardResult {
  OracleTensor o;    // [batch, num_q_heads, q_len, dim_v]
  OracleTensor lse;  // [batch, num_q_heads, q_len]
  OracleTensor max;  // the row maximum of the logits, sink logit not counted
};
// Inputs, [B,H,T,D]: q, k, v, and sink_logits where the contract has them.
Result<OracleForwardResult> OracleForward(const Contract& contract, const Batch& batch, const TensorMap& inputs);

struct OracleBackwardResult {
  OracleForwardResult forward;
  OracleTensor dq, dk, dv;
  OracleTensor dsink;  // [num_q_heads]; empty without sink logits
};
// Inputs as above and `do`. Gradients come from the explicit probabilities of each row.
Result<OracleBackwardResult> OracleBackward(const Contract& contract, const Batch& batch, const TensorMap& inputs);

}  // namespace tessera
