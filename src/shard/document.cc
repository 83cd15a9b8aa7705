#include "shard/document.h"

#include <fmt/format.h>

#include "shard/limits.h"
#include "tessera/io.h"

namespace tessera::shard {

Result<DocumentValue> ParseTree(std::string_view text, ErrorCode code) {
  if (static_cast<int64_t>(text.size()) > kMaxShardFileBytes) {
    return Fail(ErrorCode::kTooLarge, fmt::format("a text of at most {} bytes expected", kMaxShardFileBytes));
  }
  Result<DocumentValue> tree = ParseDocument(text);
  if (!tree) tree.error().code = code;
  return tree;
}

Result<std::string> ReadText(const std::string& path) { return ReadFile(path, kMaxShardFileBytes); }

Error InFile(Error error, const std::string& path) {
  error.where = error.where.empty() ? path : path + ", " + error.where;
  return error;
}

void CheckVersion(TreeReader& reader, const DocumentValue& tree) {
  const DocumentValue* version = reader.Find(tree, "", "version");
  if (version == nullptr) return;
  int64_t number = 0;
  const size_t faults = reader.violations.size();
  reader.Read(*version, "version", number);
  if (reader.violations.size() == faults && number != 1) {
    reader.Violate("version", fmt::format("1 expected, got {}", number));
  }
}

}  // namespace tessera::shard
