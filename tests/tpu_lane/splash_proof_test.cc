// The Splash kernels that are the same TPU program as JAX's: each text has its row in tests/tpu/proof/splash.txt, so
// that an edit to one is seen without JAX and without a compiler.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "tpu/proof/splash_cases.h"
#include "tpu_lane/held.h"

namespace tessera {
namespace {

TEST(SplashProof, EveryKernel_HasItsRow) {
  const CompiledRows rows = ReadCompiled(TESSERA_SPLASH_TABLE);
  std::set<std::string> names;
  for (const proof::SplashCase& wish : proof::SplashCases()) {
    names.insert(wish.name);
    const Result<std::string> digest = proof::TextDigest(wish);
    ASSERT_TRUE(digest.has_value()) << wish.name << ": " << ToText(digest.error());
    EXPECT_EQ(WrongRow(rows, wish.name, *digest), "")
        << wish.name << ": tests/tpu/proof/splash.txt; script/tpu-proof same-program --update " << wish.name
        << " compiles it beside JAX's and writes one";
  }
  EXPECT_EQ(names.size(), 64u);
  for (const auto& [name, row] : rows) EXPECT_EQ(names.count(name), 1u) << name << " is no kernel";
}

TEST(SplashProof, RowOfAnotherText_IsSeen) {
  const CompiledRows rows = {{"good", {"d", "f", "1", "2", "3"}}, {"waiting", {"d", "not-compiled"}}};
  EXPECT_EQ(WrongRow(rows, "good", "d"), "");
  EXPECT_NE(WrongRow(rows, "good", "e"), "");
  EXPECT_NE(WrongRow(rows, "waiting", "d"), "");
  EXPECT_NE(WrongRow(rows, "gone", "d"), "");
}

}  // namespace
}  // namespace tessera
