// See batch_arguments.h.
#include "batch_arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "hints.h"

namespace tessera::program {
namespace {

constexpr std::string_view kFile = "file ";
constexpr std::string_view kDocuments = "documents ";
constexpr std::string_view kValid = "valid ";

std::vector<std::string> Split(const std::string& text, char at) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == at) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

Result<std::vector<int32_t>> ReadCounts(const std::string& text, const char* option) {
  std::vector<int32_t> counts;
  for (const std::string& count : Split(text, ',')) {
    const std::string problem = NumberProblem(count, {0, std::numeric_limits<int32_t>::max()});
    if (!problem.empty()) {
      return Fail(ErrorCode::kBadArgument, fmt::format("{}; counts are joined by commas", problem), option);
    }
    counts.push_back(static_cast<int32_t>(std::stol(count)));
  }
  return counts;
}

}  // namespace

void AddBatchArguments(Command& app, BatchArguments& arguments) {
  Option* file = app.AddOption("--batch", arguments.file, "Batch: document ids, valid counts (.json or .safetensors)");
  file->Reads("FILE");
  app.AddOption("--documents", arguments.documents,
                "Instead of a batch: lengths of the documents, 421,97,613; rows that differ, 421,97/518")
      ->TypeName("LENGTHS")
      ->Excludes(file);
  app.AddOption("--valid", arguments.valid, "Instead of a batch: valid tokens of all rows, or 1000,800 of each")
      ->TypeName("COUNTS")
      ->Excludes(file);
}

Result<Batch> ReadBatchArguments(const BatchArguments& arguments, const Contract& contract) {
  if (!arguments.file.empty()) {
    auto read = ReadBatch(arguments.file);
    if (!read) return tl::unexpected(WithFileHint(read.error(), arguments.file, FileUse::kBatch));
    return read;
  }
  Batch batch;
  if (!arguments.documents.empty()) {
    IntRows rows;
    for (const std::string& row : Split(arguments.documents, '/')) {
      auto lengths = ReadCounts(row, "--documents");
      if (!lengths) return tl::unexpected(lengths.error());
      rows.push_back(std::move(*lengths));
    }
    if (rows.size() == 1) rows = IntRows(static_cast<size_t>(contract.shape.batch), rows.front());
    batch.doc_lengths = std::move(rows);
  }
  if (!arguments.valid.empty()) {
    auto counts = ReadCounts(arguments.valid, "--valid");
    if (!counts) return tl::unexpected(counts.error());
    batch.valid_tokens.emplace(counts->begin(), counts->end());
  }
  return batch;
}

std::string SourceOf(const BatchArguments& arguments) {
  if (!arguments.file.empty()) return std::string(kFile) + arguments.file;
  std::string text;
  if (!arguments.documents.empty()) text += std::string(kDocuments) + arguments.documents;
  if (!arguments.valid.empty()) text += fmt::format("{}{}{}", text.empty() ? "" : " ", kValid, arguments.valid);
  return text;
}

BatchArguments BatchArgumentsOf(const std::string& source) {
  BatchArguments arguments;
  std::string_view rest = source;
  const auto starts = [&](std::string_view word) { return rest.substr(0, word.size()) == word; };
  if (starts(kFile)) {
    arguments.file = rest.substr(kFile.size());
    return arguments;
  }
  if (starts(kDocuments)) {
    rest.remove_prefix(kDocuments.size());
    arguments.documents = rest.substr(0, rest.find(' '));
    rest.remove_prefix(std::min(arguments.documents.size() + 1, rest.size()));
  }
  if (starts(kValid)) {
    arguments.valid = rest.substr(kValid.size());
    rest = {};
  }
  return rest.empty() ? arguments : BatchArguments{};
}

Error WithBatchAdvice(Error error, const Batch& batch) {
  if (error.code != ErrorCode::kBatchInvalid || batch != Batch{}) return error;
  bool needs_documents = false;
  bool needs_valid = false;
  for (const Violation& violation : error.violations) {
    needs_documents |= violation.field.find("doc_ids") != std::string::npos;
    needs_valid |= violation.field == "valid_tokens";
  }
  error.message += "; give one with --batch FILE";
  if (needs_documents || needs_valid) {
    error.message += fmt::format(", or by {}{}{}", needs_documents ? "--documents LENGTHS" : "",
                                 needs_documents && needs_valid ? " and " : "", needs_valid ? "--valid COUNTS" : "");
  }
  return error;
}

}  // namespace tessera::program
