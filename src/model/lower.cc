// A model's programs as texts, for whoever wants to read them or to compile them elsewhere.
#include <array>
#include <set>

#include "base/try.h"
#include "lanes/xla/operand_list.h"
#include "model/choose.h"
#include "model/definition.h"
#include "tessera/model.h"

namespace tessera {
namespace {

struct Meaning {
  std::string source;
  std::string about;
};

class Namer {
 public:
  explicit Namer(const ModelSpec& spec) {
    for (const ParameterInfo& info : ParametersOf(spec)) parameters_.insert(info.name);
    for (const stablehlo::NamedType& input : model::RowInputs(spec)) rows_.insert(input.name);
  }

  Meaning Of(const std::string& name) const {
    if (parameters_.contains(name)) return {"state", "a parameter"};
    if (name.starts_with("g.")) return {"state", "the gradient of a parameter, of the sum of nats so far"};
    if (name.starts_with("m.") || name.starts_with("v.")) return {"state", "a moment of a parameter's gradients"};
    if (name == model::kRotations) return {"model", "cosines and sines of every position"};
    if (name == model::kScalars || name == model::kKeep) return {"step", "what changes from step to step"};
    if (rows_.contains(name)) return {"rows", "of every token of the micro-batch"};
    return {"plan", "of the micro-batch's plan: another batch has another"};
  }

 private:
  std::set<std::string> parameters_, rows_;
};

ProgramText Describe(stablehlo::Program program, const char* pass, const Namer& namer) {
  ProgramText text{.name = std::move(program.name), .text = {}, .pass = pass};
  for (const stablehlo::NamedType& input : program.inputs) {
    ProgramOperand operand = lanes::xla::OperandOf(input);
    const Meaning meaning = namer.Of(input.name);
    operand.source = meaning.source;
    operand.about = meaning.about;
    text.operands.push_back(std::move(operand));
  }
  for (const stablehlo::NamedType& output : program.outputs) {
    text.results.push_back(lanes::xla::OperandOf(output));
    text.results.back().source = "program";
  }
  text.text = std::move(program.text);
  return text;
}

}  // namespace

Result<ModelPrograms> LowerModel(const Engine& engine, const ModelSpec& spec, const Target& target,
                                 const TrainerOptions& options) {
  if (std::vector<Violation> violations = Validate(spec); !violations.empty()) {
    return Fail(ErrorCode::kModelInvalid, std::move(violations));
  }
  model::Layout layout = TESSERA_TRY(model::MakeLayout(spec, options.mesh));
  const std::string asked = TESSERA_TRY(model::AskedAttention(options));
  const model::Chosen chosen = TESSERA_TRY(model::ChooseAttention(engine, layout, target, {asked, options}, nullptr));
  const model::ChosenLayer layer = TESSERA_TRY(model::ChooseLayer(engine, layout.own, target, {options, {}}, nullptr));
  if (layout.mesh) {
    layout.own.row_tokens = chosen.attention->RowTokens();
    TESSERA_TRY(model::SetOperands(layout, chosen.attention->Inputs(true), chosen.attention->SharedInputs()));
  }
  const Namer namer(spec);
  ModelPrograms all;
  all.substitutes = model::SubstitutesOf(chosen, layer);
  stablehlo::Program gradients =
      TESSERA_TRY(model::LowerGradients(layout, *chosen.attention, options.barrier_every, layer.ops));
  stablehlo::Program update = TESSERA_TRY(model::LowerUpdate(layout));
  stablehlo::Program evaluate =
      TESSERA_TRY(model::LowerEvaluate(layout, *chosen.attention, options.barrier_every, layer.ops));
  all.programs.push_back(Describe(std::move(gradients), "gradients", namer));
  all.programs.push_back(Describe(std::move(update), "update", namer));
  all.programs.push_back(Describe(std::move(evaluate), "evaluate", namer));
  all.programs[0].kernels = TESSERA_TRY(chosen.attention->Kernels(true));
  all.programs[2].kernels = TESSERA_TRY(chosen.attention->Kernels(false));
  for (ProgramText& program : all.programs) program.lane = chosen.name;
  return all;
}

}  // namespace tessera
