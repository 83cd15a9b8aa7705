#include <fmt/format.h>
#include <unistd.h>

#include <csignal>

#include "cpu/results.h"

namespace tessera::bench {
namespace {

volatile std::sig_atomic_t g_stop = 0;

}  // namespace

void ShowProgress(const std::string& text) {
  if (::isatty(STDERR_FILENO) != 0) fmt::print(stderr, "\r\033[K{}", text);
}

void ClearProgress() {
  if (::isatty(STDERR_FILENO) != 0) fmt::print(stderr, "\r\033[K");
}

Status BeginStep(const std::string& text) {
  if (IsStopped()) return Fail(ErrorCode::kBadArgument, "stopped before the end", text);
  ShowProgress(text);
  return {};
}

bool IsStopped() { return g_stop != 0; }

void StopOnSignals() {
  for (const int signal : {SIGINT, SIGTERM}) {
    struct sigaction action = {};
    action.sa_handler = [](int) { g_stop = 1; };
    action.sa_flags = static_cast<int>(SA_RESETHAND);  // a second one ends the program at once
    ::sigaction(signal, &action, nullptr);
  }
}

}  // namespace tessera::bench
