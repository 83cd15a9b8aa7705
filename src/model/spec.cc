// A model's definition: read, checked, printed, keyed.
#include <fmt/format.h>

#include <cmath>

#include "base/hash.h"
#include "base/math.h"
#include "base/spelling.h"
#include "base/try.h"
#include "contract/contract_section.h"
#include "io/document.h"
#include "model/contracts.h"
#include "model/limits.h"
#include "tessera/model.h"

namespace tessera {
namespace {

using Kind = DocumentValue::Kind;

// Two thirds of four widths, as SwiGLU has three matrices where others have two; whole vectors of it.
int64_t DefaultMlpWidth(int64_t width) { return RoundUp(CeilDiv(width * 8, int64_t{3}), int64_t{32}); }

class Checker {
 public:
  explicit Checker(const ModelSpec& spec) : spec_(spec) {}

  std::vector<Violation> Run() {
    Count("vocab", spec_.vocab, model::kMaxModelVocab);
    Count("vocab_multiple", spec_.vocab_multiple, model::kMaxModelVocab);
    Count("layers", spec_.layers, model::kMaxModelLayers);
    Count("width", spec_.width, model::kMaxModelWidth);
    Count("num_q_heads", spec_.num_q_heads, model::kMaxModelWidth);
    Count("num_kv_heads", spec_.num_kv_heads, model::kMaxModelWidth);
    Count("head_dim", spec_.head_dim, model::kMaxModelWidth);
    Count("mlp_width", spec_.mlp_width, model::kMaxModelWidth);
    Count("structure_width", spec_.structure_width, model::kMaxModelWidth);
    Count("rows", spec_.rows, model::kMaxModelTokens);
    Count("row_tokens", spec_.row_tokens, model::kMaxModelTokens);
    if (spec_.dtype == DType::kF16) Say("dtype", "expected \"f32\" or \"bf16\", found \"f16\"");
    Real("rope_base", spec_.rope_base, spec_.rope_base > 0, "a positive number");
    Real("norm_eps", spec_.norm_eps, spec_.norm_eps > 0, "a positive number");
    Real("softcap", spec_.softcap, spec_.softcap >= 0, "0 for none, or a positive number");
    Real("final_softcap", spec_.final_softcap, spec_.final_softcap >= 0, "0 for none, or a positive number");
    if (spec_.masks.empty()) Say("masks", "expected at least one mask expression");
    if (!violations_.empty()) return violations_;
    // Numbers are in range from here on, so that products of them are.
    if (spec_.num_q_heads % spec_.num_kv_heads != 0) {
      Say("num_kv_heads", fmt::format("expected a divisor of num_q_heads ({})", spec_.num_q_heads));
    }
    if (spec_.head_dim % 2 != 0) Say("head_dim", "expected an even number, whose halves are rotated together");
    if (spec_.rows > model::kMaxModelTokens / spec_.row_tokens) {
      Say("rows", fmt::format("expected at most {} tokens in a batch", model::kMaxModelTokens));
    }
    if (NumParameters() > model::kMaxModelParameters) {
      Say("width", fmt::format("expected at most {} parameters in all", model::kMaxModelParameters));
    }
    if (violations_.empty()) Masks();
    return violations_;
  }

