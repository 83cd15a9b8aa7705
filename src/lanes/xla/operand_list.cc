// See operand_list.h.
#include "lanes/xla/operand_list.h"

#include <fmt/format.h>

#include <cstring>
#include <span>

namespace tessera::lanes::xla {
namespace {

ElementType ElementOf(stablehlo::Element element) {
  switch (element) {
    case stablehlo::Element::kI1:
      return ElementType::kBool;
    case stablehlo::Element::kI8:
      return ElementType::kI8;
    case stablehlo::Element::kI16:
      return ElementType::kI16;
    case stablehlo::Element::kI32:
    case stablehlo::Element::kUi32:  // by its bits
      return ElementType::kI32;
    case stablehlo::Element::kF32:
      return ElementType::kF32;
    case stablehlo::Element::kBf16:
      return ElementType::kBf16;
    case stablehlo::Element::kF16:
      return ElementType::kF16;
  }
  return ElementType::kF32;
}

struct Meaning {
  std::string_view name;
  std::string_view source;
  std::string_view about;
};
constexpr Meaning kMeanings[] = {
    {"q", "caller", "queries [batch, heads, tokens, dim]"},
    {"k", "caller", "keys [batch, key heads, tokens, dim]"},
    {"v", "caller", "values [batch, key heads, tokens, dim]"},
    {"do", "caller", "gradient of o"},
    {"sink_logits", "caller", "one logit for each query head"},
    {"lse", "forward", "log-sum-exp of the forward, -inf for rows without keys"},
    {"delta", "forward", "sum of o * do over each row's dim, 0 for rows without keys"},
    {"scale", "contract", "factor of the scores"},
    {"softcap", "contract", "bound of the scores"},
    {"part", "part", "number of the call, from 0, where several share a pass"},
};

// Results, of both passes. All but the last two are rows of tiles.
constexpr Meaning kResults[] = {
    {"o", "program",
     "output in f32, rows of tiles of every (batch row, query head): as [batch, heads, rows * tile, dim_v], where "
     "tokens "
     "past the last one are padding"},
    {"lse", "program",
     "log-sum-exp of each query's scores, -inf for rows without keys: as [batch, heads, rows * tile], where tokens "
     "past "
     "the last one are padding"},
    {"max", "program",
     "the largest of each query's scores: as [batch, heads, rows * tile], where tokens past the last one are padding"},
    {"dq", "program",
     "gradient of q in f32, rows of tiles of every (batch row, query head): as [batch, heads, rows * tile, dim_qk], "
     "where tokens past the last one are padding"},
    {"dk", "program",
     "gradient of k in f32, rows of tiles of every (batch row, key head): as [batch, key heads, rows * tile, dim_qk], "
     "where tokens past the last one are padding"},
    {"dv", "program",
     "gradient of v in f32, rows of tiles of every (batch row, key head): as [batch, key heads, rows * tile, dim_v], "
     "where tokens past the last one are padding"},
    {"dsink_logits", "program",
     "partial sums of the sink logits' gradient, one for each row of tiles of every (batch row, query head): as "
     "[batch, "
     "heads, rows], added up over batch and rows they are the gradient [heads]"},
    {"tiles", "program", "how many tiles the pass visited; of several chips a number for each, of its own"},
};

void SetBytes(ProgramOperand& operand, std::span<const std::byte> bytes) {
  operand.tensor.bytes.assign(bytes.begin(), bytes.end());
}

}  // namespace

ProgramOperand OperandOf(const stablehlo::NamedType& named) {
  return {.name = named.name,
          .source = {},
          .about = {},
          .tensor = {.type = ElementOf(named.type.element), .shape = named.type.dims, .bytes = {}}};
}

std::vector<ProgramOperand> OperandList(const stablehlo::Program& program, const PlanTables& tables,
                                        const Score& score) {
  std::vector<ProgramOperand> operands;
  for (const stablehlo::NamedType& input : program.inputs) {
    ProgramOperand operand = OperandOf(input);
    operand.source = "plan";
    operand.about = "a table of the plan: another batch has another";
    for (const Meaning& meaning : kMeanings) {
      if (meaning.name != input.name) continue;
      operand.source = meaning.source;
      operand.about = meaning.about;
    }
    if (operand.source == "plan") SetBytes(operand, std::as_bytes(std::span(tables.at(input.name))));
    if (operand.source == "contract") {
      const auto value = static_cast<float>(input.name == "scale" ? score.scale : score.softcap);
      SetBytes(operand, std::as_bytes(std::span(&value, 1)));
    }
    operands.push_back(std::move(operand));
  }
  return operands;
}

std::vector<ProgramOperand> ResultList(const stablehlo::Program& program) {
  std::vector<ProgramOperand> results;
  for (const stablehlo::NamedType& output : program.outputs) {
    ProgramOperand result = OperandOf(output);
    for (const Meaning& meaning : kResults) {
      if (meaning.name != output.name) continue;
      result.source = meaning.source;
      result.about = meaning.about;
    }
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace tessera::lanes::xla
