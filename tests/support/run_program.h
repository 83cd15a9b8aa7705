// Runs a program as a user would and collects what it did: exit status, standard output, standard error.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace tessera {

struct ProgramOptions {
  std::string input = {};                       // on standard input
  std::map<std::string, std::string> env = {};  // added to the environment
  std::string out_path = {};                    // standard output goes to this file instead of being collected
  int64_t max_file_bytes = -1;                  // writes beyond this fail, as on a full disk
  std::string folder = {};                      // working directory
  unsigned max_seconds = 0;                     // SIGALRM ends it after that long; 0 = it may take its time
  bool as_nobody = false;                       // steps down from the superuser, who may read and write everything
};

struct ProgramResult {
  int exit_code = -1;  // 128 + n when a signal ended it
  std::string out;
  std::string err;
  int64_t peak_bytes = 0;  // of memory
};

inline std::string ReadWhole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

inline void WriteWhole(const std::string& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(file.good()) << path;
}

// A folder of its own for one test, removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "tessera_test_XXXXXX").string();
    path_ = mkdtemp(name.data()) == nullptr ? "" : name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }
  // Everything in it, so that a test can say that nothing was left behind.
  size_t NumFiles() const {
    size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(path_)) ++count;
    return count;
  }

 private:
  std::string path_;
};

namespace run_program_detail {

inline std::string ReadAll(std::FILE* file) {
  std::string text;
  std::rewind(file);
  char chunk[65536];
  while (const size_t got = std::fread(chunk, 1, sizeof(chunk), file)) text.append(chunk, got);
  return text;
}

[[noreturn]] inline void Become(const std::vector<std::string>& command, const ProgramOptions& options, std::FILE* in,
                                std::FILE* out, std::FILE* err) {
  dup2(fileno(in), STDIN_FILENO);
  dup2(fileno(out), STDOUT_FILENO);
  dup2(fileno(err), STDERR_FILENO);
  if (!options.folder.empty() && chdir(options.folder.c_str()) != 0) _exit(126);
  unsetenv("TESSERA_LANE");
  unsetenv("TESSERA_ISA");
  for (const auto& [name, value] : options.env) setenv(name.c_str(), value.c_str(), 1);
  if (options.max_file_bytes >= 0) {
    std::signal(SIGXFSZ, SIG_IGN);  // the write fails instead, as it does on a full disk
    const rlimit limit{static_cast<rlim_t>(options.max_file_bytes), static_cast<rlim_t>(options.max_file_bytes)};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  if (options.as_nobody && geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) _exit(125);
  if (options.max_seconds > 0) alarm(options.max_seconds);
  std::vector<char*> arguments;
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  execv(arguments[0], arguments.data());
  _exit(127);
}

}  // namespace run_program_detail

inline ProgramResult RunProgram(const std::vector<std::string>& command, const ProgramOptions& options = {}) {
  std::FILE* in = std::tmpfile();
  std::FILE* out = options.out_path.empty() ? std::tmpfile() : std::fopen(options.out_path.c_str(), "w+");
  std::FILE* err = std::tmpfile();
  ProgramResult result;
  if (in == nullptr || out == nullptr || err == nullptr) {
    ADD_FAILURE() << "no temporary file";
    return result;
  }
  std::fwrite(options.input.data(), 1, options.input.size(), in);
  std::rewind(in);
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) run_program_detail::Become(command, options, in, out, err);
  int status = 0;
  rusage usage{};
  if (child < 0 || wait4(child, &status, 0, &usage) != child) {
    ADD_FAILURE() << "cannot run " << command[0];
  } else {
    result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  result.peak_bytes = int64_t{usage.ru_maxrss} * 1024;
  if (options.out_path.empty()) result.out = run_program_detail::ReadAll(out);
  result.err = run_program_detail::ReadAll(err);
  std::fclose(in);
  std::fclose(out);
  std::fclose(err);
  return result;
}

}  // namespace tessera
