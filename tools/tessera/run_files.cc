#include "run_files.h"

#include <fmt/format.h>

#include "shorthand.h"

namespace tessera::program {

std::optional<RunFailure> ReadRunFiles(RunArguments& arguments, RunFiles& files, const AcceptFunction& accepts) {
  RunOptions& run = arguments.run;
  const ProblemArguments& problem = arguments.problem;
  run.contract_source = SourceOf(problem.contract);
  run.batch_source = SourceOf(problem.batch);
  run.input_source = arguments.inputs.empty() ? fmt::format("seed {}", arguments.seed) : "file " + arguments.inputs;
  run.plan.disable = problem.disable;
  run.plan.verify_stages = problem.verify_stages;
  run.plan.widen_class = problem.widen_class;

  auto contract = ReadContractArgument(problem.contract);
  if (!contract) return RunFailure{"contract", contract.error()};
  files.contract = std::move(*contract);
  auto target = FindTarget(problem.target);
  if (!target) return RunFailure{"request", target.error()};
  files.target = std::move(*target);
  if (!problem.tile.empty()) {
    auto tile = ParseTile(problem.tile);
    if (!tile) return RunFailure{"request", tile.error()};
    run.plan.tile = *tile;
  }
  auto batch = ReadBatchArguments(problem.batch, *files.contract);
  if (!batch) return RunFailure{"read", batch.error()};
  files.batch = std::move(*batch);
  if (accepts && !accepts(files)) {
    files.inputs.emplace();
    return std::nullopt;
  }
  auto inputs = ReadInputs(*files.contract, {arguments.inputs, arguments.seed, run.backward, run.layout});
  if (!inputs) return RunFailure{"read", inputs.error()};
  files.inputs = std::move(*inputs);
  return std::nullopt;
}

}  // namespace tessera::program
