// See signature.h.
#include "lanes/xla/mosaic/signature.h"

#include <fmt/format.h>

#include "base/try.h"

namespace tessera::mosaic {
namespace {

tl::unexpected<Error> Invalid(std::string message) {
  return Fail(ErrorCode::kKernelInvalid, std::move(message), "kernel");
}

Result<int64_t> CountOf(const Function& kernel, std::string_view name, size_t most) {
  const Attribute* count = Find(kernel.attributes, name);
  if (count == nullptr) return 0;
  if (count->kind != AttributeKind::kInteger || count->integer < 0 || count->integer > static_cast<int64_t>(most)) {
    return Invalid(fmt::format("{} is {} and there are {} arguments", name, ToText(*count), most));
  }
  return count->integer;
}

Result<WindowInfo> OneWindow(const Module& module, const Attribute& params, size_t at, Type memref) {
  WindowInfo window{.memref = std::move(memref)};
  if (params.kind != AttributeKind::kDictionary) return Invalid(fmt::format("window {} has no dictionary", at));
  if (params.entries.empty()) return window;
  const Attribute* map = Find(params.entries, "transform_indices");
  const Attribute* bounds = Find(params.entries, "window_bounds");
  if (map == nullptr || map->kind != AttributeKind::kSymbol || bounds == nullptr ||
      bounds->kind != AttributeKind::kIntegers) {
    return Invalid(fmt::format("window {} needs transform_indices and window_bounds", at));
  }
  window.index_map = module.FindFunction(map->text);
  if (window.index_map == nullptr) return Invalid(fmt::format("window {}: there is no function @{}", at, map->text));
  if (bounds->integers != window.memref.dims) {
    return Invalid(
        fmt::format("window {} has bounds {} and its memref is {}", at, ToText(*bounds), ToText(window.memref)));
  }
  if (const Attribute* mode = Find(params.entries, "pipeline_mode")) {
    window.is_synchronous = mode->text == "tpu.pipeline_mode<synchronous>";
    if (!window.is_synchronous && mode->text != "tpu.pipeline_mode<double_buffered>") {
      return Invalid(fmt::format("window {} has {}", at, ToText(*mode)));
    }
  }
  if (Find(params.entries, "window_kind") != nullptr) {
    return Invalid(fmt::format("window {} moves by elements, which we do not do", at));
  }
  return window;
}

}  // namespace

Result<Signature> ReadSignature(const Module& module) {
  if (module.functions.empty()) return Invalid("there is no function");
  const Function& kernel = module.functions.front();
  Signature signature;
  std::vector<Type> arguments;
  for (const ValueId argument : kernel.body.arguments) arguments.push_back(kernel.TypeOf(argument));

  const Attribute* bounds = Find(kernel.attributes, "iteration_bounds");
  const Attribute* params = Find(kernel.attributes, "window_params");
  if ((bounds == nullptr) != (params == nullptr)) return Invalid("iteration_bounds and window_params go together");
  if (bounds != nullptr) {
    if (bounds->kind != AttributeKind::kIntegers || params->kind != AttributeKind::kList) {
      return Invalid("iteration_bounds is an array of integers, window_params a list");
    }
    signature.grid = bounds->integers;
    for (const int64_t bound : signature.grid) {
      if (bound == kDynamicBound) {
        ++signature.num_dynamic;
        continue;
      }
      if (bound < 1) return Invalid(fmt::format("a grid of {}: each axis is at least 1", ToText(*bounds)));
    }
  }
  const int64_t num_scalars = TESSERA_TRY(CountOf(kernel, "scalar_prefetch", arguments.size()));
  const int64_t num_scratch = TESSERA_TRY(CountOf(kernel, "scratch_operands", arguments.size()));
  const int64_t others = static_cast<int64_t>(signature.grid.size()) + num_scalars + num_scratch;
  const int64_t num_windows = static_cast<int64_t>(arguments.size()) - others;
  if (num_windows < 0 || (params != nullptr && static_cast<int64_t>(params->items.size()) != num_windows)) {
    return Invalid(fmt::format("{} arguments for a grid of {} axes, {} scalars, {} windows and {} scratch",
                               arguments.size(), signature.grid.size(), num_scalars,
                               params == nullptr ? num_windows : static_cast<int64_t>(params->items.size()),
                               num_scratch));
  }
  for (size_t at = 0; at < arguments.size(); ++at) {
    const Type& type = arguments[at];
    if (at < signature.grid.size()) {
      if (type != ScalarOf(Element::kI32)) return Invalid(fmt::format("grid index {} is {}", at, ToText(type)));
      continue;
    }
    if (!type.IsMemref()) return Invalid(fmt::format("argument {} is {}, no memref", at, ToText(type)));
    if (at < signature.grid.size() + static_cast<size_t>(num_scalars)) {
      if (type.space != Space::kSmem) return Invalid(fmt::format("scalars in {}", ToText(type)));
      signature.scalars.push_back(type);
    } else if (at >= arguments.size() - static_cast<size_t>(num_scratch)) {
      signature.scratch.push_back(type);
    } else if (params == nullptr) {
      signature.windows.push_back({.memref = type});
    } else {
      const size_t window = signature.windows.size();
      signature.windows.push_back(TESSERA_TRY(OneWindow(module, params->items[window], window, type)));
    }
  }
  return signature;
}

}  // namespace tessera::mosaic
