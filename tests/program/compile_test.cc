// `tessera compile`: the texts, the figures, the receipt, and what it says where nothing can be compiled.
#include <elf.h>

#include <cstring>
#include <filesystem>

#include "program_test.h"
#include "tessera/tessera.h"

namespace tessera {
namespace {

bool Contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

const std::vector<std::string> kPacked = {"compile", Example("packed.toml"), "--batch", Example("packed_batch.json")};

std::vector<std::string> Packed(std::vector<std::string> more) {
  std::vector<std::string> arguments = kPacked;
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// No plugin is there: none is named, and none is installed in an empty folder.
ProgramOptions Bare(const TemporaryFolder& folder) {
  return {.env = {{"TESSERA_XLA", folder.path()}, {"TESSERA_PJRT_PLUGIN", ""}}};
}

// The head of a shared library of the architecture that this is not.
std::string ForeignLibrary() {
  Elf64_Ehdr header = {};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_type = ET_DYN;
#if defined(__x86_64__)
  header.e_machine = EM_AARCH64;
#else
  header.e_machine = EM_X86_64;
#endif
  return std::string(reinterpret_cast<const char*>(&header), sizeof(header));
}

TEST(CompileCommand, EmitWithoutAPlugin_WritesTheTextsAndSaysThatNothingWasCompiled) {
  const TemporaryFolder empty;
  const TemporaryFolder folder;
  const std::string emit = folder.File("made/here");
  const ProgramResult result = Tessera(Packed({"--target", "v6e", "--backward", "--emit", emit}), Bare(empty));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_TRUE(Contains(result.out, "nothing was compiled: ")) << result.out;
  EXPECT_TRUE(Contains(result.out, "xla.no_plugin")) << result.out;
  EXPECT_TRUE(Contains(result.out, "script/setup --tpu")) << result.out;
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(emit)) {
    names.push_back(entry.path().filename().string());
    EXPECT_TRUE(Contains(result.out, entry.path().string())) << result.out;
    const std::string text = ReadWhole(entry.path().string());
    EXPECT_TRUE(Contains(text, "module @" + entry.path().stem().string())) << text.substr(0, 200);
    EXPECT_TRUE(Contains(text, "stablehlo.while"));
  }
  EXPECT_EQ(names.size(), 2u);
  const ProgramResult again = Tessera(Packed({"--target", "v6e", "--emit", emit, "--json"}), Bare(empty));
  const nlohmann::json json = OnlyDocument(again);
  EXPECT_EQ(json["compiled"], false);
  EXPECT_TRUE(Contains(json["why_not"], "xla.no_plugin")) << json["why_not"];
  EXPECT_EQ(json["emitted"].size(), 1u);
  EXPECT_EQ(json["receipt"]["failed_at"], "decide");
}

// No schedule without the compiler that makes it; what the kernels have no form for is known before.
TEST(TpuCostCommand, WithoutTheCompiler_IsRefusedByReason) {
  const TemporaryFolder empty;
  const ProgramResult none = Tessera({"tpu-cost", "causal:300:d128:bf16"}, Bare(empty));
  EXPECT_EQ(none.exit_code, 3) << none.out;
  EXPECT_TRUE(Contains(none.err, "xla.no_plugin")) << none.err;
  EXPECT_TRUE(Contains(none.err, "script/setup --tpu")) << none.err;
  EXPECT_EQ(none.out, "");
  const ProgramResult dim = Tessera({"tpu-cost", "causal:300:d80:bf16", "--tile", "128x128"}, Bare(empty));
  EXPECT_EQ(dim.exit_code, 3) << dim.err;
  EXPECT_TRUE(Contains(dim.out, "tpu.head_dim")) << dim.out << dim.err;
  const ProgramResult tile = Tessera({"tpu-cost", "causal:300:d128:bf16", "--tile", "96x96", "--json"}, Bare(empty));
  EXPECT_EQ(tile.exit_code, 3) << tile.err;
  const nlohmann::json json = nlohmann::json::parse(tile.out, nullptr, false);
  ASSERT_FALSE(json.is_discarded()) << tile.out;
  EXPECT_TRUE(Contains(json["tiles"][0]["refused"], "tpu.tile")) << tile.out;
  EXPECT_TRUE(Contains(json["what"], "not a measured time"));
}

TEST(CompileCommand, NoPlugin_IsARefusalWhereCompilingWasAskedFor) {
  const TemporaryFolder empty;
  const TemporaryFolder folder;
  const std::string receipt = folder.File("receipt.json");
  const ProgramResult plain = Tessera(Packed({"--target", "v6e"}), Bare(empty));
  EXPECT_EQ(plain.exit_code, 3) << plain.err;
  EXPECT_TRUE(Contains(plain.err, "xla.no_plugin")) << plain.err;
  const ProgramResult result =
      Tessera(Packed({"--target", "v6e", "--emit", folder.path(), "--receipt", receipt}), Bare(empty));
  EXPECT_EQ(result.exit_code, 3) << result.err;
  const Result<Receipt> read = ReadReceipt(receipt);
  ASSERT_TRUE(read.has_value()) << ToText(read.error());
  EXPECT_FALSE(read->ok);
  EXPECT_EQ(read->options.at("compile_only"), "true");
  EXPECT_EQ(folder.NumFiles(), 2u) << "the text and the receipt";
}

TEST(CompileCommand, PluginOfAnotherArchitecture_SaysWhereItCanBeRun) {
  const TemporaryFolder folder;
  const std::string plugin = folder.File("libtpu.so");
  WriteWhole(plugin, ForeignLibrary());
  const ProgramResult result = Tessera(Packed({"--target", "v6e", "--plugin", plugin, "--emit", folder.File("texts")}));
  EXPECT_EQ(result.exit_code, 3);
  for (const char* part : {"built for ", "on such a machine or under emulation"}) {
    EXPECT_TRUE(Contains(result.err, part)) << result.err;
  }
}

TEST(CompileCommand, BadInput_IsSaidOnce) {
  const TemporaryFolder folder;
  const std::string file = folder.File("file");
  WriteWhole(file, "");
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"compile", folder.File("none.toml")}, "none.toml"},
      {Packed({"--target", "v9"}), "v9"},
      {Packed({"--lane", "flash"}), "flash"},
      {Packed({"--emit", file + "/below"}), "below"},
      {{"compile", Example("packed.toml"), "--emit", folder.File("x")}, "TSR-"},
  };
  for (const auto& [arguments, part] : cases) {
    const ProgramResult result = Tessera(arguments);
    EXPECT_EQ(result.exit_code, 2) << part << result.out;
    EXPECT_TRUE(Contains(result.err, part)) << result.err;
    EXPECT_EQ(result.err.find("tessera: TSR-"), result.err.rfind("tessera: TSR-")) << result.err;
  }
  EXPECT_EQ(Tessera(Packed({"--lane", "reference"})).exit_code, 3);
}

}  // namespace
}  // namespace tessera
