// The disk store of compiled programs: what was put is found, and nothing else ever is.
#include "lanes/xla/store/program_store.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <random>
#include <thread>

#include "support/proves.h"
#include "support/run_program.h"
#include "support/seed.h"

namespace tessera::lanes::xla {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::vector<std::byte> Bytes(const std::string& text) {
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  return {begin, begin + text.size()};
}

ProgramKey Key(const std::string& program = "0123abcd") { return {program, "options", "cpu 0.81 build 7", "aarch64"}; }

// The bytes that an entry with this program must hold: any length, and no two programs alike.
std::vector<std::byte> ProgramOf(const std::string& name) {
  std::mt19937_64 rng(std::hash<std::string>{}(name));
  std::vector<std::byte> bytes(64 + rng() % 4096);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng());
  return bytes;
}

void SetAge(const std::string& path, std::time_t seconds) {
  const timespec then{std::time(nullptr) - seconds, 0};
  const timespec times[2] = {then, then};
  ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0) << path;
}

std::string PassedOver(const ProgramStore& store, const ProgramKey& key) {
  const FindResult found = store.Find(key);
  EXPECT_FALSE(found.bytes.has_value());
  return found.reason;
}

void ExpectHit(const ProgramStore& store, const ProgramKey& key, const std::vector<std::byte>& bytes) {
  const FindResult found = store.Find(key);
  ASSERT_TRUE(found.bytes.has_value()) << found.reason;
  EXPECT_EQ(*found.bytes, bytes);
  EXPECT_EQ(found.reason, "");
}

TEST(ProgramStore, PutThenFind_GivesTheBytes) {
  const TemporaryFolder folder;
  const ProgramStore store(folder.File("a/b"));  // made when first needed
  EXPECT_FALSE(std::filesystem::exists(store.folder()));
  EXPECT_EQ(PassedOver(store, Key()), "") << "that there is none yet needs no explanation";
  for (const std::vector<std::byte>& bytes : {Bytes("a program"), Bytes(""), Bytes(std::string(3 << 20, 'x'))}) {
    const PutResult put = store.Put(Key(), bytes);
    EXPECT_TRUE(put.is_stored) << put.reason;
    EXPECT_EQ(put.num_removed, 0);
    ExpectHit(store, Key(), bytes);
    ExpectHit(ProgramStore(store.folder()), Key(), bytes);
  }
}

TEST(ProgramStore, EveryPartOfTheKey_MakesAnotherEntry) {
  const TemporaryFolder folder;
  const ProgramStore store(folder.path());
  ProgramKey keys[] = {Key(), Key(), Key(), Key(), Key(), Key()};
  keys[1].program += "x";
  keys[2].options += "x";
  keys[3].plugin += "x";
  keys[4].host += "x";
  keys[5] = {"0123abcdoptions", "", "cpu 0.81 build 7", "aarch64"};  // the same text, cut elsewhere
  for (const ProgramKey& key : keys) {
    EXPECT_EQ(PassedOver(store, key), "");
    ASSERT_TRUE(store.Put(key, Bytes(key.program + key.options + key.plugin + key.host)).is_stored);
  }
  EXPECT_EQ(folder.NumFiles(), std::size(keys));
  for (const ProgramKey& key : keys) ExpectHit(store, key, Bytes(key.program + key.options + key.plugin + key.host));
}

// One entry for each program whatever its layout: what was kept for other specs or another mesh is found, told and
// replaced.
TEST(ProgramStore, AnotherLayout_IsStale) {
  Proves("R83");
  const TemporaryFolder folder;
  const ProgramStore store(folder.path());
  ProgramKey kept = Key();
  kept.layout = "0123-data=2-";
  ASSERT_TRUE(store.Put(kept, Bytes("of two devices")).is_stored);
  for (const char* layout : {"4567-data=2-", "0123-data=2,model=2-", ""}) {
    ProgramKey now = kept;
    now.layout = layout;
    EXPECT_EQ(store.EntryPath(now), store.EntryPath(kept));
    EXPECT_THAT(PassedOver(store, now),
                AllOf(HasSubstr("passed over: TSR-S007: a kept program was compiled for other parameters"),
                      HasSubstr("0123-data=2-, and now "), HasSubstr(*layout == '\0' ? "one device" : layout)));
  }
  ExpectHit(store, kept, Bytes("of two devices"));
  ProgramKey now = kept;
  now.layout = "4567-data=4-";
  ASSERT_TRUE(store.Put(now, Bytes("of four devices")).is_stored);
  ExpectHit(store, now, Bytes("of four devices"));
  EXPECT_THAT(PassedOver(store, kept), HasSubstr("TSR-S007"));
}

