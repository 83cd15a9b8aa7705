// `tessera view` without a browser: the file it writes and what it refuses. tests/view looks at the page itself.
#include <filesystem>

#include "program_test.h"
#include "tessera/tessera.h"

namespace tessera {
namespace {

TEST(View, Contract_WritesOnePageThatHoldsThePlan) {
  const TemporaryFolder folder;
  const std::string path = folder.File("page.html");
  const ProgramResult result = Tessera({"view", Example("causal.toml"), "--no-open", "--out", path});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find(path), std::string::npos);
  const auto page = ReadFile(path);
  ASSERT_TRUE(page) << ToText(page.error());
  EXPECT_EQ(page->rfind("<!doctype html>", 0), 0u);
  EXPECT_EQ(page->find("@DATA@"), std::string::npos);
  const size_t begin = page->find("id=\"data\">") + 10;
  const nlohmann::json data = ParseJson(page->substr(begin, page->find("</script>", begin) - begin));
  ASSERT_FALSE(data.is_discarded());
  EXPECT_EQ(data["plans"].size(), 1u);
}

TEST(View, PlanFile_IsShownWithoutAContract) {
  const TemporaryFolder folder;
  const std::string plan = folder.File("a.plan");
  ASSERT_EQ(Tessera({"plan", Example("causal.toml"), "--out", plan}).exit_code, 0);
  const std::string page = folder.File("a.html");
  EXPECT_EQ(Tessera({"view", "--plan", plan, "--no-open", "--out", page}).exit_code, 0);
  EXPECT_EQ(Tessera({"view", plan, "--plan", plan, "--no-open", "--out", page}).exit_code, 0);
}

TEST(View, NothingOrTooMuch_IsRefusedAndWritesNothing) {
  const TemporaryFolder folder;
  const std::string page = folder.File("none.html");
  const ProgramResult nothing = Tessera({"view", "--no-open", "--out", page});
  EXPECT_EQ(nothing.exit_code, 2);
  EXPECT_NE(nothing.err.find("give a contract, --plan or --receipt"), std::string::npos) << nothing.err;
  const std::string plan = folder.File("b.plan");
  ASSERT_EQ(Tessera({"plan", Example("causal.toml"), "--out", plan}).exit_code, 0);
  const ProgramResult three = Tessera({"view", plan, "--plan", plan, "--plan", plan, "--no-open", "--out", page});
  EXPECT_EQ(three.exit_code, 2);
  EXPECT_NE(three.err.find("at most two"), std::string::npos) << three.err;
  EXPECT_FALSE(std::filesystem::exists(page));
}

TEST(View, Html_NeedsSomethingToShow) {
  EXPECT_FALSE(MakeViewHtml({}));
  EXPECT_TRUE(MakeViewHtml({.title = "</script>", .receipts = {"{\"a\":\"</script>\"}"}}));
}

}  // namespace
}  // namespace tessera
