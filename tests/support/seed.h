// The seed of random tests: a new one for every test and run, so that runs cover more than any one of them; and one
// variable, TESSERA_SEED=N, to repeat any that failed.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <random>
#include <string>

namespace tessera {

// Says at the end of a test that drew a seed and failed how to repeat it. GoogleTest owns it.
class SeedOfTest : public testing::EmptyTestEventListener {
 public:
  static SeedOfTest& Instance() {
    static SeedOfTest* const instance = [] {
      auto* made = new SeedOfTest;
      testing::UnitTest::GetInstance()->listeners().Append(made);
      return made;
    }();
    return *instance;
  }

  uint64_t Get() {
    if (!seed_) {
      const char* given = std::getenv("TESSERA_SEED");
      seed_ = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
      testing::Test::RecordProperty("seed", std::to_string(*seed_));
    }
    return *seed_;
  }

  void OnTestEnd(const testing::TestInfo& test) override {
    if (seed_ && test.result()->Failed()) {
      std::cout << "TESSERA_SEED=" << *seed_ << " --gtest_filter=" << test.test_suite_name() << "." << test.name()
                << " repeats this failure\n";
    }
    seed_.reset();
  }

 private:
  std::optional<uint64_t> seed_;
};

// The same for a whole test, however often it asks; printed when the test fails.
inline uint64_t PrintedSeed() { return SeedOfTest::Instance().Get(); }

}  // namespace tessera
