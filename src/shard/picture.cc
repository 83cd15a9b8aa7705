// Meshes and tables for people, and tables for programs.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "base/spelling.h"
#include "io/json_writer.h"
#include "tessera/shard.h"

namespace tessera {
namespace {

// A picture is for looking at: of a larger mesh, the first of each axis.
constexpr int64_t kMostColumns = 16;
constexpr int64_t kMostLines = 32;

std::string TypeText(const DeclaredTensor& tensor) {
  std::string name(ToText(tensor.type));
  for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return fmt::format("{}[{}]", name, fmt::join(tensor.dims, ", "));
}

std::string LocalText(const ShardRow& row, const Mesh& mesh) {
  const std::optional<std::vector<int64_t>> local = LocalDims(row, mesh);
  return local ? fmt::format("[{}]", fmt::join(*local, ", ")) : "-";
}

std::string SourceText(const ShardRow& row) {
  return row.zero_dim ? fmt::format("{}; ZeRO-3 on dimension {}", row.source, *row.zero_dim) : row.source;
}

}  // namespace

std::string DrawMesh(const Mesh& mesh) {
  if (!CheckMesh(mesh)) return {};
  const MeshAxis& last = mesh.axes.back();
  const int64_t columns = std::min(last.size, kMostColumns);
  const int64_t lines = mesh.NumDevices() / last.size;
  const size_t width = std::to_string(mesh.NumDevices() - 1).size();
  std::vector<std::string> margins;
  size_t margin = 0;
  for (int64_t line = 0; line < std::min(lines, kMostLines); ++line) {
    const std::vector<int64_t> at = mesh.Coordinates(line * last.size);
    std::vector<std::string> parts;
    for (size_t i = 0; i + 1 < mesh.axes.size(); ++i) parts.push_back(fmt::format("{} {}", mesh.axes[i].name, at[i]));
    margins.push_back(fmt::format("{}", fmt::join(parts, ", ")));
    margin = std::max(margin, margins.back().size());
  }
  std::string text = fmt::format("{:{}}  {}\n", "", margin, fmt::format("{} 0 .. {}", last.name, last.size - 1));
  for (size_t line = 0; line < margins.size(); ++line) {
    text += fmt::format("{:{}}  ", margins[line], margin);
    for (int64_t column = 0; column < columns; ++column) {
      text += fmt::format("[{:>{}}]", static_cast<int64_t>(line) * last.size + column, width);
    }
    text += last.size > columns ? " ..\n" : "\n";
  }
  if (lines > kMostLines) text += fmt::format("{:{}}  .. {} lines in all\n", "", margin, Grouped(lines));
  return text;
}

std::string ToText(const ShardTable& table) {
  std::vector<std::array<std::string, 5>> cells = {{"name", "type", "spec", "on each device", "why"}};
  for (const ShardRow& row : table.rows) {
    cells.push_back({row.tensor.name, TypeText(row.tensor), row.spec ? ToText(*row.spec) : "none given",
                     LocalText(row, table.mesh), SourceText(row)});
  }
  std::array<size_t, 5> widths = {};
  for (const auto& line : cells) {
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string text;
  for (const auto& line : cells) {
    for (size_t i = 0; i + 1 < line.size(); ++i) text += fmt::format("{:{}}  ", line[i], widths[i]);
    text += line.back() + "\n";
  }
  return text;
}

std::string ToJson(const ShardTable& table) {
  const ShardFigures figures = FiguresOf(table);
  JsonWriter json;
  json.BeginObject();
  json.Key("mesh").BeginArray();
  for (const MeshAxis& axis : table.mesh.axes) {
    json.BeginObject().Key("name").Text(axis.name).Key("size").Int(axis.size).EndObject();
  }
  json.EndArray();
  json.Key("devices").Int(table.mesh.NumDevices());
  json.Key("fingerprint").Text(ShardFingerprint(table));
  json.Key("total_bytes").Int(figures.total_bytes);
  json.Key("device_bytes").Int(figures.device_bytes);
  json.Key("replicated_bytes").Int(figures.replicated_bytes);
  json.Key("replicated_fraction").Real(figures.ReplicatedFraction());
  json.Key("tensors").BeginArray();
  for (const ShardRow& row : table.rows) {
    json.BeginObject().Key("name").Text(row.tensor.name).Key("role").Text(ToText(row.tensor.role));
    json.Key("type").Text(TypeText(row.tensor)).Key("dims").Ints(row.tensor.dims);
    json.Key("spec");
    if (row.spec) {
      json.BeginArray();
      for (const std::vector<std::string>& axes : *row.spec) {
        json.Texts(std::vector<std::string_view>(axes.begin(), axes.end()));
      }
      json.EndArray();
    } else {
      json.Null();
    }
    json.Key("local_dims");
    if (const std::optional<std::vector<int64_t>> local = LocalDims(row, table.mesh)) {
      json.Ints(*local);
    } else {
      json.Null();
    }
    json.Key("zero3_dim");
    if (row.zero_dim) {
      json.Int(static_cast<int64_t>(*row.zero_dim));
    } else {
      json.Null();
    }
    json.Key("why").Text(row.source).EndObject();
  }
  json.EndArray().EndObject();
  return json.Take();
}

}  // namespace tessera
