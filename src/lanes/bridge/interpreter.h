// The Python interpreter of this process: the one that the process is, or one that is loaded into it. There is at most
// one, it is never finalised, and its lock is held inside Call alone.
#pragma once

#include <string>
#include <string_view>

#include "tessera/error.h"
#include "tessera/lane.h"

namespace tessera::lanes::bridge {

class Interpreter {
 public:
  virtual ~Interpreter() = default;
  // One JSON request for bridge.py, and its answer; TSR-L013 where Python itself fails. From any thread.
  virtual Result<std::string> Call(std::string_view request) const = 0;
  // Whether Call can still be used: not when a host program's interpreter is going away, nor in a forked child.
  virtual bool IsThere() const = 0;
  // Versions, and how it came to be here; the counts are 0.
  virtual const CrossingUse& use() const = 0;
};

// Whether this process is a Python program. Loads nothing.
bool IsHostPython();

// The interpreter with JAX imported, started when it is first asked for; or why not. `program` is that of a Python
// interpreter, and does not matter where this process is one.
struct OpenedInterpreter {
  const Interpreter* interpreter = nullptr;
  Decision decision;
};
OpenedInterpreter OpenInterpreter(const std::string& program);

}  // namespace tessera::lanes::bridge
