// The rows.json of a folder: any text gives an error or numbers that one can count with, and that its JSON reproduces.
#include "fuzz.h"
#include "rows/limits.h"
#include "rows/manifest.h"

namespace tessera {

bool FuzzRowsJson(const uint8_t* data, size_t size) {
  const auto file = rows::ParseManifest(AsText(data, size), "rows.json");
  if (!file) {
    Require(!ToText(file.error()).empty(), "an error has a text");
    return false;
  }
  const RowsManifest& manifest = file->manifest;
  int64_t rows = 0;
  for (const ShardRecord& shard : manifest.shards) {
    Require(shard.file.find('/') == std::string::npos, "a shard is a file of the folder");
    Require(shard.rows * manifest.row_tokens <= rows::kMaxShardTokens, "a shard has so many tokens at most");
    rows += shard.rows;
  }
  Require(rows == manifest.rows && manifest.tokens_in_rows <= rows * manifest.row_tokens, "sums are sums");
  Require(file->next.file >= 0 && file->next.file <= static_cast<int64_t>(file->inputs.size()), "a file, or the end");
  const auto again = rows::ParseManifest(ToJson(*file), "rows.json");
  Require(again && ToJson(*again) == ToJson(*file), "JSON round trip");
  return true;
}

}  // namespace tessera
