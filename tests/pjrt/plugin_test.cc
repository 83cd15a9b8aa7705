// Loading: what is no plugin, a damaged one, or one we cannot speak to is refused with its reason, and none of it
// brings the process down.
#include "pjrt/plugin_test.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/test_files.h"

namespace tessera::pjrt {
namespace {

namespace fs = std::filesystem;

void ExpectUnusable(const std::string& path, const std::string& text) {
  const Result<const Plugin*> plugin = Plugin::Load(path);
  ExpectError(plugin, ErrorCode::kPluginUnusable, text);
  if (!plugin) {
    EXPECT_FALSE(plugin.error().where.empty());
  }
}

std::string FakeBytes() { return Slurp(TESSERA_FAKE_PLUGIN); }

// A copy, since a file is loaded once only, and the way it is wrong.
class Fake {
 public:
  explicit Fake(const std::string& kind) : path_(folder_ / ("fake_" + kind + ".so")) {
    Put(path_, FakeBytes());
    setenv("TESSERA_FAKE_PLUGIN", kind.c_str(), 1);
  }
  ~Fake() { unsetenv("TESSERA_FAKE_PLUGIN"); }
  const std::string& path() const { return path_; }

 private:
  TestFolder folder_;
  std::string path_;
};

TEST(PluginFile, MissingOrNoFile_IsRefused) {
  const TestFolder folder;
  ExpectUnusable(folder / "none.so", "No such file");
  ExpectUnusable(folder.path().string(), "this is none");
  ExpectError(Plugin::Load(""), ErrorCode::kPluginUnusable, "no path");
  fs::create_symlink(folder / "none.so", folder / "link.so");
  ExpectUnusable(folder / "link.so", "No such file");
  ExpectUnusable("/dev/null", "this is none");
}

TEST(PluginFile, NoLibrary_IsRefused) {
  const TestFolder folder;
  Put(folder / "empty.so", "");
  ExpectUnusable(folder / "empty.so", "its 0 bytes do not begin with the ELF magic number");
  Put(folder / "text.so", "import jax\n");
  ExpectUnusable(folder / "text.so", "ELF magic number");
  Put(folder / "magic.so",
      "\x7f"
      "ELF");
  ExpectUnusable(folder / "magic.so", "truncated");
  ExpectUnusable("/proc/self/exe", "");
}

TEST(PluginFile, AnyTruncation_IsRefused) {
  const TestFolder folder;
  const std::string whole = FakeBytes();
  ASSERT_GT(whole.size(), 4096u);
  for (size_t size = 0; size < whole.size(); size += 1 + whole.size() / 100) {
    Put(folder / "cut.so", whole.substr(0, size));
    ExpectUnusable(folder / "cut.so", size < 4 ? "magic" : "truncated");
  }
  Put(folder / "cut.so", whole.substr(0, whole.size() - 1));
  ExpectUnusable(folder / "cut.so", "truncated");
}

TEST(PluginFile, AnotherMachine_IsNamed) {
  const TestFolder folder;
  const auto with_machine = [&](uint16_t machine) {
    std::string bytes = FakeBytes();
    std::memcpy(bytes.data() + offsetof(Elf64_Ehdr, e_machine), &machine, sizeof(machine));
    Put(folder / "other.so", bytes);
    return folder / "other.so";
  };
#if defined(__aarch64__)
  ExpectUnusable(with_machine(EM_X86_64), "built for x86-64; this program is aarch64");
#else
  ExpectUnusable(with_machine(EM_AARCH64), "built for aarch64");
#endif
  ExpectUnusable(with_machine(EM_S390), "built for ELF machine 22");
  std::string bytes = FakeBytes();
  bytes[EI_CLASS] = ELFCLASS32;
  Put(folder / "small.so", bytes);
  ExpectUnusable(folder / "small.so", "64-bit");
  bytes = FakeBytes();
  bytes[offsetof(Elf64_Ehdr, e_type)] = ET_REL;
  Put(folder / "object.so", bytes);
  ExpectUnusable(folder / "object.so", "no shared library");
}

// Headers that lie about sizes, up to the largest numbers there are.
TEST(PluginFile, HostileHeaders_AreRefused) {
  const TestFolder folder;
  for (const size_t field : {offsetof(Elf64_Ehdr, e_phoff), offsetof(Elf64_Ehdr, e_shoff)}) {
    for (const uint64_t value : {uint64_t{1} << 40, ~uint64_t{0}, ~uint64_t{0} - 63}) {
      std::string bytes = FakeBytes();
      std::memcpy(bytes.data() + field, &value, sizeof(value));
      Put(folder / "hostile.so", bytes);
      ExpectUnusable(folder / "hostile.so", "truncated");
    }
  }
}

TEST(PluginFile, OrdinaryLibrary_IsNoPlugin) {
  void* libc = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(libc, nullptr);
  link_map* map = nullptr;
  ASSERT_EQ(dlinfo(libc, RTLD_DI_LINKMAP, &map), 0);
  ExpectUnusable(map->l_name, "no GetPjrtApi");
}

TEST(FakePlugin, WrongTables_AreRefusedWithTheReason) {
  const std::map<std::string, std::string> kinds = {
      {"no_table", "gave no function table"},
      {"no_version", "16 bytes"},
      {"old", "speaks PJRT 0.40; the oldest supported is 0.81"},
      {"just_too_old", "speaks PJRT 0.80; the oldest supported is 0.81"},
      {"major", "speaks PJRT 1.999"},
      {"short", "lacks slot 3"},
      {"empty_slot", "lacks slot 8"},
      {"fails", "PJRT_Plugin_Initialize: the plugin answered UNIMPLEMENTED: the fake cannot do this"},
  };
  for (const auto& [kind, text] : kinds) {
    SCOPED_TRACE(kind);
    const Fake fake(kind);
    ExpectUnusable(fake.path(), text);
  }
}

TEST(FakePlugin, NewerVersion_IsTaken) {
  const Fake fake("");
  const Result<const Plugin*> plugin = Plugin::Load(fake.path());
  ASSERT_TRUE(plugin) << ToText(plugin.error());
  EXPECT_EQ((*plugin)->info().api_minor, 999);
  EXPECT_EQ((*plugin)->info().identity.size(), 32u);
  EXPECT_EQ(*Plugin::Load(fake.path()), *plugin) << "a file is loaded once";
}

// A slot that is not there is an error of that call alone.
TEST(FakePlugin, MissingCall_IsAnError) {
  if (!IsAlone()) return RunAlone();
  const Fake fake("no_compile");
  const Result<const Plugin*> plugin = Plugin::Load(fake.path());
  ASSERT_TRUE(plugin) << ToText(plugin.error());
  const Result<std::unique_ptr<Client>> client = Client::Create(**plugin);
  // Device descriptions lie beyond the end of its table.
  ExpectError(client, ErrorCode::kPluginFailed, "does not implement");
}

// In a forked child the plugin's threads are gone: our error, not its hang. With a plugin that has no threads, since
// fork() with a real client is what must never be done.
TEST(FakePlugin, ForkedChild_GetsAnError) {
  if (!IsAlone()) return RunAlone();
  const Fake fake("");
  const Result<const Plugin*> plugin = Plugin::Load(fake.path());
  ASSERT_TRUE(plugin) << ToText(plugin.error());
  const Result<std::unique_ptr<Client>> client = Client::Create(**plugin);
  ASSERT_TRUE(client) << ToText(client.error());
  ExpectError((*client)->Compile("", {}), ErrorCode::kPluginFailed, "the fake cannot do this");
  const pid_t child = fork();
  if (child == 0) {
    const Result<Executable> compiled = (*client)->Compile("", {});
    const bool is_ours = !compiled && compiled.error().message.find("forked") != std::string::npos;
    _exit(is_ours && !Client::Create(**plugin) ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  ExpectError((*client)->Compile("", {}), ErrorCode::kPluginFailed, "the fake cannot do this");
}

TEST(FindPlugins, Folders_AreListedInOrder) {
  const TestFolder folder;
  EXPECT_TRUE(FindPlugins(folder.path().string()).empty());
  EXPECT_TRUE(FindPlugins(folder / "none").empty());
  for (const std::string name : {"b-2", "a-1", "c-3"}) fs::create_directories(folder.path() / "plugins" / name);
  Put(folder / "plugins/b-2/x.so", "");
  Put(folder / "plugins/b-2/a.so", "");
  Put(folder / "plugins/b-2/notes.txt", "");
  Put(folder / "plugins/a-1/x.so", "");
  Put(folder / "plugins/loose.so", "");
  const std::vector<FoundPlugin> expected = {
      {"a-1", folder / "plugins/a-1/x.so"}, {"b-2", folder / "plugins/b-2/a.so"}, {"b-2", folder / "plugins/b-2/x.so"}};
  EXPECT_EQ(FindPlugins(folder.path().string()), expected);
}

using RealPlugin = PluginTest;

TEST_F(RealPlugin, Facts_AreTold) {
  const PluginInfo& info = plugin().info();
  EXPECT_EQ(info.api_major, 0);
  EXPECT_GE(info.api_minor, kOldestApiMinor);
  EXPECT_FALSE(info.xla_version.empty());
  EXPECT_EQ(std::count(info.stablehlo_version.begin(), info.stablehlo_version.end(), '.'), 2) << info.stablehlo_version;
  EXPECT_EQ(std::count(info.stablehlo_minimum.begin(), info.stablehlo_minimum.end(), '.'), 2);
  EXPECT_EQ(info.identity.find_first_not_of("0123456789abcdef"), std::string::npos);
}

TEST_F(RealPlugin, AnotherWayToTheFile_IsTheSamePlugin) {
  const TestFolder folder;
  fs::create_symlink(fs::absolute(path()), folder / "link.so");
  const Result<const Plugin*> again = Plugin::Load(folder / "link.so");
  ASSERT_TRUE(again) << ToText(again.error());
  EXPECT_EQ(*again, &plugin());
}

TEST_F(RealPlugin, Truncated_IsRefused) {
  const TestFolder folder;
  std::ifstream in(path(), std::ios::binary);
  std::string head(1 << 20, '\0');
  ASSERT_TRUE(in.read(head.data(), static_cast<std::streamsize>(head.size())));
  Put(folder / "cut.so", head);
  ExpectUnusable(folder / "cut.so", "truncated");
  // A download that stopped one byte before its end; the middle is a hole, which nothing reads.
  const uint64_t size = fs::file_size(path());
  fs::resize_file(folder / "cut.so", size - 1);
  ExpectUnusable(folder / "cut.so", "truncated");
}

}  // namespace
}  // namespace tessera::pjrt
