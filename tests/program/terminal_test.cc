// Colour where a person looks and nowhere else, the picture of a map, and what commands say of scalar memory and rates.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "program_test.h"

namespace tessera {
namespace {

constexpr char kEscape = '\033';

// Both streams of the program on a terminal of its own.
std::string OnTerminal(const std::vector<std::string>& arguments, const std::vector<std::string>& environment) {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
  if (terminal < 0 || ::grantpt(terminal) != 0 || ::unlockpt(terminal) != 0) return "no terminal";
  const std::string name = ::ptsname(terminal);
  std::vector<std::string> words = {"/usr/bin/env"};
  words.insert(words.end(), environment.begin(), environment.end());
  words.emplace_back(TESSERA_PROGRAM);
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    const int side = ::open(name.c_str(), O_RDWR | O_NOCTTY);
    for (int fd = 0; fd <= 2; ++fd) ::dup2(side, fd);
    ::execv(pointers[0], pointers.data());
    ::_exit(127);
  }
  std::string text;
  char chunk[4096];
  for (ssize_t got = 0; (got = ::read(terminal, chunk, sizeof chunk)) > 0;)
    text.append(chunk, static_cast<size_t>(got));
  int status = 0;
  ::waitpid(child, &status, 0);
  ::close(terminal);
  return text;
}

std::string WithoutColours(const std::string& text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == kEscape) {
      i = text.find('m', i);
    } else if (text[i] != '\r') {
      plain += text[i];
    }
  }
  return plain;
}

TEST(Terminal, HasColours_UnlessRefused) {
  const std::vector<std::string> map = {"explain", "causal,window=200:512:d8:t64x64"};
  const std::string coloured = OnTerminal(map, {"TERM=xterm", "NO_COLOR="});
  if (coloured == "no terminal") GTEST_SKIP() << "this machine gives no pseudo terminal";
  EXPECT_NE(coloured.find(kEscape), std::string::npos) << coloured;
  const std::string plain = Tessera(map).out;
  EXPECT_EQ(plain.find(kEscape), std::string::npos);
  EXPECT_EQ(WithoutColours(coloured), plain) << "colour changed a word";
  for (const std::vector<std::string>& refused :
       std::vector<std::vector<std::string>>{{"TERM=xterm", "NO_COLOR=1"}, {"TERM=dumb"}, {"-u", "TERM"}}) {
    EXPECT_EQ(OnTerminal(map, refused).find(kEscape), std::string::npos);
  }
  // Text out of an argument acts on no terminal, in colour or not.
  const std::string error = OnTerminal({"plan", "\033[2J.toml"}, {"TERM=xterm", "NO_COLOR="});
  EXPECT_NE(error.find("\033[1;31mtessera:\033[0m"), std::string::npos) << error;
  EXPECT_EQ(error.find("\033[2J"), std::string::npos);
}

TEST(Svg, HasTheTilesOfTheMap) {
  const TemporaryFolder folder;
  const std::string path = folder.File("map.svg");
  ASSERT_EQ(Tessera({"explain", "causal:256:d8:t64x64:h2", "--head", "1", "--svg", path}).exit_code, 0);
  const std::string svg = ReadWhole(path);
  EXPECT_EQ(svg.rfind("<svg ", 0), 0u);
  EXPECT_NE(svg.find("4 x 4 tiles of 64 queries x 64 keys; 6 full, 4 partial, 6 skipped"), std::string::npos) << svg;
  // Row 2: two full tiles in one run, then the diagonal's.
  EXPECT_NE(svg.find(R"(<rect class="f" x="0" y="2" width="2" height="1"/>)"), std::string::npos) << svg;
  EXPECT_NE(svg.find(R"(<rect class="p" x="2" y="2" width="1" height="1"/>)"), std::string::npos) << svg;
  // A long map stays a small picture.
  ASSERT_EQ(Tessera({"explain", "causal,window=4095:1000000:d8:t128x128", "--svg", path}).exit_code, 0);
  EXPECT_LT(ReadWhole(path).size(), size_t{256} << 10);
}

TEST(ScalarMemory, IsSaidByPlanExplainAndLanes) {
  // Tiles this small need more than a TPU has.
  const std::string large = "causal:65536:d64:t32x32";
  for (const char* command : {"plan", "explain", "lanes"}) {
    const ProgramResult fits = Tessera({command, "causal:4096:d64", "--target", "v6e"});
    EXPECT_NE(fits.out.find(": fits"), std::string::npos) << command << fits.out << fits.err;
    const ProgramResult here = Tessera({command, "causal:4096:d64"});
    EXPECT_NE(here.out.find("cpu sets no limit"), std::string::npos) << command << here.out;
  }
  for (const char* command : {"plan", "explain"}) {
    const ProgramResult result = Tessera({command, large, "--target", "v6e", "--tile", "32x32"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const size_t at = result.out.find("does not fit; --tile ");
    ASSERT_NE(at, std::string::npos) << command << result.out;
    // The tile that is named does what is said of it.
    const std::string tile = result.out.substr(at + 21, result.out.find(' ', at + 21) - at - 21);
    const ProgramResult again = Tessera({"plan", large, "--target", "v6e", "--tile", tile});
    EXPECT_NE(again.out.find(": fits"), std::string::npos) << tile << again.out;
  }
  const ProgramResult needs = Tessera({"lanes", "documents:256"});
  EXPECT_EQ(needs.exit_code, 0) << needs.err;
  EXPECT_NE(needs.out.find("depends on the batch: give --batch or --documents"), std::string::npos) << needs.out;
  EXPECT_NE(Tessera({"lanes", "documents:256", "--documents", "200,56"}).out.find("of scalar memory"),
            std::string::npos);
}

TEST(Bench, SaysRates_ForwardAndBackwardApart) {
  const ProgramResult both = Tessera({"bench", "run", "causal:256:d16", "--backward", "--repeat", "1", "--json"});
  ASSERT_EQ(both.exit_code, 0) << both.err;
  const nlohmann::json json = OnlyDocument(both);
  EXPECT_EQ(json["pairs"], 256 * 257 / 2);
  EXPECT_GT(json["forward_gflops"].get<double>(), 0);
  EXPECT_GT(json["backward_gflops"].get<double>(), 0);
  const ProgramResult forward = Tessera({"bench", "run", "causal:256:d16", "--repeat", "1"});
  EXPECT_NE(forward.out.find("GFLOP/s"), std::string::npos) << forward.out;
  EXPECT_EQ(forward.out.find("backward"), std::string::npos) << forward.out;
}

}  // namespace
}  // namespace tessera
