// Inputs with structure to find, for benchmarks and tests of routing: what long texts have and noise has not.
//
// Tokens come in local runs: neighbours are about the same thing, so their keys share a direction. Some places are
// needles: short spans of keys with a direction of their own. A run's queries look for their own run and for a few
// earlier needles, so neighbouring queries want the same far blocks. Everything else is noise. KV heads have needles of
// their own; the query heads of a group look for the same ones. Deterministic from the seed, on every machine.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera::bench {

struct RoutingInputs {
  int64_t len = 0;  // tokens, queries and keys alike
  int64_t num_q_heads = 1;
  int64_t num_kv_heads = 1;
  int64_t dim = 64;
  uint64_t seed = 1;
  int64_t run = 1024;           // mean length of a local run
  int64_t needle_every = 1024;  // one needle per so many tokens
  int64_t needle_tokens = 96;
  int64_t needles_per_run = 6;  // that a run's queries look for
  float needle = 1.2F;          // how strong a needle is, and a run, against noise of 1
  float local = 0.7F;
};

struct RoutingTensors {
  std::vector<float> q;  // [num_q_heads, len, dim]
  std::vector<float> k;  // [num_kv_heads, len, dim]
  std::vector<float> v;  // [num_kv_heads, len, dim]
};

RoutingTensors MakeRoutingTensors(const RoutingInputs& inputs);

}  // namespace tessera::bench
