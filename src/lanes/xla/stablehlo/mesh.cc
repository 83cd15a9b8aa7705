// Programs for several chips: the text around the region that each of them runs.
#include <fmt/format.h>

#include "lanes/xla/stablehlo/builder.h"

namespace tessera::stablehlo {
namespace {

constexpr std::string_view kMesh = "@chips";
constexpr std::string_view kAxis = "chip";

std::string ShardingText(const Type& type, int64_t axis) {
  std::string axes;
  for (size_t i = 0; i < type.dims.size(); ++i) {
    axes += fmt::format("{}{{{}}}", i == 0 ? "" : ", ",
                        static_cast<int64_t>(i) == axis ? fmt::format("\"{}\"", kAxis) : "");
  }
  return fmt::format("<{}, [{}]>", kMesh, axes);
}

// A list of texts, one for each value, with commas.
template <typename Make>
std::string Each(size_t count, Make make) {
  std::string text;
  for (size_t i = 0; i < count; ++i) text += (i == 0 ? "" : ", ") + make(i);
  return text;
}

}  // namespace

Type WholeType(const Type& of_chip, int64_t axis, int64_t chips) {
  Type whole = of_chip;
  if (axis >= 0) whole.dims[static_cast<size_t>(axis)] *= chips;
  return whole;
}

Result<std::string> Builder::FinishOver(const Mesh& mesh, const Values& outputs) {
  const auto fits = [](const Type& type, int64_t axis) {
    return axis >= -1 && axis < static_cast<int64_t>(type.dims.size());
  };
  bool all_fit = mesh.chips > 1 && mesh.inputs.size() == inputs_.size() && mesh.outputs.size() == outputs.size();
  for (size_t i = 0; all_fit && i < inputs_.size(); ++i) all_fit = fits(inputs_[i].second.type, mesh.inputs[i]);
  for (size_t i = 0; all_fit && i < outputs.size(); ++i) all_fit = fits(outputs[i].type, mesh.outputs[i]);
  if (!all_fit) Mistake("the mesh is not one of this program");
  if (const Status ok = CheckOutputs(outputs); !ok) return tl::unexpected(ok.error());

  const auto input = [&](size_t i) -> const Value& { return inputs_[i].second; };
  const auto whole_input = [&](size_t i) { return ToText(WholeType(input(i).type, mesh.inputs[i], mesh.chips)); };
  const auto whole_output = [&](size_t i) { return ToText(WholeType(outputs[i].type, mesh.outputs[i], mesh.chips)); };
  const auto in_sharding = [&](size_t i) { return ShardingText(input(i).type, mesh.inputs[i]); };
  const auto out_sharding = [&](size_t i) { return ShardingText(outputs[i].type, mesh.outputs[i]); };
  const size_t takes = inputs_.size();
  const size_t gives = outputs.size();
  const std::string result = gives == 1 ? "%whole" : fmt::format("%whole:{}", gives);
  const auto result_name = [&](size_t i) { return gives == 1 ? "%whole" : fmt::format("%whole#{}", i); };
  const auto sharded = [](const std::string& type, const std::string& sharding) {
    return fmt::format("{} {{sdy.sharding = #sdy.sharding{}}}", type, sharding);
  };
  std::string text = fmt::format("module @{} attributes {} {{\n  sdy.mesh {} = <[\"{}\"={}]>\n", module_name_,
                                 Attributes(mesh.chips), kMesh, kAxis, mesh.chips);
  text += fmt::format(
      "  func.func public @main({}) -> ({}) {{\n",
      Each(takes, [&](size_t i) { return fmt::format("%all{}: {}", i, sharded(whole_input(i), in_sharding(i))); }),
      Each(gives, [&](size_t i) { return sharded(whole_output(i), out_sharding(i)); }));
  text += fmt::format(
      "    {} = sdy.manual_computation({}) in_shardings=[{}] out_shardings=[{}] manual_axes={{\"{}\"}} ({}) {{\n",
      result, Each(takes, [](size_t i) { return fmt::format("%all{}", i); }), Each(takes, in_sharding),
      Each(gives, out_sharding), kAxis,
      Each(takes, [&](size_t i) { return fmt::format("{}: {}", input(i).name, ToText(input(i).type)); }));
  text += body_;
  text += fmt::format("    sdy.return {} : {}\n", Each(gives, [&](size_t i) { return outputs[i].name; }),
                      Each(gives, [&](size_t i) { return ToText(outputs[i].type); }));
  const std::string whole_outputs = Each(gives, whole_output);
  text += fmt::format("    }} : ({}) -> {}\n", Each(takes, whole_input),
                      gives == 1 ? whole_outputs : fmt::format("({})", whole_outputs));
  text += fmt::format("    return {} : {}\n  }}\n{}}}\n", Each(gives, result_name), whole_outputs, functions_);
  return text;
}

}  // namespace tessera::stablehlo
