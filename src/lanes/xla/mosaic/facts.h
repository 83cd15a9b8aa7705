// What is known of integer scalars without running anything: the interval they lie in, and a number they are a multiple
// of. Enough for loads at constant places, unrolled loops, and index maps that follow the grid.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lanes/xla/mosaic/ir.h"

namespace tessera::mosaic {

struct Fact {
  int64_t low = 0;
  int64_t high = 0;
  bool is_known = false;  // the interval
  int64_t multiple = 1;   // 0 is a multiple of everything
};

class Facts {
 public:
  explicit Facts(const Function& function) : facts_(function.values.size()) {}
  const Fact& Of(ValueId value) const { return facts_[static_cast<size_t>(value)]; }
  void Set(ValueId value, const Fact& fact) { facts_[static_cast<size_t>(value)] = fact; }
  // What an operation's result is, from what its operands are.
  void Learn(const Function& function, const Op& op);

 private:
  std::vector<Fact> facts_;
};

}  // namespace tessera::mosaic
