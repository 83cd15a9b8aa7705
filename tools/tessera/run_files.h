// What `tessera run` reads before it can run, one step at a time, so that a failure says which step it was and the
// receipt holds what was known by then.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "program.h"

namespace tessera::program {

struct RunArguments {
  ProblemArguments problem;
  std::string from_receipt;
  std::string inputs;
  uint64_t seed = 1;
  RunOptions run;  // lane, isa, exclude, strict, backward, row_max, layout, threads
};

// What has been read; the parts that are not there could not be.
struct RunFiles {
  std::optional<Contract> contract;
  std::optional<Target> target;
  std::optional<Batch> batch;
  std::optional<TensorMap> inputs;
};

struct RunFailure {
  std::string step;  // as the receipt's failed_at
  Error error;
};

// Asked before inputs are read or made; when it says no, they are left empty.
using AcceptFunction = std::function<bool(const RunFiles& files)>;

// Reads everything the arguments name and completes `arguments.run` for it; stops at the first failure.
std::optional<RunFailure> ReadRunFiles(RunArguments& arguments, RunFiles& files, const AcceptFunction& accepts = {});

// A run that a receipt was given for, to be asked for again.
struct Repeat {
  Receipt receipt;
  std::vector<Violation> differences;  // each one enough to refuse: what was then, and what is here
  std::vector<std::string> notes;      // what is different and cannot change a bit of the outputs
};

// Fills arguments and files from the receipt. Every difference is found before anything runs.
Repeat PrepareRepeat(Receipt receipt, RunArguments& arguments, RunFiles& files);

// Whether the outcome is the receipt's; the error names both digests.
Status CompareRepeat(Repeat& repeat, const Receipt& again, const std::string& where);

}  // namespace tessera::program
