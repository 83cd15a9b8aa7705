// Checkpoints: any bytes give an error, or finite numbers of a step that exists.
#include <cmath>

#include "fuzz.h"
#include "train/checkpoint.h"

namespace tessera {

bool FuzzCheckpoint(const uint8_t* data, size_t size) {
  const auto checkpoint = train::ParseCheckpoint(AsText(data, size), "fuzz");
  if (!checkpoint) {
    Require(!ToText(checkpoint.error()).empty(), "an error has a text");
    return false;
  }
  Require(checkpoint->step >= 0 && checkpoint->place >= 0 && checkpoint->tokens >= 0, "counts are counts");
  for (const auto& [name, tensor] : checkpoint->state) {
    for (int64_t i = 0; tensor.type == ElementType::kF32 && i < tensor.NumElements(); ++i)
      Require(std::isfinite(tensor.At(i)), "numbers are finite");
  }
  Require(train::CheckIdentity(checkpoint->identity, checkpoint->identity, "").has_value(), "it belongs to itself");
  return true;
}

}  // namespace tessera
