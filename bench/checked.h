// What a benchmark does with an error: says it and ends.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "tessera/error.h"

namespace tessera::bench {

template <class T>
T Checked(Result<T> result) {
  if (result) return std::move(*result);
  fmt::print(stderr, "bench: {}\n", ToText(result.error()));
  std::exit(2);
}
inline void Check(const Status& status) {
  if (status) return;
  fmt::print(stderr, "bench: {}\n", ToText(status.error()));
  std::exit(2);
}

}  // namespace tessera::bench
