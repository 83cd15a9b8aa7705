// The public Compile and LowerPrograms: a run up to the point where something would run.
#include "tessera/compile.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "base/clock.h"
#include "base/host.h"
#include "dispatch/prepare.h"
#include "dispatch/run.h"
#include "dispatch/select.h"

namespace tessera {
namespace {

std::string_view TextOf(Pass pass) { return pass == Pass::kForward ? "forward" : "backward"; }

std::vector<Pass> PassesOf(const RunOptions& options) {
  std::vector<Pass> passes;
  if (options.forward) passes.push_back(Pass::kForward);
  if (options.backward) passes.push_back(Pass::kBackward);
  return passes;
}

// Whose programs: the lane asked for, else the first of a run's candidates that has any.
Result<const Compiler*> CompilerFor(const Contract& contract, const Target& target, const RunOptions& options) {
  const std::span<const LaneRow> table = LaneTable();
  if (IsForced(options)) {
    const LaneRow* row = FindLane(table, options.lane);
    if (row == nullptr) return Fail(ErrorCode::kLaneUnknown, fmt::format("there is no lane \"{}\"", options.lane));
    const Compiler* compiler = row->lane == nullptr ? nullptr : row->lane->compiler();
    if (compiler != nullptr) return compiler;
    const ReasonCode reason = row->lane == nullptr ? row->not_built : ReasonCode::kNothingToCompile;
    return Fail(ErrorCode::kLaneRefused,
                fmt::format("the lane asked for has no programs: {} ({})", ReasonText(reason), ReasonMeaning(reason)));
  }
  Result<MaskFacts> facts = DescribeMask(contract);
  if (!facts) return tl::unexpected(std::move(facts.error()));
  for (const LaneRow* row : Candidates(table, SelectRule(contract, *facts, target).lane)) {
    if (row->lane != nullptr && row->lane->compiler() != nullptr) return row->lane->compiler();
  }
  return Fail(ErrorCode::kLaneRefused, fmt::format("no lane has programs for the target {}", target.name));
}

}  // namespace

void DescribeLane(const LaneRow& row, std::string_view mode, const RunStats& stats, Receipt& receipt) {
  receipt.executed = row.name;
  receipt.runtime_mode = mode;
  receipt.determinism = row.determinism;
  receipt.kernel = stats.kernel;
  receipt.isa = stats.isa;
}

void DescribeDevice(const XlaUse& use, const Target& target, Receipt& receipt) {
  const bool is_compile_only = receipt.runtime_mode == kCompileOnly;
  const bool is_elsewhere = !use.plugin.empty() && target.kind != TargetKind::kCpu;
  receipt.device = {.kind = std::string(ToText(is_elsewhere ? target.kind : TargetKind::kCpu)),
                    .name = is_elsewhere ? use.device_kind : HostProcessor(),
                    .ordinal = use.device,
                    .memory = is_compile_only ? "" : "host",
                    .plugin = use.plugin,
                    .platform = use.platform,
                    .platform_version = use.platform_version,
                    .pjrt = use.pjrt,
                    .stablehlo = use.stablehlo,
                    .topology = use.topology,
                    .guard = use.guard};
  if (is_compile_only) return;
  receipt.ran_on = receipt.device.name;
  const bool is_other_machine = receipt.device.kind != ToText(target.kind);
  if (is_other_machine && receipt.fallback_reason.empty()) {
    receipt.fallback_reason = ReasonText(ReasonCode::kOffMachine);
  }
}

void DescribeProgram(std::string_view pass, const XlaProgramUse& use, Receipt& receipt) {
  if (use.source.empty()) return;
  receipt.programs.push_back({.pass = std::string(pass),
                              .name = use.name,
                              .source = use.source,
                              .note = use.note,
                              .key = use.key,
                              .compile_ns = use.compile_ns,
                              .parts = use.parts,
                              .argument_bytes = use.argument_bytes,
                              .output_bytes = use.output_bytes,
                              .temp_bytes = use.temp_bytes,
                              .code_bytes = use.code_bytes,
                              .instructions = use.instructions,
                              .opcodes = use.opcodes,
                              .custom_calls = use.custom_calls,
                              .collectives = use.collectives});
  if (use.source == "compiled") ++receipt.compiles;
  if (use.source == "memory" || use.source == "disk") ++receipt.cache_hits;
}

std::optional<RunFailure> CompileLane(const RunRequest& request, const LaneRow& row, const PlanView& plan,
                                      Receipt& receipt) {
  const CompileRequest compile{
      .contract = &request.contract, .plan = &plan, .target = &request.target, .xla = request.xla};
  std::map<Pass, RunStats> compiled;
  std::vector<Timing> timings;
  for (const Pass pass : PassesOf(request.options)) {
    const Clock clock;
    Result<RunStats> stats = row.lane->compiler()->Compile(compile, pass);
    if (!stats) return RunFailure{"compile", std::move(stats.error())};
    compiled.emplace(pass, std::move(*stats));
    timings.push_back({fmt::format("compile.{}", TextOf(pass)), clock.Ns()});
  }
  receipt.timings.insert(receipt.timings.end(), timings.begin(), timings.end());
  DescribeLane(row, kCompileOnly, compiled.begin()->second, receipt);
  DescribeDevice(compiled.begin()->second.xla, request.target, receipt);
  for (const auto& [pass, stats] : compiled) DescribeProgram(TextOf(pass), stats.program, receipt);
  if (request.options.backward) receipt.tiles_backward = CountTiles(plan, Direction::kDkv);
  return std::nullopt;
}

RunOutcome Compile(const Contract& contract, const Batch& batch, const Target& target, const RunOptions& options,
                   const TensorMap& inputs) {
  return RunOn({.table = LaneTable(),
                .contract = contract,
                .batch = &batch,
                .target = target,
                .options = options,
                .inputs = &inputs,
                .asked = Asked::kCompile});
}

Result<std::vector<ProgramText>> LowerPrograms(const Contract& contract, const Batch& batch, const Target& target,
                                               const RunOptions& options, const TensorMap& inputs) {
  const Result<const Compiler*> compiler = CompilerFor(contract, target, options);
  if (!compiler) return tl::unexpected(compiler.error());
  Result<RouteInputs> route = RouteInputsOf(contract, inputs, options.layout);
  if (!route) return tl::unexpected(std::move(route.error()));
  const Result<PlanResult> made = MakePlan(contract, batch, target, options.plan, &*route);
  if (!made) return tl::unexpected(made.error());
  std::vector<ProgramText> programs;
  for (const Pass pass : PassesOf(options)) {
    Result<ProgramText> program = (*compiler)->Lower(contract, made->plan.view(), target, pass);
    if (!program) return tl::unexpected(std::move(program.error()));
    programs.push_back(std::move(*program));
  }
  return programs;
}

}  // namespace tessera
