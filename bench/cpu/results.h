// What a session of bench_cpu found, as data: made by the sections, shown as text, JSON and a picture.
#pragma once

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "cpu/peer.h"
#include "roof.h"

namespace tessera::bench {

struct PeerFigure {
  std::string peer;
  std::string skipped = {};  // why there is no figure; empty when there is one
  std::string how = {};
  double seconds = 0;
  double gflops = 0;
  std::optional<Difference> difference = {};  // of its results and ours
};

// What became of a rule. Without `held` there is a reason: nothing is asked of this case on this architecture, or what
// it is held against was not measured.
struct Verdict {
  std::string text = {};          // the rule in words; empty = nothing asked
  std::optional<bool> held = {};  // unset = not judged
  std::string not_judged = {};    // why; empty when judged
};

struct TableRow {
  Case shape;
  Mode mode = Mode::kForward;
  int64_t pairs = 0;
  double seconds = 0;
  double gflops = 0;
  double roof_share = 0;  // of all threads' roofs together; 0 = no roof
  bool bf16_roof = false;
  std::optional<double> causal_ratio;
  std::vector<PeerFigure> peers;
  Verdict must;
  Verdict goal;
  std::string lane;
  std::string kernel;
  std::string isa;
};

struct ScalingRow {
  std::string name;
  Mode mode = Mode::kForward;
  int64_t threads = 0;
  double seconds = 0;
  double gflops = 0;
  double efficiency = 0;  // of linear: time on one thread / (threads x time)
};

struct SparsityRow {
  Mode mode = Mode::kForward;
  int64_t percent = 0;
  int64_t tiles = 0;  // that survive
  double seconds = 0;
  double relative = 0;  // time per surviving tile, over that of all tiles
};

// A public call beside the lane itself, called directly with a workspace that is held: what the call adds.
struct OverheadRow {
  std::string name;
  std::string call;  // "bound forward", "run_strided forward_backward", ...
  std::string isa;
  int64_t workspace_bytes = 0;
  double lane_s = 0;
  double call_s = 0;
  std::vector<Verdict> goals = {};  // none for what is there for scale: receipts, one-shot runs
  double more_s() const { return call_s - lane_s; }
};

struct Results {
  std::string machine;
  std::string date;
  Settings settings;
  Roof f32_roof;
  Roof bf16_roof;
  double f32_matmul = 0;  // PyTorch's, one 2048^3 product; 0 = not measured
  double bf16_matmul = 0;
  std::vector<PeerInfo> peers;
  std::vector<TableRow> table;
  std::vector<ScalingRow> scaling;
  std::vector<SparsityRow> sparsity;
  std::vector<OverheadRow> overhead;
};

// Says on standard error what is being waited for: rewritten in place on a terminal, silent elsewhere.
void ShowProgress(const std::string& text);
void ClearProgress();
// The same before each run, and an error once the user has asked to stop (Ctrl-C): files are then cleaned up.
Status BeginStep(const std::string& text);
void StopOnSignals();
bool IsStopped();

// The sections. Rows are printed to `people` as they come.
struct TableRequest {
  std::vector<Case> cases;
  std::vector<std::unique_ptr<Peer>>* peers = nullptr;
  std::string folder;      // for the peers' files
  double patience_s = 20;  // a peer whose run takes longer is not asked again
};
Status MeasureTable(const TableRequest& request, FILE* people, Results& results);
Status MeasureScaling(FILE* people, Results& results);
Status MeasureSparsity(FILE* people, Results& results);
Status MeasureOverhead(FILE* people, Results& results);

std::string ToJson(const Results& results);
// A bar chart of the table: ours and each peer's rate by case, with the roof.
std::string ToSvg(const Results& results);

}  // namespace tessera::bench
