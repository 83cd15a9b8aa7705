// The case of a hidden SVE, by texts of machines that have it and of machines that do not; the text that the guard
// gives instead; and the whole way, on Arm machines, with variants that take a plain core for one with SVE.
#include "lanes/xla/store/cpu_guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <sstream>

#include "lanes/xla/guard/rewrite.h"
#include "lanes/xla/store/cpuinfo.h"
#include "support/run_program.h"

namespace tessera::lanes::xla {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr uint64_t kPlainHwcap = 0x9fff;
constexpr uint64_t kSveHwcap = kPlainHwcap | uint64_t{1} << 22;
constexpr const char* kPlain = "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid";

struct Core {
  std::string implementer;
  std::string part;
  std::string features = kPlain;
};

std::string Cpuinfo(const std::vector<Core>& cores) {
  std::string text;
  for (const Core& core : cores) {
    text += "processor\t: 0\nBogoMIPS\t: 2100.00\nFeatures\t: " + core.features +
            "\nCPU implementer\t: " + core.implementer +
            "\nCPU architecture: 8\nCPU variant\t: 0x1\nCPU part\t: " + core.part + "\nCPU revision\t: 1\n\n";
  }
  return text;
}

TEST(HiddenSve, SvePartWithoutTheFeature_IsTheCase) {
  const struct {
    Core core;
    const char* name;
  } cases[] = {{{"0x41", "0xd40"}, "Neoverse V1 (part 0x41 0xd40)"},
               {{"0x41", "0xd4f"}, "Neoverse V2"},
               {{"0x41", "0xd84"}, "Neoverse V3"},
               {{"0x41", "0xd49"}, "Neoverse N2"},
               {{"0x41", "0xd8e"}, "Neoverse N3"},
               {{"0x41", "0xd46"}, "Cortex-A510"},
               {{"0x46", "0x001"}, "A64FX (part 0x46 0x001)"},
               {{"0x6d", "0xd49"}, "Cobalt 100"}};
  for (const auto& each : cases) {
    const SveHidden found = DetectHiddenSve(kPlainHwcap, Cpuinfo({each.core, each.core}));
    EXPECT_TRUE(found.is_hidden) << each.name;
    EXPECT_THAT(found.core, HasSubstr(each.name));
  }
  EXPECT_TRUE(DetectHiddenSve(kPlainHwcap, Cpuinfo({{"0x41", "0xd05"}, {"0x41", "0xd46"}})).is_hidden)
      << "one of two kinds of core";
}

TEST(HiddenSve, WhereItIsVisibleOrNotThere_IsNotTheCase) {
  const std::string sve = std::string(kPlain) + " sve bf16";
  EXPECT_FALSE(DetectHiddenSve(kSveHwcap, Cpuinfo({{"0x41", "0xd40"}})).is_hidden);
  EXPECT_FALSE(DetectHiddenSve(kPlainHwcap, Cpuinfo({{"0x41", "0xd40", sve}})).is_hidden);
  EXPECT_TRUE(DetectHiddenSve(kPlainHwcap, Cpuinfo({{"0x41", "0xd40", "fp sveprobe"}})).is_hidden) << "another word";
  EXPECT_FALSE(DetectHiddenSve(kPlainHwcap, Cpuinfo({{"0x41", "0xd0c"}})).is_hidden);
  EXPECT_FALSE(DetectHiddenSve(kPlainHwcap, Cpuinfo({{"0xc0", "0xd40"}})).is_hidden) << "another maker's part";
  EXPECT_FALSE(DetectHiddenSve(kPlainHwcap, Cpuinfo({{"0x51", "0x001"}})).is_hidden);
  EXPECT_FALSE(DetectHiddenSve(0, "").is_hidden);
  EXPECT_FALSE(DetectHiddenSve(0, "processor : 0\nmodel name : Xeon\nflags : fpu sse avx2\n").is_hidden);
  EXPECT_FALSE(DetectHiddenSve(0, "CPU part\t: 0xd40\n").is_hidden) << "a part of nobody";
  EXPECT_FALSE(DetectHiddenSve(0, "CPU implementer : 0x41\nCPU part : d40\nCPU part :\nCPU part").is_hidden);
}

TEST(HiddenSve, StateAndReason_FollowTheFacts) {
  GuardFacts facts;
  EXPECT_EQ(GuardOf(facts).state, CpuGuardState::kNotNeeded);
  EXPECT_EQ(GuardOf(facts).reason, "");
  facts.sve = DetectHiddenSve(kPlainHwcap, Cpuinfo({{"0x41", "0xd40"}}));
  EXPECT_EQ(GuardOf(facts).state, CpuGuardState::kRefused);
  EXPECT_THAT(GuardOf(facts).reason, AllOf(HasSubstr("Neoverse V1"), HasSubstr("LD_PRELOAD=libtessera_cpuinfo.so")));
  facts.is_off = true;
  EXPECT_EQ(GuardOf(facts).state, CpuGuardState::kRefused);
  EXPECT_THAT(GuardOf(facts).reason, HasSubstr("TESSERA_XLA_GUARD=off"));
  facts.is_loaded = true;
  facts.num_changed = -1;
  EXPECT_EQ(GuardOf(facts).state, CpuGuardState::kRefused);
  EXPECT_THAT(GuardOf(facts).reason, HasSubstr("could not change"));
  facts.num_changed = 2;
  EXPECT_EQ(GuardOf(facts).state, CpuGuardState::kActive);
  EXPECT_THAT(GuardOf(facts).reason, HasSubstr("Neoverse V1"));
}

std::string Rewritten(std::string text, int num_changed) {
  EXPECT_EQ(tessera_rewrite_cpuinfo(text.data(), text.size()), num_changed) << text;
  return text;
}

TEST(CpuinfoText, SvePartsBecomePlain_AndNothingElseChanges) {
  EXPECT_EQ(Rewritten(Cpuinfo({{"0x41", "0xd40"}, {"0x41", "0xd0b"}, {"0x41", "0xd4f"}}), 2),
            Cpuinfo({{"0x41", "0xd0c"}, {"0x41", "0xd0b"}, {"0x41", "0xd0c"}}));
  EXPECT_EQ(Rewritten(Cpuinfo({{"0x46", "0x001"}, {"0x51", "0x001"}}), 1),
            Cpuinfo({{"0x46", "0xd0c"}, {"0x51", "0x001"}}));
  for (const std::string& text :
       {std::string(), std::string("CPU part"), std::string("CPU part\t:"), std::string("CPU part\t: 0x"),
        std::string("CPU part\t: 0xd40"), std::string("CPU implementer: 0x41\nCPU partner: 0xd40"),
        std::string("CPU implementer: 0x46\nCPU part: 0x1"),  // no room; the system writes three digits
        std::string("\n\n:\n: 0xd40"), Cpuinfo({{"0x41", "0xd0c"}})})
    EXPECT_EQ(Rewritten(text, 0), text);
  EXPECT_EQ(Rewritten("CPU implementer: 0x41\nCPU part: 0x0d40", 1), "CPU implementer: 0x41\nCPU part: 0xd0c ");
  // Cut anywhere: never a step beyond the end, which the sanitizer build would see.
  const std::string whole = Cpuinfo({{"0x41", "0xd40"}});
  for (size_t size = 0; size <= whole.size(); ++size) {
    std::vector<char> text(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    tessera_rewrite_cpuinfo(text.data(), text.size());
  }
}

// The rewritten text is what the detection no longer minds, for every part in their common table.
TEST(CpuinfoText, EveryDetectedPart_IsRewritten) {
  int num_parts = 0;
  for (int implementer = 0x40; implementer < 0x70; ++implementer) {
    for (int part = 0; part < 0x1000; ++part) {
      char words[2][8];
      std::snprintf(words[0], sizeof(words[0]), "0x%02x", static_cast<unsigned>(implementer));
      std::snprintf(words[1], sizeof(words[1]), "0x%03x", static_cast<unsigned>(part));
      const std::string text =
          std::string("CPU implementer\t: ") + words[0] + "\nCPU part\t: " + words[1] + "\nCPU revision\t: 1\n";
      const bool is_sve = DetectHiddenSve(0, text).is_hidden;
      num_parts += is_sve;
      EXPECT_FALSE(DetectHiddenSve(0, Rewritten(text, is_sve ? 1 : 0)).is_hidden) << text;
    }
  }
  EXPECT_EQ(num_parts, 27);
}

TEST(GuardLibrary, IsFoundWhereItIsPut) {
  const std::vector<std::string> paths = GuardPaths("/a/bin", "/a/lib/x");
  EXPECT_THAT(paths, testing::Contains("/a/bin/libtessera_cpuinfo.so"));
  EXPECT_THAT(paths, testing::Contains("/a/lib/x/tessera/libtessera_cpuinfo.so"));
  EXPECT_THAT(paths,
              testing::Contains(testing::ContainsRegex("^/a/bin/\\.\\./lib.*/tessera/libtessera_cpuinfo\\.so$")));
  EXPECT_TRUE(std::filesystem::exists(std::string(TESSERA_GUARD_FOLDER) + "/libtessera_cpuinfo.so"));
}

// What the helper program said, line by line.
std::map<std::string, std::string> Said(const std::vector<std::string>& arguments,
                                        const std::map<std::string, std::string>& env = {}) {
  std::vector<std::string> command = {TESSERA_GUARDED};
  command.insert(command.end(), arguments.begin(), arguments.end());
  ProgramOptions options;
  options.env = {{"LD_PRELOAD", ""}};
  for (const auto& [name, value] : env) options.env[name] = value;
  const ProgramResult result = RunProgram(command, options);
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_EQ(result.err, "");
  std::map<std::string, std::string> said;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) {
    if (const size_t colon = line.find(": "); colon != std::string::npos)
      said[line.substr(0, colon)] = line.substr(colon + 2);
  }
  return said;
}

// The parts of this machine, and what the variant makes of them.
struct Parts {
  std::string real;
  std::string guarded;
};

Parts PartsHere() {
  Parts parts;
  std::string implementer;
  ForEachCpuinfoLine(ReadWhole(kTrueCpuinfoPath), [&](std::string_view field, std::string_view value) {
    if (field == "CPU implementer") implementer = value;
    if (field != "CPU part") return;
    const std::string part(value);
    const bool is_sve = DetectHiddenSve(0, Cpuinfo({{implementer, part}})).is_hidden;
    const bool is_changed = is_sve || (implementer == "0x41" && part == "0xd0c");
    parts.real += (parts.real.empty() ? "" : " ") + part;
    parts.guarded += (parts.guarded.empty() ? "" : " ") + (is_changed ? "0xd0b" : part);
  });
  return parts;
}

// The helper takes this machine for one that hides SVE: a plain core, or really such a one.
bool IsCaseForTheHelper() {
  std::string with_plain = ReadWhole(kTrueCpuinfoPath);
  for (size_t at = 0; (at = with_plain.find(": 0xd0c", at)) != std::string::npos;) with_plain.replace(at, 7, ": 0xd40");
  return DetectHiddenSve(0, with_plain).is_hidden;
}

constexpr const char* kNotHere = "needs an Arm machine with a Neoverse N1, or one whose SVE is hidden";

TEST(GuardedProgram, StartsAnewOnce_WithItsArguments) {
  if (!IsCaseForTheHelper()) GTEST_SKIP() << kNotHere;
  auto said = Said({"one", "two words", ""});
  EXPECT_EQ(said["state"], "active") << said["reason"];
  EXPECT_EQ(said["arguments"], "one|two words|");
  EXPECT_THAT(said["LD_PRELOAD"], testing::EndsWith("/libtessera_cpuinfo_test.so"));
  EXPECT_EQ(said["TESSERA_XLA_GUARD_PROCESS"], "not set");

  // What was preloaded before stays, and what was started by a guarded program is guarded as it is.
  const std::string other = std::string(TESSERA_GUARD_FOLDER) + "/libtessera_cpuinfo_other.so";
  std::filesystem::copy_file(std::string(TESSERA_GUARD_FOLDER) + "/libtessera_cpuinfo_test.so", other,
                             std::filesystem::copy_options::overwrite_existing);
  said = Said({}, {{"LD_PRELOAD", other}});
  EXPECT_EQ(said["state"], "active") << said["reason"];
  EXPECT_EQ(said["LD_PRELOAD"], other);
  std::filesystem::remove(other);
  said = Said({}, {{"TESSERA_XLA_GUARD_PROCESS", "1"}});
  EXPECT_EQ(said["state"], "active") << "the mark of another process";
}

TEST(GuardedProgram, TurnedOff_IsRefusedWithItsReason) {
  if (!IsCaseForTheHelper()) GTEST_SKIP() << kNotHere;
  auto said = Said({"cpuinfo", "/nowhere"}, {{"TESSERA_XLA_GUARD", "off"}});
  EXPECT_EQ(said["state"], "refused");
  EXPECT_THAT(said["reason"], HasSubstr("TESSERA_XLA_GUARD=off"));
  EXPECT_EQ(said["open"], PartsHere().real);
}

TEST(GuardedProgram, WithoutTheLibrary_IsRefusedWithItsReason) {
  if (!IsCaseForTheHelper()) GTEST_SKIP() << kNotHere;
  const TemporaryFolder folder;
  std::filesystem::copy_file(TESSERA_GUARDED, folder.File("guarded"));
  // On a machine that really hides SVE this test itself is guarded, and would hand its library on.
  const ProgramOptions options{.env = {{"LD_PRELOAD", ""}}, .max_seconds = 60};
  const ProgramResult result = RunProgram({folder.File("guarded")}, options);
  EXPECT_THAT(result.out, AllOf(HasSubstr("state: refused"), HasSubstr("was not started with LD_PRELOAD=")));
  // One that cannot be preloaded: started anew once, not for ever.
  WriteWhole(folder.File("libtessera_cpuinfo_test.so"), "no library");
  const ProgramResult second = RunProgram({folder.File("guarded")}, options);
  EXPECT_THAT(second.out, HasSubstr("state: refused"));
  EXPECT_EQ(second.exit_code, 0) << second.err;
}

TEST(GuardedProgram, EveryWayToOpen_GivesTheCopy_AndNothingElseDoes) {
  if (!IsCaseForTheHelper()) GTEST_SKIP() << kNotHere;
  const TemporaryFolder folder;
  auto said = Said({"cpuinfo", folder.path()});
  const Parts parts = PartsHere();
  ASSERT_NE(parts.real, parts.guarded);
  for (const char* way : {"open", "open64", "openat", "fopen", "fopen64", "ifstream"})
    EXPECT_EQ(said[way], parts.guarded) << way;
  for (const char* way : {"another name", "relative"}) EXPECT_EQ(said[way], parts.real) << way;
  EXPECT_EQ(said["mode"], "640");
  EXPECT_EQ(said["again"], "exists");
  EXPECT_EQ(said["missing"], "not there");
  EXPECT_EQ(said["close on exec"], "yes");
  EXPECT_EQ(said["threads"], "160");
}

// The library as it is shipped: on a machine that hides nothing it changes nothing, wherever it is preloaded.
TEST(GuardedProgram, ShippedLibrary_ChangesHiddenPartsOnly) {
  ProgramOptions options;
  options.env = {{"LD_PRELOAD", std::string(TESSERA_GUARD_FOLDER) + "/libtessera_cpuinfo.so"}};
  const ProgramResult result = RunProgram({"/bin/cat", "/proc/cpuinfo"}, options);
  EXPECT_EQ(result.err, "");
  const auto parts_of = [](const std::string& text) {
    std::string parts;
    ForEachCpuinfoLine(text, [&](std::string_view field, std::string_view value) {
      if (field == "processor" || field == "CPU part") parts.append(value).append("\n");
    });
    return parts;
  };
  std::string text = ReadWhole(kTrueCpuinfoPath);
  tessera_rewrite_cpuinfo(text.data(), text.size());
  EXPECT_EQ(parts_of(result.out), parts_of(text));
  EXPECT_NE(parts_of(text), "");
}

TEST(GuardedProgram, RealPlugin_ReadsTheCopy) {
  if (!IsCaseForTheHelper()) GTEST_SKIP() << kNotHere;
  const char* chosen = std::getenv("TESSERA_XLA");
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::string caches = cache != nullptr ? cache : std::string(home == nullptr ? "" : home) + "/.cache";
  const std::string folder = chosen != nullptr ? chosen : caches + "/tessera/xla";
  const std::string plugin = folder + "/plugins/xla-cpu-pjrt-0.0.1/xla_cpu_pjrt.so";
  if (!std::filesystem::exists(plugin)) GTEST_SKIP() << "XLA's CPU plugin is not installed: script/setup --xla";
  ProgramOptions options;
  options.env = {{"LD_PRELOAD", ""}};
  const ProgramResult result = RunProgram({TESSERA_GUARDED, "plugin", plugin}, options);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("state: active"), HasSubstr("compiled: yes"), HasSubstr("served to the plugin: yes")));
}

}  // namespace
}  // namespace tessera::lanes::xla
