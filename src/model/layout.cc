// See layout.h.
#include "model/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/try.h"
#include "model/definition.h"
#include "shard/cut_program.h"

namespace tessera::model {
namespace {

using stablehlo::DeviceMesh;
using stablehlo::Element;
using stablehlo::NamedType;

bool IsLeaf(std::string_view name, std::string_view leaf) {
  return name.size() > leaf.size() && name.ends_with(leaf) && name[name.size() - leaf.size() - 1] == '.';
}

class Declarer {
 public:
  explicit Declarer(const Layout& layout) : layout_(layout) {
    for (const MeshAxis& axis : layout.mesh->axes) all_axes_.push_back(axis.name);
    model_.num_q_heads = layout.whole.num_q_heads;
    model_.num_kv_heads = layout.whole.num_kv_heads;
    model_.is_in_out = true;
  }

  void Parameters() {
    for (const ParameterInfo& info : ParametersOf(layout_.whole)) {
      Add(info.name, TensorRole::kParameter, info.dims);
      for (const std::string& name : {FirstMoment(info.name), SecondMoment(info.name), GradientName(info.name)}) {
        Add(name, TensorRole::kBuffer, info.dims);
      }
    }
  }
  void Rows() {
    for (const NamedType& input : RowInputs(layout_.own)) {
      if (input.name == kRotations) continue;
      const std::vector<int64_t> dims = {layout_.whole.rows, layout_.own.row_tokens * layout_.SizeOf(kContextAxis)};
      Add(input.name, TensorRole::kActivation, dims, shard::DeclaredType(input.type.element));
    }
  }
  // The same on every device.
  void Shared(std::string_view name, std::vector<int64_t> dims, ElementType type = ElementType::kF32) {
    Add(std::string(name), TensorRole::kBuffer, std::move(dims), type);
    rules_.push_back({.name = std::string(name), .is_replicated = true});
  }
  // Each device's own, one after the other.
  void OfEach(const NamedType& own) {
    std::vector<int64_t> dims = own.type.dims;
    dims[0] *= layout_.NumDevices();
    SpecAxes axes(dims.size());
    axes[0] = all_axes_;
    Add(own.name, TensorRole::kActivation, std::move(dims), shard::DeclaredType(own.type.element));
    rules_.push_back({.name = own.name, .axes = std::move(axes)});
  }

  Result<ShardTable> Make() const { return MakeShardTable(model_, *layout_.mesh, {.rules = rules_}); }

 private:
  void Add(std::string name, TensorRole role, std::vector<int64_t> dims, ElementType type = ElementType::kF32) {
    model_.tensors.push_back({std::move(name), role, type, std::move(dims)});
  }

