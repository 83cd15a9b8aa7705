// The sections about the lane's programs: beside dense attention, their memory, and time against surviving tiles.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>

#include "engine/state.h"
#include "lanes/xla/programs.h"
#include "xla/results.h"

namespace tessera::bench {
namespace {

using stablehlo::DenseKind;

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr int64_t kHeads = 4;
constexpr int64_t kDim = 64;
constexpr int64_t kDocument = 512;
constexpr int64_t kWindowLeft = 511;
constexpr DenseKind kKinds[] = {DenseKind::kForward, DenseKind::kBackward, DenseKind::kStep};
constexpr const char* ShortName(Mode mode) { return mode == Mode::kForward ? "f" : "f+b"; }

Settings RunSettings(const XlaResults& results) {
  return {.threads = results.settings.threads,
          .tokens = results.settings.tokens,
          .lane = std::string(kXlaChunked),
          .seed = results.settings.seed};
}

struct GoalCase {
  Case shape;
  double goal = 0;
};
std::vector<GoalCase> TableCasesFor(int64_t tokens) {
  const Case base{.name = "causal", .tokens = tokens, .dim = kDim, .heads = kHeads, .kv_heads = kHeads};
  GoalCase window{base, 5};
  window.shape.name = fmt::format("window({}, 0)", kWindowLeft);
  window.shape.mask = MaskKind::kWindow;
  window.shape.left = kWindowLeft;
  GoalCase documents{base, 5};
  documents.shape.name = fmt::format("documents of {}", kDocument);
  documents.shape.mask = MaskKind::kDocuments;
  documents.shape.documents = std::max<int64_t>(tokens / kDocument, 1);
  const GoalCase causal{base, 1.2};
  return {window, documents, causal};
}

// Dense attention gives gigabytes back to the system when its results are there already. That must not fall into the
// next run, whoever's that is.
void Settle() { std::this_thread::sleep_for(std::chrono::milliseconds(500)); }

// Two products forward. The lane's backward computes scores and their gradient again in both of its walks: seven.
double ProductFlops(const Problem& problem, int64_t tiles, DenseKind kind) {
  const Worklist& list = problem.plan.view().Of(Direction::kForward);
  const double products = kind == DenseKind::kForward ? 2 : kind == DenseKind::kBackward ? 7 : 9;
  return products * 2 * kDim * static_cast<double>(tiles) * static_cast<double>(list.tile_q) *
         static_cast<double>(list.tile_kv);
}

// Tiles that a forward says it ran: a call that also writes a receipt, which is not timed and warms up.
Result<int64_t> TilesOf(const Problem& problem, const Bound& bound) {
  Receipt receipt;
  Status done = bound.Forward(TensorsOf(problem, Mode::kForward), {.receipt = &receipt});
  if (!done) return tl::unexpected(std::move(done.error()));
  return receipt.tiles_executed;
}

double SecondsOf(const Times& ours, DenseKind kind) {
  return kind == DenseKind::kForward ? ours.forward_s : kind == DenseKind::kBackward ? ours.backward_s : ours.total_s();
}

}  // namespace

lanes::xla::State& XlaState() { return *EngineAccess::Of(OurEngine())->xla; }

Result<lanes::xla::FoundProgram> FindChunked(const lanes::xla::Session& session, const stablehlo::ProgramSpec& spec,
                                             Pass pass, const XlaOptions& options) {
  return XlaState().programs.Find(session, {*lanes::xla::FindLowering(kXlaChunked), spec, pass, options});
}

void Say(const std::string& text) { fmt::print(stderr, "{}\n", text); }

Status MeasureMatmul(const lanes::xla::Session& session, XlaResults& results) {
  constexpr int64_t kSize = 2048;
  const stablehlo::Type type{stablehlo::Element::kF32, {kSize, kSize}};
  stablehlo::Program program{"tessera_matmul", "", {{"a", type}, {"b", type}}, {{"c", type}}};
  stablehlo::Builder b(program.name, {}, program.inputs);
  Result<std::string> text = b.Finish({b.Dot(b.Input("a"), b.Input("b"), {1, 0})});
  if (!text) return tl::unexpected(text.error());
  const Result<pjrt::Executable> executable =
      session.client->Compile(*text, lanes::xla::CompileOptionsFor(program, results.settings.xla));
  if (!executable) return tl::unexpected(executable.error());
  const std::vector<float> ones(kSize * kSize, 1.0F);
  const Result<pjrt::Buffer> buffer =
      session.client->Upload(executable->inputs()[0], std::as_bytes(std::span(ones)), session.device);
  if (!buffer) return tl::unexpected(buffer.error());
  double best = kNever;
  for (int64_t i = 0; i <= results.settings.repeats; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    const pjrt::Buffer* args[] = {&*buffer, &*buffer};
    const Result<std::vector<pjrt::Buffer>> out = executable->Execute(args, {.device = session.device});
    if (!out) return tl::unexpected(out.error());
    if (Status done = (*out)[0].Await(); !done) return done;
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  results.matmul_gflops = 2.0 * kSize * kSize * kSize / best * 1e-9;
  return {};
}

namespace {

// Every kind of work on one case, in turns; one round more to compile and warm up.
Status MeasureCase(const lanes::xla::Session& session, const GoalCase& asked, XlaResults& results,
                   std::vector<XlaTableRow>& rows) {
  Result<Problem> problem = MakeProblem(asked.shape, RunSettings(results));
  if (!problem) return tl::unexpected(problem.error());
  Say(asked.shape.name + ": compiling dense attention");
  std::vector<DensePeer> peers;
  for (const DenseKind kind : kKinds) {
    Result<DensePeer> peer = DensePeer::Compile(session, DenseSpecOf(*problem), kind);
    if (!peer) return tl::unexpected(peer.error());
    peers.push_back(std::move(*peer));
    rows.push_back({.name = asked.shape.name, .kind = kind, .seconds = kNever, .dense_s = kNever});
    rows.back().goal = kind == DenseKind::kStep ? 0 : asked.goal;
  }
  const Result<Bound> bound = BindOurs(*problem, Mode::kBoth, RunSettings(results));
  if (!bound) return tl::unexpected(bound.error());
  const Result<int64_t> tiles = TilesOf(*problem, *bound);
  if (!tiles) return tl::unexpected(tiles.error());
  for (XlaTableRow& row : rows) row.tiles = *tiles;
  for (int64_t i = 0; i <= results.settings.repeats; ++i) {
    Settle();
    Result<Times> ours = RunOurs(*problem, *bound, Mode::kBoth);
    if (!ours) return tl::unexpected(ours.error());
    Say(fmt::format("  {} of {}: ours {:.3f} s forward, {:.3f} s backward", i, results.settings.repeats,
                    ours->forward_s, ours->backward_s));
    for (size_t k = 0; k < peers.size(); ++k) {
      Settle();
      Result<double> dense = peers[k].Run(*problem);
      if (!dense) return tl::unexpected(dense.error());
      Say(fmt::format("    dense {:.3f} s {}", *dense, ToText(rows[k].kind)));
      if (i == 0) continue;
      rows[k].seconds = std::min(rows[k].seconds, SecondsOf(*ours, rows[k].kind));
      rows[k].dense_s = std::min(rows[k].dense_s, *dense);
    }
  }
  for (size_t k = 0; k < peers.size(); ++k) {
    rows[k].difference = Compare(*problem, peers[k].outputs());
    rows[k].limit_s = ProductFlops(*problem, rows[k].tiles, rows[k].kind) / (results.matmul_gflops * 1e9);
  }
  return {};
}

}  // namespace

Status MeasureTable(const lanes::xla::Session& session, FILE* people, XlaResults& results) {
  fmt::print(people,
             "\nBeside dense attention: {} tokens, {} heads, dim {}, f32; XLA's own 2048^3 product: {:.1f} GFLOP/s\n"
             "{:<17} {:<8} {:>7} {:>9} {:>9} {:>7} {:>9} {:>9} {:>9} {:>10}\n",
             results.settings.tokens, kHeads, kDim, results.matmul_gflops, "mask", "work", "tiles", "ours s", "dense s",
             "ratio", "goal", "limit s", "of limit", "difference");
  for (const GoalCase& asked : TableCasesFor(results.settings.tokens)) {
    std::vector<XlaTableRow> rows;
    if (Status done = MeasureCase(session, asked, results, rows); !done) return done;
    for (const XlaTableRow& row : rows) {
      const std::string goal =
          row.goal == 0 ? "" : fmt::format("{:.1f}x {:>3}", row.goal, row.ratio() >= row.goal ? "yes" : "NO");
      fmt::print(people, "{:<17} {:<8} {:>7} {:>9.4f} {:>9.4f} {:>6.2f}x {:>9} {:>9.4f} {:>8.0f}% {:>10}\n", row.name,
                 ToText(row.kind), row.tiles, row.seconds, row.dense_s, row.ratio(), goal, row.limit_s,
                 100 * row.limit_s / row.seconds,
                 row.difference.agrees ? fmt::format("{:.1e}", row.difference.largest) : "DIFFER");
    }
    std::fflush(people);
    results.table.insert(results.table.end(), rows.begin(), rows.end());
  }
  return {};
}

Status MeasureMemory(const lanes::xla::Session& session, FILE* people, XlaResults& results) {
  fmt::print(people,
             "\nTemporary memory of the compiled causal programs, MiB; nothing is run\n{:>7} {:<8} {:>9} {:>9} {:>7}\n",
             "tokens", "work", "ours", "dense", "ratio");
  constexpr double kMiB = 1 << 20;
  for (const int64_t tokens : {results.settings.memory_tokens / 4, results.settings.memory_tokens}) {
    Settings settings = RunSettings(results);
    settings.tokens = tokens;
    Case shape{.name = "causal", .dim = kDim, .heads = kHeads, .kv_heads = kHeads};
    Result<Problem> problem = MakeProblem(shape, settings);
    if (!problem) return tl::unexpected(problem.error());
    const stablehlo::ProgramSpec spec = stablehlo::SpecOf(problem->contract, problem->plan.view(), TargetKind::kCpu);
    XlaMemoryRow row{.tokens = tokens};
    for (const DenseKind kind : kKinds) {
      row.kind = kind;
      Say(fmt::format("memory at {} tokens, {}", tokens, ToText(kind)));
      const Pass pass = kind == DenseKind::kForward ? Pass::kForward : Pass::kBackward;
      const Result<lanes::xla::FoundProgram> ours = FindChunked(session, spec, pass, results.settings.xla);
      if (!ours) return tl::unexpected(ours.error());
      // Of all calls at once; and of a step, the larger of its two programs.
      const int64_t at_once = std::min(results.settings.threads, ours->use.parts);
      row.chunked = std::max(row.chunked, ours->use.temp_bytes * at_once);
      const Result<DensePeer> peer = DensePeer::Compile(session, DenseSpecOf(*problem), kind);
      if (!peer) return tl::unexpected(peer.error());
      const Result<int64_t> dense = peer->TempBytes();
      if (!dense) return tl::unexpected(dense.error());
      row.dense = *dense;
      fmt::print(people, "{:>7} {:<8} {:>9.1f} {:>9.0f} {:>6.0f}x\n", row.tokens, ToText(kind),
                 static_cast<double>(row.chunked) / kMiB, static_cast<double>(row.dense) / kMiB,
                 static_cast<double>(row.dense) / static_cast<double>(row.chunked));
      std::fflush(people);
      results.memory.push_back(row);
    }
  }
  return {};
}

Status MeasureSparsity(FILE* people, XlaResults& results) {
  constexpr int64_t kPercents[] = {100, 75, 50, 25};
  fmt::print(people,
             "\nRandom full tiles at {} tokens, {} heads, dim {}, f32; time per surviving tile against all of them\n"
             "{:<4} {:>7} {:>7} {:>9} {:>9} {:>9}\n",
             results.settings.tokens, kHeads, kDim, "mode", "percent", "tiles", "seconds", "us/tile", "relative");
  std::vector<Problem> problems;
  for (const int64_t percent : kPercents) {
    Case shape{
        .name = "random_tiles", .mask = MaskKind::kRandomTiles, .dim = kDim, .heads = kHeads, .kv_heads = kHeads};
    shape.percent = percent;
    Result<Problem> problem = MakeProblem(shape, RunSettings(results));
    if (!problem) return tl::unexpected(problem.error());
    problems.push_back(std::move(*problem));
  }
  for (const Mode mode : kModes) {
    std::vector<XlaSparsityRow> rows;
    for (const int64_t percent : kPercents) rows.push_back({.mode = mode, .percent = percent, .seconds = kNever});
    std::vector<Bound> bounds;
    for (size_t p = 0; p < problems.size(); ++p) {
      Result<Bound> bound = BindOurs(problems[p], mode, RunSettings(results));
      if (!bound) return tl::unexpected(bound.error());
      const Result<int64_t> tiles = TilesOf(problems[p], *bound);
      if (!tiles) return tl::unexpected(tiles.error());
      rows[p].tiles = *tiles;
      bounds.push_back(std::move(*bound));
    }
    for (int64_t i = 0; i <= results.settings.repeats; ++i) {
      for (size_t p = 0; p < problems.size(); ++p) {
        Result<Times> times = RunOurs(problems[p], bounds[p], mode);
        if (!times) return tl::unexpected(times.error());
        Say(fmt::format("  {} of {}: {}% of tiles, {}, {:.3f} s", i, results.settings.repeats, kPercents[p],
                        ToText(mode), times->total_s()));
        if (i > 0) rows[p].seconds = std::min(rows[p].seconds, times->total_s());
      }
    }
    const double all = rows[0].seconds / static_cast<double>(rows[0].tiles);
    for (XlaSparsityRow& row : rows) {
      const double per_tile = row.seconds / static_cast<double>(row.tiles);
      row.relative = per_tile / all;
      fmt::print(people, "{:<4} {:>7} {:>7} {:>9.4f} {:>9.1f} {:>9.2f}\n", ShortName(mode), row.percent, row.tiles,
                 row.seconds, per_tile * 1e6, row.relative);
      std::fflush(people);
      results.sparsity.push_back(row);
    }
  }
  return {};
}

}  // namespace tessera::bench
