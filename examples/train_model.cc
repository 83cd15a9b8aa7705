// Trains a model: two layers that learn to count, from documents of different lengths packed into rows. The program is
// compiled once, though every batch has other documents (docs/model.md).
#include <tessera/tessera.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace {

constexpr const char* kModel = R"toml(
[model]
vocab = 32
layers = 2
width = 32
num_q_heads = 4
num_kv_heads = 2
rows = 2
row_tokens = 64
masks = ["causal and documents", "causal and documents and window(15, 0)"]
)toml";
constexpr int kSteps = 30;

// Documents that count up by one, two or three, as many as fit; what is left of a row is padding.
tessera::RowBatch NextRows(std::mt19937& random, const tessera::ModelSpec& spec) {
  const auto tokens = static_cast<size_t>(spec.rows * spec.row_tokens);
  tessera::RowBatch rows;
  rows.rows = spec.rows;
  rows.row_tokens = spec.row_tokens;
  rows.input_ids.assign(tokens, 0);
  rows.target_ids.assign(tokens, 0);
  rows.loss_mask.assign(tokens, 0);
  rows.doc_ids.assign(tokens, tessera::kPaddingDocument);
  for (int64_t row = 0; row < spec.rows; ++row) {
    int64_t used = 0;
    for (int32_t document = 1;; ++document) {
      const auto length = static_cast<int64_t>(8 + random() % 17);
      if (used + length > spec.row_tokens) break;
      auto token = static_cast<int32_t>(random() % 32);
      const auto by = static_cast<int32_t>(1 + random() % 3);
      for (int64_t i = 0; i < length; ++i, token = (token + by) % 32) {
        const auto at = static_cast<size_t>(row * spec.row_tokens + used + i);
        const bool has_next = i + 1 < length;  // the last token of a document is not trained on the next one's first
        rows.input_ids[at] = token;
        rows.target_ids[at] = has_next ? (token + by) % 32 : 0;
        rows.loss_mask[at] = has_next ? 1 : 0;
        rows.doc_ids[at] = document;
      }
      used += length;
    }
    rows.valid_token_count.push_back(static_cast<int32_t>(used));
  }
  return rows;
}

int Fail(const tessera::Error& error) {
  std::fprintf(stderr, "%s\n", tessera::ToText(error).c_str());
  return 1;
}

}  // namespace

int main(int, char** argv) {
  tessera::ReexecWithCpuGuard(argv);
  const tessera::Engine engine;
  const tessera::Result<tessera::ModelSpec> spec = tessera::ParseModel(kModel);
  if (!spec) return Fail(spec.error());
  tessera::TrainerOptions options;
  options.seed = 1;
  options.optimizer.weight_decay = 0.01;
  tessera::Result<tessera::Trainer> trainer =
      tessera::Trainer::Create(engine, *spec, tessera::FindTarget("cpu").value(), options);
  if (!trainer && trainer.error().code == tessera::ErrorCode::kPluginUnusable) {
    std::printf("nothing to compile with (script/setup --xla installs it): %s\n", trainer.error().message.c_str());
    return 0;
  }
  if (!trainer) return Fail(trainer.error());
  for (const tessera::Substitute& one : trainer->substitutes()) {
    if (one.name != "none") std::printf("%s: %s, %s\n", one.key.c_str(), one.name.c_str(), one.reason.c_str());
  }

  std::mt19937 random(1);
  double first = 0.0;
  double last = 0.0;
  for (int step = 1; step <= kSteps; ++step) {
    const tessera::RowBatch rows = NextRows(random, *spec);
    const tessera::RowBatch* micro_batches[] = {&rows};
    const tessera::Result<tessera::StepResult> result =
        trainer->Step(micro_batches, {.learning_rate = 0.01, .step = step});
    if (!result) return Fail(result.error());
    if (step == 1) first = result->loss;
    last = result->loss;
    if (step == 1 || step % 10 == 0) {
      std::printf("step %2d: %.3f nats a token, gradient norm %.2f\n", step, result->loss, result->grad_norm);
    }
  }
  std::printf("programs compiled: %d\n", static_cast<int>(trainer->compiles()));
  return last < 0.6 * first && trainer->compiles() == 2 ? EXIT_SUCCESS : EXIT_FAILURE;
}
