#include "run_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>

namespace tessera::program {

Result<TensorMap> ReadInputs(const Contract& contract, const RunArguments& arguments) {
  const bool backward = arguments.run.backward;
  if (!arguments.inputs.empty()) {
    // Room for tensors of a wrong shape, so that the message can name them; not for whatever somebody put there.
    constexpr double kLargest = 0x1p36;
    const double limit = std::min(4 * TensorBytes(contract, backward) + 0x1p30, kLargest);
    return ReadSafetensors(arguments.inputs, static_cast<int64_t>(limit));
  }
  if (auto fits = CheckTensorMemory(contract, backward); !fits) return tl::unexpected(fits.error());
  try {
    return MakeInputs(contract, arguments.seed, backward, arguments.run.layout);
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kTooLarge, "this machine gives no memory for the inputs", "shape");
  }
}

std::optional<RunFailure> ReadRunFiles(RunArguments& arguments, RunFiles& files) {
  RunOptions& run = arguments.run;
  const ProblemArguments& problem = arguments.problem;
  run.contract_source = problem.contract == "-" ? "standard input" : "file " + problem.contract;
  run.batch_source = problem.batch.empty() ? "" : "file " + problem.batch;
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
  auto batch = problem.batch.empty() ? Batch{} : ReadBatch(problem.batch);
  if (!batch) return RunFailure{"read", batch.error()};
  files.batch = std::move(*batch);
  auto inputs = ReadInputs(*files.contract, arguments);
  if (!inputs) return RunFailure{"read", inputs.error()};
  files.inputs = std::move(*inputs);
  return std::nullopt;
}

}  // namespace tessera::program
