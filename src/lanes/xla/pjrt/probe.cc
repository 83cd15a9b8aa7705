#include "lanes/xla/pjrt/probe.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>

extern "C" {
extern const char tessera_probe_begin[];  // NOLINT(readability-identifier-naming): of probe/image.cc
extern const char tessera_probe_end[];    // NOLINT(readability-identifier-naming)
}

namespace tessera::pjrt {
namespace {

using Clock = std::chrono::steady_clock;

class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { Close(); }
  int number() const { return number_; }
  void Close() {
    if (number_ >= 0) close(number_);
    number_ = -1;
  }

 private:
  int number_;
};

// The file at this moment: "device-inode-size-nanoseconds".
std::optional<std::string> IdentityOf(const std::string& path) {
  struct stat facts = {};
  if (stat(path.c_str(), &facts) != 0) return std::nullopt;
  return fmt::format("{:x}-{:x}-{:x}-{:x}.{:09d}", facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtim.tv_sec,
                     facts.st_mtim.tv_nsec);
}

// Files that came back are known on disk, those that did not in this process only: the next may find a quieter machine.
std::string MarkOf(const std::string& identity, const ProbeSettings& settings) {
  return settings.folder.empty() ? std::string() : settings.folder + "/probed/" + identity;
}

void PutMark(const std::string& mark) {
  if (mark.empty()) return;
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(mark).parent_path(), ignored);
  const Descriptor file(open(mark.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
}

// Above those that the child has for itself: 0 to 2, and 3 for its answer.
Descriptor Lift(const Descriptor& low) { return Descriptor(fcntl(low.number(), F_DUPFD_CLOEXEC, 10)); }

// The program in memory, as a path that this process and its children can run; closed when nothing runs it any more.
Descriptor MakeImage() {
  const Descriptor image(memfd_create("tessera-plugin-probe", MFD_CLOEXEC));
  const char* at = tessera_probe_begin;
  while (image.number() >= 0 && at < tessera_probe_end) {
    const ssize_t written = write(image.number(), at, static_cast<size_t>(tessera_probe_end - at));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return Descriptor();
    at += written;
  }
  return Lift(image);
}

struct Child {
  pid_t pid = -1;
  std::string answer;         // what it wrote
  bool is_late = false;       // it had to be ended
  std::optional<int> status;  // as waitpid gives it; nothing where somebody else has taken it
};

// Runs the probe on the file; a negative pid when that cannot be done here.
pid_t Start(const Descriptor& image, const std::string& path, int answer) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  // What a plugin writes it will write again when it is really loaded.
  for (const int number : {0, 1, 2}) posix_spawn_file_actions_addopen(&actions, number, "/dev/null", O_RDWR, 0);
  posix_spawn_file_actions_adddup2(&actions, answer, 3);
  // A group of its own, so that whatever it starts ends with it; and no signal blocked or ignored for it.
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  const std::string program = fmt::format("/proc/self/fd/{}", image.number());
  std::string name = "tessera-plugin-probe";
  std::string file = path;
  char* arguments[] = {name.data(), file.data(), nullptr};
  pid_t pid = -1;
  const int failed = posix_spawn(&pid, program.c_str(), &actions, &attributes, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  return failed == 0 ? pid : -1;
}

// Until the child has answered and ended, or the time is up.
void Await(Child& child, const Descriptor& from, Clock::time_point deadline) {
  const auto left_ms = [&] {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    return static_cast<int>(std::clamp<int64_t>(left, 0, 1000));
  };
  for (bool is_open = true; is_open && Clock::now() < deadline;) {
    pollfd waiting{from.number(), POLLIN, 0};
    if (poll(&waiting, 1, left_ms()) <= 0) continue;
    char bytes[8];
    const ssize_t got = read(from.number(), bytes, sizeof(bytes));
    if (got > 0) child.answer.append(bytes, static_cast<size_t>(got));
    is_open = got > 0 || (got < 0 && errno == EINTR);
  }
  int status = 0;
  while (true) {
    const pid_t ended = waitpid(child.pid, &status, WNOHANG);
    if (ended == child.pid) {
      child.status = status;
      break;
    }
    if (ended < 0 && errno != EINTR) break;  // taken by somebody else
    if (Clock::now() >= deadline) {
      child.is_late = true;
      break;
    }
    const timespec moment{0, 1000000};
    nanosleep(&moment, nullptr);
  }
  // The child, where it is still there, and whatever it has started.
  kill(-child.pid, SIGKILL);
  if (!child.status) {
    while (waitpid(child.pid, &status, 0) < 0 && errno == EINTR) {
    }
  }
}

Status Judge(const Child& child, const ProbeSettings& settings, const std::string& path) {
  // A child that answered and then hung in its own end has still come back from the plugin.
  if (child.answer == "ok" || child.answer == "no") return {};
  std::string what;
  if (child.is_late) {
    what = fmt::format("it does not come back within {} s of being loaded", settings.seconds);
  } else if (child.status && WIFSIGNALED(*child.status)) {
    const char* name = strsignal(WTERMSIG(*child.status));
    what = fmt::format("it dies of signal {} ({}) when it is loaded", WTERMSIG(*child.status), name);
  } else if (child.status && WIFEXITED(*child.status)) {
    what = fmt::format("it ends the process that loads it, with status {}", WEXITSTATUS(*child.status));
  } else {
    what = "it ends the process that loads it";
  }
  return Fail(ErrorCode::kPluginUnusable, what + "; seen in a child process, and not loaded into this one", path);
}

Status Meet(const std::string& path, const ProbeSettings& settings) {
  const Descriptor image = MakeImage();
  int ends[2] = {-1, -1};
  if (image.number() < 0 || pipe2(ends, O_CLOEXEC) != 0) return {};
  const Descriptor from(ends[0]);
  Descriptor low(ends[1]);
  Descriptor to = Lift(low);
  low.Close();
  Child child;
  const Clock::time_point deadline = Clock::now() + std::chrono::seconds(settings.seconds);
  child.pid = Start(image, path, to.number());
  to.Close();
  if (child.pid < 0) return {};  // nothing can be started here: docs/xla.md says what that means
  Await(child, from, deadline);
  return Judge(child, settings, path);
}

}  // namespace

Status ProbePlugin(const std::string& path, const ProbeSettings& settings) {
  if (settings.seconds <= 0) return {};
  const std::optional<std::string> identity = IdentityOf(path);
  if (!identity) return {};  // whoever opens it will say so
  const std::string mark = MarkOf(*identity, settings);
  if (!mark.empty() && access(mark.c_str(), F_OK) == 0) return {};
  static std::mutex* const kMutex = new std::mutex;
  static auto* const kKnown = new std::map<std::string, Status>;
  const std::lock_guard<std::mutex> lock(*kMutex);
  if (const auto at = kKnown->find(*identity); at != kKnown->end()) return at->second;
  Status met = Meet(path, settings);
  kKnown->emplace(*identity, met);
  if (met) PutMark(mark);
  return met;
}

}  // namespace tessera::pjrt
