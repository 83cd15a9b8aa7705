// The table: what a decoder's tensors are called, and how each is cut. Whole subtrees that inference once got wrong
// come first and are replicated in so many words (B13); then experts; then the matrices by their last name.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "shard/spec.h"

namespace tessera::shard {
namespace {

enum class Cut : uint8_t {
  kWhole,    // written out: stays whole under ZeRO-3 too
  kFree,     // whole as far as tensors and experts go
  kColumn,   // the dimension that comes out, along `model`
  kRow,      // the dimension that goes in, along `model`
  kHeads,    // a column cut that must fall between heads
  kLast,     // a row cut of what heads give
  kExpert,   // the first dimension along `expert`
  kLoraIn,   // LoRA's A: its rank along `model`, where that divides
  kLoraOut,  // LoRA's B, the same
};

struct Rule {
  std::string_view word;
  Cut cut = Cut::kWhole;
  std::string_view why;
};

// A part of the name that begins so, wherever it stands, decides for everything below it.
constexpr std::array<Rule, 16> kSubtrees = {{{"engram", Cut::kWhole, "Engram is replicated"},
                                             {"mhc", Cut::kWhole, "hyper-connections are replicated"},
                                             {"ngram", Cut::kWhole, "n-gram tables are replicated"},
                                             {"mtp", Cut::kWhole, "multi-token prediction is replicated"},
                                             {"structure", Cut::kWhole, "structure embeddings are replicated"},
                                             {"platform", Cut::kWhole, "platform embeddings are replicated"},
                                             {"temporal", Cut::kWhole, "temporal embeddings are replicated"},
                                             {"rope", Cut::kWhole, "RoPE tables are replicated"},
                                             {"rotary", Cut::kWhole, "RoPE tables are replicated"},
                                             {"router", Cut::kWhole, "the router is replicated"},
                                             {"shared_expert", Cut::kWhole, "shared experts are replicated"},
                                             {"null_expert", Cut::kWhole, "null experts are replicated"},
                                             {"lora_a", Cut::kLoraIn, "LoRA's A, by columns"},
                                             {"lora_b", Cut::kLoraOut, "LoRA's B, by rows"},
                                             {"lora", Cut::kWhole, "what else LoRA has is replicated"},
                                             {"experts", Cut::kExpert, "experts, one after another"}}};

// Inside of `indexer`.
constexpr std::array<Rule, 4> kIndexer = {{{"k_proj", Cut::kWhole, "the indexer's keys are replicated"},
                                           {"q_proj", Cut::kColumn, "the indexer's queries, by columns"},
                                           {"w", Cut::kColumn, "the indexer's weights, by columns"},
                                           {"weights_proj", Cut::kColumn, "the indexer's weights, by columns"}}};

// The last part of the name, without `weight` or `bias`.
constexpr std::string_view kHeadsWhy = "queries, keys and values, by heads";
constexpr std::string_view kLastWhy = "out of attention, by rows";
constexpr std::string_view kUpWhy = "gate and up, by columns";
constexpr std::string_view kDownWhy = "down, by rows";
constexpr std::string_view kTableWhy = "tables of tokens, whole along model";
constexpr std::string_view kMlaUpWhy = "MLA up, by heads";
constexpr std::string_view kMlaDownWhy = "MLA down is replicated";
constexpr std::array<Rule, 40> kLeaves = {{{"qkv", Cut::kHeads, kHeadsWhy},
                                           {"linear_qkv", Cut::kHeads, kHeadsWhy},
                                           {"c_attn", Cut::kHeads, kHeadsWhy},
                                           {"c_q", Cut::kHeads, kHeadsWhy},
                                           {"c_k", Cut::kHeads, kHeadsWhy},
                                           {"c_v", Cut::kHeads, kHeadsWhy},
                                           {"q_proj", Cut::kHeads, kHeadsWhy},
                                           {"k_proj", Cut::kHeads, kHeadsWhy},
                                           {"v_proj", Cut::kHeads, kHeadsWhy},
                                           {"wq", Cut::kHeads, kHeadsWhy},
                                           {"wk", Cut::kHeads, kHeadsWhy},
                                           {"wv", Cut::kHeads, kHeadsWhy},
                                           {"gate", Cut::kHeads, "the gate of attention's output, by heads"},
                                           {"sink_logits", Cut::kHeads, "sink logits, by heads"},
                                           {"w_uq", Cut::kHeads, kMlaUpWhy},
                                           {"w_ukv", Cut::kHeads, kMlaUpWhy},
                                           {"w_dq", Cut::kWhole, kMlaDownWhy},
                                           {"w_dkv", Cut::kWhole, kMlaDownWhy},
                                           {"w_dqkv", Cut::kWhole, kMlaDownWhy},
                                           {"proj", Cut::kLast, kLastWhy},
                                           {"linear_proj", Cut::kLast, kLastWhy},
                                           {"o_proj", Cut::kLast, kLastWhy},
                                           {"wo", Cut::kLast, kLastWhy},
                                           {"c_proj", Cut::kRow, "back into the residual stream, by rows"},
                                           {"fc1", Cut::kColumn, kUpWhy},
                                           {"linear_fc1", Cut::kColumn, kUpWhy},
                                           {"c_fc", Cut::kColumn, kUpWhy},
                                           {"gate_proj", Cut::kColumn, kUpWhy},
                                           {"up_proj", Cut::kColumn, kUpWhy},
                                           {"gate_up_proj", Cut::kColumn, kUpWhy},
                                           {"fc2", Cut::kRow, kDownWhy},
                                           {"linear_fc2", Cut::kRow, kDownWhy},
                                           {"down_proj", Cut::kRow, kDownWhy},
                                           {"wte", Cut::kFree, kTableWhy},
                                           {"wpe", Cut::kFree, kTableWhy},
                                           {"embedding", Cut::kFree, kTableWhy},
                                           {"embed_tokens", Cut::kFree, kTableWhy},
                                           {"lm_head", Cut::kFree, "the head, whole along model"},
                                           {"cos", Cut::kWhole, "RoPE tables are replicated"},
                                           {"sin", Cut::kWhole, "RoPE tables are replicated"}}};

// Boundary activations: the last part of the name, and the axis of each dimension.
struct Boundary {
  std::string_view word;
  std::array<std::string_view, 4> axes;
  size_t rank = 0;
  bool is_by_heads = false;
};
constexpr Boundary Heads(std::string_view word) { return {word, {kDataAxis, kModelAxis, kContextAxis, ""}, 4, true}; }
constexpr Boundary Tokens(std::string_view word) { return {word, {kDataAxis, kContextAxis, "", ""}, 2}; }
constexpr Boundary Stream(std::string_view word) { return {word, {kDataAxis, kContextAxis, "", ""}, 3}; }
constexpr std::array<Boundary, 21> kBoundaries = {{Heads("q"),
                                                   Heads("k"),
                                                   Heads("v"),
                                                   Heads("o"),
                                                   {"lse", {kDataAxis, kModelAxis, kContextAxis, ""}, 3, true},
                                                   Tokens("input_ids"),
                                                   Tokens("target_ids"),
                                                   Tokens("doc_ids"),
                                                   Tokens("loss_mask"),
                                                   Tokens("tokens"),
                                                   Tokens("positions"),
                                                   Tokens("structure_0"),
                                                   Tokens("structure_1"),
                                                   Tokens("structure_2"),
                                                   Tokens("structure_3"),
                                                   Tokens("structure_4"),
                                                   Stream("hidden"),
                                                   Stream("residual"),
                                                   Stream("logits"),
                                                   {"valid_token_count", {kDataAxis, "", "", ""}, 1},
                                                   {"loss", {"", "", "", ""}, 0}}};

std::vector<std::string> PartsOf(std::string_view name) {
  std::vector<std::string> parts(1);
  for (const char c : name) {
    if (c == '.' || c == '/') {
      parts.emplace_back();
    } else {
      parts.back() += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    }
  }
  const bool is_plain = parts.size() > 1 && (parts.back() == "weight" || parts.back() == "bias" ||
                                             parts.back() == "kernel" || parts.back() == "scale");
  if (is_plain) parts.pop_back();
  return parts;
}

template <size_t n>
const Rule* FindExact(const std::array<Rule, n>& rules, std::string_view word) {
  const auto at = std::find_if(rules.begin(), rules.end(), [&](const Rule& rule) { return rule.word == word; });
  return at == rules.end() ? nullptr : &*at;
}

const Rule* FindRule(const std::vector<std::string>& parts) {
  static constexpr Rule kNorm = {"norm", Cut::kFree, "norms, whole along model"};
  for (const std::string& part : parts) {
    for (const Rule& rule : kSubtrees) {
      if (part.starts_with(rule.word)) return &rule;
    }
  }
  const std::string& leaf = parts.back();
  if (std::find(parts.begin(), parts.end(), "indexer") != parts.end()) return FindExact(kIndexer, leaf);
  if (const Rule* rule = FindExact(kLeaves, leaf); rule != nullptr) return rule;
  const bool is_norm = leaf.find("norm") != std::string::npos || leaf.starts_with("ln_");
  return is_norm ? &kNorm : nullptr;
}

// Puts an axis on a dimension, where the mesh has it.
void Put(const Mesh& mesh, std::string_view axis, size_t dim, SpecAxes& axes) {
  if (!axis.empty() && mesh.Has(axis)) axes[dim] = {std::string(axis)};
}

void PlaceByRule(const Rule& rule, const DeclaredModel& model, const Mesh& mesh, ShardRow& row) {
  const std::vector<int64_t>& dims = row.tensor.dims;
  SpecAxes axes(dims.size());
  const auto refuse = [&](std::string_view ranks) {
    row.source = fmt::format("the table has \"{}\" with {} dimensions, not {}", rule.word, ranks, dims.size());
  };
  const bool is_matrix = dims.size() == 2;
  const size_t out = model.is_in_out && is_matrix ? 1 : 0;  // the dimension that comes out; a bias has no other
  const size_t in = 1 - out;
  switch (rule.cut) {
    case Cut::kWhole:
      row.is_pinned = true;
      break;
    case Cut::kFree:
      break;
    case Cut::kColumn:
    case Cut::kHeads:
      if (dims.empty() || dims.size() > 2) return refuse("1 or 2");
      Put(mesh, kModelAxis, out, axes);
      row.is_by_heads = rule.cut == Cut::kHeads;
      break;
    case Cut::kRow:
    case Cut::kLast:
      if (dims.empty() || dims.size() > 2) return refuse("1 or 2");
      if (is_matrix) Put(mesh, kModelAxis, in, axes);  // its bias is added once, after the sum
      row.is_by_heads = rule.cut == Cut::kLast && is_matrix;
      break;
    case Cut::kExpert:
      if (dims.empty() || dims.size() > 3) return refuse("1 to 3");
      Put(mesh, kExpertAxis, 0, axes);
      break;
    case Cut::kLoraIn:
    case Cut::kLoraOut: {
      if (!is_matrix) return refuse("2");
      // The rank is what comes out of A and goes into B.
      const size_t rank = rule.cut == Cut::kLoraIn ? out : in;
      const bool divides = dims[rank] % mesh.SizeOf(kModelAxis) == 0;
      if (divides) Put(mesh, kModelAxis, rank, axes);
      row.is_pinned = !divides;
      if (!divides) {
        row.source = "table: LoRA is replicated, its rank does not divide by model";
        row.spec = std::move(axes);
        return;
      }
      break;
    }
  }
  row.source = fmt::format("table: {}", rule.why);
  row.spec = std::move(axes);
}

void PlaceActivation(const std::vector<std::string>& parts, const Mesh& mesh, ShardRow& row) {
  const auto boundary = std::find_if(kBoundaries.begin(), kBoundaries.end(),
                                     [&](const Boundary& known) { return known.word == parts.back(); });
  if (boundary == kBoundaries.end()) {
    row.source = "the table has no activation of that name";
    return;
  }
  if (row.tensor.dims.size() != boundary->rank) {
    row.source = fmt::format("the table has the activation \"{}\" with {} dimensions, not {}", boundary->word,
                             boundary->rank, row.tensor.dims.size());
    return;
  }
  SpecAxes axes(boundary->rank);
  for (size_t dim = 0; dim < boundary->rank; ++dim) Put(mesh, boundary->axes[dim], dim, axes);
  row.is_by_heads = boundary->is_by_heads;
  row.source = "table: a boundary activation";
  row.spec = std::move(axes);
}

}  // namespace

void PlaceByTable(const DeclaredModel& model, const Mesh& mesh, ShardRow& row) {
  const std::vector<std::string> parts = PartsOf(row.tensor.name);
  if (row.tensor.role == TensorRole::kActivation) return PlaceActivation(parts, mesh, row);
  const Rule* rule = FindRule(parts);
  if (rule == nullptr) {
    row.source = "neither a file of specs nor the table is about it";
    return;
  }
  PlaceByRule(*rule, model, mesh, row);
}

}  // namespace tessera::shard
