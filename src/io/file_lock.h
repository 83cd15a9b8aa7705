// A lock on what a name means, for those who read a file, change it and write it again: several at once take turns, and
// none works on what another is about to replace.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "tessera/error.h"

namespace tessera {

// Held while it lives. It is a file of its own beside the one that it guards, because that one is replaced whole; links
// are followed first, so that two names of one file have one lock. The system gives it back when a process ends in
// whatever way, so a lock file that a crash leaves behind holds nobody up, and the next holder removes it.
class FileLock {
 public:
  // Waits for whoever holds it, but not for ever (kMaxLockSeconds): then, and where there can be no such file,
  // TSR-R003.
  static Result<FileLock> Take(const std::string& path);
  // Nothing where somebody holds it and goes on to for so many seconds.
  static Result<std::optional<FileLock>> TryTake(const std::string& path, int64_t seconds);

  ~FileLock();
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&&) = delete;
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  FileLock(std::string name, int fd) : name_(std::move(name)), fd_(fd) {}
  std::string name_;
  int fd_;
};

}  // namespace tessera
