// The batch of a command: a file, or for trying things a few numbers in the arguments.
#pragma once

#include <string>
#include <vector>

#include "arguments.h"
#include "tessera/tessera.h"

namespace tessera::program {

struct BatchArguments {
  std::string file;
  std::string documents;  // lengths, joined by commas; rows joined by "/"; one row stands for all
  std::string valid;      // one count, or one for each row, joined by commas

  bool IsEmpty() const { return file.empty() && documents.empty() && valid.empty(); }
};

// The names of its options, for lists of what may stand beside what.
inline const std::vector<std::string> kBatchOptions = {"--batch", "--documents", "--valid"};
void AddBatchArguments(Command& app, BatchArguments& arguments);

Result<Batch> ReadBatchArguments(const BatchArguments& arguments, const Contract& contract);

// As receipts say it: "", "file b.json", "documents 421,97,613 valid 1000".
std::string SourceOf(const BatchArguments& arguments);
// The arguments that a source in a receipt stood for; none of them for one that was made elsewhere.
BatchArguments BatchArgumentsOf(const std::string& source);

// An error of a batch that was not given says how to give it.
Error WithBatchAdvice(Error error, const Batch& batch);

}  // namespace tessera::program
