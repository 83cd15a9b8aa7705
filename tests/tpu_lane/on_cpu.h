// A whole program for a TPU, run on XLA's CPU plugin as somebody would who takes it to a runtime of their own: operands
// in the order of its list, rows of tiles put together afterwards. Its kernels are interpreted
// (support/interpreted_kernels.h), and everything around them is what XLA compiles.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/state.h"
#include "engine/tensors.h"
#include "lanes/xla/pjrt/client.h"
#include "lanes/xla/pjrt/find_plugins.h"
#include "lanes/xla/state.h"
#include "lanes/xla/transfer.h"
#include "support/engine.h"
#include "support/interpreted_kernels.h"
#include "support/quick_xla.h"
#include "tessera/tessera.h"

namespace tessera {

// Empty where there is none.
inline std::string CpuPlugin() {
  std::string path;
  for (const pjrt::FoundPlugin& found : pjrt::FindPlugins(OptionsFromEnvironment().xla_folder)) {
    if (found.name.rfind("xla-cpu-pjrt", 0) == 0) path = found.path;
  }
  return path;
}

// Part `number` of `parts` along an axis of a dense tensor; all of it where there is no axis.
inline Tensor PartOf(const Tensor& whole, int64_t axis, int64_t number, int64_t parts) {
  if (axis < 0 || parts == 1) return whole;
  Tensor part{whole.type, whole.shape, {}};
  int64_t outer = 1;
  for (int64_t i = 0; i < axis; ++i) outer *= whole.shape[static_cast<size_t>(i)];
  part.shape[static_cast<size_t>(axis)] /= parts;
  const size_t each = whole.bytes.size() / static_cast<size_t>(outer * parts);
  for (int64_t o = 0; o < outer; ++o) {
    const auto from = whole.bytes.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(o * parts + number) * each);
    part.bytes.insert(part.bytes.end(), from, from + static_cast<std::ptrdiff_t>(each));
  }
  return part;
}
// The other way round.
inline void PutPart(const Tensor& part, int64_t axis, int64_t number, int64_t parts, Tensor& whole) {
  int64_t outer = 1;
  for (int64_t i = 0; i < axis; ++i) outer *= whole.shape[static_cast<size_t>(i)];
  const size_t each = part.bytes.size() / static_cast<size_t>(outer);
  for (int64_t o = 0; o < outer; ++o) {
    std::memcpy(whole.bytes.data() + static_cast<size_t>(o * parts + number) * each,
                part.bytes.data() + static_cast<size_t>(o) * each, each);
  }
}

// Whatever goes wrong fails the test.
class ProgramOnCpu {
 public:
  explicit ProgramOnCpu(ProgramText program) : program_(std::move(program)) {
    XlaOptions options;
    options.plugin = CpuPlugin();
    const std::shared_ptr<EngineState>& state = EngineAccess::Of(TestEngine());
    const Decision open = state->xla->clients.Open(options, TargetKind::kCpu, &session_, program_.chips);
    EXPECT_TRUE(open.accepted) << open.detail;
    if (!open.accepted) return;
    const Status registered = RegisterInterpreter(session_.client->plugin());
    EXPECT_TRUE(registered) << ToText(registered.error());
    const Result<InterpretedProgram> interpreted = InterpretKernels(program_.text);
    EXPECT_TRUE(interpreted) << ToText(interpreted.error());
    if (!registered || !interpreted) return;
    EXPECT_EQ(interpreted->calls, program_.kernels.size());
    Result<pjrt::Executable> compiled = session_.client->Compile(interpreted->text, CompileOptionsOf());
    EXPECT_TRUE(compiled) << ToText(compiled.error());
    if (compiled) executable_ = std::move(*compiled);
  }

  const ProgramText& text() const { return program_; }

