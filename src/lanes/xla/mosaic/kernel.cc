// See kernel.h.
#include "lanes/xla/mosaic/kernel.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/try.h"
#include "lanes/xla/mosaic/verify.h"

namespace tessera::mosaic {
namespace {

constexpr std::string_view kTransform = "transform_";

Attribute SemanticsAttribute(const std::vector<Semantics>& semantics) {
  std::vector<Attribute> items;
  for (const Semantics axis : semantics) {
    items.push_back(DialectAttribute(axis == Semantics::kParallel ? "tpu.dimension_semantics<parallel>"
                                                                  : "tpu.dimension_semantics<arbitrary>"));
  }
  return ListAttribute(std::move(items));
}

Attribute WindowAttribute(const Window& window, size_t at) {
  Attributes entries;
  if (window.index_map) {
    Set(entries, "transform_indices", SymbolAttribute(fmt::format("{}{}", kTransform, at)));
    Set(entries, "window_bounds", IntegersAttribute(window.bounds, Element::kI64));
    if (window.is_synchronous) Set(entries, "pipeline_mode", DialectAttribute("tpu.pipeline_mode<synchronous>"));
  }
  return DictionaryAttribute(std::move(entries));
}

Type TypeOf(const Window& window) { return MemrefOf(window.space, window.element, window.bounds); }

std::vector<Window> WindowsOf(const KernelSpec& spec) {
  std::vector<Window> windows = spec.inputs;
  windows.insert(windows.end(), spec.outputs.begin(), spec.outputs.end());
  return windows;
}

Function KernelFunction(const KernelSpec& spec, const std::function<void(Builder&, const KernelArguments&)>& body,
                        std::string& mistake) {
  std::vector<Type> types(spec.grid.size(), ScalarOf(Element::kI32));
  std::vector<std::string> names;
  const auto add = [&](const std::string& name, const Type& type) {
    if (std::ranges::find(names, name) != names.end()) mistake = fmt::format("two memrefs are called {}", name);
    names.push_back(name);
    types.push_back(type);
  };
  for (const Memory& memory : spec.scalars) add(memory.name, memory.type);
  const std::vector<Window> windows = WindowsOf(spec);
  for (const Window& window : windows) add(window.name, TypeOf(window));
  for (const Memory& memory : spec.scratch) add(memory.name, memory.type);

  Builder builder(types, spec.version);
  KernelArguments arguments;
  for (size_t at = 0; at < types.size(); ++at) {
    if (at < spec.grid.size()) {
      arguments.grid.push_back(builder.Argument(at));
    } else {
      arguments.memrefs.emplace_back(names[at - spec.grid.size()], builder.Argument(at));
    }
  }
  body(builder, arguments);

  Attributes attributes;
  Set(attributes, "dimension_semantics", SemanticsAttribute(spec.semantics));
  Set(attributes, "scalar_prefetch", IntegerAttribute(static_cast<int64_t>(spec.scalars.size()), Element::kI64));
  Set(attributes, "scratch_operands", IntegerAttribute(static_cast<int64_t>(spec.scratch.size()), Element::kI64));
  Set(attributes, "tpu.core_type", DialectAttribute("tpu.core_type<tc>"));
  if (!spec.grid.empty()) {
    std::vector<Attribute> params;
    for (size_t at = 0; at < windows.size(); ++at) params.push_back(WindowAttribute(windows[at], at));
    Set(attributes, "iteration_bounds", IntegersAttribute(spec.grid, Element::kI64));
    Set(attributes, "window_params", ListAttribute(std::move(params)));
  }
  if (mistake.empty()) mistake = builder.mistake();
  return builder.Finish(spec.name, {}, std::move(attributes));
}

Function IndexFunction(const KernelSpec& spec, const Window& window, size_t at, std::string& mistake) {
  std::vector<Type> types(spec.grid.size(), ScalarOf(Element::kI32));
  for (const Memory& memory : spec.scalars) types.push_back(memory.type);
  Builder builder(types, spec.version);
  Values grid;
  Values scalars;
  for (size_t k = 0; k < types.size(); ++k) (k < spec.grid.size() ? grid : scalars).push_back(builder.Argument(k));
  const Values block = window.index_map(builder, grid, scalars);
  if (mistake.empty() && !builder.mistake().empty()) {
    mistake = fmt::format("in the index map of {}: {}", window.name, builder.mistake());
  }
  return builder.Finish(fmt::format("{}{}", kTransform, at), block, {});
}

}  // namespace

Value KernelArguments::operator[](std::string_view name) const {
  const auto it = std::ranges::find(memrefs, name, &std::pair<std::string, Value>::first);
  return it == memrefs.end() ? Value() : it->second;
}

Result<Module> BuildKernel(const KernelSpec& spec, const std::function<void(Builder&, const KernelArguments&)>& body) {
  Module module;
  module.version = spec.version;
  std::string mistake;
  module.functions.push_back(KernelFunction(spec, body, mistake));
  const std::vector<Window> windows = WindowsOf(spec);
  for (size_t at = 0; at < windows.size() && !spec.grid.empty(); ++at) {
    if (windows[at].index_map) module.functions.push_back(IndexFunction(spec, windows[at], at, mistake));
  }
  if (!mistake.empty()) return Fail(ErrorCode::kKernelInvalid, mistake, spec.name);
  TESSERA_TRY(VerifyModule(module));
  return module;
}

}  // namespace tessera::mosaic
