// The one way to pass an error on: `const Contract contract = TESSERA_TRY(ParseContract(text));` leaves the function
// with the error, or goes on with the value; a Status is tried the same way and gives nothing. For functions that
// return a Result of any type, in .cc files: public headers have no macros.
#pragma once

#include <utility>

#include "tessera/error.h"

namespace tessera {

template <class T>
T TakeValue(Result<T>&& result) {
  return std::move(*result);
}
inline void TakeValue(Status&&) {}

}  // namespace tessera

// A statement expression, which GCC and clang have had for decades: nothing else can return from the caller and give a
// value.
#define TESSERA_TRY(expression)                                                  \
  __extension__({                                                                \
    auto tessera_tried = (expression);                                           \
    if (!tessera_tried) return tl::unexpected(std::move(tessera_tried).error()); \
    ::tessera::TakeValue(std::move(tessera_tried));                              \
  })
