// A case made ready to run: contract, batch, tensors in memory of ours, how much work it is; and a lane bound to it,
// whose calls are what is timed.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cpu/cases.h"
#include "tessera/engine.h"
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
  double seconds = 3;  // of the overhead section, for each row
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
  Plan plan;                              // for the session's number of threads
  int64_t pairs = 0;                      // that the mask allows, over all heads
  TensorMap inputs;                       // q, k, v, do
  TensorMap outputs;                      // o, lse, dq, dk, dv: of the latest run
  // Where the lane reads and writes them: from the start of a cache line on, as the libraries allocate theirs.
  std::map<std::string, Block> blocks;
};

Result<Problem> MakeProblem(Case shape, const Settings& settings);

// Prepares, plans and binds the case for a mode on so many threads: all that a loop does once. One engine serves the
// whole program.
Result<Bound> BindOurs(const Problem& problem, Mode mode, const Settings& settings);
const Engine& OurEngine();
AttentionOptions OptionsOf(Mode mode, const Settings& settings);
Target TargetOf(const Settings& settings);
// The problem's memory, as a call takes it.
RunTensors TensorsOf(const Problem& problem, Mode mode);

// Multiplications and additions over the allowed pairs: two products forward; backward computes five, 2.5 times that.
double Flops(const Problem& problem, Mode mode);

struct Times {
  double forward_s = 0;
  double backward_s = 0;
  double total_s() const { return forward_s + backward_s; }
};
// One public call of each pass, each timed from outside as a caller would. Outputs are copied after the clock stopped.
Result<Times> RunOurs(Problem& problem, const Bound& bound, Mode mode);
// Seconds that `work` takes.
template <class Work>
double TimeOf(const Work& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

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
