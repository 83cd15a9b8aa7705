// What the two files of this folder share: TOML or JSON with `version = 1`, read strictly, and faults under a code of
// their own.
#pragma once

#include <string>
#include <string_view>

#include "io/tree_reader.h"

namespace tessera::shard {

// The tree of a text, or the syntax error under `code`.
Result<DocumentValue> ParseTree(std::string_view text, ErrorCode code);
Result<std::string> ReadText(const std::string& path);
// An error of a text that was read from a file, with its path before the place.
Error InFile(Error error, const std::string& path);
// `version` is 1.
void CheckVersion(TreeReader& reader, const DocumentValue& tree);

}  // namespace tessera::shard
