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

// "[{}, {"context"}]": cut along one axis, or along none.
std::string Cut(const Type& type, int64_t axis, const std::string& name) {
  std::string text;
  for (int64_t i = 0; i < static_cast<int64_t>(type.dims.size()); ++i) {
    text += fmt::format("{}{{{}}}", i == 0 ? "" : ", ", i == axis ? "\"" + name + "\"" : "");
  }
  return "<@mesh, [" + text + "]>";
}

// As all devices together have it.
Type Whole(Type type, int64_t axis, int64_t devices) {
  if (axis != kWhole) type.dims[static_cast<size_t>(axis)] *= devices;
  return type;
}

void Append(std::string& list, const std::string& text) { list += (list.empty() ? "" : ", ") + text; }

bool HasAxis(const Type& type, int64_t axis) { return axis >= 0 && axis < static_cast<int64_t>(type.dims.size()); }

}  // namespace

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
  Value out{NewName(), Whole(x.type, axis, devices), regions_.back()};
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
  Value out{NewName(), Whole(x.type, axes.join, devices), regions_.back()};
  out.type.dims[static_cast<size_t>(axes.split)] /= devices;
  Line(fmt::format(
      "{} = \"stablehlo.all_to_all\"({}) {{split_dimension = {} : i64, concat_dimension = {} : i64, split_count = "
      "{} : i64, replica_groups = {}, {}}} : ({}) -> {}",
      out.name, x.name, axes.split, axes.join, devices, Groups(devices), Channel(), ToText(x.type), ToText(out.type)));
  return out;
}

Result<std::string> Builder::FinishFor(const DeviceAxis& devices, const Values& outputs) {
  bool fits = devices.inputs.size() == inputs_.size() && devices.outputs.size() == outputs.size();
  for (size_t i = 0; fits && i < inputs_.size(); ++i) {
    fits = devices.inputs[i] == kWhole || HasAxis(inputs_[i].second.type, devices.inputs[i]);
  }
  for (size_t i = 0; fits && i < outputs.size(); ++i) fits = HasAxis(outputs[i].type, devices.outputs[i]);
  if (!fits) Mistake("an input or output is cut along an axis that it has not");
  if (Status good = Check(outputs); !good) return tl::unexpected(std::move(good.error()));

  std::string arguments, passed, passed_types, cuts, own;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const auto& [name, value] = inputs_[i];
    const std::string cut = Cut(value.type, devices.inputs[i], devices.name);
    const std::string type = ToText(Whole(value.type, devices.inputs[i], devices.size));
    Append(arguments, fmt::format("%whole_{}: {} {{sdy.sharding = #sdy.sharding{}}}", name, type, cut));
    Append(passed, "%whole_" + name);
    Append(passed_types, type);
    Append(cuts, cut);
    Append(own, fmt::format("{}: {}", value.name, ToText(value.type)));
  }
  std::string results, result_types, result_cuts, returned, own_names, own_types;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const std::string cut = Cut(outputs[i].type, devices.outputs[i], devices.name);
    const std::string type = ToText(Whole(outputs[i].type, devices.outputs[i], devices.size));
    Append(results, fmt::format("{} {{sdy.sharding = #sdy.sharding{}}}", type, cut));
    Append(result_types, type);
    Append(result_cuts, cut);
    Append(returned, outputs.size() == 1 ? std::string("%all") : fmt::format("%all#{}", i));
    Append(own_names, outputs[i].name);
    Append(own_types, ToText(outputs[i].type));
  }
  const std::string count = outputs.size() == 1 ? "" : fmt::format(":{}", outputs.size());
  return fmt::format(
      "module @{} attributes {{mhlo.frontend_attributes = {{{}}}, mhlo.num_partitions = {} : i32, mhlo.num_replicas = "
      "1 : "
      "i32}} {{\n  sdy.mesh @mesh = <[\"{}\"={}]>\n  func.func public @main({}) -> ({}) {{\n    %all{} = "
      "sdy.manual_computation({}) in_shardings=[{}] out_shardings=[{}] manual_axes={{\"{}\"}} ({}) {{\n{}    "
      "sdy.return {} : "
      "{}\n    }} : ({}) -> ({})\n    return {} : {}\n  }}\n}}\n",
      module_name_, Attributes(), devices.size, devices.name, devices.size, arguments, results, count, passed, cuts,
      result_cuts, devices.name, own, body_, own_names, own_types, passed_types, result_types, returned, result_types);
}

}  // namespace tessera::stablehlo
