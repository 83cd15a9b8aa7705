// A case made ready to run: contract, batch, plan made once, tensors in memory of ours, and how much work it is.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cpu/cases.h"
#include "tessera/io.h"
#include "tessera/run.h"

namespace tessera::bench {

// What holds for every run of a session.
struct Settings {
  int64_t threads = 1;
  int64_t repeats = 5;
  int64_t tokens = 0;  // 0 = the case's own
  std::string lane = "auto";
  std::string isa = "auto";
  uint64_t seed = 1;
};

struct FreeBlock {
  void operator()(std::byte* block) const { std::free(block); }
};
using Block = std::unique_ptr<std::byte, FreeBlock>;

struct Problem {
  Case shape;
  Contract contract;
  Batch batch;
  std::vector<int64_t> document_lengths;  // empty without documents
  Target target;
  Plan plan;
  int64_t pairs = 0;  // that the mask allows, over all heads
  TensorMap inputs;   // q, k, v, do
  TensorMap outputs;  // o, lse, dq, dk, dv: of the latest run
  // Where the lane reads and writes them: from the start of a cache line on, as the libraries allocate theirs.
  std::map<std::string, Block> blocks;
};

Result<Problem> MakeProblem(Case shape, const Settings& settings);
// Plans again, for another number of threads.
Status MakePlanFor(Problem& problem, int64_t threads);

// Multiplications and additions over the allowed pairs: two products forward; backward computes five, 2.5 times that.
double Flops(const Problem& problem, Mode mode);

struct Times {
  double forward_s = 0;
  double backward_s = 0;
  Receipt receipt;
  double total_s() const { return forward_s + backward_s; }
};
// One run. The time is the lane's own, from the receipt: reading, digests and planning are outside.
Result<Times> RunOurs(Problem& problem, Mode mode, const Settings& settings);

// How far two correct implementations may be apart in `name`; docs/benchmarks.md derives it.
double Tolerance(const Problem& problem, const std::string& name);
struct Difference {
  std::string tensor;  // the one that is furthest from its tolerance
  double largest = 0;
  double tolerance = 0;
  bool agrees = true;
};
// `slack` multiplies the tolerances, for a library that rounds more than it has to.
Difference Compare(const Problem& problem, const TensorMap& theirs, double slack = 1);

}  // namespace tessera::bench
