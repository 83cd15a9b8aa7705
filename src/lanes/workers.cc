#include "lanes/workers.h"

#include <algorithm>

#if TESSERA_HAS_TBB
#include <tbb/info.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>
#else
#include <thread>
#include <vector>
#endif

namespace tessera::lanes {

#if TESSERA_HAS_TBB
void RunWorkers(int64_t threads, const std::function<void(int64_t)>& work) {
  if (threads <= 1) {
    work(0);
    return;
  }
  // More threads than the machine has would only take turns, and oneTBB would complain on standard error.
  tbb::task_arena arena(static_cast<int>(std::min<int64_t>(threads, tbb::info::default_concurrency())));
  arena.execute([&] {
    tbb::parallel_for(
        int64_t{0}, threads, [&](int64_t worker) { work(worker); }, tbb::simple_partitioner());
  });
}
#else
// Without oneTBB (cross builds, and under the thread sanitizer, which cannot see into it): plain threads.
void RunWorkers(int64_t threads, const std::function<void(int64_t)>& work) {
  std::vector<std::jthread> others;
  others.reserve(static_cast<size_t>(threads));
  for (int64_t worker = 1; worker < threads; ++worker) others.emplace_back([&work, worker] { work(worker); });
  work(0);
}
#endif

}  // namespace tessera::lanes
