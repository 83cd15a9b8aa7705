// Whole files in and out. Reading refuses what cannot be a document before it allocates; writing leaves the old
// file or the new one, never half of one, and no litter behind when it fails.
#include "io/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <new>
#include <system_error>
#include <utility>

#include "base/try.h"
#include "io/limits.h"

namespace tessera {
namespace {

constexpr size_t kChunkBytes = size_t{1} << 20;

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }
  // Closing can report a write error that no earlier call did.
  int Close() {
    const int fd = fd_;
    fd_ = -1;
    return ::close(fd);
  }

 private:
  int fd_;
};

std::string Reason(int error_number) { return std::generic_category().message(error_number); }

tl::unexpected<Error> ReadError(const std::string& path, const std::string& why) {
  return Fail(ErrorCode::kFileRead, "cannot read the file: " + why, path);
}

tl::unexpected<Error> WriteError(const std::string& path, const std::string& why) {
  return Fail(ErrorCode::kFileWrite, "cannot write the file: " + why, path);
}

// The bytes of memory this machine has: no file that is larger can be read whole.
int64_t MachineBytes() {
  const int64_t pages = ::sysconf(_SC_PHYS_PAGES);
  const int64_t page_bytes = ::sysconf(_SC_PAGE_SIZE);
  return pages > 0 && page_bytes > 0 ? pages * page_bytes : INT64_MAX;
}

// Reads until `bytes` is full or the input ends; returns how many came, or -1 with errno set.
ssize_t ReadUpTo(int fd, char* bytes, size_t count) {
  size_t used = 0;
  while (used < count) {
    const ssize_t got = ::read(fd, bytes + used, std::min(count - used, size_t{SSIZE_MAX}));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return -1;
    if (got == 0) break;
    used += static_cast<size_t>(got);
  }
  return static_cast<ssize_t>(used);
}

// For what tells no size: a pipe, or a file of /proc.
Result<std::string> ReadStream(int fd, const std::string& path, int64_t limit) {
  std::string bytes;
  while (true) {
    const size_t used = bytes.size();
    bytes.resize(used + std::max(kChunkBytes, used / 2));
    const ssize_t got = ReadUpTo(fd, bytes.data() + used, bytes.size() - used);
    if (got < 0) return ReadError(path, Reason(errno));
    const bool is_end = used + static_cast<size_t>(got) < bytes.size();
    bytes.resize(used + static_cast<size_t>(got));
    if (static_cast<int64_t>(bytes.size()) > limit)
      return ReadError(path, fmt::format("it has more than the {} bytes allowed here", limit));
    if (is_end) return bytes;
  }
}

bool IsSameState(const struct stat& a, const struct stat& b) {
  return a.st_size == b.st_size && a.st_mtim.tv_sec == b.st_mtim.tv_sec && a.st_mtim.tv_nsec == b.st_mtim.tv_nsec;
}

// A file that is written to meanwhile has no content one could vouch for: neither its old bytes nor its new ones.
Result<std::string> ReadRegular(int fd, const std::string& path, const struct stat& before, const HeadCheck& check) {
  const auto size = static_cast<size_t>(before.st_size);
  std::string bytes(std::min(size, kHeadBytes), '\0');
  ssize_t got = ReadUpTo(fd, bytes.data(), bytes.size());
  if (got < 0) return ReadError(path, Reason(errno));
  size_t used = static_cast<size_t>(got);
  if (check && used == bytes.size()) {
    TESSERA_TRY(check(bytes, static_cast<int64_t>(size)));
  }
  if (used == bytes.size() && used < size) {
    bytes.resize(size);
    got = ReadUpTo(fd, bytes.data() + used, size - used);
    if (got < 0) return ReadError(path, Reason(errno));
    used += static_cast<size_t>(got);
  }
  char more = 0;
  struct stat after {};
  if (used != size || ReadUpTo(fd, &more, 1) != 0 || ::fstat(fd, &after) != 0 || !IsSameState(before, after))
    return ReadError(path, "it changed while it was read");
  return bytes;
}

// Process substitution and standard input: a pipe that somebody of this session made and writes. A named pipe can be
// put in place of any file, and then nobody might ever write.
bool IsNamelessPipe(const std::string& path) {
  constexpr decltype(std::declval<struct statfs>().f_type) kPipeFileSystem = 0x50495045;  // PIPEFS_MAGIC
  struct statfs info {};
  return ::statfs(path.c_str(), &info) == 0 && info.f_type == kPipeFileSystem;
}

