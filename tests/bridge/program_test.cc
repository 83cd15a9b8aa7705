// `tessera bridge` as a person runs it: what it prints, and its exit status for a bridge that is healthy, one that
// gives NaN and one that is not there.
#include <filesystem>

#include "bridge/bridge_fixture.h"
#include "support/proves.h"

namespace tessera {
namespace {

ProgramResult Bridge(const std::string& python, std::vector<std::string> arguments = {}) {
  arguments.insert(arguments.begin(), {TESSERA_PROGRAM, "bridge"});
  return RunProgram(arguments, {.env = {{"TESSERA_PYTHON", python}}});
}

// An environment with the peers' JAX in which `code` runs before anything is asked of it.
std::string SpoiledPython(const TemporaryFolder& folder, const std::string& code) {
  namespace fs = std::filesystem;
  const fs::path python = PeersPython();
  const fs::path peers = python.parent_path().parent_path();
  fs::path packages;
  for (const auto& entry : fs::directory_iterator(peers / "lib")) packages = entry.path() / "site-packages";
  const fs::path mine = folder.path() / fs::relative(packages, peers);
  fs::create_directories(mine);
  fs::create_directories(folder.File("bin"));
  fs::create_symlink(fs::canonical(python), folder.File("bin/python3"));
  fs::copy_file(peers / "pyvenv.cfg", folder.File("pyvenv.cfg"));
  WriteWhole(mine / "a_peers.pth", packages.string() + "\n");
  WriteWhole(mine / "b_spoil.pth", "import spoil\n");
  WriteWhole(mine / "spoil.py", code);
  return folder.File("bin/python3");
}

TEST(BridgeProgram, NoBridge_IsExitThreeWithTheReason) {
  Proves("R60");
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{}, {"--json"}}) {
    const ProgramResult result = Bridge("/no/such/python", arguments);
    EXPECT_EQ(result.exit_code, 3) << result.err;
    EXPECT_NE(result.err.find("call_jax.no_interpreter"), std::string::npos) << result.err;
    EXPECT_NE(result.err.find("/no/such/python"), std::string::npos) << result.err;
    EXPECT_EQ(result.out.find("healthy"), std::string::npos) << result.out;
    EXPECT_EQ(result.out.empty(), arguments.empty()) << result.out;
  }
}

TEST(BridgeProgramWithJax, Healthy_IsExitZero) {
  Proves("R55");
  if (PeersPython().empty()) GTEST_SKIP() << kNoPeers;
  const ProgramResult result = Bridge(PeersPython());
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_NE(result.out.find("\nhealthy\n"), std::string::npos) << result.out;
  EXPECT_EQ(result.out.find("FAIL"), std::string::npos) << result.out;
  EXPECT_EQ(result.out.find(" NaN"), std::string::npos) << result.out;
}

// A JAX whose tanh, which only a softcap uses, gives NaN for some numbers: counted where it came from, and nowhere
// else.
TEST(BridgeProgramWithJax, NanFromJax_IsCountedAndExitOne) {
  Proves("R55");
  if (PeersPython().empty()) GTEST_SKIP() << kNoPeers;
  const TemporaryFolder folder;
  const ProgramResult result = Bridge(SpoiledPython(folder,
                                                    "import jax.numpy as jnp\n"
                                                    "real = jnp.tanh\n"
                                                    "jnp.tanh = lambda x: jnp.where(x > 0.01, jnp.nan, real(x))\n"));
  EXPECT_EQ(result.exit_code, 1) << result.out << result.err;
  EXPECT_NE(result.out.find("\nunhealthy\n"), std::string::npos) << result.out;
  const size_t at = result.out.find("  softcap_reconfiguration  FAIL, ");
  ASSERT_NE(at, std::string::npos) << result.out;
  const std::string line = result.out.substr(at, result.out.find('\n', at) - at);
  EXPECT_NE(line.find(" NaN: "), std::string::npos) << line;
  EXPECT_EQ(line.find(", 0 NaN"), std::string::npos) << line;
  size_t nans = 0;
  for (size_t n = result.out.find(" NaN"); n != std::string::npos; n = result.out.find(" NaN", n + 1)) ++nans;
  EXPECT_EQ(nans, 1U) << "in one case alone: " << result.out;
  // What a failed check has to say stays within its case.
  for (const char* name : {"lse: FAIL", "dq: FAIL"}) {
    EXPECT_NE(result.out.find(std::string("\n    ") + name), std::string::npos) << result.out;
  }
}

}  // namespace
}  // namespace tessera
