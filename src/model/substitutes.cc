// What may be asked for of a layer's keys, and which of a model's products a substitute may stand for.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/try.h"
#include "tessera/model.h"

namespace tessera {
namespace {

constexpr std::array<std::string_view, 12> kExclusions = {
    "wte", "wpe",        "lm_head",       "router",       "shared_expert_gate", "engram",
    "mhc", "ngram_hash", "structure_emb", "platform_emb", "temporal_",          "lora_"};

// The layer spec, and what there is for each key beside "auto".
struct KeyNames {
  std::string_view key;
  std::string_view names;
};
constexpr std::array<KeyNames, 7> kKeys = {{{"norm", "none, cpu"},
                                            {"linear_qkv", "none, cpu"},
                                            {"linear_proj", "none, cpu"},
                                            {"linear_fc1", "none, cpu"},
                                            {"linear_fc2", "none, cpu"},
                                            {"attention", "cpu, cuda, xla_pallas, xla_chunked"},
                                            {"layernorm_mlp", "none, recomputed"}}};

bool IsOneOf(std::string_view names, std::string_view name) {
  while (!names.empty()) {
    const size_t comma = names.find(", ");
    if (names.substr(0, comma) == name) return true;
    names = comma == std::string_view::npos ? std::string_view() : names.substr(comma + 2);
  }
  return false;
}

}  // namespace

Status CheckSubstitutes(const std::map<std::string, std::string>& substitutes) {
  for (const auto& [asked, name] : substitutes) {
    const std::string& key = asked;  // a name that a lambda may capture
    const auto at = std::find_if(kKeys.begin(), kKeys.end(), [&](const KeyNames& one) { return one.key == key; });
    if (at == kKeys.end()) {
      std::string keys;
      for (const KeyNames& one : kKeys) keys += fmt::format("{}{}", keys.empty() ? "" : ", ", one.key);
      return Fail(ErrorCode::kLaneUnknown, fmt::format("a key of the layer spec expected ({}), got \"{}\"", keys, key),
                  "substitutes");
    }
    if (name == "auto" || IsOneOf(at->names, name)) continue;
    return Fail(ErrorCode::kLaneUnknown, fmt::format("one of auto, {} expected, got \"{}\"", at->names, name), key);
  }
  return {};
}

Result<std::map<std::string, std::string>> ParseSubstitutes(std::string_view text) {
  std::map<std::string, std::string> all;
  for (std::string_view rest = text;;) {
    const size_t comma = rest.find(',');
    const std::string_view part = rest.substr(0, comma);
    const size_t equals = part.find('=');
    if (equals == std::string_view::npos || equals == 0 ||
        !all.emplace(part.substr(0, equals), part.substr(equals + 1)).second) {
      return Fail(ErrorCode::kBadArgument,
                  fmt::format("keys with a name each expected, norm=cpu,linear_qkv=none or the like, got \"{}\"", part),
                  "substitutes");
    }
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  TESSERA_TRY(CheckSubstitutes(all));
  return all;
}

std::span<const std::string_view> SubstituteExclusions() { return kExclusions; }

bool MaySubstitute(std::string_view parameter) {
  return std::none_of(kExclusions.begin(), kExclusions.end(),
                      [&](std::string_view name) { return parameter.find(name) != std::string_view::npos; });
}

}  // namespace tessera
