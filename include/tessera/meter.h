// How far something long is, for another thread to look at: what works writes it, who waits reads it.
#pragma once

#include <atomic>
#include <cstdint>

#pragma GCC visibility push(default)
namespace tessera {

enum class RunStep : uint8_t { kNone, kCompile, kForward, kBackward, kCheckPlan, kCheckOutputs };

struct RunMeter {
  std::atomic<RunStep> step{RunStep::kNone};
  // Tiles of a pass, programs of a compilation, rows of a check. What is handed over as a whole counts none.
  std::atomic<int64_t> done{0};
  std::atomic<int64_t> all{0};  // 0: not counted
  void Begin(RunStep next, int64_t count) {
    all = 0;
    done = 0;
    step = next;
    all = count;
  }
};

}  // namespace tessera
#pragma GCC visibility pop
