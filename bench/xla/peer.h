// Dense attention on the same plugin, timed as the lane is: upload, execute, download.
#pragma once

#include <string>

#include "cpu/problem.h"
#include "lanes/xla/pjrt/client.h"
#include "lanes/xla/plugins.h"
#include "lanes/xla/stablehlo/program.h"

namespace tessera::bench {

// What dense attention has to test to compute the same as the case.
stablehlo::DenseSpec DenseSpecOf(const Problem& problem);

class DensePeer {
 public:
  static Result<DensePeer> Compile(const lanes::xla::Session& session, const stablehlo::DenseSpec& spec,
                                   stablehlo::DenseKind kind);

  // One run on the problem's inputs, in seconds; outputs() has its results. A backward also takes the problem's o and
  // lse, of a run before.
  Result<double> Run(const Problem& problem);
  const TensorMap& outputs() const { return outputs_; }
  Result<int64_t> TempBytes() const;

 private:
  lanes::xla::Session session_;
  stablehlo::Program program_;
  pjrt::Executable executable_;
  TensorMap outputs_;
};

}  // namespace tessera::bench
