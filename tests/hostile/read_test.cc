// Every reader against everything that can stand where a file is expected: links, devices, pipes, directories, nothing,
// too much. One message, no hang, no memory.
#include <sys/stat.h>

#include "hostile_files.h"

namespace tessera {
namespace {

class HostileRead : public testing::Test {
 protected:
  // For every reader: moves its good file aside, lets `place` put something in its place, and looks at what happens.
  template <class Place, class Judge>
  void ForEachReader(const Place& place, const Judge& judge, const ProgramOptions& options = {}) {
    const std::vector<FileReader> readers = MakeGoodFiles(folder_);
    ASSERT_FALSE(readers.empty());
    for (const FileReader& reader : readers) {
      SCOPED_TRACE(testing::PrintToString(reader.command));
      const std::string path = folder_.File(reader.name);
      const std::string aside = folder_.File("aside");
      std::filesystem::rename(path, aside);
      place(path, aside);
      judge(reader, RunHere(folder_.path(), reader.command, options));
      std::filesystem::remove_all(path);
      std::filesystem::rename(aside, path);
    }
  }
  static void ExpectRefused(const FileReader& reader, const ProgramResult& result, const std::string& reason) {
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_EQ(result.err.rfind("tessera: " + reader.unreadable_code, 0), 0u) << result.err;
    EXPECT_NE(result.err.find(reason), std::string::npos) << "wanted \"" << reason << "\" in " << result.err;
    EXPECT_EQ(result.out, "");
  }
  // For readers that look at the file before they open it and have words of their own.
  static std::string Or(const FileReader& reader, const std::string& reason) {
    return reader.name == "mask.npy" ? "expected a file at" : reason;
  }

