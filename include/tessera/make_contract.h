// A contract made in C++ by naming what differs from the defaults:
//   MakeContract({.q_len = 1024, .num_q_heads = 8, .dim_qk = 64, .mask = "causal"})
// What comes out equals the contract that the same fields make in a file, and is as good.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/contract.h"
#include "tessera/dtype.h"
#include "tessera/error.h"

#pragma GCC visibility push(default)
namespace tessera {

struct ContractSpec {
  int64_t batch = 1;
  int64_t q_len = 0;                   // must be said
  std::optional<int64_t> kv_len = {};  // absent: q_len
  int64_t num_q_heads = 1;
  std::optional<int64_t> num_kv_heads = {};  // absent: num_q_heads
  int64_t dim_qk = 0;                        // must be said
  std::optional<int64_t> dim_v = {};         // absent: dim_qk
  DType dtype = DType::kF32;
  std::string mask = {};                     // an expression for every head, or ...
  std::vector<std::string> head_masks = {};  // ... one for each query head
  std::string base_dir = ".";                // where bitmaps that a mask names are looked for
  std::optional<int64_t> offset = {};        // absent: kv_len - q_len
  std::optional<double> scale = {};          // absent: 1/sqrt(dim_qk)
  double softcap = 0.0;                      // 0 = off
  bool sink_logits = false;
  TileSize tiles = {};
  std::string tiles_reason = {};
  Capacity capacity = {};
  std::optional<Routing> routing = {};
};

// Defaults filled in and every rule checked, with every violation in the error, as ParseContract does. Masks may name
// the built-in terms, and those in `terms` where it is given.
Result<Contract> MakeContract(const ContractSpec& spec, const MaskTerms* terms = nullptr);

}  // namespace tessera
#pragma GCC visibility pop
