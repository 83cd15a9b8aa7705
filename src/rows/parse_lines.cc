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

bool IsBlank(std::string_view line) { return line.find_first_not_of(" \t\r") == std::string_view::npos; }

}  // namespace

// A stretch of lines, and what became of it. What reading needs stays from block to block.
struct LineParser::Stretch {
  std::string_view text;
  int64_t offset = 0;  // in the file
  DocumentSet documents;
  int64_t lines = 0;  // that were read
  std::optional<Problem> problem;

  LineWalker walker;
  RawDocument raw;
  DocumentHandler handler{raw};
  Document document;
  std::string last_line;

  void Parse(const LineBlock& block, const DocumentOptions& options, DocumentSet& out);
};

LineParser::LineParser() = default;
LineParser::~LineParser() = default;

void LineParser::Stretch::Parse(const LineBlock& block, const DocumentOptions& options, DocumentSet& out) {
  const char* const block_end = block.text.data() + block.text.size();
  std::string_view rest = text;
  while (!rest.empty()) {
    const size_t end = rest.find('\n');
    std::string_view line = rest.substr(0, end);
    DocumentSource source;
    source.file = block.position.file;
    source.offset = offset + (rest.data() - text.data());
    source.line = ++lines;  // within the stretch so far
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (IsBlank(line)) continue;
    if (static_cast<size_t>(block_end - line.data()) < line.size() + kLinePadding) {
      last_line.assign(line).append(kLinePadding, '\0');
      line = std::string_view(last_line).substr(0, line.size());
    }
    if (std::string wrong = walker.Walk(line, handler); !wrong.empty()) {
      // What nobody refused is no JSON.
      const bool is_refused = !handler.refusal().empty();
      problem = Problem{is_refused ? handler.code() : ErrorCode::kDocumentSyntax, std::move(wrong)};
      return;
    }
    problem = Understand(raw, options, document, source.counts);
    if (problem) return;
    const auto place = (static_cast<uint64_t>(source.file) << 48U) ^ static_cast<uint64_t>(source.offset);
    problem = AddDocument(document, options, place, source, out);
    if (problem) return;
  }
}

// As many stretches as there are threads, or fewer, cut between lines.
size_t LineParser::Cut(const LineBlock& block, int64_t threads) {
  const size_t most = std::max<size_t>(1, block.text.size() / kLeastStretch);
  const size_t count = std::min<size_t>(most, static_cast<size_t>(std::max<int64_t>(1, threads)));
  while (stretches_.size() < count) stretches_.push_back(std::make_unique<Stretch>());
  size_t begin = 0;
  for (size_t i = 0; i < count; ++i) {
    size_t end = std::max(begin, block.text.size() * (i + 1) / count);
    if (i + 1 < count && end > begin) {
      const size_t newline = block.text.find('\n', end - 1);
      end = newline == std::string_view::npos ? block.text.size() : newline + 1;
    }
    Stretch& stretch = *stretches_[i];
    stretch.text = block.text.substr(begin, end - begin);
    stretch.offset = block.position.offset + static_cast<int64_t>(begin);
    stretch.documents.Clear();
    stretch.lines = 0;
    stretch.problem.reset();
    begin = end;
  }
  return count;
}

Status LineParser::Parse(const LineBlock& block, const DocumentOptions& options, DocumentSet& documents) {
  documents.Clear();
  const size_t count = Cut(block, options.threads);
  ForEach(options.threads, static_cast<int64_t>(count), [&](int64_t i) {
    Stretch& stretch = *stretches_[static_cast<size_t>(i)];
    stretch.Parse(block, options, i == 0 ? documents : stretch.documents);
  });
  int64_t line = block.position.line - 1;
  for (size_t i = 0; i < count; ++i) {
    Stretch& stretch = *stretches_[i];
    if (stretch.problem) {
      return Fail(stretch.problem->code, std::move(stretch.problem->text),
                  fmt::format("{} line {}", block.name, line + stretch.lines));
    }
    DocumentSet& made = i == 0 ? documents : stretch.documents;
    for (DocumentSource& source : made.sources) source.line += line;
    line += stretch.lines;
    if (i > 0) documents.Append(made, 0, made.Size());
  }
  return {};
}

}  // namespace rows

Result<DocumentSet> ParseDocuments(std::string_view jsonl, const std::string& name, const DocumentOptions& options) {
  DocumentSet documents;
  TESSERA_TRY(rows::LineParser().Parse({jsonl, name, {}}, options, documents));
  return documents;
}

}  // namespace tessera
