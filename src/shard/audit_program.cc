#include "shard/audit_program.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/spelling.h"

namespace tessera::shard {
namespace {

pjrt::ElementType ToPjrt(ElementType type) {
  switch (type) {
    case ElementType::kF32:
      return pjrt::ElementType::kF32;
    case ElementType::kBf16:
      return pjrt::ElementType::kBf16;
    case ElementType::kF16:
      return pjrt::ElementType::kF16;
    case ElementType::kI8:
      return pjrt::ElementType::kS8;
    case ElementType::kI16:
      return pjrt::ElementType::kS16;
    case ElementType::kI32:
      return pjrt::ElementType::kS32;
    case ElementType::kI64:
      return pjrt::ElementType::kS64;
    case ElementType::kBool:
      return pjrt::ElementType::kPred;
  }
  return pjrt::ElementType::kF32;
}

// Which part of each dimension each device holds, by the spec.
std::vector<std::vector<int64_t>> TilesOfSpec(const ShardRow& row, const Mesh& mesh) {
  std::vector<std::vector<int64_t>> tiles;
  for (int64_t device = 0; device < mesh.NumDevices(); ++device) {
    const std::vector<int64_t> at = mesh.Coordinates(device);
    std::vector<int64_t>& own = tiles.emplace_back(row.tensor.dims.size(), 0);
    for (size_t dim = 0; dim < own.size(); ++dim) {
      for (const std::string& axis : (*row.spec)[dim]) {
        for (size_t i = 0; i < mesh.axes.size(); ++i) {
          if (mesh.axes[i].name == axis) own[dim] = own[dim] * mesh.axes[i].size + at[i];
        }
      }
    }
  }
  return tiles;
}

std::vector<std::vector<int64_t>> Sorted(std::vector<std::vector<int64_t>> groups) {
  for (std::vector<int64_t>& group : groups) std::sort(group.begin(), group.end());
  std::sort(groups.begin(), groups.end());
  return groups;
}

class Auditor {
 public:
  Auditor(const ShardTable& table, const pjrt::OptimizedProgram& program) : table_(table), program_(program) {}

  void AuditArguments(const std::vector<std::string>& names) {
    if (!Counts("arguments", names, program_.parameters)) return;
    for (size_t i = 0; i < names.size(); ++i) {
      const ShardRow* row = FindRow(names[i]);
      arguments_.push_back(row);
      if (row == nullptr) continue;
      const pjrt::Sharding* sharding =
          program_.parameter_shardings.size() == names.size() ? &program_.parameter_shardings[i] : nullptr;
      AuditTensor(fmt::format("argument {} ({})", i, names[i]), *row, (*program_.parameters)[i], sharding);
      if (row->tensor.dims == (*program_.parameters)[i].dims)
        report_.replicated_bytes += BytesOfType((*program_.parameters)[i]);
    }
  }

  void AuditResults(const std::vector<std::string>& names) {
    if (!Counts("results", names, program_.results)) return;
    // One result has its own sharding, several a tuple of them.
    std::vector<const pjrt::Sharding*> shardings(names.size(), nullptr);
    if (const auto& whole = program_.result_sharding) {
      if (whole->kind == pjrt::Sharding::Kind::kTuple && whole->tuple.size() == names.size()) {
        for (size_t i = 0; i < names.size(); ++i) shardings[i] = &whole->tuple[i];
      } else if (whole->kind != pjrt::Sharding::Kind::kTuple) {
        std::fill(shardings.begin(), shardings.end(), &*whole);
      }
    }
    for (size_t i = 0; i < names.size(); ++i) {
      const ShardRow* row = FindRow(names[i]);
      if (row == nullptr) continue;
      AuditTensor(fmt::format("result {} ({})", i, names[i]), *row, (*program_.results)[i], shardings[i]);
    }
  }

  void AuditCollectives() {
    for (const pjrt::Collective& collective : program_.collective_calls) {
      const int64_t bytes = pjrt::CarriedBytes(collective, table_.mesh.NumDevices());
      std::vector<std::string> of;
      for (const int64_t parameter : collective.of_parameters) {
        const ShardRow* row = ArgumentAt(parameter);
        if (row == nullptr) continue;
        of.push_back(row->tensor.name);
        const bool is_kept = row->tensor.role != TensorRole::kActivation;
        if (collective.kind == "all-gather" && is_kept && !IsImplied(collective, *row)) {
          Violate(row->tensor.name, fmt::format("no gathering of what {} keeps apart; the program has {}",
                                                ToText(row->spec.value_or(SpecAxes{})), pjrt::ToText(collective)));
        }
      }
      std::string line = pjrt::ToText(collective);
      if (!of.empty()) line += fmt::format(" of {}", fmt::join(of, ", "));
      line += bytes < 0 ? ", bytes unknown" : fmt::format(", {} bytes", Grouped(bytes));
      report_.collectives.push_back(std::move(line));
      report_.carried_bytes += std::max<int64_t>(bytes, 0);
    }
  }

