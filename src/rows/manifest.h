// The file rows.json of a folder of shards: what was packed, how far, and where to go on.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/rows.h"

namespace tessera::rows {

// A file of documents, well enough known to say that it is another: its size, and a digest of its ends.
struct InputRecord {
  std::string file;
  int64_t bytes = 0;
  std::string digest;
};
Result<InputRecord> RecordOf(const std::string& file);

// Where packing goes on: the first document of the rows that are not written, and how many rows made of it and those
// after it are. Counts are of the documents before it.
struct NextDocument {
  int64_t file = 0;
  int64_t offset = 0;
  int64_t line = 1;
  int64_t piece = 0;
  int64_t skip_rows = 0;
};

struct ManifestFile {
  std::string options;  // as one text: what gives other rows is another text
  std::vector<InputRecord> inputs;
  RowsManifest manifest;
  NextDocument next;
};

std::string OptionsText(const PackOptions& options);
std::string ManifestPath(const std::string& folder);
std::string ToJson(const ManifestFile& file);
Result<ManifestFile> ReadManifestFile(const std::string& folder);
Result<ManifestFile> ParseManifest(std::string_view text, const std::string& path);
// What stands in the way of going on with it, or nothing: TSR-D006.
Status CheckSame(const ManifestFile& there, const ManifestFile& wanted, const std::string& folder);

}  // namespace tessera::rows
