#include "xla/peer.h"

#include <chrono>
#include <cstring>
#include <numeric>

#include "lanes/xla/programs.h"

namespace tessera::bench {
namespace {

template <class T>
std::vector<std::byte> BytesOf(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// The operands that are no tensors of the problem.
std::map<std::string, std::vector<std::byte>> SmallOperands(const Problem& problem) {
  std::map<std::string, std::vector<std::byte>> operands;
  operands["scale"] = BytesOf(std::vector<float>{static_cast<float>(problem.contract.score.scale)});
  operands["window_left"] = BytesOf(std::vector<int32_t>{static_cast<int32_t>(problem.shape.window())});
  operands["lse"] = problem.outputs.at("lse").bytes;
  std::vector<float> delta(static_cast<size_t>(problem.outputs.at("lse").NumElements()));
  const auto* o = reinterpret_cast<const float*>(problem.outputs.at("o").bytes.data());
  const auto* dout = reinterpret_cast<const float*>(problem.inputs.at("do").bytes.data());
  const int64_t dim = problem.contract.shape.dim_v;
  for (size_t row = 0; row < delta.size(); ++row, o += dim, dout += dim) {
    delta[row] = std::inner_product(o, o + dim, dout, 0.0F);
  }
  operands["delta"] = BytesOf(delta);
  if (problem.batch.doc_ids) operands["documents"] = BytesOf(problem.batch.doc_ids->values);
  return operands;
}

}  // namespace

stablehlo::DenseSpec DenseSpecOf(const Problem& problem) {
  const MaskKind mask = problem.shape.mask;
  return {.shape = problem.contract.shape,
          .is_causal = mask != MaskKind::kRandomTiles,
          .has_window = mask == MaskKind::kWindow,
          .has_documents = !problem.document_lengths.empty()};
}

Result<DensePeer> DensePeer::Compile(const lanes::xla::Session& session, const stablehlo::DenseSpec& spec,
                                     stablehlo::DenseKind kind) {
  Result<stablehlo::Program> program = stablehlo::LowerDense(spec, kind);
  if (!program) return tl::unexpected(program.error());
  Result<pjrt::Executable> executable =
      session.client->Compile(program->text, lanes::xla::CompileOptionsFor(*program, {}));
  if (!executable) return tl::unexpected(executable.error());
  DensePeer peer;
  peer.session_ = session;
  peer.program_ = std::move(*program);
  peer.executable_ = std::move(*executable);
  for (const stablehlo::NamedType& output : peer.program_.outputs) {
    peer.outputs_[output.name] = Tensor::Zeros(ElementType::kF32, output.type.dims);
  }
  return peer;
}

Result<double> DensePeer::Run(const Problem& problem) {
  const auto small = SmallOperands(problem);
  const auto begin = std::chrono::steady_clock::now();
  std::vector<pjrt::Buffer> buffers;
  for (size_t i = 0; i < program_.inputs.size(); ++i) {
    const std::string& name = program_.inputs[i].name;
    const auto tensor = problem.inputs.find(name);
    const std::vector<std::byte>& bytes = tensor == problem.inputs.end() ? small.at(name) : tensor->second.bytes;
    Result<pjrt::Buffer> buffer = session_.client->Upload(executable_.inputs()[i], bytes, session_.device);
    if (!buffer) return tl::unexpected(buffer.error());
    buffers.push_back(std::move(*buffer));
  }
  std::vector<const pjrt::Buffer*> args;
  for (const pjrt::Buffer& buffer : buffers) args.push_back(&buffer);
  Result<std::vector<pjrt::Buffer>> results = executable_.Execute(args, {.device = session_.device});
  if (!results) return tl::unexpected(results.error());
  for (size_t i = 0; i < results->size(); ++i) {
    Tensor& into = outputs_.at(program_.outputs[i].name);
    if (Status ok = (*results)[i].Download(into.bytes); !ok) return tl::unexpected(ok.error());
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

Result<int64_t> DensePeer::TempBytes() const {
  const Result<pjrt::ProgramFigures> figures = executable_.Figures();
  if (!figures) return tl::unexpected(figures.error());
  return figures->temp_bytes;
}

}  // namespace tessera::bench
