// The operations of a compiled program that speak to other devices, one record each: what they send, to whom, and how
// often. A skimmer like read_program.h.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lanes/xla/pjrt/hlo_shape.h"
#include "tessera/error.h"

namespace tessera::pjrt {

struct Collective {
  std::string kind;                                     // "all-gather": asynchronous forms under the plain name
  std::string name;                                     // the instruction's
  HloArrays operands = {};                              // on each device
  std::vector<std::vector<int64_t>> groups;             // devices that speak to each other; empty: all of them
  std::vector<std::pair<int64_t, int64_t>> pairs = {};  // of a permute: (source, target)
  bool in_loop = false;                                 // it runs as often as the loops around it do
  int64_t known_trips = 1;                              // of those loops together, where the compiler knows; else -1
  // The program's own parameters that an operand is made of by moving and converting alone.
  std::vector<int64_t> of_parameters = {};
};

// "all-gather" for "all-gather" and "all-gather-start"; nothing for the matching "-done" and for what stays at home.
std::string_view CollectiveOf(std::string_view opcode);

// Of a module's bytes (HloModuleProto), in the order they stand in there. What is no module is an error (TSR-L009).
Result<std::vector<Collective>> ReadCollectives(std::string_view module);

// What one trip carries between devices, over all of them: what each receives that is not its own. -1 where an operand
// is not of our types.
int64_t CarriedBytes(const Collective& collective, int64_t num_devices);

// "all-gather f32[16,8] in groups of 2".
std::string ToText(const Collective& collective);

}  // namespace tessera::pjrt
