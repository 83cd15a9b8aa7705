// Contract files: any text gives an error or a good contract that its canonical text reproduces. TOML and JSON are
// targets of their own, because their readers share nothing.
#include "fuzz.h"
#include "tessera/contract.h"
#include "tessera/mask_term.h"

namespace tessera {
namespace {

// Lengths and heads up to which the sets of a mask are made: chunk(1) of a million tokens is a million runs, and would
// say nothing new.
constexpr int64_t kMaxFuzzLength = 4096;
constexpr int64_t kMaxFuzzHeads = 16;

// A term of the user's own whose cost does not grow with the lengths: own(), own(left), own(left, right).
bool RegisterOwn(MaskTerms& terms) {
  MaskTermSpec spec{.name = "own", .version = 2, .max_parameters = 2};
  spec.runs = [](const MaskTermInput& input) {
    MaskRun run{.q_end = input.q_len, .kv_end = input.kv_len};
    if (!input.parameters.empty()) run.diag_begin = input.offset - input.parameters[0];
    if (input.parameters.size() > 1) run.diag_end = input.offset + input.parameters[1];
    return std::vector<MaskRun>{run};
  };
  return terms.Register(spec).has_value();
}

bool FuzzContract(std::string_view text) {
  static MaskTerms terms;
  static const bool registered = RegisterOwn(terms);
  Require(registered, "the term is registered");
  const auto contract = ParseContract(text, ".", &terms);
  if (!contract) {
    Require(!ToText(contract.error()).empty(), "an error has a text");
    return false;
  }
  Require(Validate(*contract).empty(), "what the parser accepts is valid");
  if (contract->mask.heads.size() > kMaxFuzzHeads) return true;
  const auto from_toml = ParseContract(ToToml(*contract), ".", &terms);
  Require(from_toml && *from_toml == *contract, "TOML round trip");
  const auto from_json = ParseContract(ToJson(*contract), ".", &terms);
  Require(from_json && *from_json == *contract, "JSON round trip");
  const Shape& shape = contract->shape;
  if (shape.q_len > kMaxFuzzLength || shape.kv_len > kMaxFuzzLength || shape.num_q_heads > kMaxFuzzHeads) return true;
  Require(DescribeMask(*contract).has_value(), "a good contract has facts");
  Require(*ContractKey(*contract) == *ContractKey(*from_json), "equal contracts have equal keys");
  return true;
}

bool IsJson(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && text[first] == '{';
}

}  // namespace

bool FuzzContractToml(const uint8_t* data, size_t size) {
  const std::string_view text = AsText(data, size);
  return !IsJson(text) && FuzzContract(text);
}

bool FuzzContractJson(const uint8_t* data, size_t size) {
  const std::string_view text = AsText(data, size);
  return IsJson(text) && FuzzContract(text);
}

}  // namespace tessera