// Why a thing of this kind is not read, or nothing.
std::string Unreadable(const std::string& path, mode_t mode) {
  if (S_ISREG(mode)) return {};
  if (S_ISDIR(mode)) return Reason(EISDIR);
  if (!S_ISFIFO(mode)) return "it is neither a file nor a pipe";
  return IsNamelessPipe(path) ? "" : "it is a named pipe, which might never end";
}

// Returns 0 or the errno of the write that failed.
int WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(fd, bytes.data(), std::min(bytes.size(), size_t{SSIZE_MAX}));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return errno;
    bytes.remove_prefix(static_cast<size_t>(put));
  }
  return 0;
}

// While it lives, a pipe that nobody reads any more and a file that may not grow further (ulimit -f) are errors of the
// write, not the end of the process, which would leave the temporary file behind.
class NoWriteSignals {
 public:
  NoWriteSignals() {
    sigemptyset(&quiet_);
    sigset_t pending;
    sigpending(&pending);
    // One that waits already is not ours to take away.
    for (const int signal : {SIGPIPE, SIGXFSZ}) {
      if (sigismember(&pending, signal) != 1) sigaddset(&quiet_, signal);
    }
    sigset_t both = quiet_;
    sigaddset(&both, SIGPIPE);
    sigaddset(&both, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &both, &before_);
  }
  ~NoWriteSignals() {
    const timespec at_once{};
    // The signals that our own writes raised must not arrive once they are unblocked.
    while (sigtimedwait(&quiet_, nullptr, &at_once) > 0 || errno == EINTR) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoWriteSignals(const NoWriteSignals&) = delete;
  NoWriteSignals& operator=(const NoWriteSignals&) = delete;

 private:
  sigset_t quiet_;
  sigset_t before_;
};

// Character devices and pipes hold nothing that could be left half written, and must not be replaced by a file.
Status WriteInPlace(const std::string& path, std::string_view bytes) {
  // Without O_NONBLOCK, opening a pipe that nobody reads would wait for ever.
  FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (file.get() < 0) return WriteError(path, errno == ENXIO ? "nobody reads from the pipe" : Reason(errno));
  if (const int flags = ::fcntl(file.get(), F_GETFL);
      flags < 0 || ::fcntl(file.get(), F_SETFL, flags & ~O_NONBLOCK) != 0)
    return WriteError(path, Reason(errno));
  const NoWriteSignals quiet;
  if (const int error = WriteAll(file.get(), bytes)) return WriteError(path, Reason(error));
  if (file.Close() != 0) return WriteError(path, Reason(errno));
  return {};
}

// Removes the temporary file unless it was renamed away.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string path) : path_(std::move(path)) {}
  ~TemporaryFile() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  int RenameTo(const std::string& target) {
    if (::rename(path_.c_str(), target.c_str()) != 0) return errno;
    path_.clear();
    return 0;
  }

 private:
  std::string path_;
};

// `mode` is the mode of the file being replaced, if there is one.
Status WriteByRename(const std::string& path, const std::string& target, std::string_view bytes, const mode_t* mode) {
  static std::atomic<uint64_t> counter{0};
  const size_t slash = target.rfind('/');
  const std::string folder = slash == std::string::npos ? "" : target.substr(0, slash + 1);
  std::string name;
  int fd = -1;
  // The name is its own and short: one built from the target's could exceed the longest name a folder takes.
  for (int attempt = 0; attempt < 1000 && fd < 0; ++attempt) {
    name = fmt::format("{}.tessera-{}-{}.tmp", folder, ::getpid(), counter.fetch_add(1));
    fd = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0 && errno != EEXIST && errno != EINTR) return WriteError(path, Reason(errno));
  }
  if (fd < 0) return WriteError(path, "no free temporary name in its folder");
  FileDescriptor file(fd);
  TemporaryFile temporary(name);
  const NoWriteSignals quiet;
  if (mode != nullptr && ::fchmod(file.get(), *mode & 07777) != 0) return WriteError(path, Reason(errno));
  if (const int error = WriteAll(file.get(), bytes)) return WriteError(path, Reason(error));
  // Without this a crash after the rename can leave an empty file under the final name.
  if (::fsync(file.get()) != 0) return WriteError(path, Reason(errno));
  if (file.Close() != 0) return WriteError(path, Reason(errno));
  if (const int error = temporary.RenameTo(target)) return WriteError(path, Reason(error));
  return {};
}

