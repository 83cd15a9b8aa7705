// See progress.h.
#include "progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "program.h"

namespace tessera::program {
namespace {

std::string_view NameOf(RunStep step) {
  switch (step) {
    case RunStep::kNone:
      return "";
    case RunStep::kCompile:
      return "compiling program";
    case RunStep::kForward:
      return "forward";
    case RunStep::kBackward:
      return "backward";
    case RunStep::kCheckPlan:
      return "checking the plan";
    case RunStep::kCheckOutputs:
      return "checking the outputs";
  }
  return "";
}

}  // namespace

std::string InWords(RunStep step, int64_t done, int64_t all, double seconds) {
  const std::string name(NameOf(step));
  if (step == RunStep::kCompile && all > 0) return fmt::format("{} {} of {}", name, std::min(done + 1, all), all);
  if (step == RunStep::kCompile || done <= 0 || all <= 0 || seconds <= 0) return name;
  const bool is_pass = step == RunStep::kForward || step == RunStep::kBackward;
  const double rate = static_cast<double>(done) / seconds;
  return fmt::format("{} {} of {} {}, {} a second, {:.0f} s left", name, Grouped(done), Grouped(all),
                     is_pass ? "tiles" : "rows",
                     rate < 10 ? fmt::format("{:.1f}", rate) : Grouped(static_cast<int64_t>(rate)),
                     static_cast<double>(all - done) / rate);
}

Progress::Progress(std::string what, bool asked, const RunMeter* meter)
    : what_(std::move(what)), meter_(meter), terminal_(isatty(STDERR_FILENO) != 0) {
  if (terminal_ || asked) thread_ = std::thread([this] { Watch(); });
}

Progress::~Progress() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    done_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

std::string Progress::HowFar() {
  if (meter_ == nullptr) return {};
  const RunStep step = meter_->step;
  const int64_t all = meter_->all;
  const int64_t done = std::min<int64_t>(meter_->done, all);
  if (step != step_) {
    // As near to the step's beginning as a look once a second comes.
    if (step_ != RunStep::kNone) step_start_ = Clock::now() - std::chrono::milliseconds(500);
    step_ = step;
  }
  std::string words = InWords(step, done, all, std::chrono::duration<double>(Clock::now() - step_start_).count());
  // "checking the plan ... 3 s; 12 of 40 rows", not the same twice.
  if (words.compare(0, what_.size(), what_) == 0) words.erase(0, std::min(what_.size() + 1, words.size()));
  return words.empty() ? words : "; " + words;
}

void Progress::Watch() {
  std::unique_lock<std::mutex> lock(mutex_);
  bool shown = false;
  for (int seconds = 1; !wake_.wait_until(lock, start_ + std::chrono::seconds(seconds), [this] { return done_; });
       ++seconds) {
    if (terminal_) {
      // One line: what is beyond it could not be taken back.
      const std::string begin = fmt::format("{} ... {} s", Printable(what_), seconds);
      const auto room = std::max<int64_t>(TerminalColumns() - 1 - static_cast<int64_t>(begin.size()), 0);
      const std::string far = HowFar().substr(0, static_cast<size_t>(room));
      std::fprintf(stderr, "\r%s%s\033[K", begin.c_str(), far.c_str());
    } else if ((seconds & (seconds - 1)) == 0) {
      // In a log, once at 1, 2, 4, 8 ... seconds is enough.
      PrintError(fmt::format("{} ... {} s{}\n", what_, seconds, HowFar()));
    }
    std::fflush(stderr);
    shown = true;
  }
  if (shown && terminal_) std::fprintf(stderr, "\r\033[K");
}

}  // namespace tessera::program
