// Files of documents, a block at a time: JSONL by whole lines, token shards by whole documents.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/documents.h"

namespace tessera::rows {

// Where the next document is.
struct ReadPosition {
  int64_t file = 0;
  int64_t offset = 0;  // as DocumentSource counts
  int64_t line = 1;
};

// Whole lines, the last of which may lack its end.
struct LineBlock {
  std::string_view text;
  std::string name;  // of the file
  ReadPosition position;
};
// Lines to documents. One for all blocks of a file, so that its memory is used again.
class LineParser {
 public:
  LineParser();
  ~LineParser();
  LineParser(const LineParser&) = delete;
  LineParser& operator=(const LineParser&) = delete;
  Status Parse(const LineBlock& block, const DocumentOptions& options, DocumentSet& documents);

 private:
  struct Stretch;
  size_t Cut(const LineBlock& block, int64_t threads);
  std::vector<std::unique_ptr<Stretch>> stretches_;
};

class DocumentReader {
 public:
  DocumentReader(std::vector<std::string> files, const DocumentOptions& options, ReadPosition position);
  ~DocumentReader();
  DocumentReader(const DocumentReader&) = delete;
  DocumentReader& operator=(const DocumentReader&) = delete;
  // The next documents, all of one file; false when there are none.
  Result<bool> Next(DocumentSet& documents);

 private:
  class Source;
  class LineSource;
  class ShardSource;
  static Result<std::unique_ptr<Source>> Open(const std::string& file, const DocumentOptions& options,
                                              const ReadPosition& position);

  std::vector<std::string> files_;
  DocumentOptions options_;
  ReadPosition position_;  // where the next file is opened
  std::unique_ptr<Source> source_;
};

bool IsTokenShard(std::string_view file);  // by its ending

}  // namespace tessera::rows
