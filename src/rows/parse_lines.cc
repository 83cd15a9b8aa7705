// Lines to documents, by several threads: each takes a stretch of lines, and stretches are put together in order.
#include <fmt/format.h>

#include <algorithm>

#include "base/try.h"
#include "rows/add_document.h"
#include "rows/limits.h"
#include "rows/line_walker.h"
#include "rows/parallel.h"
#include "rows/read_documents.h"

namespace tessera {
namespace rows {
namespace {

constexpr size_t kLeastStretch = size_t{1} << 16;  // bytes: below that a thread costs more than it saves

// A stretch of lines, and what became of it.
struct Stretch {
  std::string_view text;
  int64_t offset = 0;  // in the file
  DocumentSet documents;
  int64_t lines = 0;  // that were read
  std::optional<Problem> problem;
};

bool IsBlank(std::string_view line) { return line.find_first_not_of(" \t\r") == std::string_view::npos; }

void Parse(const LineBlock& block, const DocumentOptions& options, Stretch& stretch) {
  LineWalker walker;
  RawDocument raw;
  DocumentHandler handler(raw);
  Document document;
  std::string_view rest = stretch.text;
  while (!rest.empty()) {
    const size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    DocumentSource source;
    source.file = block.position.file;
    source.offset = stretch.offset + (rest.data() - stretch.text.data());
    source.line = ++stretch.lines;  // within the stretch so far
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (IsBlank(line)) continue;
    if (std::string wrong = walker.Walk(line, handler); !wrong.empty()) {
      // What nobody refused is no JSON.
      const bool is_refused = !handler.refusal().empty();
      stretch.problem = Problem{is_refused ? handler.code() : ErrorCode::kDocumentSyntax, std::move(wrong)};
      return;
    }
    stretch.problem = Understand(raw, options, document, source.counts);
    if (stretch.problem) return;
    const auto place = (static_cast<uint64_t>(source.file) << 48U) ^ static_cast<uint64_t>(source.offset);
    stretch.problem = AddDocument(document, options, place, source, stretch.documents);
    if (stretch.problem) return;
  }
}

// At most as many stretches as threads, cut between lines.
std::vector<Stretch> Cut(const LineBlock& block, int64_t threads) {
  std::vector<Stretch> stretches;
  const size_t most = std::max<size_t>(1, block.text.size() / kLeastStretch);
  const size_t count = std::min<size_t>(most, static_cast<size_t>(std::max<int64_t>(1, threads)));
  size_t begin = 0;
  for (size_t i = 0; i < count; ++i) {
    size_t end = std::max(begin, block.text.size() * (i + 1) / count);
    if (i + 1 < count && end > begin) {
      const size_t newline = block.text.find('\n', end - 1);
      end = newline == std::string_view::npos ? block.text.size() : newline + 1;
    }
    Stretch& stretch = stretches.emplace_back();
    stretch.text = block.text.substr(begin, end - begin);
    stretch.offset = block.position.offset + static_cast<int64_t>(begin);
    begin = end;
  }
  return stretches;
}

}  // namespace

Result<DocumentSet> ParseLines(const LineBlock& block, const DocumentOptions& options) {
  std::vector<Stretch> stretches = Cut(block, options.threads);
  ForEach(options.threads, static_cast<int64_t>(stretches.size()),
          [&](int64_t i) { Parse(block, options, stretches[static_cast<size_t>(i)]); });
  DocumentSet documents;
  int64_t line = block.position.line - 1;
  for (Stretch& stretch : stretches) {
    if (stretch.problem) {
      return Fail(stretch.problem->code, std::move(stretch.problem->text),
                  fmt::format("{} line {}", block.name, line + stretch.lines));
    }
    for (DocumentSource& source : stretch.documents.sources) source.line += line;
    line += stretch.lines;
    if (stretches.size() == 1) {
      documents = std::move(stretch.documents);
    } else {
      documents.Append(stretch.documents, 0, stretch.documents.Size());
    }
  }
  return documents;
}

}  // namespace rows

Result<DocumentSet> ParseDocuments(std::string_view jsonl, const std::string& name, const DocumentOptions& options) {
  std::string padded(jsonl);
  padded.append(rows::kLinePadding, '\0');
  return rows::ParseLines({std::string_view(padded).substr(0, jsonl.size()), name, {}}, options);
}

}  // namespace tessera
