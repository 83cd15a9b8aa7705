// Walks one line of JSON: with simdjson where the build has it, else with the reader of all other JSON
// (io/json_events.h), which is several times slower and says the same.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "rows/raw_document.h"

namespace tessera::rows {

// Bytes that must be there behind every line; what they hold does not matter.
inline constexpr size_t kLinePadding = 64;

class LineWalker {
 public:
  LineWalker();
  ~LineWalker();
  LineWalker(const LineWalker&) = delete;
  LineWalker& operator=(const LineWalker&) = delete;
  // What is wrong with the line, or nothing.
  std::string Walk(std::string_view line, DocumentHandler& handler);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// "simdjson", or which reader stands in for it.
std::string_view LineWalkerName();

}  // namespace tessera::rows
