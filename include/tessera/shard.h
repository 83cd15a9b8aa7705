// Where tensors lie on several devices: a mesh of devices with named axes, a spec for each tensor, and the audit that
// refuses a launch before anything is compiled. docs/sharding.md explains it with a worked example. Goals: nothing is
// left to the compiler's inference, nothing is rounded. Not a goal: a runtime of our own; XLA's partitioner and
// collectives do the work.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/dtype.h"
#include "tessera/error.h"

#pragma GCC visibility push(default)
namespace tessera {

// What an axis may be called. Everything that depends on the mesh asks for axes by these names.
inline constexpr std::string_view kDataAxis = "data";
inline constexpr std::string_view kExpertAxis = "expert";
inline constexpr std::string_view kContextAxis = "context";
inline constexpr std::string_view kModelAxis = "model";

inline constexpr int64_t kMaxMeshDevices = 65536;

struct MeshAxis {
  std::string name;
  int64_t size = 1;
  bool operator==(const MeshAxis&) const = default;
};

// Devices are numbered row-major: the last axis runs fastest.
struct Mesh {
  std::vector<MeshAxis> axes;
  bool operator==(const Mesh&) const = default;

  int64_t NumDevices() const;
  bool Has(std::string_view axis) const;
  int64_t SizeOf(std::string_view axis) const;  // 1 where there is no such axis
  // Each axis's coordinate of a device.
  std::vector<int64_t> Coordinates(int64_t device) const;
  // The devices that differ in these axes only, each group ascending: those a collective over the axes is made of.
  std::vector<std::vector<int64_t>> Groups(const std::vector<std::string>& over) const;
};

// Every broken rule: at least one axis, known names, none twice, sizes of at least 1 (TSR-S001).
Status CheckMesh(const Mesh& mesh);
// "data=2,model=2", as --mesh takes it; checked.
Result<Mesh> ParseMesh(std::string_view text);
std::string ToText(const Mesh& mesh);
// A mesh that needs more devices than a launch has, or another number of them (TSR-S002).
Status CheckLaunch(const Mesh& mesh, int64_t num_devices);
// The devices as a grid, a line for each coordinate of all axes but the last.
std::string DrawMesh(const Mesh& mesh);

enum class TensorRole : uint8_t { kParameter, kBuffer, kActivation };
std::string_view ToText(TensorRole role);  // "parameter"

// One tensor of a model, as data: nothing here knows the model itself.
struct DeclaredTensor {
  std::string name;
  TensorRole role = TensorRole::kParameter;
  ElementType type = ElementType::kF32;
  std::vector<int64_t> dims = {};
  bool operator==(const DeclaredTensor&) const = default;
};
struct DeclaredModel {
  std::vector<DeclaredTensor> tensors;  // no name twice
  int64_t num_q_heads = 0;              // 0: not said
  int64_t num_kv_heads = 0;             // 0: as many as query heads
  bool is_in_out = false;               // matrices are [in, out]; else [out, in]
  bool operator==(const DeclaredModel&) const = default;
};
// TOML or JSON; every fault is listed (TSR-S003). docs/sharding.md has the form.
Result<DeclaredModel> ParseDeclaredModel(std::string_view text);
Result<DeclaredModel> ReadDeclaredModel(const std::string& path);

// Along which axes each dimension is cut, in order; a dimension without one is whole on every device.
using SpecAxes = std::vector<std::vector<std::string>>;
std::string ToText(const SpecAxes& axes);  // "(model, none)", "(data+expert)", "replicated"

// A user's own spec for every tensor whose name it matches: `*` stands for any characters.
struct SpecRule {
  std::string name;
  bool is_replicated = false;  // whole whatever its rank, under ZeRO-3 too; else `axes`
  SpecAxes axes = {};
  bool operator==(const SpecRule&) const = default;
};
// TOML or JSON; every fault is listed (TSR-S004).
Result<std::vector<SpecRule>> ParseSpecs(std::string_view text);
Result<std::vector<SpecRule>> ReadSpecs(const std::string& path);

struct ShardOptions {
  std::vector<SpecRule> rules = {};  // before the built-in table; the first that matches counts
  bool zero3 = false;                // then the largest free dimension of each parameter is cut along `data`
};

struct ShardRow {
  DeclaredTensor tensor;
  std::optional<SpecAxes> spec;         // nothing: no rule is about it, and the audit refuses
  std::string source = {};              // which rule, in words; without a spec, why there is none
  std::optional<size_t> zero_dim = {};  // the dimension that ZeRO-3 cut: gathered before each use
  bool is_pinned = false;               // its replication is written out, and ZeRO-3 keeps off
  bool is_by_heads = false;             // the cut along `model` is one of heads
};
struct ShardTable {
  Mesh mesh;
  int64_t num_q_heads = 0;
  int64_t num_kv_heads = 0;
  std::vector<ShardRow> rows;  // in the order of the model's

  const ShardRow* Find(std::string_view name) const;
};
// A spec for every tensor that a rule or the table is about. A user's rule that is left without a tensor is an error
// (TSR-S004); what a launch must not have is for AuditShards to say.
Result<ShardTable> MakeShardTable(const DeclaredModel& model, const Mesh& mesh, const ShardOptions& options = {});

// What one device holds of a row; nothing where the spec does not fit its tensor or its mesh.
std::optional<std::vector<int64_t>> LocalDims(const ShardRow& row, const Mesh& mesh);

// Of parameters and buffers; activations come and go.
struct ShardFigures {
  int64_t total_bytes = 0;
  int64_t device_bytes = 0;      // on each device
  int64_t replicated_bytes = 0;  // of tensors that are whole on every device, counted once
  double ReplicatedFraction() const;
};
ShardFigures FiguresOf(const ShardTable& table);

struct AuditLimits {
  std::optional<int64_t> num_devices = {};  // of the launch
  std::optional<int64_t> device_bytes = {};
  std::optional<double> replicated_fraction = {};
};
// Everything that a launch must not have, in one refusal (TSR-S005): a tensor without a spec, an axis that the mesh has
// not, a tensor cut twice along one, a dimension that does not divide, heads that do not, ceilings.
Status AuditShards(const ShardTable& table, const AuditLimits& limits = {});

// 32 hex digits over (name, dtype, shape, spec) of every row, in any order: it changes when one of them does, and only
// then. What is compiled for a table has a key that begins with it and with the mesh.
std::string ShardFingerprint(const ShardTable& table);
std::string ShardKey(const ShardTable& table, std::string_view program_key);
// A key that was made for another table or mesh is of a stale program (TSR-S007).
Status CheckShardKey(const ShardTable& table, std::string_view key);

std::string ToText(const ShardTable& table);  // one line for each row
std::string ToJson(const ShardTable& table);

}  // namespace tessera
#pragma GCC visibility pop
