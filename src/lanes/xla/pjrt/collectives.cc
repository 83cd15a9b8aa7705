#include "lanes/xla/pjrt/collectives.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <set>

#include "base/checked.h"
#include "lanes/xla/pjrt/sharding.h"
#include "lanes/xla/pjrt/wire.h"

namespace tessera::pjrt {
namespace {

// Field numbers of XLA's hlo.proto and xla_data.proto.
namespace module_field {
constexpr uint32_t kComputations = 3;
constexpr uint32_t kEntryId = 6;
}  // namespace module_field

namespace computation_field {
constexpr uint32_t kName = 1;
constexpr uint32_t kInstructions = 2;
constexpr uint32_t kId = 5;
}  // namespace computation_field

namespace instruction_field {
constexpr uint32_t kName = 1;
constexpr uint32_t kOpcode = 2;
constexpr uint32_t kShape = 3;
constexpr uint32_t kParameterNumber = 9;
constexpr uint32_t kId = 35;
constexpr uint32_t kOperands = 36;
constexpr uint32_t kCalled = 38;
constexpr uint32_t kBackendConfig = 43;
constexpr uint32_t kReplicaGroups = 49;
constexpr uint32_t kPairs = 52;
constexpr uint32_t kDeviceList = 87;
constexpr uint32_t kIotaDeviceList = 92;
}  // namespace instruction_field

namespace pair_field {
constexpr uint32_t kSource = 1;
constexpr uint32_t kTarget = 2;
}  // namespace pair_field

namespace device_list_field {
constexpr uint32_t kGroups = 1;
constexpr uint32_t kIota = 2;
}  // namespace device_list_field

namespace iota_field {
constexpr uint32_t kNumGroups = 1;
constexpr uint32_t kGroupSize = 2;
constexpr uint32_t kDims = 3;
constexpr uint32_t kPermutation = 4;
}  // namespace iota_field

// Of devices in groups: more than any machine has, and little to hold.
constexpr int64_t kMostDevices = int64_t{1} << 20;

// What leaves a value what it is, wherever it puts it.
constexpr std::array<std::string_view, 13> kMoving = {
    "bitcast",   "bitcast-convert",      "convert",        "copy",      "copy-start",
    "copy-done", "get-tuple-element",    "reshape",        "transpose", "dynamic-slice",
    "slice",     "optimization-barrier", "all-gather-done"};

tl::unexpected<Error> Bad(const std::string& message, const std::string& where) {
  return Fail(ErrorCode::kPluginFailed, "not an optimized program: " + message, where);
}

struct Instruction {
  std::string_view name;
  std::string_view opcode;
  std::string_view shape;
  std::string_view config;
  int64_t id = 0;
  int64_t parameter = 0;
  std::vector<int64_t> operands;
  std::vector<int64_t> called;
  std::vector<std::vector<int64_t>> groups;
  std::vector<std::pair<int64_t, int64_t>> pairs;
};

struct Computation {
  std::string_view name;
  int64_t id = 0;
  std::vector<Instruction> instructions;
  std::map<int64_t, size_t> by_id;