TEST(ProgramStore, AnyByteChanged_IsPassedOverAndRewritten) {
  const TemporaryFolder folder;
  const ProgramStore store(folder.path());
  const std::vector<std::byte> program = Bytes("a small program");
  ASSERT_TRUE(store.Put(Key(), program).is_stored);
  const std::string good = ReadWhole(store.EntryPath(Key()));
  std::mt19937_64 rng(PrintedSeed());
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ static_cast<char>(1 + rng() % 255));
    WriteWhole(store.EntryPath(Key()), bad);
    EXPECT_THAT(PassedOver(store, Key()), AllOf(HasSubstr(store.EntryPath(Key())), HasSubstr("passed over: ")))
        << "byte " << i << " is " << int{bad[i]} << " instead of " << int{good[i]};
    EXPECT_TRUE(store.Put(Key(), program).is_stored);
    ExpectHit(store, Key(), program);
  }
}

TEST(ProgramStore, AnyOtherLength_IsPassedOverAndRewritten) {
  const TemporaryFolder folder;
  const ProgramStore store(folder.path());
  const std::vector<std::byte> program = Bytes("a small program");
  ASSERT_TRUE(store.Put(Key(), program).is_stored);
  const std::string good = ReadWhole(store.EntryPath(Key()));
  for (size_t size = 0; size < good.size() + 3; ++size) {
    if (size == good.size()) continue;
    std::string bad = good + "more";
    bad.resize(size);
    WriteWhole(store.EntryPath(Key()), bad);
    EXPECT_NE(PassedOver(store, Key()), "") << size << " of " << good.size() << " bytes";
    EXPECT_TRUE(store.Put(Key(), program).is_stored);
    ExpectHit(store, Key(), program);
  }
}

TEST(ProgramStore, HeaderFields_AreNamedInTheReason) {
  const TemporaryFolder folder;
  const ProgramStore store(folder.path());
  ASSERT_TRUE(store.Put(Key(), Bytes("a small program")).is_stored);
  const std::string good = ReadWhole(store.EntryPath(Key()));
  const struct {
    size_t at;
    const char* reason;
  } fields[] = {{0, "not a compiled program"},
                {8, "it has format 3, and this version writes 2"},
                {12, "belongs to another key"},
                {16, "which speaks of"},
                {24, "not those that were stored"},
                {good.size() - 1, "not those that were stored"},
                {40, "its program part"}};
  for (const auto& field : fields) {
    std::string bad = good;
    bad[field.at] ^= 1;
    WriteWhole(store.EntryPath(Key()), bad);
    EXPECT_THAT(PassedOver(store, Key()), HasSubstr(field.reason)) << field.at;
  }
  WriteWhole(store.EntryPath(Key()), good.substr(0, good.size() - 4));
  EXPECT_THAT(PassedOver(store, Key()), HasSubstr("it holds 11 bytes after its header, which speaks of 15"));
  WriteWhole(store.EntryPath(Key()), "");
  EXPECT_THAT(PassedOver(store, Key()), HasSubstr("ends early"));
}

TEST(ProgramStore, ForeignEntry_SaysWhichPart) {
  const TemporaryFolder folder;
  const ProgramStore store(folder.path());
  const struct {
    ProgramKey key;
    const char* part;
  } foreigners[] = {{{"0123abce", "options", "cpu 0.81 build 7", "aarch64"}, "its program part is another"},
                    {{"0123abcd", "Options", "cpu 0.81 build 7", "aarch64"}, "its options part is another"},
                    {{"0123abcd", "options", "cpu 0.81 build 8", "aarch64"}, "its plugin part is another"},
                    {{"0123abcd", "options", "cpu 0.81 build 7", "aarch65"}, "its host part is another"},
                    {{"0123abc", "doptions", "cpu 0.81 build 7", "aarch64"}, "its program part is another"},
                    {{"0123abcd", "options", "cpu", "aarch64"}, "its header has 85 bytes, expected 98"}};
  for (const auto& foreigner : foreigners) {
    ASSERT_TRUE(store.Put(foreigner.key, Bytes("another's")).is_stored);
    std::filesystem::rename(store.EntryPath(foreigner.key), store.EntryPath(Key()));
    EXPECT_THAT(PassedOver(store, Key()), HasSubstr(foreigner.part));
  }
  ASSERT_TRUE(store.Put(Key(), Bytes("ours")).is_stored);
  ExpectHit(store, Key(), Bytes("ours"));
}