  const Layout& layout_;
  std::vector<std::string> all_axes_;
  DeclaredModel model_;
  std::vector<SpecRule> rules_;
};

// visit(byte in the whole, byte in the piece, bytes) for every stretch without a gap.
template <class Visit>
void ForStretches(const DenseShape& shape, const Pieces& pieces, const Visit& visit) {
  int64_t own = 0;
  const auto walk = [&](const auto& self, size_t dim, int64_t first) -> void {
    if (dim == shape.dims.size()) {  // a scalar
      visit(first * shape.element_bytes, own, shape.element_bytes);
      own += shape.element_bytes;
      return;
    }
    for (const Range& range : pieces[dim]) {
      if (dim + 1 == shape.dims.size()) {
        const int64_t bytes = range.count * shape.element_bytes;
        visit((first * shape.dims[dim] + range.begin) * shape.element_bytes, own, bytes);
        own += bytes;
        continue;
      }
      for (int64_t i = range.begin; i < range.begin + range.count; ++i)
        self(self, dim + 1, first * shape.dims[dim] + i);
    }
  };
  walk(walk, 0, 0);
}

}  // namespace

int64_t Layout::PlaceOf(int64_t device, std::string_view axis) const {
  if (!mesh) return 0;
  const std::vector<int64_t> at = mesh->Coordinates(device);
  for (size_t i = 0; i < at.size(); ++i) {
    if (mesh->axes[i].name == axis) return at[i];
  }
  return 0;
}

stablehlo::DeviceGroups Layout::Groups(const std::vector<std::string_view>& axes) const {
  std::vector<std::string> over;
  for (const std::string_view axis : axes) {
    if (SizeOf(axis) > 1) over.emplace_back(axis);
  }
  if (over.empty()) return {};
  return mesh->Groups(over);
}

Pieces Layout::PiecesOf(const std::string& name, int64_t device) const {
  const ShardRow& row = *table->Find(name);
  Pieces pieces;
  for (size_t dim = 0; dim < row.tensor.dims.size(); ++dim) {
    int64_t parts = 1;
    int64_t part = 0;
    for (const std::string& axis : (*row.spec)[dim]) {
      parts *= SizeOf(axis);
      part = part * SizeOf(axis) + PlaceOf(device, axis);
    }
    std::vector<int64_t> sections = {row.tensor.dims[dim]};
    if (parts > 1 && IsLeaf(name, "qkv")) {
      const int64_t keys = whole.num_kv_heads * whole.head_dim;
      sections = {whole.num_q_heads * whole.head_dim, keys, keys};
    }
    if (parts > 1 && IsLeaf(name, "fc1")) sections = {whole.mlp_width, whole.mlp_width};
    std::vector<Range>& ranges = pieces.emplace_back();
    int64_t begin = 0;
    for (const int64_t section : sections) {
      ranges.push_back({begin + part * (section / parts), section / parts});
      begin += section;
    }
  }
  return pieces;
}

Result<Layout> MakeLayout(const ModelSpec& spec, const std::optional<Mesh>& mesh) {
  Layout layout{.whole = spec, .own = spec, .mesh = {}, .table = {}};
  if (!mesh) return layout;
  TESSERA_TRY(CheckMesh(*mesh));
  if (mesh->NumDevices() == 1) return layout;
  layout.mesh = mesh;
  std::vector<Violation> violations;
  const auto divide = [&](const char* field, int64_t& value, std::string_view axis) {
    const int64_t parts = mesh->SizeOf(axis);
    if (value % parts != 0) {
      violations.push_back({field, fmt::format("a number that divides by {}={}: {} does not", axis, parts, value)});
    } else {
      value /= parts;
    }
  };
  divide("model.rows", layout.own.rows, kDataAxis);
  divide("model.num_q_heads", layout.own.num_q_heads, kModelAxis);
  divide("model.num_kv_heads", layout.own.num_kv_heads, kModelAxis);
  divide("model.mlp_width", layout.own.mlp_width, kModelAxis);
  if (mesh->SizeOf(kExpertAxis) > 1) violations.push_back({"mesh", "no axis expert: this model has no experts"});
  if (!violations.empty()) return Fail(ErrorCode::kShardAudit, std::move(violations), "mesh " + ToText(*mesh));
  return layout;
}

Status SetOperands(Layout& layout, const std::vector<NamedType>& attention_inputs,
                   const std::set<std::string>& shared) {
  if (!layout.mesh) return {};
  Declarer declare(layout);
  declare.Parameters();
  declare.Rows();
  declare.Shared(kRotations, {layout.whole.row_tokens, 2 * layout.whole.head_dim});
  declare.Shared(kKeep, {}, ElementType::kI32);
  declare.Shared(kScalars, {kNumScalars});
  declare.Shared(kNorm, {});
  declare.Shared(kIsTaken, {}, ElementType::kI32);
  declare.OfEach({std::string(kLoss), {Element::kF32, {1}}});
  for (const NamedType& input : attention_inputs) {
    if (shared.contains(input.name)) {
      declare.Shared(input.name, input.type.dims, shard::DeclaredType(input.type.element));
    } else {
      declare.OfEach(input);
    }
  }
  layout.table = TESSERA_TRY(declare.Make());
  return AuditShards(*layout.table, {.num_devices = layout.NumDevices()});
}

Result<stablehlo::Program> FinishProgram(stablehlo::Builder& b, const Layout& layout, WrittenModel model,
                                         const stablehlo::Values& values) {
  stablehlo::Program program{std::move(model.name),    "", std::move(model.inputs),
                             std::move(model.outputs), 1,  layout.NumDevices()};
  if (!layout.mesh) {
    program.text = TESSERA_TRY(b.Finish(values));
    return program;
  }
  DeviceMesh mesh;
  for (const MeshAxis& axis : layout.mesh->axes) mesh.axes.push_back({axis.name, axis.size});
  const auto cuts = [&](const std::vector<NamedType>& tensors, std::vector<DeviceMesh::Cut>& into) -> Status {
    for (const NamedType& tensor : tensors) {
      const ShardRow* row = layout.table ? layout.table->Find(tensor.name) : nullptr;
      if (row == nullptr || !row->spec) return Fail(ErrorCode::kShardAudit, "a tensor without a spec", tensor.name);
      into.push_back(*row->spec);
    }
    return {};
  };
  TESSERA_TRY(cuts(program.inputs, mesh.inputs));
  TESSERA_TRY(cuts(program.outputs, mesh.outputs));
  program.text = TESSERA_TRY(b.FinishOver(mesh, values));
  return program;
}

std::vector<std::byte> CutOut(const DenseShape& shape, std::span<const std::byte> whole, const Pieces& pieces) {
  std::vector<std::byte> own;
  ForStretches(shape, pieces, [&](int64_t from, int64_t, int64_t bytes) {
    const auto begin = whole.begin() + from;
    own.insert(own.end(), begin, begin + bytes);
  });
  return own;
}

void PutBack(const DenseShape& shape, std::span<const std::byte> own, const Pieces& pieces,
             std::span<std::byte> whole) {
  ForStretches(shape, pieces, [&](int64_t to, int64_t from, int64_t bytes) {
    std::memcpy(whole.data() + to, own.data() + from, static_cast<size_t>(bytes));
  });
}

}  // namespace tessera::model
