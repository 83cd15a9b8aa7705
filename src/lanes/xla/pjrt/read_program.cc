#include "lanes/xla/pjrt/read_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "lanes/xla/pjrt/wire.h"

namespace tessera::pjrt {
namespace {

// Field numbers of XLA's hlo.proto and xla_data.proto.
namespace with_config_field {
constexpr uint32_t kModule = 1;
}

namespace module_field {
constexpr uint32_t kName = 1;
constexpr uint32_t kComputations = 3;
constexpr uint32_t kProgramShape = 4;
constexpr uint32_t kOutputSharding = 12;
constexpr uint32_t kParameterShardings = 14;
}  // namespace module_field

namespace program_shape_field {
constexpr uint32_t kParameters = 1;
constexpr uint32_t kResult = 2;
}  // namespace program_shape_field

namespace computation_field {
constexpr uint32_t kInstructions = 2;
}

namespace instruction_field {
constexpr uint32_t kOpcode = 2;
constexpr uint32_t kCustomCallTarget = 28;
constexpr uint32_t kSharding = 40;
constexpr uint32_t kBackendConfig = 43;
}  // namespace instruction_field

tl::unexpected<Error> Bad(const std::string& message, const std::string& where) {
  return Fail(ErrorCode::kPluginFailed, "not an optimized program: " + message, where);
}

tl::unexpected<Error> Bad(const WireReader& reader, const std::string& where) { return Bad(reader.Fault(), where); }

std::string ReadTypes(std::string_view bytes, std::optional<std::vector<TensorType>>& types) {
  HloArrays arrays;
  if (std::string fault = ReadShape(bytes, arrays); !fault.empty()) return fault;
  for (std::optional<TensorType>& array : arrays) {
    if (!array) {
      types.reset();
      return {};
    }
    if (types) types->push_back(std::move(*array));
  }
  return {};
}

Status ReadProgramShape(std::string_view bytes, OptimizedProgram& program) {
  program.parameters.emplace();
  program.results.emplace();
  WireReader reader(bytes);
  for (WireField field; reader.Next(field);) {
    std::string fault;
    if (field.number == program_shape_field::kParameters) fault = ReadTypes(field.bytes, program.parameters);
    if (field.number == program_shape_field::kResult) fault = ReadTypes(field.bytes, program.results);
    if (!fault.empty()) return Bad(fault, "program shape");
  }
  if (!reader.ok()) return Bad(reader, "program shape");
  return {};
}

// libtpu's note in a kernel's configuration, which is JSON: `"used_scoped_memory_configs":[{"memory_space":"1",
// "offset":"0","size":"364544"}]`. Memory space 1 is vector memory. -1 where it says nothing of the kind.
int64_t UsedVectorMemory(std::string_view config) {
  const auto after = [&](std::string_view word) {
    const size_t at = config.find(word);
    config = at == std::string_view::npos ? std::string_view() : config.substr(at + word.size());
    return !config.empty();
  };
  if (!after("\"used_scoped_memory_configs\":[{")) return -1;
  config = config.substr(0, config.find(']'));
  int64_t most = -1;
  while (after("\"memory_space\":\"1\"")) {
    const std::string_view rest = config.substr(0, config.find('}'));
    constexpr std::string_view kSize = "\"size\":\"";
    const size_t at = rest.find(kSize);
    int64_t size = -1;
    if (at == std::string_view::npos) continue;
    const char* begin = rest.data() + at + kSize.size();
    if (std::from_chars(begin, rest.data() + rest.size(), size).ec == std::errc()) most = std::max(most, size);
  }
  return most;
}

Status ReadInstruction(std::string_view bytes, OptimizedProgram& program) {
  const std::string where = fmt::format("instruction {}", program.instructions);
  std::string_view opcode;
  std::string_view target;
  std::string_view config;
  WireReader reader(bytes);
  for (WireField field; reader.Next(field);) {
    if (field.number == instruction_field::kOpcode) opcode = field.bytes;
    if (field.number == instruction_field::kCustomCallTarget) target = field.bytes;
    if (field.number == instruction_field::kBackendConfig) config = field.bytes;
    if (field.number == instruction_field::kSharding) {
      const Result<Sharding> sharding = ReadSharding(field.bytes);
      if (!sharding) return tl::unexpected(sharding.error());
      program.shardings.push_back(ToText(*sharding));
    }
  }
  if (!reader.ok()) return Bad(reader, where);
  if (opcode.empty()) return Bad("it has no opcode", where);
  ++program.instructions;
  ++program.opcodes[std::string(opcode)];
  if (opcode == "custom-call") {
    ++program.custom_calls[std::string(target)];
    program.vector_bytes = std::max(program.vector_bytes, UsedVectorMemory(config));
  }
  if (const std::string_view collective = CollectiveOf(opcode); !collective.empty()) {
    ++program.collectives[std::string(collective)];
  }
  return {};
}

Status ReadModule(std::string_view bytes, OptimizedProgram& program) {
  // Parameters and result come first in the list, wherever they stand in the bytes.
  std::vector<std::string> outer;
  bool has_computation = false;
  WireReader reader(bytes);
  for (WireField field; reader.Next(field);) {
    if (field.number == module_field::kName) program.module_name = field.bytes;
    if (field.number == module_field::kParameterShardings || field.number == module_field::kOutputSharding) {
      Result<Sharding> sharding = ReadSharding(field.bytes);
      if (!sharding) return tl::unexpected(sharding.error());
      if (field.number == module_field::kOutputSharding) {
        program.result_sharding = std::move(*sharding);
      } else {
        outer.push_back(ToText(*sharding));
        program.parameter_shardings.push_back(std::move(*sharding));
      }
    }
    if (field.number == module_field::kProgramShape) {
      if (Status ok = ReadProgramShape(field.bytes, program); !ok) return ok;
    }
    if (field.number != module_field::kComputations) continue;
    has_computation = true;
    WireReader computation(field.bytes);
    for (WireField inner; computation.Next(inner);) {
      if (inner.number != computation_field::kInstructions) continue;
      if (Status ok = ReadInstruction(inner.bytes, program); !ok) return ok;
    }
    if (!computation.ok()) return Bad(computation, "computation");
  }
  if (!reader.ok()) return Bad(reader, "module");
  if (!has_computation || program.instructions == 0) return Bad("it has no instruction", "module");
  if (program.result_sharding) outer.push_back(ToText(*program.result_sharding));
  program.shardings.insert(program.shardings.begin(), outer.begin(), outer.end());
  if (program.collectives.empty()) return {};
  Result<std::vector<Collective>> collectives = ReadCollectives(bytes);
  if (!collectives) return tl::unexpected(collectives.error());
  program.collective_calls = std::move(*collectives);
  return {};
}

}  // namespace

Result<OptimizedProgram> ReadProgram(std::span<const std::byte> bytes) {
  OptimizedProgram program;
  bool has_module = false;
  WireReader reader({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  for (WireField field; reader.Next(field);) {
    if (field.number != with_config_field::kModule || has_module) continue;
    has_module = true;
    if (Status ok = ReadModule(field.bytes, program); !ok) return tl::unexpected(ok.error());
  }
  if (!reader.ok()) return Bad(reader, "program");
  if (!has_module) return Bad("it has no module", "program");
  return program;
}

}  // namespace tessera::pjrt