TEST(ProgramStore, WhatIsNoFile_IsPassedOver) {
  const TemporaryFolder folder;
  const ProgramStore store(folder.path());
  const std::string path = store.EntryPath(Key());
  const std::string elsewhere = folder.File("precious");
  WriteWhole(elsewhere, "precious");
  std::filesystem::create_symlink(elsewhere, path);
  EXPECT_NE(PassedOver(store, Key()), "");
  EXPECT_TRUE(store.Put(Key(), Bytes("ours")).is_stored);
  ExpectHit(store, Key(), Bytes("ours"));
  EXPECT_EQ(ReadWhole(elsewhere), "precious");

  std::filesystem::remove(path);
  ASSERT_EQ(mkfifo(path.c_str(), 0666), 0);  // reading it would wait for ever
  EXPECT_THAT(PassedOver(store, Key()), HasSubstr("not a file"));
  EXPECT_TRUE(store.Put(Key(), Bytes("ours")).is_stored);
  ExpectHit(store, Key(), Bytes("ours"));

  std::filesystem::remove(path);
  std::filesystem::create_directory(path);
  EXPECT_THAT(PassedOver(store, Key()), HasSubstr("not a file"));
  const PutResult put = store.Put(Key(), Bytes("ours"));
  EXPECT_FALSE(put.is_stored);
  EXPECT_THAT(put.reason, HasSubstr("was not stored"));
}

TEST(ProgramStore, OverTheLimit_LongestUnusedGoFirst) {
  Proves("B8");
  const TemporaryFolder folder;
  const std::vector<std::byte> program(1000);
  const ProgramStore wide(folder.path());
  for (int i = 0; i < 6; ++i) {
    ASSERT_TRUE(wide.Put(Key(std::to_string(i)), program).is_stored);
    SetAge(wide.EntryPath(Key(std::to_string(i))), 1000 - 100 * i);
  }
  ExpectHit(wide, Key("0"), program);  // the oldest, and now the youngest
  const auto entry_bytes = static_cast<int64_t>(std::filesystem::file_size(wide.EntryPath(Key("0"))));

  const ProgramStore narrow(folder.path(), 4 * entry_bytes);
  const PutResult put = narrow.Put(Key("6"), program);
  EXPECT_TRUE(put.is_stored) << put.reason;
  EXPECT_EQ(put.num_removed, 3);
  for (const char* gone : {"1", "2", "3"}) EXPECT_EQ(PassedOver(narrow, Key(gone)), "") << gone;
  for (const char* here : {"0", "4", "5", "6"}) ExpectHit(narrow, Key(here), program);

  // One byte less, and one entry less fits; putting an entry again takes no room.
  EXPECT_EQ(narrow.Put(Key("6"), program).num_removed, 0);
  SetAge(narrow.EntryPath(Key("5")), 5000);
  const ProgramStore tight(folder.path(), 4 * entry_bytes - 1);
  EXPECT_EQ(tight.Put(Key("6"), program).num_removed, 1);
  EXPECT_EQ(PassedOver(tight, Key("5")), "");
  EXPECT_EQ(folder.NumFiles(), 3U);
}

TEST(ProgramStore, LargerThanTheLimit_IsNotStored) {
  const TemporaryFolder folder;
  ASSERT_TRUE(ProgramStore(folder.path()).Put(Key("small"), Bytes("small")).is_stored);
  const ProgramStore store(folder.path(), 500);
  const PutResult put = store.Put(Key(), std::vector<std::byte>(500));
  EXPECT_FALSE(put.is_stored);
  EXPECT_THAT(put.reason, HasSubstr("more than the 500 allowed"));
  ExpectHit(store, Key("small"), Bytes("small"));

  ProgramKey long_key = Key();
  long_key.plugin.assign(kMaxProgramKeyBytes + 1, 'x');
  EXPECT_THAT(store.Put(long_key, Bytes("x")).reason, HasSubstr("plugin part has 65537 bytes"));
  EXPECT_THAT(PassedOver(store, long_key), HasSubstr("plugin part has 65537 bytes"));
}

TEST(ProgramStore, LimitOfZero_FindsAndKeepsNothing) {
  const TemporaryFolder folder;
  ASSERT_TRUE(ProgramStore(folder.path()).Put(Key(), Bytes("there")).is_stored);
  for (const int64_t limit : {int64_t{0}, int64_t{-1}}) {
    const ProgramStore store(folder.path(), limit);
    EXPECT_EQ(PassedOver(store, Key()), "");
    const PutResult put = store.Put(Key("other"), Bytes("x"));
    EXPECT_FALSE(put.is_stored);
    EXPECT_THAT(put.reason, HasSubstr("0 bytes"));
  }
  EXPECT_EQ(folder.NumFiles(), 1U);
}

