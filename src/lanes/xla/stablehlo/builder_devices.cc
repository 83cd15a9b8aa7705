// Programs of several devices: what goes from one to another, and the region in which each runs on its own.
#include <fmt/format.h>

#include "lanes/xla/stablehlo/builder.h"

namespace tessera::stablehlo {
namespace {

// "[[0, 1, 2, 3]]": all of them in one group.
std::string Groups(int64_t devices) {
  std::string text;
  for (int64_t i = 0; i < devices; ++i) text += fmt::format("{}{}", i == 0 ? "" : ", ", i);
  return fmt::format("dense<[[{}]]> : tensor<1x{}xi64>", text, devices);
}

// "<@mesh, [{}, {"context"}]>": cut along one axis, or along none.
std::string ShardingText(const Type& type, int64_t axis, const std::string& name) {
  std::string axes;
  for (int64_t i = 0; i < static_cast<int64_t>(type.dims.size()); ++i) {
    axes += fmt::format("{}{{{}}}", i == 0 ? "" : ", ", i == axis ? "\"" + name + "\"" : "");
  }
  return "<@mesh, [" + axes + "]>";
}

void Append(std::string& list, const std::string& text) { list += (list.empty() ? "" : ", ") + text; }

bool HasAxis(const Type& type, int64_t axis) { return axis >= 0 && axis < static_cast<int64_t>(type.dims.size()); }

// A list of texts, one for each value, with commas.
template <typename Make>
std::string Each(size_t count, Make make) {
  std::string text;
  for (size_t i = 0; i < count; ++i) text += (i == 0 ? "" : ", ") + make(i);
  return text;
}

}  // namespace

Type WholeType(const Type& own, int64_t axis, int64_t devices) {
  Type whole = own;
  if (axis != kWhole) whole.dims[static_cast<size_t>(axis)] *= devices;
  return whole;
}

Value Builder::Bitcast(const Value& x, Element to) {
  Uses({&x}, "bitcast_convert");
  const auto is_half = [](Element e) { return e == Element::kI16 || e == Element::kBf16 || e == Element::kF16; };
  const Type type{to, x.type.dims};
  if (!is_half(x.type.element) || !is_half(to)) {
    Mistake(fmt::format("bitcast_convert: {} to {}", ToText(x.type), ToText(type)));
  }
  return Emit(type, fmt::format("bitcast_convert {} : ({}) -> {}", x.name, ToText(x.type), ToText(type)));
}

std::string Builder::Channel() {
  return fmt::format("channel_handle = #stablehlo.channel_handle<handle = {}, type = 1>", next_channel_++);
}

Value Builder::Permute(const Value& x, const DevicePairs& pairs) {
  Uses({&x}, "collective_permute");
  std::string text;
  for (const auto& [source, target] : pairs) Append(text, fmt::format("[{}, {}]", source, target));
  if (pairs.empty()) Mistake("collective_permute: no pairs");
  Value out{NewName(), x.type, regions_.back()};
  Line(fmt::format(
      "{} = \"stablehlo.collective_permute\"({}) {{source_target_pairs = dense<[{}]> : tensor<{}x2xi64>, {}}} : "
      "({}) -> {}",
      out.name, x.name, text, pairs.size(), Channel(), ToText(x.type), ToText(x.type)));
  return out;
}

Value Builder::Gather(const Value& x, int64_t axis, int64_t devices) {
  Uses({&x}, "all_gather");
  if (!HasAxis(x.type, axis)) {
    Mistake(fmt::format("all_gather: {} has no axis {}", ToText(x.type), axis));
    return x;
  }
  Value out{NewName(), WholeType(x.type, axis, devices), regions_.back()};
  Line(
      fmt::format("{} = \"stablehlo.all_gather\"({}) {{all_gather_dim = {} : i64, replica_groups = {}, {}, "
                  "use_global_device_ids}} : ({}) -> {}",
                  out.name, x.name, axis, Groups(devices), Channel(), ToText(x.type), ToText(out.type)));
  return out;
}

Value Builder::Trade(const Value& x, Axes axes, int64_t devices) {
  Uses({&x}, "all_to_all");
  if (!HasAxis(x.type, axes.split) || !HasAxis(x.type, axes.join) ||
      x.type.dims[static_cast<size_t>(axes.split)] % devices != 0) {
    Mistake(
        fmt::format("all_to_all: {} along {} and {} on {} devices", ToText(x.type), axes.split, axes.join, devices));
    return x;
  }
  Value out{NewName(), WholeType(x.type, axes.join, devices), regions_.back()};
  out.type.dims[static_cast<size_t>(axes.split)] /= devices;
  Line(fmt::format(
      "{} = \"stablehlo.all_to_all\"({}) {{split_dimension = {} : i64, concat_dimension = {} : i64, split_count = "
      "{} : i64, replica_groups = {}, {}}} : ({}) -> {}",
      out.name, x.name, axes.split, axes.join, devices, Groups(devices), Channel(), ToText(x.type), ToText(out.type)));
  return out;
}

Result<std::string> Builder::FinishOver(const DeviceAxis& devices, const Values& outputs) {
  const auto fits = [](const Type& type, int64_t axis) { return axis == kWhole || HasAxis(type, axis); };
  bool all_fit =
      devices.size >= 1 && devices.inputs.size() == inputs_.size() && devices.outputs.size() == outputs.size();
  for (size_t i = 0; all_fit && i < inputs_.size(); ++i) all_fit = fits(inputs_[i].second.type, devices.inputs[i]);
  for (size_t i = 0; all_fit && i < outputs.size(); ++i) all_fit = fits(outputs[i].type, devices.outputs[i]);
  if (!all_fit) Mistake("an input or output is cut along an axis that it has not");
  if (const Status ok = CheckOutputs(outputs); !ok) return tl::unexpected(ok.error());

  const auto input = [&](size_t i) -> const Value& { return inputs_[i].second; };
  const auto whole_input = [&](size_t i) { return ToText(WholeType(input(i).type, devices.inputs[i], devices.size)); };
  const auto whole_output = [&](size_t i) {
    return ToText(WholeType(outputs[i].type, devices.outputs[i], devices.size));
  };
  const auto in_sharding = [&](size_t i) { return ShardingText(input(i).type, devices.inputs[i], devices.name); };
  const auto out_sharding = [&](size_t i) { return ShardingText(outputs[i].type, devices.outputs[i], devices.name); };
  const size_t takes = inputs_.size();
  const size_t gives = outputs.size();
  const std::string result = gives == 1 ? "%whole" : fmt::format("%whole:{}", gives);
  const auto result_name = [&](size_t i) { return gives == 1 ? "%whole" : fmt::format("%whole#{}", i); };
  const auto sharded = [](const std::string& type, const std::string& sharding) {
    return fmt::format("{} {{sdy.sharding = #sdy.sharding{}}}", type, sharding);
  };
  std::string text = fmt::format("module @{} attributes {} {{\n  sdy.mesh @mesh = <[\"{}\"={}]>\n", module_name_,
                                 Attributes(devices.size), devices.name, devices.size);
  text += fmt::format(
      "  func.func public @main({}) -> ({}) {{\n",
      Each(takes, [&](size_t i) { return fmt::format("%all{}: {}", i, sharded(whole_input(i), in_sharding(i))); }),
      Each(gives, [&](size_t i) { return sharded(whole_output(i), out_sharding(i)); }));
  text += fmt::format(
      "    {} = sdy.manual_computation({}) in_shardings=[{}] out_shardings=[{}] manual_axes={{\"{}\"}} ({}) {{\n",
      result, Each(takes, [](size_t i) { return fmt::format("%all{}", i); }), Each(takes, in_sharding),
      Each(gives, out_sharding), devices.name,
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
