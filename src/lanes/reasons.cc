// Refusal reasons as text, from the one catalogue.
#include <optional>
#include <string_view>

#include "tessera/lane.h"

namespace tessera {
namespace {

struct ReasonRow {
  std::string_view text;
  std::string_view meaning;
};
constexpr ReasonRow kReasons[] = {
#define TESSERA_REASON(name, text, meaning) {text, meaning},
#include "tessera/reasons.def"
#undef TESSERA_REASON
};

const ReasonRow& Row(ReasonCode reason) { return kReasons[static_cast<size_t>(reason)]; }

}  // namespace

std::string_view ReasonText(ReasonCode reason) { return Row(reason).text; }
std::string_view ReasonMeaning(ReasonCode reason) { return Row(reason).meaning; }

std::optional<ReasonCode> FindReason(std::string_view text) {
  for (size_t i = 0; i < std::size(kReasons); ++i) {
    if (kReasons[i].text == text) return static_cast<ReasonCode>(i);
  }
  return std::nullopt;
}

}  // namespace tessera
