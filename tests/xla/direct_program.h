// A program of the lane compiled and executed by the test itself, on operands that the test makes.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lanes/xla/pjrt/client.h"
#include "lanes/xla/stablehlo/program.h"
#include "lanes/xla/state.h"
#include "tessera/tensor.h"

namespace tessera {

using Operands = std::map<std::string, std::vector<std::byte>>;

template <class T>
std::vector<std::byte> ToBytes(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

// Whatever goes wrong fails the test.
class DirectProgram {
 public:
  DirectProgram(const std::string& plugin, stablehlo::Program program, XlaOptions options = {.optimization = 0})
      : program_(std::move(program)) {
    options.plugin = plugin;
    const Decision decision = state_.clients.Open(options, TargetKind::kCpu, &session_);
    EXPECT_TRUE(decision.accepted) << decision.detail;
    if (!decision.accepted) return;
    Result<pjrt::Executable> compiled =
        session_.client->Compile(program_.text, lanes::xla::CompileOptionsFor(program_, options));
    EXPECT_TRUE(compiled.has_value()) << (compiled ? "" : ToText(compiled.error()));
    if (compiled) executable_ = std::move(*compiled);
  }

  // Operands and outputs by their names.
  TensorMap Run(const Operands& operands) const {
    TensorMap outputs;
    if (!executable_) return outputs;
    std::vector<pjrt::Buffer> buffers;
    for (size_t i = 0; i < program_.inputs.size(); ++i) {
      buffers.push_back(
          session_.client->Upload(executable_->inputs()[i], operands.at(program_.inputs[i].name), 0).value());
    }
    std::vector<const pjrt::Buffer*> args;
    for (const pjrt::Buffer& buffer : buffers) args.push_back(&buffer);
    const std::vector<pjrt::Buffer> results = executable_->Execute(args).value();
    for (size_t i = 0; i < results.size(); ++i) {
      const stablehlo::NamedType& output = program_.outputs[i];
      const ElementType type = stablehlo::IsFloat(output.type.element) ? ElementType::kF32 : ElementType::kI32;
      Tensor& tensor = outputs[output.name] = Tensor::Zeros(type, output.type.dims);
      EXPECT_TRUE(results[i].Download(tensor.bytes).has_value());
    }
    return outputs;
  }

  // What XLA made of it.
  pjrt::OptimizedProgram Optimized() const {
    if (!executable_) return {};
    const Result<pjrt::OptimizedProgram> optimized = executable_->Optimized();
    EXPECT_TRUE(optimized.has_value()) << (optimized ? "" : ToText(optimized.error()));
    return optimized.value_or(pjrt::OptimizedProgram());
  }

  int64_t parts() const { return program_.parts; }

 private:
  stablehlo::Program program_;
  lanes::xla::State state_{XlaSettings{}};
  lanes::xla::Session session_;
  std::optional<pjrt::Executable> executable_;
};

}  // namespace tessera
