// The audit before launch: everything that must not be, in one list.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/checked.h"
#include "base/spelling.h"
#include "tessera/shard.h"

namespace tessera {
namespace {

class Auditor {
 public:
  explicit Auditor(const ShardTable& table) : table_(table), mesh_(table.mesh) {}

  std::vector<Violation> Audit(const AuditLimits& limits) {
    const int64_t needed = mesh_.NumDevices();
    if (limits.num_devices && *limits.num_devices != needed) {
      Violate("mesh", fmt::format("as many devices as the launch has: {} needs {}, there are {}", ToText(mesh_), needed,
                                  *limits.num_devices));
    }
    for (const ShardRow& row : table_.rows) AuditRow(row);
    AuditHeads();
    AuditCeilings(limits);
    return std::move(violations_);
  }

 private:
  void Violate(std::string field, std::string expected) {
    violations_.push_back({std::move(field), std::move(expected)});
  }

  void AuditRow(const ShardRow& row) {
    const std::string& name = row.tensor.name;
    if (!row.spec) {
      return Violate(name, fmt::format("a spec of its own, as for every {}: {}", ToText(row.tensor.role), row.source));
    }
    if (row.spec->size() != row.tensor.dims.size()) {
      return Violate(name, fmt::format("a spec of {} dimensions; {} ({}) has {}", row.tensor.dims.size(),
                                       ToText(*row.spec), row.source, row.spec->size()));
    }
    std::set<std::string> seen;
    for (size_t dim = 0; dim < row.spec->size(); ++dim) {
      int64_t parts = 1;
      for (const std::string& axis : (*row.spec)[dim]) {
        if (!mesh_.Has(axis)) {
          Violate(name,
                  fmt::format("axes of the mesh {}; {} is none of it ({})", ToText(mesh_), Excerpt(axis), row.source));
        }
        if (!seen.insert(axis).second) Violate(name, fmt::format("each axis once; {} cuts it twice", Excerpt(axis)));
        parts *= mesh_.SizeOf(axis);  // at most the mesh's devices, but for an axis that is there twice
        if (parts > kMaxMeshDevices) break;
      }
      if (row.tensor.dims[dim] % parts != 0) {
        Violate(name, fmt::format("a dimension {} that divides by {}, for {}: {} does not", dim, parts,
                                  ToText(*row.spec), row.tensor.dims[dim]));
      }
    }
  }

  // Heads are whole things: a cut through one would be another model.
  void AuditHeads() {
    const int64_t model = mesh_.SizeOf(kModelAxis);
    const auto is_by_heads = [](const ShardRow& row) { return row.is_by_heads; };
    const auto first = std::find_if(table_.rows.begin(), table_.rows.end(), is_by_heads);
    if (model < 2 || first == table_.rows.end()) return;
    if (table_.num_q_heads == 0) {
      return Violate("model.num_heads", fmt::format("given, to cut {} along model={}", first->tensor.name, model));
    }
    if (table_.num_q_heads % model != 0) {
      Violate("model.num_heads",
              fmt::format("a number that divides by model={}: {} does not", model, table_.num_q_heads));
    }
    if (table_.num_kv_heads % model != 0) {
      Violate("model.num_kv_heads",
              fmt::format("a number that divides by model={}: {} does not", model, table_.num_kv_heads));
    }
  }

  void AuditCeilings(const AuditLimits& limits) {
    const ShardFigures figures = FiguresOf(table_);
    if (limits.device_bytes && figures.device_bytes > *limits.device_bytes) {
      Violate("bytes of a device", fmt::format("at most {}: {}", *limits.device_bytes, figures.device_bytes));
    }
    if (limits.replicated_fraction && figures.ReplicatedFraction() > *limits.replicated_fraction) {
      Violate("replicated fraction of all bytes",
              fmt::format("at most {:.4g}: {:.4g}", *limits.replicated_fraction, figures.ReplicatedFraction()));
    }
  }

  const ShardTable& table_;
  const Mesh& mesh_;
  std::vector<Violation> violations_;
};

}  // namespace

double ShardFigures::ReplicatedFraction() const {
  return total_bytes == 0 ? 0.0 : static_cast<double>(replicated_bytes) / static_cast<double>(total_bytes);
}

ShardFigures FiguresOf(const ShardTable& table) {
  ShardFigures figures;
  const auto add = [](int64_t& sum, int64_t bytes) {
    if (__builtin_add_overflow(sum, bytes, &sum)) sum = INT64_MAX;
  };
  for (const ShardRow& row : table.rows) {
    if (row.tensor.role == TensorRole::kActivation) continue;
    const std::optional<int64_t> elements = CheckedProduct(row.tensor.dims);
    const int64_t bytes = CheckedMul(elements.value_or(INT64_MAX), BytesOf(row.tensor.type)).value_or(INT64_MAX);
    // What cannot be placed is counted as whole: the audit refuses it anyway.
    const std::optional<std::vector<int64_t>> local = LocalDims(row, table.mesh);
    int64_t parts = 1;
    for (size_t dim = 0; local && dim < local->size(); ++dim) {
      if ((*local)[dim] > 0) parts *= row.tensor.dims[dim] / (*local)[dim];
    }
    add(figures.total_bytes, bytes);
    add(figures.device_bytes, bytes / parts);
    if (parts == 1) add(figures.replicated_bytes, bytes);
  }
  return figures;
}

Status AuditShards(const ShardTable& table, const AuditLimits& limits) {
  if (Status ok = CheckMesh(table.mesh); !ok) return ok;
  std::vector<Violation> violations = Auditor(table).Audit(limits);
  if (violations.empty()) return {};
  return Fail(ErrorCode::kShardAudit, std::move(violations), "mesh " + ToText(table.mesh));
}

}  // namespace tessera
