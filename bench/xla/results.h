// What a session of bench_xla found, as data, and the sections that find it.
#pragma once

#include <algorithm>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "lanes/lane.h"
#include "lanes/xla/state.h"
#include "xla/peer.h"

namespace tessera::bench {

struct XlaBenchSettings {
  int64_t tokens = 8192;
  int64_t memory_tokens = 32768;
  int64_t repeats = 3;
  int64_t threads = std::max<int64_t>(std::thread::hardware_concurrency(), 1);  // dense attention takes them all
  int64_t calls = 200;                                                          // of the overhead section
  uint64_t seed = 1;
  XlaOptions xla = {};
};

// One case and kind of work beside dense attention.
struct XlaTableRow {
  std::string name;
  stablehlo::DenseKind kind = stablehlo::DenseKind::kForward;
  double seconds = 0;
  double dense_s = 0;
  double goal = 0;             // dense_s / seconds must reach it
  int64_t tiles = 0;           // that the forward ran
  double limit_s = 0;          // of the products over those tiles, at the rate of a large product on the same plugin
  Difference difference = {};  // of dense results and ours
  double ratio() const { return dense_s / seconds; }
};

// Temporary memory of the compiled programs, in bytes; nothing is run.
struct XlaMemoryRow {
  int64_t tokens = 0;
  stablehlo::DenseKind kind = stablehlo::DenseKind::kForward;
  int64_t chunked = 0;
  int64_t dense = 0;
};

struct XlaSparsityRow {
  Mode mode = Mode::kForward;
  int64_t percent = 0;
  int64_t tiles = 0;
  double seconds = 0;
  double relative = 0;  // time per surviving tile, over that of all tiles
};

// A call through the bound lane, and the same PJRT calls in a bare loop: medians. Of a long batch only binding its plan
// was timed, and is more_s.
struct XlaOverheadRow {
  std::string name;
  Pass pass = Pass::kForward;
  double lane_s = 0;
  double bare_s = 0;
  double more_s = 0;  // of the differences of calls side by side
};

struct XlaResults {
  XlaBenchSettings settings;
  DeviceUse plugin;
  double matmul_gflops = 0;  // XLA's own, of one 2048^3 product
  std::vector<XlaTableRow> table;
  std::vector<XlaMemoryRow> memory;
  std::vector<XlaSparsityRow> sparsity;
  std::vector<XlaOverheadRow> overhead;
};

inline constexpr double kOverheadGoal_s = 100e-6;
inline constexpr double kSparsityGoal = 0.2;

// The engine's own client and programs: what is timed beside the lane runs where the lane does.
lanes::xla::State& XlaState();
Result<lanes::xla::FoundProgram> FindChunked(const lanes::xla::Session& session, const stablehlo::ProgramSpec& spec,
                                             Pass pass, const XlaOptions& options);

const char* ToText(stablehlo::DenseKind kind);  // "forward", "backward", "step"
void Say(const std::string& text);              // on standard error

// Rows are printed to `people` as they come.
Status MeasureMatmul(const lanes::xla::Session& session, XlaResults& results);
Status MeasureTable(const lanes::xla::Session& session, FILE* people, XlaResults& results);
Status MeasureMemory(const lanes::xla::Session& session, FILE* people, XlaResults& results);
Status MeasureSparsity(FILE* people, XlaResults& results);
Status MeasureOverhead(const lanes::xla::Session& session, FILE* people, XlaResults& results);

// Every goal, and whether it was met.
struct XlaGoal {
  std::string text;
  bool holds = false;
};
std::vector<XlaGoal> GoalsOf(const XlaResults& results);
std::string ToJson(const XlaResults& results);

}  // namespace tessera::bench
