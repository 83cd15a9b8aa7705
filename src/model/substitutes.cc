// Which of a model's products a substitute may stand for.
#include <algorithm>
#include <array>

#include "tessera/model.h"

namespace tessera {
namespace {

constexpr std::array<std::string_view, 12> kExclusions = {
    "wte", "wpe",        "lm_head",       "router",       "shared_expert_gate", "engram",
    "mhc", "ngram_hash", "structure_emb", "platform_emb", "temporal_",          "lora_"};

}  // namespace

std::span<const std::string_view> SubstituteExclusions() { return kExclusions; }

bool MaySubstitute(std::string_view parameter) {
  return std::none_of(kExclusions.begin(), kExclusions.end(),
                      [&](std::string_view name) { return parameter.find(name) != std::string_view::npos; });
}

}  // namespace tessera
