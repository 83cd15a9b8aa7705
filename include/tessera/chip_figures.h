// What the vendor of a target's chips publishes of them and of what joins them: data for models of machines that are
// not here (docs/context_parallel.md). No plan and no program depends on it.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#pragma GCC visibility push(default)
namespace tessera {

struct ChipFigures {
  double flops = 0;          // of bf16 products, each second
  double link_bytes = 0;     // that all links to neighbours bring a chip, each second
  int64_t slice_chips = 0;   // that such links join at most; beyond, bytes go through the data centre's network
  double network_bytes = 0;  // a chip's share of that network, each second
};
// Of a target's name: "v6e", "v5e"; nothing for others.
std::optional<ChipFigures> ChipFiguresOf(std::string_view target);

}  // namespace tessera
#pragma GCC visibility pop
