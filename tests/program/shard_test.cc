// `tessera shard`: the worked example of docs/sharding.md, and what goes wrong.
#include <filesystem>

#include "program_test.h"

namespace tessera {
namespace {

const std::string kDecoder = Example("sharding/decoder.toml");

bool Has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(ShardCommand, WorkedExample_IsThatOfThePage) {
  Proves("R80 R81");
  const ProgramResult shown = Tessera({"shard", "show", kDecoder, "--mesh", "data=2,model=2"});
  ASSERT_EQ(shown.exit_code, 0) << shown.err;
  const std::string page = ReadWhole(std::string(TESSERA_SOURCE_DIR) + "/docs/sharding.md");
  EXPECT_TRUE(Has(shown.out, "        model 0 .. 1\ndata 0  [0][1]\ndata 1  [2][3]\n")) << shown.out;
  EXPECT_TRUE(Has(page, "        model 0 .. 1\ndata 0  [0][1]\ndata 1  [2][3]\n"));
  const size_t figures = shown.out.find("mesh          ");
  ASSERT_NE(figures, std::string::npos);
  EXPECT_TRUE(Has(page, shown.out.substr(figures))) << shown.out.substr(figures);

  const ProgramResult good = Tessera({"shard", "check", kDecoder, "--mesh", "data=2,model=2", "--devices", "4"});
  EXPECT_EQ(good.exit_code, 0) << good.err;
  EXPECT_TRUE(Has(good.out, "good: every tensor has a spec that fits this mesh")) << good.out;
  EXPECT_EQ(good.out.find(shown.out), 0u) << good.out;
  const ProgramResult zero3 = Tessera({"shard", "check", kDecoder, "--mesh", "data=2,model=2", "--zero3", "--json",
                                       "--max-replicated", "1", "--max-device-bytes", "144185360"});
  ASSERT_EQ(zero3.exit_code, 0) << zero3.err;
  const nlohmann::json document = OnlyDocument(zero3);
  EXPECT_EQ(document["device_bytes"], 144185360);
  EXPECT_EQ(document["devices"], 4);
  EXPECT_EQ(document["tensors"].size(), 17u);
  EXPECT_TRUE(Has(page, "144,185,360"));
}

TEST(ShardCommand, Refusals_HaveTheFullListAndStatusOne) {
  Proves("R80");
  const ProgramResult bad =
      Tessera({"shard", "check", kDecoder, "--mesh", "data=2,model=3", "--devices", "4", "--json"});
  EXPECT_EQ(bad.exit_code, 1);
  const nlohmann::json error = OnlyDocument(bad)["error"];
  EXPECT_EQ(error["code"], "TSR-S005");
  EXPECT_EQ(error["violations"].size(), 11u) << error;
  for (const char* part : {"needs 6, there are 4", "layers.0.qkv: a dimension 1 that divides by 3", "attention.k",
                           "model.num_heads", "model.num_kv_heads"}) {
    EXPECT_TRUE(Has(bad.err, part)) << part << " in\n" << bad.err;
  }
  // To look at what is refused is allowed, and the audit shows it too.
  const ProgramResult shown = Tessera({"shard", "show", kDecoder, "--mesh", "data=2,model=3"});
  EXPECT_EQ(shown.exit_code, 0);
  EXPECT_EQ(Tessera({"shard", "check", kDecoder, "--mesh", "data=2,model=3"}).out, shown.out);
  EXPECT_EQ(Tessera({"shard", "check", kDecoder, "--mesh", "data=2", "--max-device-bytes", "1000"}).exit_code, 1);
  EXPECT_EQ(Tessera({"shard", "check", kDecoder, "--mesh", "data=2", "--max-replicated", "10"}).exit_code, 1);
}

TEST(ShardCommand, BadInput_IsNamed) {
  const TemporaryFolder folder;
  const ProgramOptions here = {.folder = folder.path()};
  const auto expect = [&](const std::vector<std::string>& more, const std::string& code, const std::string& text) {
    std::vector<std::string> arguments = {"shard", "check"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProgramResult result = Tessera(arguments, here);
    EXPECT_EQ(result.exit_code, 2) << testing::PrintToString(arguments);
    EXPECT_TRUE(Has(result.err, code) && Has(result.err, text)) << result.err;
    EXPECT_TRUE(result.out.empty()) << result.out;
  };
  for (const char* mesh : {"data=0", "data=2,data=2", "pipeline=2", "data", "data=2,", "data=65536,model=65536"}) {
    expect({kDecoder, "--mesh", mesh}, "TSR-S001", "mesh");
  }
  expect({"nowhere.toml", "--mesh", "data=2"}, "TSR-R002", "nowhere.toml");
  expect({kDecoder}, "TSR-R007", "--mesh");
  expect({kDecoder, "--mesh", "data=2", "--devices", "0"}, "TSR-R007", "--devices");
  WriteWhole(folder.File("p.toml"), "version = 1\n[parameters]\nw = \"bf17[2]\"\n");
  expect({"p.toml", "--mesh", "data=2"}, "TSR-S003", "bf17[2]");
  WriteWhole(folder.File("s.toml"), "version = 1\n[[spec]]\nname = \"layers.0.qvk\"\naxes = \"replicated\"\n");
  expect({kDecoder, "--mesh", "data=2", "--specs", "s.toml"}, "TSR-S004", "did you mean layers.0.qkv?");
  WriteWhole(folder.File("s.toml"), "version = 1\n[[spec]\n");
  expect({kDecoder, "--mesh", "data=2", "--specs", "s.toml"}, "TSR-S004", "s.toml");
}

// The texts need no plugin; what cannot be is refused by number, whatever is installed.
TEST(ShardCommand, Compile_WritesProgramsOfSeveralChips) {
  const TemporaryFolder folder;
  const ProgramOptions here = {.folder = folder.path()};
  const std::string wide = "causal:512:h4:d128:bf16";
  const auto compile = [&](std::vector<std::string> more, const std::string& topology) {
    std::vector<std::string> arguments = {"shard", "compile", wide, "--topology", topology};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Tessera(arguments, here);
  };
  struct Case {
    std::vector<std::string> options;
    const char* call;  // that the text must have
  };
  for (const Case& c :
       {Case{{"--exchange", "allgather"}, "stablehlo.all_gather"},
        Case{{"--exchange", "heads"}, "stablehlo.all_to_all"}, Case{{"--exchange", "sparse"}, "@ragged_all_to_all"},
        Case{{"--exchange", "ring"}, "stablehlo.collective_permute"},
        Case{{"--exchange", "ring", "--lane", "xla_chunked"}, "stablehlo.collective_permute"},
        Case{{"--axis", "model"}, "sdy.manual_computation"}}) {
    const std::string name = c.options[1] + (c.options.size() > 2 ? "_loops" : "");
    std::vector<std::string> options = c.options;
    options.insert(options.end(), {"--emit", name, "--tile", "128x128"});
    const ProgramResult result = compile(options, "v6e:2x2");
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_TRUE(Has(result.out + result.err, "wrote " + name)) << result.err;
    int files = 0;
    for (const auto& file : std::filesystem::directory_iterator(folder.path() + "/" + name)) {
      const std::string text = ReadWhole(file.path().string());
      EXPECT_TRUE(Has(text, c.call)) << file.path();
      EXPECT_TRUE(Has(text, "num_partitions = 4")) << file.path();
      EXPECT_EQ(Has(text, "tpu_custom_call"), c.options.size() == 2) << file.path();
      ++files;
    }
    EXPECT_EQ(files, 1);
  }
  const auto expect = [&](const ProgramResult& result, int exit_code, const char* code) {
    EXPECT_EQ(result.exit_code, exit_code) << result.err;
    EXPECT_TRUE(Has(result.err, code)) << result.err;
    EXPECT_TRUE(result.out.empty()) << result.out;
  };
  expect(compile({}, "v6e"), 2, "TSR-R007");
  expect(compile({}, "v6e:2x"), 2, "TSR-R007");
  expect(compile({}, "v6e:1x1"), 2, "TSR-S002");
  expect(compile({"--axis", "expert"}, "v6e:2x2"), 2, "TSR-S001");
  expect(compile({"--axis", "model"}, "v6e:4x4"), 1, "TSR-S005");
  expect(compile({"--exchange", "heads", "--tile", "128x128"}, "v6e:4x4"), 2, "TSR-S020");
  // Less than q, k and v alone: before anything is compiled.
  for (const char* axis : {"context", "model"}) {
    const ProgramResult result =
        compile({"--axis", axis, "--tile", "128x128", "--max-device-bytes", "1000"}, "v6e:2x2");
    expect(result, 1, "TSR-S005");
    EXPECT_TRUE(Has(result.err, "bytes of a device")) << result.err;
  }
}

}  // namespace
}  // namespace tessera
