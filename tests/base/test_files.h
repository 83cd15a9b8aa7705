// A folder of a test's own, removed when the test ends, and inputs damaged in every way a reader must survive.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>

#include "support/seed.h"

namespace tessera {

class TestFolder {
 public:
  TestFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "tessera_test_XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TestFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  const std::filesystem::path& path() const { return path_; }

  int64_t NumEntries() const {
    return std::distance(std::filesystem::directory_iterator(path_), std::filesystem::directory_iterator());
  }

 private:
  std::filesystem::path path_;
};

inline void Put(const std::string& path, std::string_view bytes) { std::ofstream(path, std::ios::binary) << bytes; }

inline std::string Slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Calls `read` on every truncation of `good`, then on `flips` copies with a few random bytes changed, removed or
// repeated. `read` says whether it accepted; a truncation never may be.
template <class Read>
void Torture(const std::string& good, int flips, bool may_accept_truncated, const Read& read) {
  ASSERT_TRUE(read(std::string_view(good)));
  for (size_t size = 0; size < good.size(); ++size) {
    // A copy of exactly that size, so that a sanitizer sees any read past its end.
    const std::string part(good.substr(0, size));
    const bool accepted = read(std::string_view(part));
    ASSERT_TRUE(may_accept_truncated || !accepted) << "accepted the first " << size << " bytes";
  }
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 random(seed);
  for (int i = 0; i < flips; ++i) {
    std::string bad = good;
    const uint64_t edits = 1 + random() % 4;
    for (uint64_t edit = 0; edit < edits && !bad.empty(); ++edit) {
      const size_t at = random() % bad.size();
      switch (random() % 4) {
        case 0:
          bad[at] = static_cast<char>(random());
          break;
        case 1:
          bad[at] = static_cast<char>(bad[at] ^ (1 << random() % 8));
          break;
        case 2:
          bad.erase(at, 1 + random() % 3);
          break;
        default:
          bad.insert(at, bad.substr(random() % bad.size(), 1 + random() % 8));
      }
    }
    read(std::string_view(bad));
  }
}

}  // namespace tessera