  // Of operands that the list has no values of: those of a caller and of the forward.
  TensorMap Run(const TensorMap& values) const {
    TensorMap results;
    if (!executable_) return results;
    std::vector<std::vector<pjrt::Buffer>> buffers(static_cast<size_t>(program_.chips));
    std::vector<std::vector<const pjrt::Buffer*>> args(buffers.size());
    for (int64_t chip = 0; chip < program_.chips; ++chip) {
      std::vector<pjrt::Buffer>& own = buffers[static_cast<size_t>(chip)];
      for (const ProgramOperand& operand : program_.operands) own.push_back(Upload(operand, values, chip));
      for (const pjrt::Buffer& buffer : own) args[static_cast<size_t>(chip)].push_back(&buffer);
    }
    std::vector<pjrt::Launched> runs;
    if (program_.chips == 1) {
      Result<std::vector<pjrt::Buffer>> outputs = executable_->Execute(args[0], {.device = session_.device});
      EXPECT_TRUE(outputs) << ToText(outputs.error());
      if (outputs) runs.push_back({std::move(*outputs), {}});
    } else {
      Result<std::vector<pjrt::Launched>> all = executable_->ExecuteOnAll(args);
      EXPECT_TRUE(all) << ToText(all.error());
      if (all) runs = std::move(*all);
    }
    for (size_t i = 0; !runs.empty() && i < program_.results.size(); ++i) {
      const ProgramOperand& result = program_.results[i];
      Tensor& whole = results[result.name] = Tensor::Zeros(result.tensor.type, result.tensor.shape);
      for (int64_t chip = 0; chip < program_.chips; ++chip) {
        Tensor part = program_.chips == 1 ? whole : PartOf(whole, result.chip_axis, chip, program_.chips);
        const Status got = runs[static_cast<size_t>(chip)].outputs[i].Download(part.bytes);
        EXPECT_TRUE(got) << result.name << ": " << ToText(got.error());
        PutPart(part, std::max<int64_t>(result.chip_axis, 0), chip, program_.chips, whole);
      }
    }
    return results;
  }

 private:
  static pjrt::ElementType TypeOf(ElementType type) {
    switch (type) {
      case ElementType::kBf16:
        return pjrt::ElementType::kBf16;
      case ElementType::kF16:
        return pjrt::ElementType::kF16;
      case ElementType::kI32:
        return pjrt::ElementType::kS32;
      default:
        return pjrt::ElementType::kF32;
    }
  }
  pjrt::TensorType TypeOf(const ProgramOperand& operand) const {
    pjrt::TensorType type{TypeOf(operand.tensor.type), operand.tensor.shape};
    if (program_.chips > 1 && operand.chip_axis >= 0)
      type.dims[static_cast<size_t>(operand.chip_axis)] /= program_.chips;
    return type;
  }
  pjrt::CompileOptions CompileOptionsOf() const {
    pjrt::CompileOptions compile;
    compile.overrides = kQuickly;
    for (const ProgramOperand& operand : program_.operands) compile.inputs.push_back(TypeOf(operand));
    if (program_.chips == 1) return compile;
    compile.num_partitions = program_.chips;
    compile.use_spmd = compile.use_shardy = true;
    for (int64_t chip = 0; chip < program_.chips; ++chip) {
      compile.device_ids.push_back(session_.client->devices()[static_cast<size_t>(chip)].id);
    }
    return compile;
  }
  pjrt::Buffer Upload(const ProgramOperand& operand, const TensorMap& values, int64_t chip) const {
    Tensor whole = operand.tensor;
    const auto given = values.find(operand.name);
    if (given != values.end()) whole.bytes = given->second.bytes;
    if (operand.source == "part") whole.bytes.assign(sizeof(int32_t), std::byte{0});
    EXPECT_EQ(static_cast<int64_t>(whole.bytes.size()), whole.NumElements() * BytesOf(whole.type)) << operand.name;
    const Tensor part = PartOf(whole, operand.chip_axis, chip, program_.chips);
    const int64_t device = program_.chips == 1 ? session_.device : chip;
    return session_.client->Upload(TypeOf(operand), part.bytes, device).value();
  }

