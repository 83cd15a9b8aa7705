// Where tensors lie on several devices: a mesh of devices with named axes. docs/sharding.md explains it with a worked
// example. Not a goal: a runtime of our own; XLA's partitioner and collectives do the work.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

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

}  // namespace tessera
#pragma GCC visibility pop
