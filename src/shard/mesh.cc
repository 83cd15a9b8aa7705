#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "base/spelling.h"
#include "tessera/shard.h"

namespace tessera {
namespace {

constexpr std::array<std::string_view, 4> kAxisNames = {kDataAxis, kExpertAxis, kContextAxis, kModelAxis};

}  // namespace

int64_t Mesh::NumDevices() const {
  int64_t devices = 1;
  for (const MeshAxis& axis : axes) devices *= axis.size;
  return devices;
}

bool Mesh::Has(std::string_view axis) const {
  return std::any_of(axes.begin(), axes.end(), [&](const MeshAxis& own) { return own.name == axis; });
}

int64_t Mesh::SizeOf(std::string_view axis) const {
  for (const MeshAxis& own : axes) {
    if (own.name == axis) return own.size;
  }
  return 1;
}

std::vector<int64_t> Mesh::Coordinates(int64_t device) const {
  std::vector<int64_t> coordinates(axes.size());
  for (size_t i = axes.size(); i-- > 0;) {
    coordinates[i] = device % axes[i].size;
    device /= axes[i].size;
  }
  return coordinates;
}

std::vector<std::vector<int64_t>> Mesh::Groups(const std::vector<std::string>& over) const {
  const int64_t devices = NumDevices();
  // A group is known by its first device: the one whose coordinates along these axes are all 0.
  std::vector<std::vector<int64_t>> groups;
  std::vector<int64_t> group_of(static_cast<size_t>(devices), -1);
  for (int64_t device = 0; device < devices; ++device) {
    const std::vector<int64_t> at = Coordinates(device);
    int64_t first = 0;
    for (size_t i = 0; i < axes.size(); ++i) {
      const bool is_over = std::find(over.begin(), over.end(), axes[i].name) != over.end();
      first = first * axes[i].size + (is_over ? 0 : at[i]);
    }
    int64_t& group = group_of[static_cast<size_t>(first)];
    if (group < 0) {
      group = static_cast<int64_t>(groups.size());
      groups.emplace_back();
    }
    groups[static_cast<size_t>(group)].push_back(device);
  }
  return groups;
}

Status CheckMesh(const Mesh& mesh) {
  std::vector<Violation> violations;
  const auto violate = [&](std::string field, std::string expected) {
    violations.push_back({std::move(field), std::move(expected)});
  };
  if (mesh.axes.empty()) violate("mesh", "at least one axis, as in data=2,model=2");
  int64_t devices = 1;
  for (size_t i = 0; i < mesh.axes.size(); ++i) {
    const MeshAxis& axis = mesh.axes[i];
    const std::string field = "axis " + Excerpt(axis.name);
    if (std::find(kAxisNames.begin(), kAxisNames.end(), axis.name) == kAxisNames.end()) {
      violate(field, fmt::format("one of {}", fmt::join(kAxisNames, ", ")));
    }
    const auto is_same = [&](const MeshAxis& other) { return other.name == axis.name; };
    const auto own = mesh.axes.begin() + static_cast<int64_t>(i);
    if (std::any_of(mesh.axes.begin(), own, is_same)) violate(field, "each name once");
    if (axis.size < 1 || axis.size > kMaxMeshDevices) {
      violate(field, fmt::format("a size of 1 to {}, not {}", kMaxMeshDevices, axis.size));
    } else if (devices <= kMaxMeshDevices) {
      devices *= axis.size;  // at most the square of the limit
    }
  }
  if (devices > kMaxMeshDevices) violate("mesh", fmt::format("at most {} devices in all", kMaxMeshDevices));
  if (!violations.empty()) return Fail(ErrorCode::kMeshInvalid, std::move(violations), "mesh");
  return {};
}

Result<Mesh> ParseMesh(std::string_view text) {
  Mesh mesh;
  const auto bad = [&](std::string_view part) {
    return Fail(ErrorCode::kMeshInvalid,
                fmt::format("{} is not an axis with its size: expected data=2,model=2 or the like", Excerpt(part)),
                "mesh");
  };
  for (std::string_view rest = text;;) {
    const size_t comma = rest.find(',');
    const std::string_view part = rest.substr(0, comma);
    const size_t equals = part.find('=');
    if (equals == std::string_view::npos || equals == 0) return bad(part);
    const std::string_view number = part.substr(equals + 1);
    MeshAxis axis = {std::string(part.substr(0, equals)), 0};
    const char* end = number.data() + number.size();
    const auto read = std::from_chars(number.data(), end, axis.size);
    if (number.empty() || read.ptr != end || read.ec != std::errc()) return bad(part);
    if (mesh.axes.size() > kAxisNames.size()) break;  // one too many is enough to say so
    mesh.axes.push_back(std::move(axis));
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  if (Status ok = CheckMesh(mesh); !ok) return tl::unexpected(ok.error());
  return mesh;
}

std::string ToText(const Mesh& mesh) {
  std::string text;
  for (const MeshAxis& axis : mesh.axes) {
    if (!text.empty()) text += ',';
    text += fmt::format("{}={}", axis.name, axis.size);
  }
  return text;
}

Status CheckLaunch(const Mesh& mesh, int64_t num_devices) {
  if (Status ok = CheckMesh(mesh); !ok) return ok;
  const int64_t needed = mesh.NumDevices();
  if (needed == num_devices) return {};
  if (needed > num_devices) {
    return Fail(ErrorCode::kMeshDevices, fmt::format("the mesh needs {} devices and there are {}", needed, num_devices),
                ToText(mesh));
  }
  return Fail(ErrorCode::kMeshDevices,
              fmt::format("the mesh is of {} devices and the launch of {}: expected the same", needed, num_devices),
              ToText(mesh));
}

}  // namespace tessera
