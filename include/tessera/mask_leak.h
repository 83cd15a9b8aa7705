// What a mask lets through although it names a term that seems to forbid it: `causal and window(1023, 0) or sink(4)`
// lets query 0 see key 3, because `and` binds tighter than `or`. Such a mask is legal, and rarely what was meant.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/contract.h"

#pragma GCC visibility push(default)
namespace tessera {

struct MaskLeak {
  enum class Kind : uint8_t {
    kLater,          // a head that names `causal` sees a key after its position, i + offset
    kOtherDocument,  // a head that names `documents` sees a key of another document
  };
  Kind kind = Kind::kLater;
  int64_t head = 0;  // the first such pair: lowest head, then query, then key
  int64_t query = 0;
  int64_t key = 0;
  bool operator==(const MaskLeak&) const = default;
};

// At most one of each kind. Exact: a leak is there for some batch that the contract accepts, where queries and keys are
// the same tokens if q_len equals kv_len; without a leak there is none for any such batch.
Result<std::vector<MaskLeak>> FindLeaks(const Contract& contract);

// "head 0 lets query 0 see key 3, which is later, although the mask names causal"
std::string ToText(const MaskLeak& leak);

}  // namespace tessera
#pragma GCC visibility pop