// A link of /proc leads to a file also where its name is gone, and says a name that was never a file's. Another writer
// may replace the file between two looks, so a difference counts only when it stays.
bool LeadsTo(const std::string& path, const std::string& target) {
  constexpr int kLooks = 64;
  for (int look = 0; look < kLooks; ++look) {
    struct stat meant {};
    struct stat named {};
    if (::stat(path.c_str(), &meant) != 0) return false;
    if (::lstat(target.c_str(), &named) == 0 && meant.st_dev == named.st_dev && meant.st_ino == named.st_ino)
      return true;
  }
  return false;
}

}  // namespace

Result<std::string> ReadFile(const std::string& path, int64_t max_bytes, const HeadCheck& check) {
  if (path.find('\0') != std::string::npos) return ReadError(path.c_str(), "its name holds a zero byte");
  struct stat info {};
  // Looked at before it is opened, because opening a device can have effects of its own, and again once it is open,
  // because the name can have come to mean something else.
  if (::stat(path.c_str(), &info) != 0) return ReadError(path, Reason(errno));
  if (std::string why = Unreadable(path, info.st_mode); !why.empty()) return ReadError(path, why);
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (file.get() < 0) return ReadError(path, Reason(errno));
  const mode_t kind = info.st_mode & S_IFMT;
  if (::fstat(file.get(), &info) != 0) return ReadError(path, Reason(errno));
  if ((info.st_mode & S_IFMT) != kind) return ReadError(path, "it changed while it was read");
  if (const int flags = ::fcntl(file.get(), F_GETFL);
      flags < 0 || ::fcntl(file.get(), F_SETFL, flags & ~O_NONBLOCK) != 0)
    return ReadError(path, Reason(errno));
  const auto size = static_cast<int64_t>(info.st_size);
  try {
    if (S_ISFIFO(info.st_mode) || size == 0) return ReadStream(file.get(), path, std::min(max_bytes, kMaxPipeBytes));
    if (size > max_bytes)
      return ReadError(path, fmt::format("it has {} bytes, more than the {} allowed here", size, max_bytes));
    if (size > MachineBytes())
      return ReadError(path, fmt::format("it has {} bytes, more than this machine's memory", size));
    return ReadRegular(file.get(), path, info, check);
  } catch (const std::bad_alloc&) {
    return ReadError(path, fmt::format("its {} bytes do not fit in memory", size));
  }
}

Result<std::string> ReadFile(const std::string& path, int64_t max_bytes) { return ReadFile(path, max_bytes, nullptr); }

Result<std::string> FollowLinks(const std::string& path) {
  std::string current = path;
  for (int i = 0; i < kMaxLinks; ++i) {
    struct stat info {};
    if (::lstat(current.c_str(), &info) != 0 || !S_ISLNK(info.st_mode)) return current;
    std::string link(PATH_MAX, '\0');
    const ssize_t size = ::readlink(current.c_str(), link.data(), link.size());
    if (size < 0) return WriteError(path, Reason(errno));
    link.resize(static_cast<size_t>(size));
    const size_t slash = current.rfind('/');
    const bool is_relative = link.empty() || link[0] != '/';
    current = is_relative && slash != std::string::npos ? current.substr(0, slash + 1) + link : link;
  }
  return WriteError(path, Reason(ELOOP));
}

Status WriteFile(const std::string& path, std::string_view bytes) {
  if (path.empty()) return WriteError(path, "the name is empty");
  if (path.find('\0') != std::string::npos) return WriteError(path.c_str(), "its name holds a zero byte");
  struct stat info {};
  const bool exists = ::stat(path.c_str(), &info) == 0;
  if (!exists && errno != ENOENT) return WriteError(path, Reason(errno));
  if (exists && S_ISDIR(info.st_mode)) return WriteError(path, Reason(EISDIR));
  if (exists && (S_ISCHR(info.st_mode) || S_ISFIFO(info.st_mode))) return WriteInPlace(path, bytes);
  if (exists && !S_ISREG(info.st_mode)) return WriteError(path, "it is neither a file nor a pipe");
  // A rename would replace a write-protected file without asking.
  if (exists && ::faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) != 0 && errno != ENOENT)  // gone since: as good
    return WriteError(path, Reason(errno));
  const std::string target = TESSERA_TRY(FollowLinks(path));
  if (exists && target != path && !LeadsTo(path, target))
    return WriteError(path, "it has no name any more that a new file could take");
  return WriteByRename(path, target, bytes, exists ? &info.st_mode : nullptr);
}

}  // namespace tessera
