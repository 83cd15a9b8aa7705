#include "io/file_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <system_error>
#include <thread>
#include <utility>

#include "base/hash.h"
#include "base/try.h"
#include "io/file.h"
#include "io/limits.h"

namespace tessera {
namespace {

tl::unexpected<Error> LockError(const std::string& path, const std::string& why) {
  return Fail(ErrorCode::kFileWrite, "cannot lock the file: " + why, path);
}

std::string Reason(int error_number) { return std::generic_category().message(error_number); }

// Of the same length for every name: one built from the file's could exceed the longest name a folder takes.
std::string LockName(const std::string& target) {
  const size_t slash = target.rfind('/');
  const size_t begin = slash == std::string::npos ? 0 : slash + 1;
  Hasher hasher;
  hasher.Bytes(target.data() + begin, target.size() - begin);
  return fmt::format("{}.tessera-{}.lock", target.substr(0, begin), Hex(hasher.Finish()));
}

// Whoever held the lock before may have removed its file: then the name means another file, or none, by now.
bool IsStillNamed(const std::string& name, int fd) {
  struct stat named {};
  struct stat held {};
  return ::stat(name.c_str(), &named) == 0 && ::fstat(fd, &held) == 0 && named.st_dev == held.st_dev &&
         named.st_ino == held.st_ino;
}

}  // namespace

Result<std::optional<FileLock>> FileLock::TryTake(const std::string& path, int64_t seconds) {
  const std::string name = LockName(TESSERA_TRY(FollowLinks(path)));
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  while (true) {
    const int fd = ::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd < 0 && errno == EINTR) continue;
    if (fd < 0) return LockError(path, Reason(errno));
    FileLock lock("", fd);  // closes it wherever this ends; the name is its own only once it is held
    bool is_held = false;
    while (!is_held) {
      is_held = ::flock(fd, LOCK_EX | LOCK_NB) == 0;
      if (is_held) break;
      if (errno != EWOULDBLOCK && errno != EINTR) return LockError(path, Reason(errno));
      if (std::chrono::steady_clock::now() >= until) return std::nullopt;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    if (!IsStillNamed(name, fd)) continue;
    lock.name_ = name;
    return std::optional<FileLock>(std::move(lock));
  }
}

Result<FileLock> FileLock::Take(const std::string& path) {
  std::optional<FileLock> lock = TESSERA_TRY(TryTake(path, kMaxLockSeconds));
  if (!lock) {
    return LockError(path, fmt::format("another process has held {} for {} seconds",
                                       LockName(TESSERA_TRY(FollowLinks(path))), kMaxLockSeconds));
  }
  return std::move(*lock);
}

FileLock::~FileLock() {
  // Removed while it is held, so that nobody can have taken it under this name meanwhile.
  if (!name_.empty()) ::unlink(name_.c_str());
  if (fd_ >= 0) ::close(fd_);
}

FileLock::FileLock(FileLock&& other) noexcept
    : name_(std::exchange(other.name_, {})), fd_(std::exchange(other.fd_, -1)) {}

}  // namespace tessera
