// See ir.h.
#include "lanes/xla/mosaic/ir.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>

namespace tessera::mosaic {
namespace {

struct OpRow {
  std::string_view text;
  Form form;
};
constexpr OpRow kOps[] = {
#define TESSERA_MOSAIC_OP(name, text, form) {text, Form::form},
#include "lanes/xla/mosaic/ops.def"
#undef TESSERA_MOSAIC_OP
};

constexpr std::string_view kHint = "transpose_lhs_hint";
constexpr std::string_view kDotDims = "tpu.dot_dimension_numbers<";

void SetHint(Region& region, bool has_hint) {
  for (Op& op : region.ops) {
    if (op.code == OpCode::kMatmul && !has_hint) Remove(op.attributes, kHint);
    if (op.code == OpCode::kMatmul && has_hint && Find(op.attributes, kHint) == nullptr) {
      Set(op.attributes, std::string(kHint), BoolAttribute(false));
    }
    for (Region& inner : op.regions) SetHint(inner, has_hint);
  }
}

// "[1, 2]" at the front of the text, taken away.
bool TakeList(std::string_view& text, std::vector<int64_t>& list) {
  if (text.empty() || text.front() != '[') return false;
  text.remove_prefix(1);
  list.clear();
  while (!text.empty() && text.front() != ']') {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc()) return false;
    text.remove_prefix(static_cast<size_t>(end - text.data()));
    list.push_back(value);
    if (text.starts_with(", ")) text.remove_prefix(2);
  }
  if (text.empty()) return false;
  text.remove_prefix(1);
  return true;
}

}  // namespace

std::string_view ToText(OpCode code) { return kOps[static_cast<size_t>(code)].text; }
Form FormOf(OpCode code) { return kOps[static_cast<size_t>(code)].form; }

std::optional<OpCode> FindOp(std::string_view text) {
  static const auto* const kByName = [] {
    auto* names = new std::map<std::string_view, OpCode>;
    for (size_t at = 0; at < std::size(kOps); ++at) names->emplace(kOps[at].text, static_cast<OpCode>(at));
    return names;
  }();
  const auto it = kByName->find(text);
  return it == kByName->end() ? std::nullopt : std::optional(it->second);
}

std::string_view Function::Name() const {
  const Attribute* name = Find(attributes, "sym_name");
  return name == nullptr ? std::string_view() : name->text;
}

const Function* Module::FindFunction(std::string_view name) const {
  const auto it = std::ranges::find(functions, name, &Function::Name);
  return it == functions.end() ? nullptr : &*it;
}

void SetVersion(Module& module, int64_t version) {
  module.version = version;
  for (Function& function : module.functions) SetHint(function.body, version >= kFirstHintVersion);
}

std::string ToText(const DotDims& dims) {
  const auto list = [](const std::vector<int64_t>& values) { return fmt::format("[{}]", fmt::join(values, ", ")); };
  return fmt::format("{}{}, {}, {}, {}, {}, {}, {}>", kDotDims, list(dims.lhs_contract), list(dims.rhs_contract),
                     list(dims.lhs_free), list(dims.rhs_free), list(dims.output), list(dims.lhs_batch),
                     list(dims.rhs_batch));
}

std::optional<DotDims> ParseDotDims(std::string_view text) {
  if (!text.starts_with(kDotDims)) return std::nullopt;
  text.remove_prefix(kDotDims.size());
  DotDims dims;
  std::vector<int64_t>* const lists[] = {&dims.lhs_contract, &dims.rhs_contract, &dims.lhs_free, &dims.rhs_free,
                                         &dims.output,       &dims.lhs_batch,    &dims.rhs_batch};
  for (std::vector<int64_t>* list : lists) {
    if (list != lists[0]) {
      if (!text.starts_with(", ")) return std::nullopt;
      text.remove_prefix(2);
    }
    if (!TakeList(text, *list)) return std::nullopt;
  }
  return text == ">" ? std::optional(dims) : std::nullopt;
}

}  // namespace tessera::mosaic
