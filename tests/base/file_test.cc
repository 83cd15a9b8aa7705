// Whole files: what reading refuses and why, and that a write that fails leaves everything as it was.
#include "io/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <thread>
#include <vector>

#include "base/test_files.h"
#include "io/file_lock.h"
#include "support/run_program.h"
#include "tessera/io.h"

namespace tessera {
namespace {

using testing::HasSubstr;

// The superuser may read and write everything, so tests about permission step down for a moment.
class OrdinaryUser {
 public:
  explicit OrdinaryUser(const TestFolder& folder) {
    if (geteuid() != 0) return;
    chmod(folder.path().c_str(), 0777);
    is_changed_ = seteuid(65534) == 0;
  }
  ~OrdinaryUser() {
    if (is_changed_ && seteuid(0) != 0) std::abort();
  }
  static bool IsOne() { return geteuid() != 0; }

 private:
  bool is_changed_ = false;
};

void ExpectUnreadable(const std::string& path, const std::string& reason, int64_t max_bytes = int64_t{1} << 36) {
  const Result<std::string> result = ReadFile(path, max_bytes);
  ASSERT_FALSE(result) << path;
  EXPECT_EQ(result.error().code, ErrorCode::kFileRead);
  EXPECT_EQ(result.error().where, path);
  EXPECT_THAT(result.error().message, HasSubstr(reason));
}

void ExpectUnwritable(const std::string& path, const std::string& reason) {
  const Status result = WriteFile(path, "new");
  ASSERT_FALSE(result) << path;
  EXPECT_EQ(result.error().code, ErrorCode::kFileWrite);
  EXPECT_EQ(result.error().where, path);
  EXPECT_THAT(result.error().message, HasSubstr(reason));
}

TEST(ReadFile, AnyContent_ComesBackExactly) {
  const TestFolder folder;
  const std::string big(3'000'001, 'x');
  for (const std::string& content : {std::string(), std::string("a\0b\xff", 4), big}) {
    Put(folder / "f", content);
    const Result<std::string> result = ReadFile(folder / "f");
    ASSERT_TRUE(result) << ToText(result.error());
    EXPECT_EQ(*result, content);
  }
}

TEST(ReadFile, WhatCannotBeRead_IsRefusedWithTheReason) {
  const TestFolder folder;
  ExpectUnreadable(folder / "missing", "No such file or directory");
  ExpectUnreadable(folder.path().string(), "Is a directory");
  ExpectUnreadable("/dev/zero", "neither a file nor a pipe");
  Put(folder / "file", "x");
  ExpectUnreadable((folder / "file") + "/under", "Not a directory");
  std::filesystem::create_symlink("loop", folder / "loop");
  ExpectUnreadable(folder / "loop", "Too many levels of symbolic links");
  ExpectUnreadable("", "No such file or directory");
  EXPECT_FALSE(ReadFile(std::string("a\0b", 3)));
}

TEST(ReadFile, NoPermission_IsRefused) {
  const TestFolder folder;
  Put(folder / "secret", "x");
  chmod((folder / "secret").c_str(), 0);
  const OrdinaryUser user(folder);
  if (!OrdinaryUser::IsOne()) GTEST_SKIP() << "cannot step down from the superuser here";
  ExpectUnreadable(folder / "secret", "Permission denied");
}

TEST(ReadFile, LargerThanAllowed_IsRefusedBeforeReading) {
  const TestFolder folder;
  Put(folder / "f", "12345");
  EXPECT_TRUE(ReadFile(folder / "f", 5));
  ExpectUnreadable(folder / "f", "it has 5 bytes, more than the 4 allowed", 4);
  // A file of holes: its size alone must be enough to refuse it.
  std::filesystem::resize_file(folder / "f", uintmax_t{1} << 40);
  ExpectUnreadable(folder / "f", "1099511627776 bytes");
}

// What `<(command)` and standard input give: /dev/fd/N of a pipe without a name.
TEST(ReadFile, NamelessPipe_IsReadToItsEndWithinTheLimit) {
  const std::string content(200'000, 'p');
  for (const int64_t limit : {int64_t{1} << 36, int64_t{100'000}}) {
    int ends[2] = {-1, -1};
    ASSERT_EQ(pipe(ends), 0);
    std::thread writer([&] {
      std::signal(SIGPIPE, SIG_IGN);
      [[maybe_unused]] const ssize_t put = write(ends[1], content.data(), content.size());
      close(ends[1]);
    });
    const std::string path = "/dev/fd/" + std::to_string(ends[0]);
    const Result<std::string> result = ReadFile(path, limit);
    close(ends[0]);
    writer.join();
    EXPECT_EQ(result.has_value(), limit > 200'000);
    if (result) {
      EXPECT_EQ(*result, content);
    } else {
      EXPECT_THAT(result.error().message, HasSubstr("more than the 100000 bytes"));
    }
  }
}

// Nobody writes to it: a reader that opened it would wait for ever.
TEST(ReadFile, NamedPipe_IsRefusedAtOnce) {
  const TestFolder folder;
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  ExpectUnreadable(folder / "pipe", "named pipe");
  std::filesystem::create_symlink("pipe", folder / "link");
  ExpectUnreadable(folder / "link", "named pipe");
}

TEST(ReadFile, FileThatChangesMeanwhile_IsRefusedOrWhole) {
  const TestFolder folder;
  const std::string path = folder / "f";
  const std::string small(1 << 20, 's');
  const std::string large(3 << 20, 'l');
  Put(path, small);
  std::atomic<int> changes = 0;
  std::thread writer([&] {
    for (bool is_large = true; changes < 40; is_large = !is_large) {
      Put(path, is_large ? large : small);
      ++changes;
      // Longer than the coarsest clock a file system stamps its files with.
      std::this_thread::sleep_for(std::chrono::milliseconds(12));
    }
  });
  int refused = 0;
  while (changes < 40) {
    const Result<std::string> result = ReadFile(path);
    if (!result) {
      ++refused;
      EXPECT_THAT(result.error().message, HasSubstr("changed while it was read"));
    } else if (!result->empty()) {
      // Truncation and growth are seen by size and time; only a size that was really there may come back.
      EXPECT_LE(result->size(), large.size());
      EXPECT_EQ(result->find_first_not_of(result->front()), std::string::npos) << "a mixture of two contents";
    }
  }
  writer.join();
  RecordProperty("refused", refused);
}

TEST(ReadFile, HeadCheck_RefusesBeforeTheRestIsRead) {
  const TestFolder folder;
  Put(folder / "f", "magic");
  std::filesystem::resize_file(folder / "f", uintmax_t{1} << 33);
  const Result<std::string> result = ReadFile(folder / "f", int64_t{1} << 34, [](std::string_view head, int64_t size) {
    EXPECT_EQ(head.size(), kHeadBytes);
    EXPECT_EQ(head.substr(0, 5), "magic");
    EXPECT_EQ(size, int64_t{1} << 33);
    return Status(Fail(ErrorCode::kTensorFile, "not that magic"));
  });
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().message, "not that magic");
}

TEST(ReadFile, FileWhoseSizeIsNotKnown_IsReadWhole) {
  const Result<std::string> result = ReadFile("/proc/self/status");
  ASSERT_TRUE(result) << ToText(result.error());
  EXPECT_GT(result->size(), 100u);
}

TEST(WriteFile, NewAndExistingFile_HoldTheNewBytes) {
  const TestFolder folder;
  const std::string first(2'000'000, 'a');
  ASSERT_TRUE(WriteFile(folder / "f", first));
  EXPECT_EQ(Slurp(folder / "f"), first);
  chmod((folder / "f").c_str(), 0640);
  ASSERT_TRUE(WriteFile(folder / "f", std::string_view("b\0c", 3)));
  EXPECT_EQ(Slurp(folder / "f"), std::string("b\0c", 3));
  EXPECT_EQ(std::filesystem::status(folder / "f").permissions(), std::filesystem::perms{0640});
  EXPECT_EQ(folder.NumEntries(), 1);
}

TEST(WriteFile, NewFile_FollowsTheUmask) {
  const TestFolder folder;
  const mode_t old = umask(027);
  EXPECT_TRUE(WriteFile(folder / "f", "x"));
  umask(old);
  EXPECT_EQ(std::filesystem::status(folder / "f").permissions(), std::filesystem::perms{0640});
}

TEST(WriteFile, RelativeName_GoesToTheWorkingFolder) {
  const TestFolder folder;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  EXPECT_TRUE(WriteFile("plain", "x"));
  std::filesystem::current_path(before);
  EXPECT_EQ(Slurp(folder / "plain"), "x");
}

TEST(WriteFile, LongestName_StillFits) {
  const TestFolder folder;
  const std::string name(255, 'n');
  EXPECT_TRUE(WriteFile(folder / name, "x"));
  EXPECT_EQ(Slurp(folder / name), "x");
}

TEST(WriteFile, SymbolicLink_IsWrittenThrough) {
  const TestFolder folder;
  std::filesystem::create_directory(folder / "sub");
  Put(folder / "sub/real", "old");
  std::filesystem::create_symlink("sub/real", folder / "link");
  std::filesystem::create_symlink(folder / "link", folder / "second");
  ASSERT_TRUE(WriteFile(folder / "second", "new"));
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "second"));
  EXPECT_EQ(Slurp(folder / "sub/real"), "new");
  std::filesystem::create_symlink("sub/fresh", folder / "dangling");
  ASSERT_TRUE(WriteFile(folder / "dangling", "made"));
  EXPECT_EQ(Slurp(folder / "sub/fresh"), "made");
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "dangling"));
}

TEST(WriteFile, WhatCannotBeWritten_IsRefusedWithTheReason) {
  const TestFolder folder;
  ExpectUnwritable(folder.path().string(), "Is a directory");
  ExpectUnwritable(folder / "no/such/folder", "No such file or directory");
  Put(folder / "file", "old");
  ExpectUnwritable((folder / "file") + "/under", "Not a directory");
  std::filesystem::create_symlink("loop", folder / "loop");
  ExpectUnwritable(folder / "loop", "Too many levels of symbolic links");
  ExpectUnwritable("", "empty");
  EXPECT_EQ(Slurp(folder / "file"), "old");
}

TEST(WriteFile, WriteProtectedFileOrFolder_IsLeftAlone) {
  const TestFolder folder;
  Put(folder / "file", "old");
  chmod((folder / "file").c_str(), 0444);
  std::filesystem::create_directory(folder / "sub");
  chmod((folder / "sub").c_str(), 0555);
  {
    const OrdinaryUser user(folder);
    if (!OrdinaryUser::IsOne()) GTEST_SKIP() << "cannot step down from the superuser here";
    ExpectUnwritable(folder / "file", "Permission denied");
    ExpectUnwritable(folder / "sub/new", "Permission denied");
  }
  EXPECT_EQ(Slurp(folder / "file"), "old");
  EXPECT_EQ(folder.NumEntries(), 2);
}

TEST(WriteFile, FullDevice_ReportsNoSpaceAndStaysADevice) {
  if (!std::filesystem::is_character_file("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  ExpectUnwritable("/dev/full", "No space left on device");
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full"));
  EXPECT_TRUE(WriteFile("/dev/null", "x"));
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

TEST(WriteFile, Pipe_IsWrittenIntoWhereSomebodyReads) {
  const TestFolder folder;
  const std::string path = folder / "pipe";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  ExpectUnwritable(path, "nobody reads");
  std::string got;
  std::thread reader([&] { got = Slurp(path); });
  Status written;
  do {  // until the reader has opened it
    written = WriteFile(path, std::string(200'000, 'w'));
  } while (!written);
  reader.join();
  EXPECT_EQ(got, std::string(200'000, 'w'));
  EXPECT_TRUE(std::filesystem::is_fifo(path));
}

// Without care this would end the process with a signal.
TEST(WriteFile, PipeThatIsClosedMeanwhile_IsAnError) {
  int ends[2] = {-1, -1};
  ASSERT_EQ(pipe(ends), 0);
  const std::string path = "/dev/fd/" + std::to_string(ends[1]);
  std::thread reader([&] {
    char byte = 0;
    EXPECT_EQ(read(ends[0], &byte, 1), 1);
    close(ends[0]);
  });
  const Status written = WriteFile(path, std::string(1 << 20, 'w'));
  reader.join();
  close(ends[1]);
  ASSERT_FALSE(written);
  EXPECT_THAT(written.error().message, HasSubstr("Broken pipe"));
}

// A limit on file size stands for a disk that fills up half way through.
TEST(WriteFile, FailureHalfWay_KeepsTheOldFileAndRemovesTheTemporary) {
  const TestFolder folder;
  Put(folder / "f", "old");
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit = before;
  limit.rlim_cur = 1 << 16;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  const Status existing = WriteFile(folder / "f", std::string(1 << 20, 'n'));
  const Status fresh = WriteFile(folder / "g", std::string(1 << 20, 'n'));
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  ASSERT_FALSE(existing);
  EXPECT_EQ(existing.error().code, ErrorCode::kFileWrite);
  EXPECT_THAT(existing.error().message, HasSubstr("File too large"));
  EXPECT_FALSE(fresh);
  EXPECT_EQ(Slurp(folder / "f"), "old");
  EXPECT_EQ(folder.NumEntries(), 1);
}

TEST(WriteFile, ManyThreads_LeaveOneWholeFile) {
  const TestFolder folder;
  std::vector<std::thread> threads;
  for (char c = 'a'; c < 'e'; ++c) {
    threads.emplace_back([&folder, c] {
      for (int i = 0; i < 8; ++i) EXPECT_TRUE(WriteFile(folder / "f", std::string(100'000, c)));
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::string content = Slurp(folder / "f");
  ASSERT_EQ(content.size(), 100'000u);
  EXPECT_EQ(content, std::string(content.size(), content[0]));
  EXPECT_EQ(folder.NumEntries(), 1);
}

// A process that may write no larger file gets an error, not a signal, and its temporary file is gone.
TEST(WriteFile, BeyondALimitOnSizes_IsAnErrorThatLeavesNothing) {
  const TemporaryFolder folder;
  const std::string path = folder.File("x");
  ASSERT_TRUE(WriteFile(path, "what was there"));
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit{1000, 1000};
    setrlimit(RLIMIT_FSIZE, &limit);
    const Status written = WriteFile(path, std::string(5000, 'x'));
    _exit(!written && written.error().code == ErrorCode::kFileWrite ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(ReadWhole(path), "what was there");
  EXPECT_EQ(folder.NumFiles(), 1u);
}

TEST(FileLock, KeepsOthersOut_ByWhateverName) {
  const TemporaryFolder folder;
  const std::string path = folder.File("x");
  std::filesystem::create_symlink("x", folder.File("link"));
  int64_t inside = 0;
  int64_t most = 0;
  int64_t turns = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      for (int turn = 0; turn < 20; ++turn) {
        const Result<FileLock> lock = FileLock::Take(i % 2 == 0 ? path : folder.File("link"));
        if (!lock) return;
        // Plain numbers: without the lock, the sanitizers would object too.
        most = std::max(most, ++inside);
        ++turns;
        --inside;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(turns, 160);
  EXPECT_EQ(most, 1);
  EXPECT_EQ(folder.NumFiles(), 1u) << "a lock file was left behind";
}

TEST(FileLock, OfAProcessThatWasKilled_HoldsNobodyUp) {
  const TemporaryFolder folder;
  const pid_t child = fork();
  if (child == 0) {
    const Result<FileLock> lock = FileLock::Take(folder.File("x"));
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(folder.NumFiles(), 1u) << "the lock file of the one that was killed";
  EXPECT_TRUE(FileLock::Take(folder.File("x")));
  EXPECT_EQ(folder.NumFiles(), 0u);
  EXPECT_FALSE(FileLock::Take(folder.File("no/folder"))) << "there is no place for a lock";
}

}  // namespace
}  // namespace tessera