  Result<ProgramReport> Finish(const ProgramLimits& limits) {
    const int64_t temporary = std::max<int64_t>(limits.temp_bytes, 0);
    if (limits.device_bytes && (report_.device_bytes > *limits.device_bytes - temporary)) {
      Violate("bytes of a device", fmt::format("at most {}: arguments and results are {}, and temporary {}",
                                               *limits.device_bytes, report_.device_bytes, temporary));
    }
    if (!violations_.empty()) return Fail(ErrorCode::kShardProgram, std::move(violations_), program_.module_name);
    return std::move(report_);
  }

 private:
  void Violate(std::string field, std::string expected) {
    violations_.push_back({std::move(field), std::move(expected)});
  }

  static int64_t BytesOfType(const pjrt::TensorType& type) {
    return pjrt::CheckTensorType(type, "") ? type.bytes() : 0;
  }

  const ShardRow* FindRow(const std::string& name) {
    const ShardRow* row = table_.Find(name);
    if (row == nullptr) Violate(name, "a tensor of the table");
    return row;
  }

  const ShardRow* ArgumentAt(int64_t parameter) const {
    return parameter >= 0 && parameter < static_cast<int64_t>(arguments_.size())
               ? arguments_[static_cast<size_t>(parameter)]
               : nullptr;
  }

  bool Counts(const char* what, const std::vector<std::string>& names,
              const std::optional<std::vector<pjrt::TensorType>>& types) {
    if (!types) {
      Violate(what, "types that the program tells, all of ours");
      return false;
    }
    if (types->size() != names.size()) {
      Violate(what, fmt::format("{}, as were named; the program has {}", names.size(), types->size()));
      return false;
    }
    return true;
  }

  void AuditTensor(const std::string& field, const ShardRow& row, pjrt::TensorType type,
                   const pjrt::Sharding* sharding) {
    const Result<pjrt::TensorType> expected = LocalType(row, table_.mesh);
    if (!expected) return Violate(field, expected.error().message);
    // There is no unsigned type to declare: such words are declared as signed ones.
    if (type.type == pjrt::ElementType::kU32) type.type = pjrt::ElementType::kS32;
    const std::string spec = ToText(*row.spec);
    if (type != *expected) {
      Violate(field, fmt::format("{} on each device, for {}; the program has {}", pjrt::ToText(*expected), spec,
                                 pjrt::ToText(type)));
    }
    report_.device_bytes += BytesOfType(type);
    report_.total_bytes += BytesOfType({expected->type, row.tensor.dims});
    const int64_t devices = table_.mesh.NumDevices();
    if (devices == 1) return;  // XLA writes none down
    if (sharding == nullptr) return Violate(field, fmt::format("the sharding of {}; the program tells none", spec));
    const auto tiles = pjrt::TilesOfDevices(*sharding, row.tensor.dims.size(), devices);
    if (!tiles || *tiles != TilesOfSpec(row, table_.mesh)) {
      Violate(field, fmt::format("the sharding of {}; the program has {}", spec, pjrt::ToText(*sharding)));
    }
  }

  // ZeRO-3 keeps a parameter in pieces and brings them together before each use: along `data`, and no other axis.
  bool IsImplied(const pjrt::Collective& collective, const ShardRow& row) const {
    if (!row.zero_dim) return false;
    const auto over_data = Sorted(table_.mesh.Groups({std::string(kDataAxis)}));
    if (collective.groups.empty()) return over_data.size() == 1;
    return Sorted(collective.groups) == over_data;
  }

  const ShardTable& table_;
  const pjrt::OptimizedProgram& program_;
  std::vector<const ShardRow*> arguments_;
  std::vector<Violation> violations_;
  ProgramReport report_;
};

}  // namespace

Result<pjrt::TensorType> LocalType(const ShardRow& row, const Mesh& mesh) {
  std::optional<std::vector<int64_t>> local = LocalDims(row, mesh);
  if (!local) return Fail(ErrorCode::kShardAudit, "a spec that fits the tensor and the mesh", row.tensor.name);
  return pjrt::TensorType{ToPjrt(row.tensor.type), std::move(*local)};
}

std::string ShardyText(const Mesh& mesh) {
  std::vector<std::string> axes;
  for (const MeshAxis& axis : mesh.axes) axes.push_back(fmt::format("\"{}\"={}", axis.name, axis.size));
  return fmt::format("sdy.mesh @mesh = <[{}]>", fmt::join(axes, ", "));
}

std::string ShardyText(const ShardRow& row) {
  std::vector<std::string> dims;
  for (const std::vector<std::string>& own : row.spec.value_or(SpecAxes(row.tensor.dims.size()))) {
    std::vector<std::string> axes;
    for (const std::string& axis : own) axes.push_back(fmt::format("\"{}\"", axis));
    dims.push_back(fmt::format("{{{}}}", fmt::join(axes, ", ")));
  }
  return fmt::format("#sdy.sharding<@mesh, [{}]>", fmt::join(dims, ", "));
}

Result<ProgramReport> AuditProgram(const ShardTable& table, const ProgramTensors& tensors,
                                   const pjrt::OptimizedProgram& program, const ProgramLimits& limits) {
  Auditor auditor(table, program);
  auditor.AuditArguments(tensors.arguments);
  auditor.AuditResults(tensors.results);
  auditor.AuditCollectives();
  return auditor.Finish(limits);
}

}  // namespace tessera::shard
