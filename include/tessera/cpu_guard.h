// Arm machines whose processor has SVE and whose system hides it. XLA knows the core by its part number, compiles SVE
// for it, and the program dies of an illegal instruction. The cure is a small library that must be there before the
// program starts, so a program that uses the XLA lane calls ReexecWithCpuGuard first thing in main. Elsewhere it does
// nothing.
#pragma once

#include <cstdint>
#include <string>

#pragma GCC visibility push(default)
namespace tessera {

enum class CpuGuardState : uint8_t {
  kNotNeeded,  // not such a machine
  kActive,     // such a machine, and this process is guarded
  kRefused,    // such a machine, and this process is not: XLA must compile nothing for the CPU in it
};

struct CpuGuard {
  CpuGuardState state = CpuGuardState::kNotNeeded;
  std::string reason;  // the core, and why the guard is or is not there; empty where it is not needed
};

// Of this process. Reads /proc/cpuinfo, so keep the answer: it does not change.
CpuGuard AskCpuGuard();

// On such a machine, starts the program anew in the same process, with the guard: call it before anything else. Returns
// where that is not needed, was done already, is turned off (TESSERA_XLA_GUARD=off), or does not work.
void ReexecWithCpuGuard(char** argv);

}  // namespace tessera
#pragma GCC visibility pop
