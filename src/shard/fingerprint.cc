// What a compiled program was compiled for, as a number and as the beginning of its key.
#include <fmt/format.h>

#include <algorithm>

#include "base/hash.h"
#include "base/spelling.h"
#include "tessera/shard.h"

namespace tessera {
namespace {

// "0f..e3-data=2,model=2-": what every key of this table begins with.
std::string PrefixOf(const ShardTable& table) {
  return fmt::format("{}-{}-", ShardFingerprint(table), ToText(table.mesh));
}

}  // namespace

std::string ShardFingerprint(const ShardTable& table) {
  std::vector<const ShardRow*> rows;
  for (const ShardRow& row : table.rows) rows.push_back(&row);
  std::sort(rows.begin(), rows.end(),
            [](const ShardRow* a, const ShardRow* b) { return a->tensor.name < b->tensor.name; });
  Hasher hasher;
  hasher.Text("tessera shard 1");
  hasher.Int(static_cast<int64_t>(rows.size()));
  for (const ShardRow* row : rows) {
    hasher.Text(row->tensor.name);
    hasher.Text(ToText(row->tensor.type));
    hasher.Int(static_cast<int64_t>(row->tensor.dims.size()));
    for (const int64_t dim : row->tensor.dims) hasher.Int(dim);
    hasher.Int(row->spec ? static_cast<int64_t>(row->spec->size()) : -1);
    for (const std::vector<std::string>& axes : row->spec.value_or(SpecAxes{})) {
      hasher.Int(static_cast<int64_t>(axes.size()));
      for (const std::string& axis : axes) hasher.Text(axis);
    }
  }
  return Hex(hasher.Finish());
}

std::string ShardKey(const ShardTable& table, std::string_view program_key) {
  return PrefixOf(table) + std::string(program_key);
}

Status CheckShardKey(const ShardTable& table, std::string_view key) {
  const std::string prefix = PrefixOf(table);
  if (key.starts_with(prefix)) return {};
  const std::string_view fingerprint = std::string_view(prefix).substr(0, kHexDigits);
  if (key.starts_with(fingerprint)) {
    return Fail(ErrorCode::kShardStale, fmt::format("it was compiled for another mesh than {}", ToText(table.mesh)),
                Excerpt(key));
  }
  return Fail(ErrorCode::kShardStale, fmt::format("its key does not begin with {}", prefix), Excerpt(key));
}

}  // namespace tessera
