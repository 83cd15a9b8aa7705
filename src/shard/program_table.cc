// See program_table.h.
#include "shard/program_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/checked.h"
#include "base/try.h"

namespace tessera::shard {
namespace {

std::string InWords(const ProgramTensor& tensor) {
  const std::string axis = tensor.axis < 0 ? "whole on each device" : fmt::format("cut along {}", tensor.axis);
  if (tensor.dims.empty() && tensor.axis >= 0) return axis;
  return fmt::format("{}[{}] {}", ToText(tensor.type), fmt::join(tensor.dims, ","), axis);
}

class Table {
 public:
  explicit Table(const Mesh& mesh) : mesh_(mesh) {}

  void Add(const std::vector<ProgramTensor>& known, const std::vector<ProgramTensor>& declared) {
    for (const ProgramTensor& tensor : declared) {
      const auto at = std::find_if(known.begin(), known.end(), [&](const auto& k) { return k.name == tensor.name; });
      ProgramTensor row = tensor;
      if (at != known.end()) {
        if (!at->dims.empty() || at->axis < 0) {
          row = *at;
        } else {
          row.axis = at->axis;
        }
        const bool is_same = row.type == tensor.type && row.dims == tensor.dims && row.axis == tensor.axis;
        if (!is_same) Violate(tensor.name, fmt::format("{}; the program has {}", InWords(row), InWords(tensor)));
      }
      AddRow(row, at != known.end() ? "contract and cut" : "the program's own: a table of the plan");
    }
    for (const ProgramTensor& tensor : known) {
      const bool is_there = std::any_of(declared.begin(), declared.end(),
                                        [&](const ProgramTensor& one) { return one.name == tensor.name; });
      if (!is_there) Violate(tensor.name, "a tensor of the program, which has none of that name");
    }
  }

  Result<ShardTable> Finish(std::optional<int64_t> max_device_bytes) {
    if (max_device_bytes && bytes_ > *max_device_bytes) {
      Violate("bytes of a device", fmt::format("at most {}: arguments and results are {}", *max_device_bytes, bytes_));
    }
    if (Status audited = AuditShards(table_); !audited) {
      const std::vector<Violation>& more = audited.error().violations;
      violations_.insert(violations_.end(), more.begin(), more.end());
      if (more.empty()) return tl::unexpected(std::move(audited.error()));
    }
    if (violations_.empty()) return std::move(table_);
    return Fail(ErrorCode::kShardAudit, std::move(violations_), "mesh " + ToText(mesh_));
  }

 private:
  void Violate(std::string field, std::string expected) {
    violations_.push_back({std::move(field), std::move(expected)});
  }

  void AddRow(const ProgramTensor& tensor, const char* source) {
    table_.mesh = mesh_;
    ShardRow row{.tensor = {tensor.name, TensorRole::kActivation, tensor.type, tensor.dims},
                 .spec = SpecAxes(tensor.dims.size()),
                 .source = source,
                 .is_pinned = tensor.axis < 0};
    if (tensor.axis >= 0 && tensor.axis < static_cast<int64_t>(tensor.dims.size())) {
      (*row.spec)[static_cast<size_t>(tensor.axis)] = {mesh_.axes.front().name};
    }
    const std::optional<std::vector<int64_t>> local = LocalDims(row, mesh_);
    const std::optional<int64_t> elements = local ? CheckedProduct(*local) : std::nullopt;
    const int64_t bytes = CheckedMul(elements.value_or(0), BytesOf(tensor.type)).value_or(INT64_MAX);
    if (__builtin_add_overflow(bytes_, bytes, &bytes_)) bytes_ = INT64_MAX;
    table_.rows.push_back(std::move(row));
  }

