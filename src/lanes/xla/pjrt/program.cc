#include "lanes/xla/pjrt/program.h"

#include <fmt/format.h>

#include <cstring>

namespace tessera::pjrt {
namespace {

// A figure that a plugin does not tell is no failure.
template <class Args>
bool Ask(const api::Table& table, Args& args) {
  return Call(table, args).has_value();
}

tl::unexpected<Error> FailEmpty() {
  return Fail(ErrorCode::kProgramMismatch, "the program is empty: it was moved from, or never compiled", "program");
}

}  // namespace

Result<CompiledProgram> CompiledProgram::Adopt(const api::Table& table, api::Executable* raw) {
  if (raw == nullptr) return Fail(ErrorCode::kPluginFailed, "the plugin gave no program", "program");
  CompiledProgram program;
  program.handle_ = {&table, raw};
  if (Status ok = program.ReadOutputs(); !ok) return tl::unexpected(ok.error());
  return program;
}

Status CompiledProgram::ReadOutputs() {
  const api::Table& table = handle_.table();
  api::NumOutputsArgs count{.executable = handle_.get()};
  if (Status ok = Call(table, count); !ok) return ok;
  api::OutputElementTypesArgs types{.executable = handle_.get()};
  if (Status ok = Call(table, types); !ok) return ok;
  api::OutputDimensionsArgs dims{.executable = handle_.get()};
  if (Status ok = Call(table, dims); !ok) return ok;
  if (types.num_output_types != count.num_outputs || dims.num_outputs != count.num_outputs) {
    return Fail(ErrorCode::kPluginFailed,
                fmt::format("the plugin tells {} outputs, {} element types and {} shapes", count.num_outputs,
                            types.num_output_types, dims.num_outputs),
                api::NumOutputsArgs::kName);
  }
  const int64_t* dim = dims.dims;
  for (size_t i = 0; i < count.num_outputs; ++i) {
    const std::optional<ElementType> element = ElementTypeOf(types.output_types[i]);
    if (!element) {
      return Fail(ErrorCode::kProgramMismatch,
                  fmt::format("output {} has element type {}, which is not one of ours", i, types.output_types[i]),
                  api::OutputElementTypesArgs::kName);
    }
    outputs_.push_back({*element, std::vector<int64_t>(dim, dim + dims.dim_sizes[i])});
    dim += dims.dim_sizes[i];
    if (Status ok = CheckTensorType(outputs_.back(), fmt::format("output {}", i)); !ok) return ok;
  }
  return {};
}

Result<ProgramFigures> CompiledProgram::Figures() const {
  if (!handle_) return FailEmpty();
  const api::Table& table = handle_.table();
  ProgramFigures figures;
  if (api::MemoryStatsArgs args{.executable = handle_.get()}; Ask(table, args)) {
    figures.generated_code_bytes = args.generated_code_size_in_bytes;
    figures.argument_bytes = args.argument_size_in_bytes;
    figures.output_bytes = args.output_size_in_bytes;
    figures.alias_bytes = args.alias_size_in_bytes;
    figures.temp_bytes = args.temp_size_in_bytes;
    figures.peak_bytes = args.peak_memory_in_bytes;
  }
  if (figures.generated_code_bytes <= 0) {
    if (api::CodeSizeArgs args{.executable = handle_.get()}; Ask(table, args)) {
      figures.generated_code_bytes = args.size_in_bytes;
    }
  }
  // No program has no code: a plugin that says so does not count.
  if (figures.generated_code_bytes <= 0) figures.generated_code_bytes = -1;
  if (api::CostAnalysisArgs args{.executable = handle_.get()}; Ask(table, args)) {
    for (size_t i = 0; i < args.num_properties; ++i) {
      const api::NamedValue& value = args.properties[i];
      const std::string_view name(value.name, value.name_size);
      if (value.type != api::kFloat) continue;
      if (name == "flops") figures.flops = value.float_value;
      if (name == "bytes accessed") figures.bytes_accessed = value.float_value;
    }
  }
  if (IsForkedChild()) return FailForked("figures");
  return figures;
}

Result<std::vector<std::byte>> CompiledProgram::OptimizedBytes() const {
  if (!handle_) return FailEmpty();
  const api::Table& table = handle_.table();
  api::Program program;
  api::OptimizedProgramArgs args{.executable = handle_.get(), .program = &program};
  if (Status ok = Call(table, args); !ok) return tl::unexpected(ok.error());
  // The first call tells the size, the second fills.
  std::vector<std::byte> code(program.code_size);
  program.code = reinterpret_cast<char*>(code.data());
  if (Status ok = Call(table, args); !ok) return tl::unexpected(ok.error());
  const std::string_view format(program.format, program.format_size);
  if (format != "hlo_with_config") {
    return Fail(ErrorCode::kPluginFailed,
                fmt::format("the plugin gives its optimized program as '{}'; 'hlo_with_config' was expected", format),
                api::OptimizedProgramArgs::kName);
  }
  return code;
}

Result<OptimizedProgram> CompiledProgram::Optimized() const {
  const Result<std::vector<std::byte>> bytes = OptimizedBytes();
  if (!bytes) return tl::unexpected(bytes.error());
  return ReadProgram(*bytes);
}

Result<std::vector<std::byte>> CompiledProgram::Serialize() const {
  if (!handle_) return FailEmpty();
  api::SerializeArgs args{.executable = handle_.get()};
  if (Status ok = Call(handle_.table(), args); !ok) return tl::unexpected(ok.error());
  std::vector<std::byte> bytes(args.serialized_bytes_size);
  if (!bytes.empty()) std::memcpy(bytes.data(), args.serialized_bytes, bytes.size());
  if (args.serialized_executable_deleter != nullptr) args.serialized_executable_deleter(args.serialized_executable);
  return bytes;
}

Result<std::string> CompiledProgram::Fingerprint() const {
  if (!handle_) return FailEmpty();
  api::FingerprintArgs args{.executable = handle_.get()};
  if (Status ok = Call(handle_.table(), args); !ok) return tl::unexpected(ok.error());
  return std::string(args.executable_fingerprint, args.executable_fingerprint_size);
}

}  // namespace tessera::pjrt
