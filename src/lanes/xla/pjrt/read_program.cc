#include "lanes/xla/pjrt/read_program.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
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
}

namespace shape_field {
constexpr uint32_t kElementType = 2;
constexpr uint32_t kDimensions = 3;
}  // namespace shape_field

namespace computation_field {
constexpr uint32_t kInstructions = 2;
}

namespace instruction_field {
constexpr uint32_t kOpcode = 2;
constexpr uint32_t kCustomCallTarget = 28;
constexpr uint32_t kSharding = 40;
constexpr uint32_t kBackendConfig = 43;
}  // namespace instruction_field

namespace sharding_field {
constexpr uint32_t kType = 1;
constexpr uint32_t kTileDimensions = 3;
constexpr uint32_t kTileDevices = 4;
constexpr uint32_t kTuple = 5;
constexpr uint32_t kReplicateOnLast = 6;
constexpr uint32_t kIotaDims = 9;
constexpr uint32_t kIotaPermutation = 10;
}  // namespace sharding_field

// Of tuples in tuples; XLA itself writes one level.
constexpr int kMostNesting = 8;

tl::unexpected<Error> Bad(const std::string& message, const std::string& where) {
  return Fail(ErrorCode::kPluginFailed, "not an optimized program: " + message, where);
}

tl::unexpected<Error> Bad(const WireReader& reader, const std::string& where) { return Bad(reader.Fault(), where); }

// A repeated integer field, packed or not.
Status AddIntegers(const WireField& field, std::vector<int64_t>& into, const char* where = "sharding") {
  if (field.type == 0) {
    into.push_back(static_cast<int64_t>(field.value));
    return {};
  }
  WireReader packed(field.bytes);
  for (uint64_t value = 0; !packed.at_end();) {
    if (!packed.NextVarint(value)) return Bad(packed, where);
    into.push_back(static_cast<int64_t>(value));
  }
  return {};
}

// XLA numbers its element types like PJRT up to f64, and bf16 apart.
std::optional<ElementType> OfXla(uint64_t number) {
  constexpr uint64_t kXlaBf16 = 16;
  if (number == kXlaBf16) return ElementType::kBf16;
  const bool is_ours = number >= 1 && number <= static_cast<uint64_t>(ElementType::kF64);
  return is_ours ? std::optional(static_cast<ElementType>(number)) : std::nullopt;
}

Status ReadParameters(std::string_view bytes, std::optional<std::vector<TensorType>>& parameters) {
  parameters.emplace();
  bool is_ours = true;
  WireReader reader(bytes);
  for (WireField field; reader.Next(field);) {
    if (field.number != program_shape_field::kParameters) continue;
    uint64_t type = 0;
    std::vector<int64_t> dims;
    WireReader shape(field.bytes);
    for (WireField part; shape.Next(part);) {
      if (part.number == shape_field::kElementType) type = part.value;
      if (part.number != shape_field::kDimensions) continue;
      if (Status ok = AddIntegers(part, dims, "parameter"); !ok) return ok;
    }
    if (!shape.ok()) return Bad(shape, "parameter");
    const std::optional<ElementType> element = OfXla(type);
    is_ours = is_ours && element;
    if (element) parameters->push_back({*element, std::move(dims)});
  }
  if (!reader.ok()) return Bad(reader, "program shape");
  if (!is_ours) parameters.reset();
  return {};
}

struct Sharding {
  uint64_t type = 0;
  std::vector<int64_t> tiles;
  std::vector<int64_t> devices;
  std::vector<int64_t> iota;
  std::vector<int64_t> permutation;
  std::vector<std::string> tuple;
  bool replicate_on_last = false;
};

std::string ToText(const Sharding& sharding) {
  switch (sharding.type) {
    case 0:
      return "{replicated}";
    case 1:
      return fmt::format("{{maximal device={}}}", fmt::join(sharding.devices, ","));
    case 2:
      return fmt::format("{{{}}}", fmt::join(sharding.tuple, ", "));
    case 3: {
      std::string text = fmt::format("{{devices=[{}]", fmt::join(sharding.tiles, ","));
      if (sharding.iota.empty()) {
        text += fmt::format("{}", fmt::join(sharding.devices, ","));
      } else {
        text += fmt::format("<=[{}]", fmt::join(sharding.iota, ","));
        if (sharding.permutation.size() > 1) text += fmt::format("T({})", fmt::join(sharding.permutation, ","));
      }
      return text + (sharding.replicate_on_last ? " last_tile_dim_replicate}" : "}");
    }
    case 4:
      return "{manual}";
    default:
      return fmt::format("{{kind {}}}", sharding.type);
  }
}

Result<std::string> ReadSharding(std::string_view bytes, int depth) {
  if (depth > kMostNesting) return Bad(fmt::format("tuples nest deeper than {}", kMostNesting), "sharding");
  Sharding sharding;
  WireReader reader(bytes);
  for (WireField field; reader.Next(field);) {
    Status ok;
    if (field.number == sharding_field::kType) sharding.type = field.value;
    if (field.number == sharding_field::kReplicateOnLast) sharding.replicate_on_last = field.value != 0;
    if (field.number == sharding_field::kTileDimensions) ok = AddIntegers(field, sharding.tiles);
    if (field.number == sharding_field::kTileDevices) ok = AddIntegers(field, sharding.devices);
    if (field.number == sharding_field::kIotaDims) ok = AddIntegers(field, sharding.iota);
    if (field.number == sharding_field::kIotaPermutation) ok = AddIntegers(field, sharding.permutation);
    if (!ok) return tl::unexpected(ok.error());
    if (field.number == sharding_field::kTuple) {
      Result<std::string> inner = ReadSharding(field.bytes, depth + 1);
      if (!inner) return inner;
      sharding.tuple.push_back(std::move(*inner));
    }
  }
  if (!reader.ok()) return Bad(reader, "sharding");
  return ToText(sharding);
}

// "all-reduce" for "all-reduce" and "all-reduce-start"; nothing for the matching "-done" and for what stays at home.
std::string_view CollectiveOf(std::string_view opcode) {
  static constexpr std::array<std::string_view, 9> kNames = {
      "all-reduce",         "all-gather",           "reduce-scatter", "all-to-all", "ragged-all-to-all",
      "collective-permute", "collective-broadcast", "send",           "recv"};
  for (const std::string_view name : kNames) {
    if (opcode == name) return name;
    if (opcode.starts_with(name) && opcode.substr(name.size()) == "-start") return name;
  }
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
      Result<std::string> sharding = ReadSharding(field.bytes, 0);
      if (!sharding) return tl::unexpected(sharding.error());
      program.shardings.push_back(std::move(*sharding));
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
  std::string result;
  bool has_computation = false;
  WireReader reader(bytes);
  for (WireField field; reader.Next(field);) {
    if (field.number == module_field::kName) program.module_name = field.bytes;
    if (field.number == module_field::kParameterShardings || field.number == module_field::kOutputSharding) {
      Result<std::string> sharding = ReadSharding(field.bytes, 0);
      if (!sharding) return tl::unexpected(sharding.error());
      if (field.number == module_field::kOutputSharding) {
        result = std::move(*sharding);
      } else {
        outer.push_back(std::move(*sharding));
      }
    }
    if (field.number == module_field::kProgramShape) {
      if (Status ok = ReadParameters(field.bytes, program.parameters); !ok) return ok;
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
  if (!result.empty()) outer.push_back(std::move(result));
  program.shardings.insert(program.shardings.begin(), outer.begin(), outer.end());
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
