// The data of a run as rows: source files are scanned, divided into those that are trained on and those held out, and
// packed by src/rows into two folders of the run; or the run names folders of rows that are there. Either way every row
// is checked against the model before the first step.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tessera/train.h"

namespace tessera::train {

// Names of [data]'s files below its folder, ascending. TSR-T102 for a pattern without a file.
Result<std::vector<std::string>> MatchFiles(const DataSpec& data);
// Of a file's name alone: adding a file moves no other one.
bool IsHeldOut(const std::string& name, int64_t one_in);

struct RowFolder {
  std::string path;
  RowsManifest manifest;
};
struct Corpus {
  RowFolder train;
  RowFolder held_out;
  std::string digest;  // of all rows, 32 hex digits
  std::string tokenizer;
  std::string packer;
};
// Whether somebody wants the run to end. Once it says so it goes on saying so: what returns early because of it returns
// something unfinished, and its caller asks again.
using StopFunction = std::function<bool()>;
// Rows of files lie in RUN_FOLDER/rows. `keep` goes on with those that are there, whatever became of the files; else
// they are made anew, and TSR-T102 where something is in their place that no run has made.
Result<Corpus> PrepareCorpus(const RunFile& run, const std::string& run_folder, bool keep,
                             const StopFunction& should_stop = {});

// Rows of a folder in any order, each batch of the shape that the model takes.
class RowSource {
 public:
  // Reads every row: TSR-D005 and D006 for damaged shards, TSR-T102 for rows that the model cannot take.
  static Result<RowSource> Open(const RowFolder& folder, const ModelSpec& model, const StopFunction& should_stop = {});
  int64_t rows() const { return rows_; }
  // A row that is not there (-1) is one of padding.
  RowBatch Read(const std::vector<int64_t>& rows) const;
  const std::vector<RowShard>& shards() const { return shards_; }

 private:
  std::vector<RowShard> shards_;
  std::vector<int64_t> begins_ = {0};
  int64_t rows_ = 0;
  int64_t row_tokens_ = 0;
};

// The order in which rows are trained on: each epoch a permutation of its own, by seed and number. A function of the
// place alone.
class RowOrder {
 public:
  RowOrder(int64_t rows, uint64_t seed) : rows_(rows), seed_(seed) {}
  // The row at a place of the endless sequence of epochs.
  int64_t At(int64_t place);

 private:
  int64_t rows_;
  uint64_t seed_;
  int64_t epoch_ = -1;
  std::vector<int64_t> order_;
};

// Nats per token of a model of pairs of tokens, counted in one list of shards and measured on the first rows of
// another, with a tenth added to every count: what a model has to beat.
double BigramLoss(const std::vector<RowShard>& train, const std::vector<RowShard>& held_out, int64_t vocab,
                  int64_t held_out_rows);

}  // namespace tessera::train
