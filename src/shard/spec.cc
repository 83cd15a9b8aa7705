// Specs: a user's rules, read and matched, before the built-in table.
#include "shard/spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/spelling.h"
#include "base/try.h"
#include "shard/document.h"
#include "shard/limits.h"

namespace tessera {
namespace {

constexpr std::string_view kWholeWord = "none";
constexpr std::string_view kReplicatedWord = "replicated";

// "data+expert" -> {"data", "expert"}; "none" -> {}.
std::vector<std::string> AxesOf(std::string_view text) {
  std::vector<std::string> axes;
  if (text == kWholeWord) return axes;
  while (true) {
    const size_t plus = text.find('+');
    axes.emplace_back(text.substr(0, plus));
    if (plus == std::string_view::npos) return axes;
    text.remove_prefix(plus + 1);
  }
}

class Reader : public TreeReader {
 public:
  void ReadRule(const DocumentValue& value, const std::string& at, SpecRule& rule) {
    if (!IsTable(value, at)) return;
    RefuseOthers(value, at, {"name", "axes"});
    if (const DocumentValue* name = Find(value, at, "name"); name != nullptr) {
      Read(*name, Place(at, "name"), rule.name);
      if (name->kind == DocumentValue::Kind::kString && rule.name.empty()) Violate(Place(at, "name"), "a name");
    }
    const DocumentValue* axes = Find(value, at, "axes");
    if (axes == nullptr) return;
    const std::string place = Place(at, "axes");
    if (axes->kind == DocumentValue::Kind::kString && axes->text == kReplicatedWord) {
      rule.is_replicated = true;
      return;
    }
    if (axes->kind != DocumentValue::Kind::kArray) {
      return Violate(place, R"("replicated", or an array with an axis or "none" for each dimension, expected)");
    }
    for (size_t i = 0; i < axes->items.size(); ++i) {
      std::string text;
      Read(axes->items[i], fmt::format("{}[{}]", place, i), text);
      rule.axes.push_back(AxesOf(text));
      for (const std::string& axis : rule.axes.back()) {
        if (axis.empty()) Violate(fmt::format("{}[{}]", place, i), R"(an axis, "none", or axes with "+" between)");
      }
    }
  }
};

// The first rule that matches; each one counts what it is used for.
const SpecRule* FindRule(const std::vector<SpecRule>& rules, std::string_view name, std::vector<int64_t>& uses) {
  for (size_t i = 0; i < rules.size(); ++i) {
    if (!shard::Matches(rules[i].name, name)) continue;
    ++uses[i];
    return &rules[i];
  }
  return nullptr;
}

Status CheckUses(const std::vector<SpecRule>& rules, const std::vector<int64_t>& uses, const DeclaredModel& model) {
  std::vector<Violation> violations;
  std::vector<std::string_view> names;
  for (const DeclaredTensor& tensor : model.tensors) names.push_back(tensor.name);
  for (size_t i = 0; i < rules.size(); ++i) {
    if (uses[i] > 0) continue;
    const bool is_shadowed =
        std::any_of(names.begin(), names.end(), [&](auto name) { return shard::Matches(rules[i].name, name); });
    violations.push_back({fmt::format("spec[{}].name {}", i, Excerpt(rules[i].name)),
                          is_shadowed ? "a name that no spec before it has taken"
                                      : "the name of a tensor" + DidYouMean(rules[i].name, names)});
  }
  if (violations.empty()) return {};
  return Fail(ErrorCode::kSpecsInvalid, std::move(violations));
}

}  // namespace

bool shard::Matches(std::string_view pattern, std::string_view name) {
  // Back to the last star whenever the text after it does not fit: linear but for repeated beginnings.
  size_t at = 0;
  size_t star = std::string_view::npos;
  size_t star_at = 0;
  size_t in = 0;
  while (in < name.size()) {
    if (at < pattern.size() && pattern[at] == '*') {
      star = at++;
      star_at = in;
    } else if (at < pattern.size() && pattern[at] == name[in]) {
      ++at;
      ++in;
    } else if (star != std::string_view::npos) {
      at = star + 1;
      in = ++star_at;
    } else {
      return false;
    }
  }
  while (at < pattern.size() && pattern[at] == '*') ++at;
  return at == pattern.size();
}

std::string ToText(const SpecAxes& axes) {
  std::vector<std::string> dims;
  bool is_cut = false;
  for (const std::vector<std::string>& own : axes) {
    is_cut |= !own.empty();
    dims.push_back(own.empty() ? std::string(kWholeWord) : fmt::format("{}", fmt::join(own, "+")));
  }
  return is_cut ? fmt::format("({})", fmt::join(dims, ", ")) : std::string(kReplicatedWord);
}

Result<std::vector<SpecRule>> ParseSpecs(std::string_view text) {
  const DocumentValue tree = TESSERA_TRY(shard::ParseTree(text, ErrorCode::kSpecsInvalid));
  Reader reader;
  reader.RefuseOthers(tree, "", {"version", "spec"});
  shard::CheckVersion(reader, tree);
  std::vector<SpecRule> rules;
  if (const DocumentValue* list = reader.Find(tree, "", "spec"); list != nullptr && reader.IsArray(*list, "spec")) {
    if (static_cast<int64_t>(list->items.size()) > kMaxShardRules) {
      return Fail(ErrorCode::kTooLarge, fmt::format("at most {} specs expected", kMaxShardRules));
    }
    for (size_t i = 0; i < list->items.size(); ++i) {
      rules.emplace_back();
      reader.ReadRule(list->items[i], fmt::format("spec[{}]", i), rules.back());
    }
  }
  if (!reader.violations.empty()) return Fail(ErrorCode::kSpecsInvalid, std::move(reader.violations));
  return rules;
}

Result<std::vector<SpecRule>> ReadSpecs(const std::string& path) {
  const std::string text = TESSERA_TRY(shard::ReadText(path));
  Result<std::vector<SpecRule>> rules = ParseSpecs(text);
  if (!rules) return tl::unexpected(shard::InFile(std::move(rules.error()), path));
  return rules;
}

Result<ShardTable> MakeShardTable(const DeclaredModel& model, const Mesh& mesh, const ShardOptions& options) {
  TESSERA_TRY(CheckMesh(mesh));
  ShardTable table = {.mesh = mesh,
                      .num_q_heads = model.num_q_heads,
                      .num_kv_heads = model.num_kv_heads > 0 ? model.num_kv_heads : model.num_q_heads,
                      .rows = {}};
  std::vector<int64_t> uses(options.rules.size());
  for (const DeclaredTensor& tensor : model.tensors) {
    ShardRow row;
    row.tensor = tensor;
    if (const SpecRule* rule = FindRule(options.rules, tensor.name, uses); rule != nullptr) {
      row.spec = rule->is_replicated ? SpecAxes(tensor.dims.size()) : rule->axes;
      row.is_pinned = rule->is_replicated;
      row.source = fmt::format("spec {}", Excerpt(rule->name));
    } else {
      shard::PlaceByTable(model, mesh, row);
    }
    if (options.zero3) shard::CutByZero3(mesh, row);
    table.rows.push_back(std::move(row));
  }
  TESSERA_TRY(CheckUses(options.rules, uses, model));
  return table;
}

const ShardRow* ShardTable::Find(std::string_view name) const {
  const auto at = std::find_if(rows.begin(), rows.end(), [&](const ShardRow& row) { return row.tensor.name == name; });
  return at == rows.end() ? nullptr : &*at;
}

std::optional<std::vector<int64_t>> LocalDims(const ShardRow& row, const Mesh& mesh) {
  if (!row.spec || row.spec->size() != row.tensor.dims.size()) return std::nullopt;
  std::vector<int64_t> local = row.tensor.dims;
  for (size_t dim = 0; dim < local.size(); ++dim) {
    for (const std::string& axis : (*row.spec)[dim]) {
      const int64_t size = mesh.SizeOf(axis);
      if (!mesh.Has(axis) || local[dim] % size != 0) return std::nullopt;
      local[dim] /= size;
    }
  }
  return local;
}

}  // namespace tessera