  const Instruction* Find(int64_t instruction) const {
    const auto at = by_id.find(instruction);
    return at == by_id.end() ? nullptr : &instructions[at->second];
  }
};

std::string ReadIotaGroups(std::string_view bytes, Instruction& into) {
  int64_t num_groups = 0;
  int64_t group_size = 0;
  std::vector<int64_t> dims;
  std::vector<int64_t> permutation;
  WireReader reader(bytes);
  for (WireField field; reader.Next(field);) {
    std::string fault;
    if (field.number == iota_field::kNumGroups) num_groups = static_cast<int64_t>(field.value);
    if (field.number == iota_field::kGroupSize) group_size = static_cast<int64_t>(field.value);
    if (field.number == iota_field::kDims) fault = AddIntegers(field, dims);
    if (field.number == iota_field::kPermutation) fault = AddIntegers(field, permutation);
    if (!fault.empty()) return fault;
  }
  if (!reader.ok()) return reader.Fault();
  if (num_groups == 0 && group_size == 0) return {};
  if (num_groups < 1 || group_size < 1 || num_groups > kMostDevices / group_size) return "groups of no size";
  const std::vector<int64_t> devices = Iota(dims, permutation, num_groups * group_size);
  if (devices.empty()) return "groups that do not go together";
  for (int64_t group = 0; group < num_groups; ++group) {
    const auto begin = devices.begin() + group * group_size;
    into.groups.emplace_back(begin, begin + group_size);
  }
  return {};
}

std::string ReadGroup(std::string_view bytes, Instruction& into) {
  std::vector<int64_t> group;
  WireReader reader(bytes);
  for (WireField field; reader.Next(field);) {
    if (field.number != 1) continue;
    if (std::string fault = AddIntegers(field, group); !fault.empty()) return fault;
  }
  if (!reader.ok()) return reader.Fault();
  into.groups.push_back(std::move(group));
  return {};
}

std::string ReadDeviceList(std::string_view bytes, Instruction& into) {
  WireReader reader(bytes);
  for (WireField field; reader.Next(field);) {
    std::string fault;
    if (field.number == device_list_field::kGroups) fault = ReadGroup(field.bytes, into);
    if (field.number == device_list_field::kIota) fault = ReadIotaGroups(field.bytes, into);
    if (!fault.empty()) return fault;
  }
  return reader.ok() ? std::string() : reader.Fault();
}

std::string ReadPair(std::string_view bytes, Instruction& into) {
  std::pair<int64_t, int64_t> pair = {0, 0};  // zeros are not written
  WireReader reader(bytes);
  for (WireField field; reader.Next(field);) {
    if (field.number == pair_field::kSource) pair.first = static_cast<int64_t>(field.value);
    if (field.number == pair_field::kTarget) pair.second = static_cast<int64_t>(field.value);
  }
  if (!reader.ok()) return reader.Fault();
  into.pairs.push_back(pair);
  return {};
}

std::string ReadInstruction(std::string_view bytes, Instruction& into) {
  std::string fault;
  std::vector<std::vector<int64_t>> old_groups;
  WireReader reader(bytes);
  for (WireField field; fault.empty() && reader.Next(field);) {
    switch (field.number) {
      case instruction_field::kName:
        into.name = field.bytes;
        break;
      case instruction_field::kOpcode:
        into.opcode = field.bytes;
        break;
      case instruction_field::kShape:
        into.shape = field.bytes;
        break;
      case instruction_field::kBackendConfig:
        into.config = field.bytes;
        break;
      case instruction_field::kId:
        into.id = static_cast<int64_t>(field.value);
        break;
      case instruction_field::kParameterNumber:
        into.parameter = static_cast<int64_t>(field.value);
        break;
      case instruction_field::kOperands:
        fault = AddIntegers(field, into.operands);
        break;
      case instruction_field::kCalled:
        fault = AddIntegers(field, into.called);
        break;
      case instruction_field::kReplicaGroups: {
        Instruction old;
        fault = ReadGroup(field.bytes, old);
        old_groups.insert(old_groups.end(), old.groups.begin(), old.groups.end());
        break;
      }
      case instruction_field::kPairs:
        fault = ReadPair(field.bytes, into);
        break;
      case instruction_field::kDeviceList:
        fault = ReadDeviceList(field.bytes, into);
        break;
      case instruction_field::kIotaDeviceList:
        fault = ReadIotaGroups(field.bytes, into);
        break;
      default:
        break;
    }
  }
  // The old place of groups repeats what a newer one says.
  if (into.groups.empty()) into.groups = std::move(old_groups);
  if (!fault.empty()) return fault;
  return reader.ok() ? std::string() : reader.Fault();
}

struct Module {
  std::map<int64_t, Computation> computations;
  int64_t entry = 0;
};

Result<Module> ReadModule(std::string_view bytes) {
  Module module;
  WireReader reader(bytes);
  for (WireField field; reader.Next(field);) {
    if (field.number == module_field::kEntryId) module.entry = static_cast<int64_t>(field.value);
    if (field.number != module_field::kComputations) continue;
    Computation computation;
    WireReader inside(field.bytes);
    for (WireField part; inside.Next(part);) {
      if (part.number == computation_field::kName) computation.name = part.bytes;
      if (part.number == computation_field::kId) computation.id = static_cast<int64_t>(part.value);
      if (part.number != computation_field::kInstructions) continue;
      Instruction instruction;
      if (std::string fault = ReadInstruction(part.bytes, instruction); !fault.empty())
        return Bad(fault, "instruction");
      computation.by_id.emplace(instruction.id, computation.instructions.size());
      computation.instructions.push_back(std::move(instruction));
    }
    if (!inside.ok()) return Bad(inside.Fault(), "computation");
    const int64_t id = computation.id;
    module.computations.emplace(id, std::move(computation));
  }
  if (!reader.ok()) return Bad(reader.Fault(), "module");
  return module;
}

// `"known_trip_count":{"n":"4"}` of a loop's configuration, which is JSON; -1 where it says nothing of the kind.
int64_t KnownTrips(std::string_view config) {
  constexpr std::string_view kCount = "\"known_trip_count\":{\"n\":\"";
  const size_t at = config.find(kCount);
  if (at == std::string_view::npos) return -1;
  int64_t trips = -1;
  const char* begin = config.data() + at + kCount.size();
  const auto read = std::from_chars(begin, config.data() + config.size(), trips);
  return read.ec == std::errc() && trips >= 0 ? trips : -1;
}

// How often a computation runs, by the loops around it.
struct Use {
  bool in_loop = false;
  int64_t trips = 1;
};

// From the entry inwards. A computation that calls itself is no program: each is visited once, and the first use that
// is in a loop counts.
std::map<int64_t, Use> FindUses(const Module& module) {
  std::map<int64_t, Use> uses = {{module.entry, Use{}}};
  std::vector<int64_t> open = {module.entry};
  while (!open.empty()) {
    const int64_t at = open.back();
    open.pop_back();
    const auto computation = module.computations.find(at);
    if (computation == module.computations.end()) continue;
    const Use outer = uses[at];
    for (const Instruction& instruction : computation->second.instructions) {
      for (const int64_t called : instruction.called) {
        Use use = outer;
        if (instruction.opcode == "while") {
          const int64_t trips = KnownTrips(instruction.config);
          use.in_loop = true;
          use.trips =
              trips < 0 || outer.trips < 0 || (trips > 0 && outer.trips > INT64_MAX / trips) ? -1 : trips * outer.trips;
        }
        const auto known = uses.find(called);
        if (known != uses.end() && (known->second.in_loop || !use.in_loop)) continue;
        uses[called] = use;
        open.push_back(called);
      }
    }
  }
  return uses;
}

// Does a fusion only move and convert: one input, and nothing in it that computes?
bool IsMoving(const Module& module, const Instruction& instruction) {
  if (std::find(kMoving.begin(), kMoving.end(), instruction.opcode) != kMoving.end()) return true;
  if (instruction.opcode != "fusion" && instruction.opcode != "call") return false;
  for (const int64_t id : instruction.called) {
    const auto called = module.computations.find(id);
    if (called == module.computations.end()) return false;
    for (const Instruction& inner : called->second.instructions) {
      const bool is_plain = inner.opcode == "parameter" || inner.opcode == "constant" ||
                            std::find(kMoving.begin(), kMoving.end(), inner.opcode) != kMoving.end();
      if (!is_plain) return false;
    }
  }
  return !instruction.called.empty();
}

// The entry's parameters that an instruction of the entry is made of by moving alone.
std::vector<int64_t> ParametersOf(const Module& module, const Computation& computation,
                                  const Instruction& instruction) {
  if (computation.id != module.entry) return {};
  std::set<int64_t> found;
  std::set<int64_t> seen;
  std::vector<int64_t> open = instruction.operands;
  while (!open.empty()) {
    const int64_t id = open.back();
    open.pop_back();
    if (!seen.insert(id).second) continue;
    const Instruction* at = computation.Find(id);
    if (at == nullptr) continue;
    if (at->opcode == "parameter") {
      found.insert(at->parameter);
    } else if (IsMoving(module, *at)) {
      // Of a slice, what is cut and not where.
      const bool is_cut = at->opcode == "dynamic-slice" && !at->operands.empty();
      if (is_cut) {
        open.push_back(at->operands.front());
      } else {
        open.insert(open.end(), at->operands.begin(), at->operands.end());
      }
    }
  }
  return {found.begin(), found.end()};
}

}  // namespace

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

Result<std::vector<Collective>> ReadCollectives(std::string_view bytes) {
  Result<Module> module = ReadModule(bytes);
  if (!module) return tl::unexpected(module.error());
  const std::map<int64_t, Use> uses = FindUses(*module);
  std::vector<Collective> collectives;
  for (const auto& [id, computation] : module->computations) {
    for (const Instruction& instruction : computation.instructions) {
      const std::string_view kind = CollectiveOf(instruction.opcode);
      if (kind.empty()) continue;
      Collective collective;
      // libtpu's form of a reduce-scatter: a computation of that name with an all-reduce and a slice in it.
      const bool is_scatter = kind == "all-reduce" && computation.name.starts_with("all-reduce-scatter");
      collective.kind = is_scatter ? "reduce-scatter" : std::string(kind);
      collective.name = instruction.name;
      for (const int64_t operand : instruction.operands) {
        const Instruction* from = computation.Find(operand);
        if (from == nullptr) return Bad("an operand is not there", std::string(instruction.name));
        if (std::string fault = ReadShape(from->shape, collective.operands); !fault.empty()) {
          return Bad(fault, std::string(from->name));
        }
      }
      collective.groups = instruction.groups;
      collective.pairs = instruction.pairs;
      if (const auto use = uses.find(id); use != uses.end()) {
        collective.in_loop = use->second.in_loop;
        collective.known_trips = use->second.trips;
      }
      collective.of_parameters = ParametersOf(*module, computation, instruction);
      collectives.push_back(std::move(collective));
    }
  }
  return collectives;
}

int64_t CarriedBytes(const Collective& collective, int64_t num_devices) {
  int64_t operand_bytes = 0;
  for (const std::optional<TensorType>& operand : collective.operands) {
    if (!operand || !CheckTensorType(*operand, collective.name)) return -1;
    if (__builtin_add_overflow(operand_bytes, operand->bytes(), &operand_bytes)) return -1;
  }
  const auto times = [&](int64_t count) { return CheckedMul(operand_bytes, count).value_or(-1); };
  if (collective.kind == "collective-permute") {
    const auto travels = [](const std::pair<int64_t, int64_t>& pair) { return pair.first != pair.second; };
    return times(std::count_if(collective.pairs.begin(), collective.pairs.end(), travels));
  }
  std::vector<int64_t> sizes;
  for (const std::vector<int64_t>& group : collective.groups) sizes.push_back(static_cast<int64_t>(group.size()));
  if (sizes.empty()) sizes.push_back(num_devices);
  // In operands: each of a group's devices, but for what a device keeps of its own.
  int64_t operands = 0;
  for (const int64_t size : sizes) {
    if (size < 1) continue;
    const int64_t others = size - 1;
    if (collective.kind == "all-gather") operands += others * size;
    if (collective.kind == "reduce-scatter" || collective.kind == "all-to-all") operands += others;
    if (collective.kind == "all-reduce") operands += 2 * others;
    if (collective.kind == "collective-broadcast") operands += others;
  }
  return times(operands);
}

std::string ToText(const Collective& collective) {
  std::vector<std::string> operands;
  for (const std::optional<TensorType>& operand : collective.operands) {
    operands.push_back(operand ? ToText(*operand) : "?");
  }
  std::string text = fmt::format("{} {}", collective.kind, fmt::join(operands, " "));
  if (!collective.pairs.empty()) {
    text += fmt::format(" over {} pairs", collective.pairs.size());
  } else if (!collective.groups.empty()) {
    text += fmt::format(" in groups of {}", collective.groups.front().size());
  }
  if (collective.in_loop) {
    text += collective.known_trips < 0 ? " in a loop" : fmt::format(" {} times", collective.known_trips);
  }
  return text;
}

}  // namespace tessera::pjrt
