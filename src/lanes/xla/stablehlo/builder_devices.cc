// Programs of several devices: what goes from one to another, and the region in which each runs on its own.
#include <fmt/format.h>

#include <algorithm>

#include "lanes/xla/stablehlo/builder.h"

namespace tessera::stablehlo {
namespace {

// "dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>".
std::string GroupsText(const DeviceGroups& groups) {
  std::string text;
  for (const std::vector<int64_t>& group : groups) {
    std::string members;
    for (const int64_t device : group) members += fmt::format("{}{}", members.empty() ? "" : ", ", device);
    text += fmt::format("{}[{}]", text.empty() ? "" : ", ", members);
  }
  return fmt::format("dense<[{}]> : tensor<{}x{}xi64>", text, groups.size(), groups.front().size());
}

bool IsGood(const DeviceGroups& groups) {
  if (groups.empty() || groups.front().empty()) return false;
  return std::all_of(groups.begin(), groups.end(), [&](const auto& one) { return one.size() == groups[0].size(); });
}
int64_t SizeOf(const DeviceGroups& groups) { return groups.empty() ? 1 : static_cast<int64_t>(groups[0].size()); }

// Devices along all of these axes of a mesh.
int64_t SizeOf(const std::vector<std::string>& names, const DeviceMesh& mesh) {
  int64_t size = 1;
  for (const DeviceMesh::Axis& axis : mesh.axes) {
    if (std::find(names.begin(), names.end(), axis.name) != names.end()) size *= axis.size;
  }
  return size;
}

// "<@mesh, [{}, {"context"}]>": the axes that each dimension is cut along.
std::string ShardingText(const DeviceMesh::Cut& cut) {
  std::string dims;
  for (size_t i = 0; i < cut.size(); ++i) {
    std::string axes;
    for (const std::string& name : cut[i]) axes += fmt::format("{}\"{}\"", axes.empty() ? "" : ", ", name);
    dims += fmt::format("{}{{{}}}", i == 0 ? "" : ", ", axes);
  }
  return "<@mesh, [" + dims + "]>";
}

// What a collective does with two elements.
std::string AddedText(Element element) {
  const std::string type = ToText(Type{element, {}});
  return fmt::format(
      "  ^bb0(%left: {0}, %right: {0}): %sum = stablehlo.add %left, %right : {0} stablehlo.return %sum : {0}", type);
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

Type WholeType(const Type& own, const DeviceMesh::Cut& cut, const DeviceMesh& mesh) {
  Type whole = own;
  for (size_t i = 0; i < cut.size(); ++i) whole.dims[i] *= SizeOf(cut[i], mesh);
  return whole;
}

DeviceGroups OneGroup(int64_t devices) {
  DeviceGroups groups(1);
  for (int64_t i = 0; i < devices; ++i) groups[0].push_back(i);
  return groups;
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

// Halves travel as integers: XLA's compiler for CPUs makes collectives of bf16 ones of f32, and so twice the bytes.
bool Builder::IsHalf(const Value& x) { return x.type.element == Element::kBf16 || x.type.element == Element::kF16; }

Value Builder::Permute(const Value& x, const DevicePairs& pairs) {
  if (IsHalf(x)) return Bitcast(Permute(Bitcast(x, Element::kI16), pairs), x.type.element);
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

Value Builder::Gather(const Value& x, int64_t axis, const DeviceGroups& groups) {
  if (IsHalf(x)) return Bitcast(Gather(Bitcast(x, Element::kI16), axis, groups), x.type.element);
  Uses({&x}, "all_gather");
  if (!IsGood(groups) || !HasAxis(x.type, axis)) {
    Mistake(fmt::format("all_gather: {} has no axis {}", ToText(x.type), axis));
    return x;
  }
  Value out{NewName(), WholeType(x.type, axis, SizeOf(groups)), regions_.back()};
  Line(
      fmt::format("{} = \"stablehlo.all_gather\"({}) {{all_gather_dim = {} : i64, replica_groups = {}, {}, "
                  "use_global_device_ids}} : ({}) -> {}",
                  out.name, x.name, axis, GroupsText(groups), Channel(), ToText(x.type), ToText(out.type)));
  return out;
}

Value Builder::Trade(const Value& x, Axes axes, const DeviceGroups& groups) {
  if (IsHalf(x)) return Bitcast(Trade(Bitcast(x, Element::kI16), axes, groups), x.type.element);
  Uses({&x}, "all_to_all");
  const int64_t devices = SizeOf(groups);
  if (!IsGood(groups) || !HasAxis(x.type, axes.split) || !HasAxis(x.type, axes.join) ||
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
      out.name, x.name, axes.split, axes.join, devices, GroupsText(groups), Channel(), ToText(x.type),
      ToText(out.type)));
  return out;
}

Value Builder::TradeRows(const Value& x, const Value& into, const Ragged& trade, const DeviceGroups& groups) {
  Uses({&x, &into, &trade.from, &trade.counts, &trade.at, &trade.received}, "ragged_all_to_all");
  const Type entries{Element::kI32, {SizeOf(groups)}};
  bool is_good = IsGood(groups) && x.type.dims.size() == 2 && into.type.dims.size() == 2 &&
                 x.type.element == into.type.element && x.type.dims[1] == into.type.dims[1];
  for (const Value* value : {&trade.from, &trade.counts, &trade.at, &trade.received}) is_good &= value->type == entries;
  if (!is_good) {
    Mistake(fmt::format("ragged_all_to_all: rows of {} into {} by {}", ToText(x.type), ToText(into.type),
                        ToText(trade.from.type)));
    return into;
  }
  Value out{NewName(), into.type, regions_.back()};
  const std::string four = fmt::format("{0}, {0}, {0}, {0}", ToText(entries));
  Line(
      fmt::format("{} = stablehlo.custom_call @ragged_all_to_all({}, {}, {}, {}, {}, {}) {{api_version = 4 : i32, "
                  "backend_config = {{channel_id = {} : i64, replica_groups = {}}}}} : ({}, {}, {}) -> {}",
                  out.name, x.name, into.name, trade.from.name, trade.counts.name, trade.at.name, trade.received.name,
                  next_channel_++, GroupsText(groups), ToText(x.type), ToText(into.type), four, ToText(into.type)));
  return out;
}

Value Builder::Sum(const Value& x, const DeviceGroups& groups) {
  Uses({&x}, "all_reduce");
  if (!IsGood(groups)) {
    Mistake("all_reduce: no groups");
    return x;
  }
  const Value out{NewName(), x.type, regions_.back()};
  Line(fmt::format("{} = \"stablehlo.all_reduce\"({}) ({{", out.name, x.name));
  Line(AddedText(x.type.element));
  Line(fmt::format("}}) {{replica_groups = {}, {}, use_global_device_ids}} : ({}) -> {}", GroupsText(groups), Channel(),
                   ToText(x.type), ToText(x.type)));
  return out;
}

Value Builder::SumPiece(const Value& x, int64_t axis, const DeviceGroups& groups) {
  Uses({&x}, "reduce_scatter");
  const int64_t devices = SizeOf(groups);
  if (!IsGood(groups) || !HasAxis(x.type, axis) || x.type.dims[static_cast<size_t>(axis)] % devices != 0) {
    Mistake(fmt::format("reduce_scatter: {} along {} on {} devices", ToText(x.type), axis, devices));
    return x;
  }
  Value out{NewName(), x.type, regions_.back()};
  out.type.dims[static_cast<size_t>(axis)] /= devices;
  Line(fmt::format("{} = \"stablehlo.reduce_scatter\"({}) ({{", out.name, x.name));
  Line(AddedText(x.type.element));
  Line(fmt::format("}}) {{scatter_dimension = {} : i64, replica_groups = {}, {}, use_global_device_ids}} : ({}) -> {}",
                   axis, GroupsText(groups), Channel(), ToText(x.type), ToText(out.type)));
  return out;
}

Result<std::string> Builder::FinishOver(const DeviceAxis& devices, const Values& outputs) {
  DeviceMesh mesh{.axes = {{devices.name, devices.size}}};
  const auto cut = [&](const Type& type, int64_t axis) {
    if (axis != kWhole && !HasAxis(type, axis)) Mistake("an input or output is cut along an axis that it has not");
    DeviceMesh::Cut of(type.dims.size());
    if (HasAxis(type, axis)) of[static_cast<size_t>(axis)] = {devices.name};
    return of;
  };
  for (size_t i = 0; i < std::min(inputs_.size(), devices.inputs.size()); ++i) {
    mesh.inputs.push_back(cut(inputs_[i].second.type, devices.inputs[i]));
  }
  for (size_t i = 0; i < std::min(outputs.size(), devices.outputs.size()); ++i) {
    mesh.outputs.push_back(cut(outputs[i].type, devices.outputs[i]));
  }
  return FinishOver(mesh, outputs);
}

Result<std::string> Builder::FinishOver(const DeviceMesh& mesh, const Values& outputs) {
  const auto fits = [](const Type& type, const DeviceMesh::Cut& cut) { return cut.size() == type.dims.size(); };
  bool all_fit = !mesh.axes.empty() && mesh.inputs.size() == inputs_.size() && mesh.outputs.size() == outputs.size();
  int64_t devices = 1;
  for (const DeviceMesh::Axis& axis : mesh.axes) {
    all_fit = all_fit && axis.size >= 1;
    devices *= axis.size;
  }
  for (size_t i = 0; all_fit && i < inputs_.size(); ++i) all_fit = fits(inputs_[i].second.type, mesh.inputs[i]);
  for (size_t i = 0; all_fit && i < outputs.size(); ++i) all_fit = fits(outputs[i].type, mesh.outputs[i]);
  if (!all_fit) Mistake("an input or output is cut along an axis that it has not");
  if (const Status ok = CheckOutputs(outputs); !ok) return tl::unexpected(ok.error());

  const auto input = [&](size_t i) -> const Value& { return inputs_[i].second; };
  const auto whole_input = [&](size_t i) { return ToText(WholeType(input(i).type, mesh.inputs[i], mesh)); };
  const auto whole_output = [&](size_t i) { return ToText(WholeType(outputs[i].type, mesh.outputs[i], mesh)); };
  const auto in_sharding = [&](size_t i) { return ShardingText(mesh.inputs[i]); };
  const auto out_sharding = [&](size_t i) { return ShardingText(mesh.outputs[i]); };
  const size_t takes = inputs_.size();
  const size_t gives = outputs.size();
  std::vector<std::string> donations(takes);
  for (size_t i = 0; i < takes; ++i) {
    Result<std::string> donation = Donation(inputs_[i].first, input(i).type, outputs);
    if (!donation) return donation;
    if (!donation->empty()) donations[i] = ", " + *donation;
  }
  const std::string result = gives == 1 ? "%whole" : fmt::format("%whole:{}", gives);
  const auto result_name = [&](size_t i) { return gives == 1 ? "%whole" : fmt::format("%whole#{}", i); };
  const auto sharded = [](const std::string& type, const std::string& sharding, const std::string& more) {
    return fmt::format("{} {{sdy.sharding = #sdy.sharding{}{}}}", type, sharding, more);
  };
  const std::string axes =
      Each(mesh.axes.size(), [&](size_t i) { return fmt::format("\"{}\"={}", mesh.axes[i].name, mesh.axes[i].size); });
  std::string text =
      fmt::format("module @{} attributes {} {{\n  sdy.mesh @mesh = <[{}]>\n", module_name_, Attributes(devices), axes);
  text += fmt::format("  func.func public @main({}) -> ({}) {{\n",
                      Each(takes,
                           [&](size_t i) {
                             return fmt::format("%all{}: {}", i, sharded(whole_input(i), in_sharding(i), donations[i]));
                           }),
                      Each(gives, [&](size_t i) { return sharded(whole_output(i), out_sharding(i), ""); }));
  text += fmt::format(
      "    {} = sdy.manual_computation({}) in_shardings=[{}] out_shardings=[{}] manual_axes={{{}}} ({}) {{\n", result,
      Each(takes, [](size_t i) { return fmt::format("%all{}", i); }), Each(takes, in_sharding),
      Each(gives, out_sharding),
      Each(mesh.axes.size(), [&](size_t i) { return fmt::format("\"{}\"", mesh.axes[i].name); }),
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