  ProgramText program_;
  lanes::xla::Session session_;
  std::optional<pjrt::Executable> executable_;
};

// Rows of tiles of every (batch row, head) as a tensor of this type and shape, without what is past the last token.
inline Tensor FromTiles(const Tensor& tiles, const TensorSpec& spec) {
  Tensor tensor = Tensor::Zeros(spec.type, spec.shape);
  const int64_t pairs = spec.shape[0] * spec.shape[1];
  const int64_t own = tensor.NumElements() / pairs;
  const int64_t padded = tiles.NumElements() / pairs;
  for (int64_t pair = 0; pair < pairs; ++pair) {
    for (int64_t i = 0; i < own; ++i) tensor.Set(pair * own + i, tiles.At(pair * padded + i));
  }
  return tensor;
}

// A share of each row of tiles, added up for each head.
inline Tensor FromShares(const Tensor& shares, const Shape& s) {
  Tensor sums = Tensor::Zeros(ElementType::kF32, {s.num_q_heads});
  const int64_t rows = shares.NumElements() / (s.batch * s.num_q_heads);
  for (int64_t head = 0; head < s.num_q_heads; ++head) {
    double sum = 0;
    for (int64_t i = 0; i < shares.NumElements(); ++i) sum += i / rows % s.num_q_heads == head ? shares.At(i) : 0.0;
    sums.Set(head, sum);
  }
  return sums;
}

struct OnCpu {
  TensorMap outputs;  // of both passes, as a run of the contract gives them
  int64_t tiles = 0;  // that the forward says it visited, of all chips
  int64_t tiles_backward = 0;
};

// The passes of the contract that there are, forward first. The outputs of the forward go into the backward.
inline OnCpu RunOnCpu(const Contract& contract, std::span<const std::unique_ptr<ProgramOnCpu>> programs,
                      const TensorMap& inputs, const RunOptions& options) {
  OnCpu ran;
  TensorMap values = inputs;
  const auto count = [](const TensorMap& results) {
    int64_t sum = 0;
    const Tensor& tiles = results.at("tiles");
    for (int64_t i = 0; i < tiles.NumElements(); ++i) {
      int32_t own = 0;
      std::memcpy(&own, tiles.bytes.data() + static_cast<size_t>(i) * sizeof(own), sizeof(own));
      sum += own;
    }
    return sum;
  };
  for (const std::unique_ptr<ProgramOnCpu>& program : programs) {
    const TensorMap results = program->Run(values);
    if (results.empty()) return ran;
    const bool is_forward = program->text().pass == "forward";
    (is_forward ? ran.tiles : ran.tiles_backward) = count(results);
    for (const TensorSpec& spec : OutputSpecs(contract, options)) {
      const auto tiles = results.find(spec.name);
      if (tiles == results.end()) continue;
      const bool is_share = spec.name == "dsink_logits";
      ran.outputs[spec.name] = is_share ? FromShares(tiles->second, contract.shape) : FromTiles(tiles->second, spec);
    }
    if (!is_forward || programs.size() == 1) continue;
    const Shape& s = contract.shape;
    values["lse"] = ran.outputs.at("lse");
    Tensor& delta = values["delta"] = Tensor::Zeros(ElementType::kF32, {s.batch, s.num_q_heads, s.q_len});
    const auto floats = [](Tensor& tensor) {
      return std::span(reinterpret_cast<float*>(tensor.bytes.data()), tensor.bytes.size() / sizeof(float));
    };
    const TensorRef o = DenseView(ran.outputs.at("o"));
    const TensorRef dout = DenseView(inputs.at("do"));
    lanes::xla::FillDelta({o, dout, floats(values["lse"]), {s.batch, s.num_q_heads, s.q_len, s.dim_v}}, 1,
                          floats(delta));
  }
  return ran;
}

}  // namespace tessera
