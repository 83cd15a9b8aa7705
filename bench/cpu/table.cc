// The table: every case beside its peers. Ours, peer A, peer B, ours, ...: whatever slows the machine for a while slows
// all of them, and the best of many runs is what each can do.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <set>
#include <thread>

#include "cpu/results.h"

namespace tessera::bench {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// Threads that spin for a while after their work must not take time from whoever is next.
void LetThreadsRest(int64_t threads) {
  if (threads > 1) std::this_thread::sleep_for(std::chrono::milliseconds(30));
}

double RoofOf(const Results& results, DType dtype) {
  const bool bf16 = dtype == DType::kBf16 && results.bf16_roof.gflops > 0;
  return bf16 ? results.bf16_roof.gflops : results.f32_roof.gflops;
}

const TableRow* FindRow(const Results& results, const std::string& name, Mode mode) {
  for (const TableRow& row : results.table) {
    if (row.shape.name == name && row.mode == mode) return &row;
  }
  return nullptr;
}

Verdict Judge(const Rule& rule, const TableRow& row, const Results& results) {
  Verdict verdict{.text = ToText(rule)};
  double against = 0;
  std::string what;
  switch (rule.kind) {
    case Rule::Kind::kNone:
      verdict.not_judged = fmt::format("nothing asked on {}", ToText(ThisMachine()));
      return verdict;
    case Rule::Kind::kPeer:
    case Rule::Kind::kBest:
      what = rule.kind == Rule::Kind::kBest ? "a peer" : rule.peer;
      for (const PeerFigure& figure : row.peers) {
        if (rule.kind == Rule::Kind::kBest || figure.peer == rule.peer) against = std::max(against, figure.gflops);
      }
      break;
    case Rule::Kind::kRoof:
      what = "the roof";
      against = RoofOf(results, row.shape.dtype) * static_cast<double>(results.settings.threads);
      break;
    case Rule::Kind::kMatmul:
      what = "the matrix product";
      against = row.shape.dtype == DType::kBf16 ? results.bf16_matmul : results.f32_matmul;
      break;
    case Rule::Kind::kCausal:
      what = row.shape.causal;
      if (row.causal_ratio) against = row.gflops / *row.causal_ratio;
      break;
  }
  if (against > 0) {
    verdict.held = row.gflops >= rule.factor * against;
  } else {
    verdict.not_judged = fmt::format("{} was not measured", what);
  }
  return verdict;
}

// One mode of one case: all the runs, in turns.
Status MeasureRow(const TableRequest& request, Problem& problem, Results& results, TableRow& row) {
  const Settings& settings = results.settings;
  const Result<Bound> bound = BindOurs(problem, row.mode, settings);
  if (!bound) return tl::unexpected(bound.error());
  row.lane = bound->lane();
  row.kernel = bound->kernel();
  row.isa = bound->isa();
  double best = kNever;
  for (const auto& peer : *request.peers) {
    row.peers.push_back({.peer = peer->info().name, .skipped = peer->Skipped(row.mode), .how = peer->How(row.mode)});
    row.peers.back().seconds = kNever;
  }
  std::vector<bool> is_slow(row.peers.size(), false);
  // One round more than asked for: the first pays for what a library sets up on its first run.
  for (int64_t repeat = 0; repeat <= settings.repeats; ++repeat) {
    if (Status go = BeginStep(
            fmt::format("{} {}, {} of {}: ours", problem.shape.name, ToText(row.mode), repeat, settings.repeats));
        !go)
      return go;
    Result<Times> times = RunOurs(problem, *bound, row.mode);
    if (!times) return tl::unexpected(std::move(times.error()));
    best = std::min(best, times->total_s());
    LetThreadsRest(settings.threads);
    for (size_t i = 0; i < row.peers.size(); ++i) {
      PeerFigure& figure = row.peers[i];
      if (!figure.skipped.empty() || is_slow[i]) continue;
      if (Status go = BeginStep(fmt::format("{} {}, {} of {}: {}", problem.shape.name, ToText(row.mode), repeat,
                                            settings.repeats, figure.peer));
          !go)
        return go;
      Result<double> seconds = (*request.peers)[i]->Run(row.mode);
      if (!seconds) {
        figure.skipped = seconds.error().message;
        continue;
      }
      figure.seconds = std::min(figure.seconds, *seconds);
      is_slow[i] = *seconds > request.patience_s;
      LetThreadsRest(settings.threads);
    }
  }
  const double flops = Flops(problem, row.mode);
  row.seconds = best;
  row.gflops = flops / best * 1e-9;
  for (size_t i = 0; i < row.peers.size(); ++i) {
    PeerFigure& figure = row.peers[i];
    if (!figure.skipped.empty()) {
      figure.seconds = 0;
      continue;
    }
    figure.gflops = flops / figure.seconds * 1e-9;
    ShowProgress(fmt::format("{} {}: comparing results with {}", problem.shape.name, ToText(row.mode), figure.peer));
    Result<TensorMap> theirs = (*request.peers)[i]->Outputs(row.mode);
    if (!theirs) return tl::unexpected(std::move(theirs.error()));
    // Unfused, the scores themselves are a tensor of the dtype.
    const bool rounds_scores = figure.peer == "unfused" && problem.shape.dtype != DType::kF32;
    figure.difference = Compare(problem, *theirs, rounds_scores ? 3 : 1);
  }
  return {};
}

std::string Held(const Verdict& verdict) {
  if (verdict.text.empty()) return "-";
  return verdict.text + (verdict.held ? (*verdict.held ? ": yes" : ": NO") : ": ?");
}

void PrintHead(const Results& results, FILE* people) {
  fmt::print(people, "\nGFLOP/s over the allowed pairs; (ours / theirs)\n{:<29} {:<4} {:>7} {:>5}", "case", "mode",
             "ours", "roof");
  for (const PeerInfo& peer : results.peers) {
    if (peer.missing.empty()) fmt::print(people, " {:>15}", peer.name);
  }
  fmt::print(people, " {:>7}  {:<24} {}\n", "/causal", "must reach", "goal");
}

void PrintRow(const TableRow& row, const Results& results, FILE* people) {
  fmt::print(people, "{:<29} {:<4} {:>7.1f} {:>5}", row.shape.name, row.mode == Mode::kForward ? "f" : "f+b",
             row.gflops, row.roof_share > 0 ? fmt::format("{:.0f}%", row.roof_share * 100) : "-");
  for (size_t i = 0; i < row.peers.size(); ++i) {
    const PeerFigure& figure = row.peers[i];
    if (!results.peers[i].missing.empty()) continue;
    fmt::print(
        people, " {:>15}",
        figure.skipped.empty() ? fmt::format("{:.1f} ({:.2f}x)", figure.gflops, row.gflops / figure.gflops) : "-");
  }
  fmt::print(people, " {:>7}  {:<24} {}\n", row.causal_ratio ? fmt::format("{:.2f}", *row.causal_ratio) : "-",
             Held(row.must), Held(row.goal));
  std::fflush(people);
}

// What the table leaves out: why peers were skipped, where results differ, which lane ran.
void PrintNotes(const Results& results, FILE* people) {
  std::vector<std::string> notes;
  std::vector<std::set<std::string>> names;  // the cases of each note
  std::set<std::string> all;
  const auto note = [&](const std::string& text, const std::string& name) {
    const size_t known = static_cast<size_t>(std::find(notes.begin(), notes.end(), text) - notes.begin());
    if (known == notes.size()) {
      notes.push_back(text);
      names.emplace_back();
    }
    names[known].insert(name);
  };
  for (const TableRow& row : results.table) {
    const std::string& name = row.shape.name;
    all.insert(name);
    if (row.lane != "cpu") note(fmt::format("ours ran on the {} lane", row.lane), name);
    for (size_t i = 0; i < row.peers.size(); ++i) {
      const PeerFigure& figure = row.peers[i];
      if (!figure.skipped.empty() && results.peers[i].missing.empty()) {
        note(fmt::format("{} skipped: {}", figure.peer, figure.skipped), name);
      }
      if (figure.difference && !figure.difference->agrees) {
        note(fmt::format("RESULTS DIFFER from {} in {}, {}: {:.2e} apart, {:.2e} would be explained", figure.peer,
                         figure.difference->tensor, ToText(row.mode), figure.difference->largest,
                         figure.difference->tolerance),
             name);
      }
    }
  }
  if (!notes.empty()) fmt::print(people, "\n");
  for (size_t i = 0; i < notes.size(); ++i) {
    fmt::print(people, "{} [{}]\n", notes[i],
               names[i] == all ? "all cases" : fmt::format("{}", fmt::join(names[i], ", ")));
  }
}

}  // namespace