  TemporaryFolder folder_;
};

TEST_F(HostileRead, LinkToAGoodFile_IsRead) {
  ForEachReader([](const std::string& path, const std::string& aside) { std::filesystem::create_symlink(aside, path); },
                [](const FileReader&, const ProgramResult& result) { EXPECT_EQ(result.exit_code, 0) << result.err; });
}

TEST_F(HostileRead, DanglingLink_IsRefused) {
  ForEachReader([](const std::string& path, const std::string&) { std::filesystem::create_symlink("nowhere", path); },
                [](const FileReader& reader, const ProgramResult& result) {
                  ExpectRefused(reader, result, Or(reader, "No such file or directory"));
                });
}

TEST_F(HostileRead, LinkLoop_IsRefused) {
  ForEachReader(
      [](const std::string& path, const std::string&) {
        std::filesystem::create_symlink(std::filesystem::path(path).filename(), path);
      },
      [](const FileReader& reader, const ProgramResult& result) {
        ExpectRefused(reader, result, Or(reader, "Too many levels of symbolic links"));
      });
}

TEST_F(HostileRead, Directory_IsRefused) {
  ForEachReader([](const std::string& path, const std::string&) { std::filesystem::create_directory(path); },
                [](const FileReader& reader, const ProgramResult& result) {
                  ExpectRefused(reader, result, Or(reader, "Is a directory"));
                });
}

TEST_F(HostileRead, NamedPipe_IsRefusedAndNotWaitedFor) {
  ForEachReader([](const std::string& path, const std::string&) { ASSERT_EQ(mkfifo(path.c_str(), 0600), 0); },
                [](const FileReader& reader, const ProgramResult& result) {
                  ExpectRefused(reader, result, Or(reader, "named pipe"));
                });
}

TEST_F(HostileRead, EndlessDevice_IsRefused) {
  ForEachReader([](const std::string& path, const std::string&) { std::filesystem::create_symlink("/dev/zero", path); },
                [](const FileReader& reader, const ProgramResult& result) {
                  ExpectRefused(reader, result, Or(reader, "neither a file nor a pipe"));
                });
}

// A file that opens and whose first byte cannot be read, for the superuser too.
TEST_F(HostileRead, FileThatFailsToRead_IsRefused) {
  ForEachReader(
      [](const std::string& path, const std::string&) { std::filesystem::create_symlink("/proc/self/mem", path); },
      [](const FileReader& reader, const ProgramResult& result) {
        ExpectRefused(reader, result, "Input/output error");
      });
}

TEST_F(HostileRead, FileWithoutPermission_IsRefused) {
  chmod(folder_.path().c_str(), 0777);
  const ProgramOptions nobody{.as_nobody = true};
  if (RunHere(folder_.path(), {"--version"}, nobody).exit_code != 0) {
    GTEST_SKIP() << "nobody but the superuser may run the program from where it lies";
  }
  ForEachReader(
      [](const std::string& path, const std::string& aside) {
        std::filesystem::copy_file(aside, path);
        chmod(path.c_str(), 0);
      },
      [](const FileReader& reader, const ProgramResult& result) { ExpectRefused(reader, result, "Permission denied"); },
      nobody);
}

TEST_F(HostileRead, EmptyFile_IsRefusedByItsFormat) {
  ForEachReader([](const std::string& path, const std::string&) { WriteWhole(path, ""); },
                [](const FileReader& reader, const ProgramResult& result) {
                  EXPECT_EQ(result.exit_code, reader.command[1] == "check" ? 1 : 2);
                  EXPECT_EQ(result.err.rfind("tessera: TSR-", 0), 0u) << result.err;
                });
}

// A TiB of holes: its size alone is enough.
TEST_F(HostileRead, FileBeyondItsLimit_IsRefusedBeforeMemoryIsTaken) {
  ForEachReader(
      [](const std::string& path, const std::string&) {
        WriteWhole(path, "");
        std::filesystem::resize_file(path, uintmax_t{1} << 40);
      },
      [](const FileReader& reader, const ProgramResult& result) {
        ExpectRefused(reader, result, "it has 1099511627776 bytes, more than the ");
      });
}

// Within the limits of the readers of large files, so that only the first bytes can tell.
TEST_F(HostileRead, ManyGibibytesOfZeros_AreRefusedByTheirFirstBytes) {
  ForEachReader(
      [](const std::string& path, const std::string&) {
        WriteWhole(path, "");
        std::filesystem::resize_file(path, uintmax_t{12} << 30);
      },
      [](const FileReader&, const ProgramResult& result) {
        EXPECT_EQ(result.exit_code, 2) << result.err;
        EXPECT_EQ(result.err.rfind("tessera: TSR-", 0), 0u) << result.err;
      });
}

// The good file with a tail of holes: magic and header are right, and the size is not.
TEST_F(HostileRead, GoodFileThatWasStretched_IsRefused) {
  ForEachReader(
      [](const std::string& path, const std::string& aside) {
        std::filesystem::copy_file(aside, path);
        std::filesystem::resize_file(path, uintmax_t{12} << 30);
      },
      [](const FileReader&, const ProgramResult& result) {
        EXPECT_EQ(result.exit_code, 2) << result.err;
        EXPECT_EQ(result.err.rfind("tessera: TSR-", 0), 0u) << result.err;
      });
}

TEST_F(HostileRead, PipeOfProcessSubstitution_IsRead) {
  const std::vector<FileReader> readers = MakeGoodFiles(folder_);
  for (const FileReader& reader : readers) {
    // A plan is told by its name, a bitmap is named in its contract, and a receipt given twice would be read once.
    if (reader.name == "good.plan" || reader.name == "mask.npy" || reader.command[1] == "diff") continue;
    SCOPED_TRACE(testing::PrintToString(reader.command));
    std::string line = fmt::format("exec {}", TESSERA_PROGRAM);
    for (const std::string& word : reader.command) line += " " + (word == reader.name ? "<(cat " + word + ")" : word);
    const ProgramResult result =
        RunProgram({"/bin/bash", "-c", line}, {.folder = folder_.path(), .max_seconds = kMaxSeconds});
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
}

}  // namespace
}  // namespace tessera