  const Mesh& mesh_;
  ShardTable table_;
  std::vector<Violation> violations_;
  int64_t bytes_ = 0;
};

void AddNumbers(const Contract& contract, std::vector<ProgramTensor>& to) {
  to.push_back({"scale", ElementType::kF32, {}, -1});
  if (contract.score.softcap > 0) to.push_back({"softcap", ElementType::kF32, {}, -1});
}

}  // namespace

KnownTensors KnownOfCut(const ContextPlan& plan, bool is_backward) {
  constexpr int64_t kTokens = 2;
  constexpr auto kF32 = ElementType::kF32;
  const Shape& s = plan.contract.shape;
  const ElementType type = ToElementType(s.dtype);
  const int64_t tokens = plan.shards * plan.tiles_per_shard * plan.tile;
  const bool is_heads = plan.exchange == Exchange::kHeads;
  const auto of = [&](const char* name, ElementType element, int64_t heads, int64_t dim) {
    return ProgramTensor{name, element, {s.batch, heads, tokens, dim}, kTokens};
  };
  const std::vector<int64_t> rows = {s.batch, s.num_q_heads, tokens};
  KnownTensors out;
  out.inputs = {of("q", type, s.num_q_heads, s.dim_qk), of("k", type, s.num_kv_heads, s.dim_qk),
                of("v", type, s.num_kv_heads, s.dim_v)};
  AddNumbers(plan.contract, out.inputs);
  if (plan.contract.score.sink_logits) out.inputs.push_back({"sink_logits", kF32, {s.num_q_heads}, is_heads ? 0 : -1});
  if (!is_backward) {
    out.outputs = {of("o", type, s.num_q_heads, s.dim_v), {"lse", kF32, rows, is_heads ? 1 : kTokens}};
    return out;
  }
  out.inputs.push_back(of("do", type, s.num_q_heads, s.dim_v));
  out.inputs.push_back({"lse", kF32, rows, kTokens});
  out.inputs.push_back({"delta", kF32, rows, kTokens});
  out.outputs = {of("dq", kF32, s.num_q_heads, s.dim_qk), of("dk", kF32, s.num_kv_heads, s.dim_qk),
                 of("dv", kF32, s.num_kv_heads, s.dim_v)};
  // With heads each device has those that are its own; else a share of every head's.
  const int64_t shares = is_heads ? s.num_q_heads : s.num_q_heads * plan.shards;
  if (plan.contract.score.sink_logits) out.outputs.push_back({"dsink_logits", kF32, {shares}, 0});
  return out;
}

KnownTensors KnownOfAxis(const Contract& contract, std::string_view axis, bool is_backward) {
  constexpr auto kF32 = ElementType::kF32;
  const Shape& s = contract.shape;
  const ElementType type = ToElementType(s.dtype);
  const int64_t cut = axis == kModelAxis ? 1 : 0;
  const std::vector<int64_t> rows = {s.batch, s.num_q_heads, s.q_len};
  KnownTensors out;
  out.inputs = {{"q", type, {s.batch, s.num_q_heads, s.q_len, s.dim_qk}, cut},
                {"k", type, {s.batch, s.num_kv_heads, s.kv_len, s.dim_qk}, cut},
                {"v", type, {s.batch, s.num_kv_heads, s.kv_len, s.dim_v}, cut}};
  AddNumbers(contract, out.inputs);
  if (contract.score.sink_logits) out.inputs.push_back({"sink_logits", kF32, {s.num_q_heads}, cut == 1 ? 0 : -1});
  const auto result = [&](const char* name) { out.outputs.push_back({name, kF32, {}, cut}); };
  if (!is_backward) {
    for (const char* name : {"o", "lse"}) result(name);
    return out;
  }
  out.inputs.push_back({"do", type, {s.batch, s.num_q_heads, s.q_len, s.dim_v}, cut});
  out.inputs.push_back({"lse", kF32, rows, cut});
  out.inputs.push_back({"delta", kF32, rows, cut});
  for (const char* name : {"dq", "dk", "dv"}) result(name);
  return out;
}

Result<ShardTable> MakeProgramTable(const Mesh& mesh, const KnownTensors& known, const DeclaredProgram& program,
                                    std::optional<int64_t> max_device_bytes) {
  TESSERA_TRY(CheckMesh(mesh));
  Table table(mesh);
  table.Add(known.inputs, program.inputs);
  table.Add(known.outputs, program.outputs);
  return table.Finish(max_device_bytes);
}

}  // namespace tessera::shard