Status MeasureTable(const TableRequest& request, FILE* people, Results& results) {
  PrintHead(results, people);
  for (const Case& shape : request.cases) {
    ShowProgress(shape.name + ": making inputs");
    Result<Problem> problem = MakeProblem(shape, results.settings);
    if (!problem) return tl::unexpected(std::move(problem.error()));
    if (!request.peers->empty()) {
      const std::string inputs = request.folder + "/inputs.safetensors";
      if (Status written = WriteSafetensors(inputs, problem->inputs); !written) return written;
      for (const auto& peer : *request.peers) {
        ShowProgress(fmt::format("{}: preparing {}", shape.name, peer->info().name));
        peer->Prepare(*problem, inputs);
      }
    }
    for (const Mode mode : shape.ModesOn(ThisMachine())) {
      TableRow row;
      row.shape = problem->shape;
      row.mode = mode;
      row.pairs = problem->pairs;
      if (Status measured = MeasureRow(request, *problem, results, row); !measured) return measured;
      row.bf16_roof = shape.dtype == DType::kBf16 && results.bf16_roof.gflops > 0;
      const double roof = RoofOf(results, shape.dtype) * static_cast<double>(results.settings.threads);
      if (roof > 0) row.roof_share = row.gflops / roof;
      if (shape.causal == shape.name) row.causal_ratio = 1;
      if (const TableRow* causal = FindRow(results, shape.causal, mode)) row.causal_ratio = row.gflops / causal->gflops;
      const Asked* asked = shape.Find(ThisMachine(), mode);
      row.must = Judge(asked->must, row, results);
      row.goal = Judge(asked->goal, row, results);
      results.table.push_back(std::move(row));
      ClearProgress();
      PrintRow(results.table.back(), results, people);
    }
  }
  PrintNotes(results, people);
  return {};
}

}  // namespace tessera::bench