TEST(ProgramStore, OtherFiles_AreLeftAlone) {
  const TemporaryFolder folder;
  for (const char* name : {"notes.txt", ".tessera-1-1.tmp", ".tessera-2-2.tmp", "short.program"})
    WriteWhole(folder.File(name), std::string(4096, 'x'));
  SetAge(folder.File(".tessera-1-1.tmp"), 7200);
  const ProgramStore store(folder.path(), 1000);
  ASSERT_TRUE(store.Put(Key(), Bytes("x")).is_stored);
  EXPECT_FALSE(std::filesystem::exists(folder.File(".tessera-1-1.tmp"))) << "left by a process that was killed";
  EXPECT_EQ(folder.NumFiles(), 4U);
}

// What a process that may not write the folder sees, as its exit status: the superuser may, so it steps down.
int AsReader(const std::string& path) {
  const pid_t child = fork();
  if (child == 0) {
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) _exit(3);
    const ProgramStore store(path);
    const bool is_hit = store.Find(Key()).bytes == Bytes("there");
    const PutResult put = store.Put(Key("other"), Bytes("x"));
    const PutResult again = store.Put(Key(), Bytes("x"));
    const bool is_refused =
        !put.is_stored && !again.is_stored && put.reason.find("Permission denied") != std::string::npos;
    _exit(is_hit && is_refused ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}

TEST(ProgramStore, FolderThatCannotBeWritten_IsAReason) {
  const TemporaryFolder folder;
  WriteWhole(folder.File("file"), "");
  const ProgramStore below_a_file(folder.File("file/programs"));
  EXPECT_THAT(below_a_file.Put(Key(), Bytes("x")).reason, HasSubstr(folder.File("file/programs")));
  EXPECT_NE(PassedOver(below_a_file, Key()), "");

  ASSERT_TRUE(ProgramStore(folder.path()).Put(Key(), Bytes("there")).is_stored);
  chmod(folder.path().c_str(), 0555);
  EXPECT_EQ(AsReader(folder.path()), 0);
  chmod(folder.path().c_str(), 0755);
  ExpectHit(ProgramStore(folder.path()), Key(), Bytes("there"));
}

TEST(ProgramStore, UnreadableEntry_IsPassedOverAndRewritten) {
  const TemporaryFolder folder;
  chmod(folder.path().c_str(), 0777);
  ASSERT_TRUE(ProgramStore(folder.path()).Put(Key(), Bytes("there")).is_stored);
  chmod(ProgramStore(folder.path()).EntryPath(Key()).c_str(), 0);
  const pid_t child = fork();
  if (child == 0) {
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) _exit(3);
    const ProgramStore store(folder.path());
    const FindResult found = store.Find(Key());
    const bool is_passed_over = !found.bytes && found.reason.find("Permission denied") != std::string::npos;
    const bool is_rewritten = store.Put(Key(), Bytes("new")).is_stored && store.Find(Key()).bytes == Bytes("new");
    _exit(is_passed_over && is_rewritten ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

// Puts and finds at random among a few keys; returns how often something else than its program was found, or a Put
// failed.
int UseAtRandom(const ProgramStore& store, uint64_t seed, int num_steps) {
  std::mt19937_64 rng(seed);
  int num_wrong = 0;
  for (int i = 0; i < num_steps; ++i) {
    const std::string name = std::to_string(rng() % 8);
    if (rng() % 2 == 0) {
      num_wrong += !store.Put(Key(name), ProgramOf(name)).is_stored;
    } else {
      const FindResult found = store.Find(Key(name));
      num_wrong += found.bytes ? *found.bytes != ProgramOf(name) : !found.reason.empty();
    }
  }
  return num_wrong;
}

TEST(ProgramStore, ProcessesAndThreadsAtOnce_NeverMix) {
  const TemporaryFolder folder;
  constexpr int64_t kLimit = 12000;  // about five of the eight
  const ProgramStore store(folder.path(), kLimit);
  const uint64_t seed = PrintedSeed();
  std::vector<pid_t> children;
  for (int i = 0; i < 3; ++i) {
    const pid_t child = fork();
    if (child == 0) _exit(std::min(UseAtRandom(store, seed + i, 150), 100));
    children.push_back(child);
  }
  std::vector<int> wrong(3);
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) threads.emplace_back([&, i] { wrong[i] = UseAtRandom(store, seed + 10 + i, 150); });
  for (std::thread& thread : threads) thread.join();
  for (const pid_t child : children) {
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  EXPECT_THAT(wrong, testing::Each(0));

  ASSERT_TRUE(store.Put(Key("last"), ProgramOf("last")).is_stored);
  int64_t total = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    EXPECT_EQ(entry.path().extension(), ".program");
    total += static_cast<int64_t>(entry.file_size());
  }
  EXPECT_LE(total, kLimit);
  ExpectHit(store, Key("last"), ProgramOf("last"));
}

}  // namespace
}  // namespace tessera::lanes::xla
