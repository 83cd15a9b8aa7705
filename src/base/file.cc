// Whole files in and out. Reading refuses what cannot be a document before it allocates; writing leaves the old
// file or the new one, never half of one, and no litter behind when it fails.
#include "base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <new>
#include <system_error>
#include <utility>

namespace tessera {
namespace {

// A pipe tells no size and may never end, so it gets a lower limit than a file.
constexpr int64_t kMaxPipeBytes = int64_t{1} << 30;
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

Result<std::string> ReadOpen(const FileDescriptor& file, const std::string& path, int64_t size, int64_t max_bytes) {
  std::string bytes;
  // One byte more than the size, so that the read that fills the file also sees its end.
  bytes.resize(static_cast<size_t>(size) + 1);
  size_t used = 0;
  while (true) {
    if (used == bytes.size()) bytes.resize(used + std::max(kChunkBytes, used / 2));
    const ssize_t got = ::read(file.get(), bytes.data() + used, std::min(bytes.size() - used, size_t{SSIZE_MAX}));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ReadError(path, Reason(errno));
    if (got == 0) break;
    used += static_cast<size_t>(got);
    if (static_cast<int64_t>(used) > max_bytes)
      return ReadError(path, fmt::format("it has more than the {} bytes allowed here", max_bytes));
  }
  bytes.resize(used);
  return bytes;
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

// Devices and pipes hold nothing that could be left half written, and must not be replaced by a file.
Status WriteInPlace(const std::string& path, std::string_view bytes) {
  FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (file.get() < 0) return WriteError(path, Reason(errno));
  if (const int error = WriteAll(file.get(), bytes)) return WriteError(path, Reason(error));
  if (file.Close() != 0) return WriteError(path, Reason(errno));
  return {};
}

// Where the bytes really go: a chain of symbolic links is followed to its end, which need not exist yet.
Result<std::string> FollowLinks(const std::string& path) {
  constexpr int kMaxLinks = 40;
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
  if (mode != nullptr && ::fchmod(file.get(), *mode & 07777) != 0) return WriteError(path, Reason(errno));
  if (const int error = WriteAll(file.get(), bytes)) return WriteError(path, Reason(error));
  // Without this a crash after the rename can leave an empty file under the final name.
  if (::fsync(file.get()) != 0) return WriteError(path, Reason(errno));
  if (file.Close() != 0) return WriteError(path, Reason(errno));
  if (const int error = temporary.RenameTo(target)) return WriteError(path, Reason(error));
  return {};
}

}  // namespace

Result<std::string> ReadFile(const std::string& path, int64_t max_bytes) {
  if (path.find('\0') != std::string::npos) return ReadError(path.c_str(), "its name holds a zero byte");
  struct stat info {};
  // Looked at before it is opened: opening a device can have effects of its own.
  if (::stat(path.c_str(), &info) != 0) return ReadError(path, Reason(errno));
  if (S_ISDIR(info.st_mode)) return ReadError(path, Reason(EISDIR));
  if (!S_ISREG(info.st_mode) && !S_ISFIFO(info.st_mode)) return ReadError(path, "it is neither a file nor a pipe");
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return ReadError(path, Reason(errno));
  const bool is_pipe = S_ISFIFO(info.st_mode);
  const int64_t limit = is_pipe ? std::min(max_bytes, kMaxPipeBytes) : max_bytes;
  const int64_t size = is_pipe ? 0 : static_cast<int64_t>(info.st_size);
  if (size > limit) return ReadError(path, fmt::format("it has {} bytes, more than the {} allowed here", size, limit));
  try {
    return ReadOpen(file, path, size, limit);
  } catch (const std::bad_alloc&) {
    return ReadError(path, fmt::format("its {} bytes do not fit in memory", size));
  }
}

Status WriteFile(const std::string& path, std::string_view bytes) {
  if (path.empty()) return WriteError(path, "the name is empty");
  if (path.find('\0') != std::string::npos) return WriteError(path.c_str(), "its name holds a zero byte");
  struct stat info {};
  const bool exists = ::stat(path.c_str(), &info) == 0;
  if (!exists && errno != ENOENT) return WriteError(path, Reason(errno));
  if (exists && S_ISDIR(info.st_mode)) return WriteError(path, Reason(EISDIR));
  if (exists && !S_ISREG(info.st_mode)) return WriteInPlace(path, bytes);
  // A rename would replace a write-protected file without asking.
  if (exists && ::faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) != 0) return WriteError(path, Reason(errno));
  const Result<std::string> target = FollowLinks(path);
  if (!target) return tl::unexpected(target.error());
  return WriteByRename(path, *target, bytes, exists ? &info.st_mode : nullptr);
}

}  // namespace tessera
