// What a model that is trained is made of: its sizes, masks and options as text and values, and its parameters with how
// they begin. docs/model.md explains it by an example.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/dtype.h"
#include "tessera/error.h"
#include "tessera/rows.h"
#include "tessera/tensor.h"

#pragma GCC visibility push(default)
namespace tessera {

// A decoder: embedding, `layers` times (norm, attention, norm, SwiGLU), norm, logits.
struct ModelSpec {
  int64_t vocab = 0;                        // token ids are below it
  int64_t vocab_multiple = kVocabMultiple;  // the embedding has the next multiple; logits are cut back to `vocab`
  int64_t layers = 0;
  int64_t width = 0;
  int64_t num_q_heads = 1;
  int64_t num_kv_heads = 1;
  int64_t head_dim = 0;  // even
  int64_t mlp_width = 0;
  int64_t rows = 1;           // of a micro-batch
  int64_t row_tokens = 0;     // of a row
  DType dtype = DType::kF32;  // of products and attention; parameters, sums and the residual stream are f32
  double rope_base = 10000.0;
  double norm_eps = 1e-6;
  std::vector<std::string> masks = {"causal and documents"};  // layer i has masks[i % size]
  double softcap = 0.0;                                       // of attention scores; 0: off, as the next
  double final_softcap = 0.0;                                 // of logits
  bool sink_logits = false;                                   // one learned logit per query head and layer
  bool output_gate = false;  // attention's output times a sigmoid of a product of the layer's input
  bool structure = false;    // embeddings of the five structure columns, whose sum begins as zero
  int64_t structure_width = 64;

  int64_t PaddedVocab() const;
  bool operator==(const ModelSpec&) const = default;
};
// TOML or JSON, told apart by the first character; everything in a table [model], names as above. Tables beside it are
// not looked at. TSR-T001 with every violation; a spec that comes out of here is good.
Result<ModelSpec> ParseModel(std::string_view text);
std::vector<Violation> Validate(const ModelSpec& spec);
std::string ToToml(const ModelSpec& spec);
std::string Digest(const ModelSpec& spec);  // 32 hex digits

// How a parameter begins.
enum class Init : uint8_t { kZeros, kOnes, kNormal };
struct ParameterInfo {
  std::string name;
  std::vector<int64_t> dims;
  Init init = Init::kZeros;
  double deviation = 0.0;  // of kNormal
  bool has_decay = false;  // weight decay pulls on it: matrices, not norms, sinks or embeddings
};
// In the order of programs. All are f32.
std::vector<ParameterInfo> ParametersOf(const ModelSpec& spec);
// The same values on every machine; each parameter has a stream of its own, so that adding one changes no other.
TensorMap InitialParameters(const ModelSpec& spec, uint64_t seed);

}  // namespace tessera
#pragma GCC visibility pop
