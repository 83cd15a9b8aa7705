// Which instruction sets this machine has, found once.
#pragma once

#include <span>
#include <string_view>

namespace tessera::lanes::cpu {

struct Isa {
  std::string_view name;
  std::string_view base;  // the one it builds on: what it has no kernel for runs there
  bool available = false;
  std::string_view meaning;
};

// Every one that kernels are built for on this architecture, best first.
std::span<const Isa> Isas();

// Whether `name` is `isa` or one that `isa` builds on.
bool Includes(std::string_view isa, std::string_view name);

}  // namespace tessera::lanes::cpu
