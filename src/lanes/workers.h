// Threads. A run starts at most the threads it was given and each takes units of work in order until none is left, so
// that who does what never changes what is computed.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>

namespace tessera::lanes {

// Calls `work(worker)` for workers 0 .. threads - 1, at once where the machine has room for it: on oneTBB's pool, which
// is one for the whole process, so that a caller who is parallel already does not end up with threads on threads.
void RunWorkers(int64_t threads, const std::function<void(int64_t worker)>& work);

// The next unit, in order; each is given out once.
class UnitQueue {
 public:
  explicit UnitQueue(int64_t count) : count_(count) {}
  // False when none is left.
  bool Next(int64_t& unit) {
    unit = next_.fetch_add(1, std::memory_order_relaxed);
    return unit < count_;
  }

 private:
  std::atomic<int64_t> next_{0};
  int64_t count_;
};

// What a worker does around its units, where they need the processor in a mode of its own.
struct WorkerMode {
  void (*enter)() = nullptr;
  void (*leave)() = nullptr;
};

// Runs `unit(index, worker)` for every index below `count`.
template <class Unit>
void RunUnits(int64_t threads, int64_t count, const Unit& unit, WorkerMode mode = {}) {
  UnitQueue queue(count);
  RunWorkers(std::min(threads, std::max<int64_t>(count, 1)), [&](int64_t worker) {
    if (mode.enter != nullptr) mode.enter();
    for (int64_t index = 0; queue.Next(index);) unit(index, worker);
    if (mode.leave != nullptr) mode.leave();
  });
}

// Does the work with what a worker has, and adds the tiles that it counted there to `done`, where somebody watches.
template <class Worker, class Work>
void Metered(std::atomic<int64_t>* done, Worker& worker, const Work& work) {
  const int64_t before = worker.num_tiles;
  work(worker);
  if (done != nullptr) done->fetch_add(worker.num_tiles - before, std::memory_order_relaxed);
}

}  // namespace tessera::lanes
