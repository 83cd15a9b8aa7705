// Documents of a C batch as lengths or ends, until the contract says how long a row is: then they are ids. The one
// place that would change if Batch had them as fields.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/batch.h"
#include "tessera/contract.h"
#include "tessera/error.h"

namespace tessera::capi {

enum class Side : uint8_t { kBoth, kQ, kKv };
inline constexpr size_t kNumSides = 3;

using DocumentRows = std::vector<std::vector<int32_t>>;

// What a C batch holds. `lengths` and `ends` are by side.
struct BatchParts {
  Batch batch;
  std::array<std::optional<DocumentRows>, kNumSides> lengths;
  std::array<std::optional<DocumentRows>, kNumSides> ends;

  bool HasDocumentRows() const;
};

// The whole batch, documents as ids. TSR-C007 with every fault of lengths and ends; the rest is ResolveBatch's to say.
Result<Batch> WithDocumentIds(const BatchParts& parts, const Shape& shape);

}  // namespace tessera::capi
