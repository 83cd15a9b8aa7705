// Integer arithmetic that every folder needs and none should spell again.
#pragma once

namespace tessera {

// For value >= 0 and step >= 1.
template <class Int>
constexpr Int CeilDiv(Int value, Int step) {
  return (value + step - 1) / step;
}
template <class Int>
constexpr Int RoundUp(Int value, Int step) {
  return CeilDiv(value, step) * step;
}

}  // namespace tessera
