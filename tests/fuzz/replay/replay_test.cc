// Feeds every seed and every case that fuzzing ever found through every target, in every build: what was fixed stays
// fixed, with or without a sanitizer. Also keeps the seeds useful: each target has some that its reader accepts.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <ostream>
#include <string>
#include <vector>

#include "fuzz.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

struct Target {
  const char* name;
  bool (*function)(const uint8_t* data, size_t size);
};
void PrintTo(const Target& target, std::ostream* out) { *out << target.name; }

const std::vector<Target>& Targets() {
  static const std::vector<Target> targets = {
#define TESSERA_FUZZ(name, Function) {#name, Function},
#include "targets.def"
#undef TESSERA_FUZZ
  };
  return targets;
}

const fs::path& Folder() {
  static const fs::path folder = fs::path(TESSERA_SOURCE_DIR) / "tests" / "fuzz";
  return folder;
}

std::vector<fs::path> FilesUnder(const fs::path& folder) {
  std::vector<fs::path> files;
  if (!fs::exists(folder)) return files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file() && entry.path().extension() != ".md") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

bool Feed(const Target& target, const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  EXPECT_TRUE(stream.good()) << file;
  const std::string bytes((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  const std::string shown = file.string();
  current_input = shown.c_str();
  // A copy that ends where the input ends, so that a sanitizer sees a read past it.
  const std::vector<uint8_t> exact(bytes.begin(), bytes.end());
  const bool accepted = target.function(exact.data(), exact.size());
  current_input = nullptr;
  return accepted;
}

class Replay : public testing::TestWithParam<Target> {};

TEST_P(Replay, SeedsAndFoundCases_OfEveryTarget_AreSafe) {
  size_t num_files = 0;
  for (const char* kind : {"seeds", "found"}) {
    for (const fs::path& file : FilesUnder(Folder() / kind)) {
      Feed(GetParam(), file);
      ++num_files;
    }
  }
  EXPECT_GT(num_files, Targets().size());
}

TEST_P(Replay, OwnSeeds_SomeAreAccepted) {
  const std::vector<fs::path> seeds = FilesUnder(Folder() / "seeds" / GetParam().name);
  const auto accepted =
      std::count_if(seeds.begin(), seeds.end(), [](const fs::path& f) { return Feed(GetParam(), f); });
  EXPECT_GT(accepted, 0) << "no seed passes the reader, so fuzzing never reaches what lies behind it";
}

TEST(ReplayFolders, EachBelongsToATarget) {
  for (const char* kind : {"seeds", "found", "dictionaries"}) {
    if (!fs::exists(Folder() / kind)) continue;
    for (const fs::directory_entry& entry : fs::directory_iterator(Folder() / kind)) {
      if (entry.path().extension() == ".md") continue;
      const std::string name = entry.path().stem().string();
      EXPECT_TRUE(std::any_of(Targets().begin(), Targets().end(), [&](const Target& t) { return t.name == name; }))
          << entry.path();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Fuzz, Replay, testing::ValuesIn(Targets()),
                         [](const testing::TestParamInfo<Target>& row) { return std::string(row.param.name); });

}  // namespace
}  // namespace tessera