 private:
  void Say(std::string field, std::string expected) {
    violations_.push_back({"model." + std::move(field), std::move(expected)});
  }
  void Count(const char* field, int64_t value, int64_t most) {
    if (value < 1 || value > most) Say(field, fmt::format("expected 1 to {}, found {}", most, value));
  }
  void Real(const char* field, double value, bool is_good, const char* expected) {
    if (!is_good || !std::isfinite(value)) Say(field, fmt::format("expected {}, found {}", expected, value));
  }
  int64_t NumParameters() const {
    const int64_t heads = 2 * (spec_.num_q_heads + spec_.num_kv_heads) + spec_.num_q_heads;
    // Each factor is below 2^22, and a width or so: the sum is below 2^63.
    const auto layer =
        static_cast<double>(spec_.width) * static_cast<double>(heads * spec_.head_dim + 3 * spec_.mlp_width);
    const auto tables =
        2.0 * static_cast<double>(spec_.width) * static_cast<double>(spec_.vocab + spec_.vocab_multiple);
    return static_cast<int64_t>(layer * static_cast<double>(spec_.layers) + tables);
  }
  void Masks() {
    for (size_t i = 0; i < spec_.masks.size(); ++i) {
      const std::string field = fmt::format("masks[{}]", i);
      const Result<Contract> contract = model::ContractOf(spec_, spec_.masks[i]);
      if (!contract) {
        Say(field, contract.error().violations.empty() ? contract.error().message
                                                       : contract.error().violations.front().expected);
        continue;
      }
      const Result<MaskFacts> facts = DescribeMask(*contract);
      if (!facts) {
        Say(field, facts.error().message);
      } else if (facts->names_blocks || facts->has_bitmap) {
        Say(field, "expected a mask that rows alone decide: without blocks and bitmaps");
      }
    }
  }
  const ModelSpec& spec_;
  std::vector<Violation> violations_;
};

void ReadMasks(ContractSection& section, std::vector<std::string>& masks) {
  const DocumentValue* value = section.Any("masks");
  if (value == nullptr) return;
  if (value->kind != Kind::kArray || value->items.empty()) {
    section.WrongType("masks", "an array of mask expressions", *value);
    return;
  }
  masks.clear();
  for (const DocumentValue& item : value->items) {
    if (item.kind != Kind::kString) {
      section.WrongType("masks", "an array of mask expressions", item);
      return;
    }
    masks.push_back(item.text);
  }
}

ModelSpec ReadSpec(const DocumentValue* table, std::vector<Violation>& problems) {
  ModelSpec spec;
  ContractSection section("model", table, &problems);
  section.RequiredInteger("vocab", &spec.vocab);
  section.Integer("vocab_multiple", &spec.vocab_multiple);
  section.RequiredInteger("layers", &spec.layers);
  const bool has_width =
      section.RequiredInteger("width", &spec.width) && spec.width > 0 && spec.width <= model::kMaxModelWidth;
  section.RequiredInteger("num_q_heads", &spec.num_q_heads);
  spec.num_kv_heads = spec.num_q_heads;
  section.Integer("num_kv_heads", &spec.num_kv_heads);
  if (has_width && spec.num_q_heads > 0) spec.head_dim = spec.width / spec.num_q_heads;
  section.Integer("head_dim", &spec.head_dim);
  if (has_width) spec.mlp_width = DefaultMlpWidth(spec.width);
  section.Integer("mlp_width", &spec.mlp_width);
  section.Integer("rows", &spec.rows);
  section.RequiredInteger("row_tokens", &spec.row_tokens);
  if (std::string dtype; section.Text("dtype", &dtype)) {
    spec.dtype = dtype == "bf16" ? DType::kBf16 : DType::kF32;
    if (dtype != "f32" && dtype != "bf16") {
      section.Problem("dtype", fmt::format("expected \"f32\" or \"bf16\", found {}", Excerpt(dtype)));
    }
  }
  section.Real("rope_base", &spec.rope_base);
  section.Real("norm_eps", &spec.norm_eps);
  ReadMasks(section, spec.masks);
  section.Real("softcap", &spec.softcap);
  section.Real("final_softcap", &spec.final_softcap);
  section.Bool("sink_logits", &spec.sink_logits);
  section.Bool("output_gate", &spec.output_gate);
  section.Bool("structure", &spec.structure);
  section.Integer("structure_width", &spec.structure_width);
  section.Finish();
  return spec;
}

// As TOML and JSON both read a number that is not an integer.
std::string Real(double value) {
  std::string text = fmt::format("{}", value);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

}  // namespace

int64_t ModelSpec::PaddedVocab() const { return RoundUp(vocab, vocab_multiple); }

Result<ModelSpec> ParseModel(std::string_view text) {
  Result<DocumentValue> document = ParseDocument(text);
  if (!document) return Fail(ErrorCode::kModelInvalid, document.error().message, document.error().where);
  const DocumentValue* table = document->Find("model");
  if (table == nullptr || table->kind != Kind::kTable) {
    return Fail(ErrorCode::kModelInvalid,
                {{"model", "expected a table with at least vocab, layers, width, num_q_heads and row_tokens"}});
  }
  std::vector<Violation> problems;
  ModelSpec spec = ReadSpec(table, problems);
  if (problems.empty()) problems = Validate(spec);
  if (!problems.empty()) return Fail(ErrorCode::kModelInvalid, std::move(problems));
  return spec;
}

std::vector<Violation> Validate(const ModelSpec& spec) { return Checker(spec).Run(); }

std::string ToToml(const ModelSpec& spec) {
  std::string masks;
  for (const std::string& mask : spec.masks) masks += (masks.empty() ? "" : ", ") + QuoteText(mask);
  const auto [vocab, vocab_multiple, layers, width, num_q_heads, num_kv_heads, head_dim, mlp_width, rows, row_tokens,
              dtype, rope_base, norm_eps, all_masks, softcap, final_softcap, sink_logits, output_gate, structure,
              structure_width] = spec;
  return fmt::format(
      "[model]\nvocab = {}\nvocab_multiple = {}\nlayers = {}\nwidth = {}\nnum_q_heads = {}\nnum_kv_heads = {}\n"
      "head_dim = {}\nmlp_width = {}\nrows = {}\nrow_tokens = {}\ndtype = \"{}\"\nrope_base = {}\nnorm_eps = {}\n"
      "masks = [{}]\nsoftcap = {}\nfinal_softcap = {}\nsink_logits = {}\noutput_gate = {}\nstructure = {}\n"
      "structure_width = {}\n",
      vocab, vocab_multiple, layers, width, num_q_heads, num_kv_heads, head_dim, mlp_width, rows, row_tokens,
      ToText(dtype), Real(rope_base), Real(norm_eps), masks, Real(softcap), Real(final_softcap), sink_logits,
      output_gate, structure, structure_width);
}

std::string Digest(const ModelSpec& spec) {
  Hasher hasher;
  hasher.Text(ToToml(spec));
  return Hex(hasher.Finish());
}

}  // namespace tessera
