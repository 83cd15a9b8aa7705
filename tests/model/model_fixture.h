// What the tests of models share: a tiny definition, rows drawn for it, and trainers in a folder of programs that all
// tests of a process have together.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "lanes/xla/pjrt/find_plugins.h"
#include "support/proves.h"
#include "support/run_program.h"
#include "support/seed.h"
#include "tessera/model.h"

namespace tessera {

inline ModelSpec TinySpec() {
  ModelSpec spec;
  spec.vocab = 21;
  spec.vocab_multiple = 8;
  spec.layers = 2;
  spec.width = 16;
  spec.num_q_heads = 4;
  spec.num_kv_heads = 2;
  spec.head_dim = 4;
  spec.mlp_width = 24;
  spec.rows = 2;
  spec.row_tokens = 24;
  spec.masks = {"causal and documents", "causal and documents and window(5, 0)"};
  return spec;
}

// Everything that a definition can have, at once.
inline ModelSpec FullSpec() {
  ModelSpec spec = TinySpec();
  spec.softcap = 20.0;
  spec.final_softcap = 8.0;
  spec.sink_logits = true;
  spec.output_gate = true;
  spec.structure = true;
  spec.structure_width = 6;
  return spec;
}

struct DrawnDocument {
  std::vector<int32_t> tokens;
  std::array<std::vector<int32_t>, kNumStructureInputs> structure;
};

inline DrawnDocument DrawDocument(std::mt19937_64& rng, const ModelSpec& spec, int64_t length) {
  DrawnDocument document;
  std::uniform_int_distribution<int32_t> token(0, static_cast<int32_t>(spec.vocab) - 1);
  std::uniform_int_distribution<int32_t> column(-1, 70);  // none, and more than some tables have
  for (int64_t i = 0; i < length; ++i) {
    document.tokens.push_back(token(rng));
    for (std::vector<int32_t>& values : document.structure) values.push_back(column(rng));
  }
  return document;
}

inline RowBatch EmptyRows(const ModelSpec& spec) {
  const auto tokens = static_cast<size_t>(spec.rows * spec.row_tokens);
  RowBatch rows;
  rows.rows = spec.rows;
  rows.row_tokens = spec.row_tokens;
  rows.input_ids.assign(tokens, 0);
  rows.target_ids.assign(tokens, 0);
  rows.loss_mask.assign(tokens, 0);
  rows.doc_ids.assign(tokens, kPaddingDocument);
  rows.valid_token_count.assign(static_cast<size_t>(spec.rows), 0);
  for (std::vector<int32_t>& column : rows.structure) column.assign(tokens, 0);
  return rows;
}

// Puts a document after those that a row has.
inline void AddDocument(const DrawnDocument& document, int64_t row, RowBatch& rows) {
  int32_t& valid = rows.valid_token_count[static_cast<size_t>(row)];
  const auto begin = static_cast<size_t>(row * rows.row_tokens + valid);
  const int32_t id = valid == 0 ? 1 : rows.doc_ids[begin - 1] + 1;
  for (size_t i = 0; i < document.tokens.size(); ++i) {
    const bool has_next = i + 1 < document.tokens.size();
    rows.input_ids[begin + i] = document.tokens[i];
    rows.target_ids[begin + i] = has_next ? document.tokens[i + 1] : 0;
    rows.loss_mask[begin + i] = has_next ? 1 : 0;
    rows.doc_ids[begin + i] = id;
    for (size_t c = 0; c < rows.structure.size(); ++c) rows.structure[c][begin + i] = document.structure[c][i];
  }
  valid += static_cast<int32_t>(document.tokens.size());
}

// Documents of any length, and padding where the next did not fit.
inline RowBatch DrawRows(std::mt19937_64& rng, const ModelSpec& spec) {
  RowBatch rows = EmptyRows(spec);
  std::uniform_int_distribution<int64_t> length(1, spec.row_tokens / 2 + 2);
  for (int64_t row = 0; row < spec.rows; ++row) {
    for (int64_t next = length(rng); rows.valid_token_count[static_cast<size_t>(row)] + next <= spec.row_tokens;
         next = length(rng)) {
      AddDocument(DrawDocument(rng, spec, next), row, rows);
    }
  }
  return rows;
}

inline std::vector<double> Numbers(const Tensor& tensor) {
  std::vector<double> values(static_cast<size_t>(tensor.NumElements()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = tensor.At(static_cast<int64_t>(i));
  return values;
}

inline double Norm(const Tensor& tensor) {
  double sum = 0.0;
  for (const double value : Numbers(tensor)) sum += value * value;
  return std::sqrt(sum);
}

inline double Distance(const Tensor& a, const Tensor& b) {
  double sum = 0.0;
  for (int64_t i = 0; i < a.NumElements(); ++i) sum += (a.At(i) - b.At(i)) * (a.At(i) - b.At(i));
  return std::sqrt(sum);
}

class ModelTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string installed = OptionsFromEnvironment().xla_folder;
    bool has_plugin = false;
    for (const pjrt::FoundPlugin& found : pjrt::FindPlugins(installed)) {
      has_plugin |= found.name.rfind("xla-cpu-pjrt", 0) == 0;
    }
    if (!has_plugin) GTEST_SKIP() << "no CPU plugin in " << installed << "; script/setup --xla installs it";
    static const TemporaryFolder kFolder;  // programs are kept from test to test, and the user's are not touched
    if (const std::string link = kFolder.path() + "/plugins"; !std::filesystem::exists(link)) {
      std::filesystem::create_symlink(installed + "/plugins", link);
    }
    EngineOptions options = OptionsFromEnvironment();
    options.xla_folder = kFolder.path();
    options.lane = "auto";
    options.isa = "auto";
    engine_.emplace(std::move(options));
  }

  const Engine& engine() const { return *engine_; }
  static Target Cpu() { return FindTarget("cpu").value(); }
  static TrainerOptions Options(const std::string& attention = "auto", uint64_t seed = 1) {
    TrainerOptions options;
    options.attention = attention;
    options.seed = seed;
    options.xla.optimization = 0;  // what is compiled once and run a few times
    return options;
  }
  Result<Trainer> Make(const ModelSpec& spec, const TrainerOptions& options) const {
    return Trainer::Create(*engine_, spec, Cpu(), options);
  }

 private:
  std::optional<Engine> engine_;
};

}  // namespace tessera
