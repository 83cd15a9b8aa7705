// Integer arithmetic that every folder needs and none should spell again.
#pragma once

#include <type_traits>

namespace tessera {

// For value >= 0 and step >= 1.
template <class Value, class Step>
constexpr auto CeilDiv(Value value, Step step) {
  using Common = std::common_type_t<Value, Step>;
  return (static_cast<Common>(value) + static_cast<Common>(step) - 1) / static_cast<Common>(step);
}
template <class Value, class Step>
constexpr auto RoundUp(Value value, Step step) {
  return CeilDiv(value, step) * static_cast<std::common_type_t<Value, Step>>(step);
}

}  // namespace tessera
