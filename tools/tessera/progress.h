// What long runs say while they are waited for.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include "tessera/meter.h"

namespace tessera::program {

// How far a step is after so many seconds: "forward 120 of 1,568 tiles, 40 a second, 36 s left", "compiling program 2
// of 2".
std::string InWords(RunStep step, int64_t done, int64_t all, double seconds);

// Says on standard error what is being waited for, once a second has passed: where a person watches (a terminal), or
// when asked. With a meter also how far it is. Ends when it goes out of scope.
class Progress {
 public:
  Progress(std::string what, bool asked, const RunMeter* meter = nullptr);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

 private:
  void Watch();
  // Of what was seen until now.
  std::string HowFar();
  using Clock = std::chrono::steady_clock;
  std::string what_;
  const RunMeter* meter_ = nullptr;
  RunStep step_ = RunStep::kNone;
  Clock::time_point step_start_ = Clock::now();
  bool terminal_ = false;
  Clock::time_point start_ = Clock::now();
  std::mutex mutex_;
  std::condition_variable wake_;
  bool done_ = false;
  std::thread thread_;
};

}  // namespace tessera::program
