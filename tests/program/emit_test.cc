// `tessera emit`: a folder that a TPU user can take away is whole and consistent, or is not there.
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "program_test.h"
#include "tessera/tessera.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

const char* const kContract = "causal:300:h4/2:d64:bf16:t128x128";

std::set<std::string> NamesIn(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

TEST(EmitCommand, FolderHasProgramsKernelsOperandsTablesAndReceipt) {
  const TemporaryFolder folder;
  const std::string out = folder.File("new/emitted");
  const ProgramResult result = Tessera({"emit", kContract, "--out", out, "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::set<std::string> names = {
      "forward.mlir",       "backward.mlir", "tessera_forward.mosaic", "tessera_backward.mosaic", "operands.json",
      "tables.safetensors", "receipt.json"};
  EXPECT_EQ(NamesIn(out), names);
  EXPECT_EQ(NamesIn(folder.File("new")), std::set<std::string>{"emitted"}) << "nothing is left beside it";

  const nlohmann::json receipt = nlohmann::json::parse(ReadWhole(out + "/receipt.json"));
  EXPECT_EQ(nlohmann::json::parse(result.out), receipt);
  EXPECT_EQ(receipt["lane"], "xla_pallas");
  EXPECT_EQ(receipt["target"], "v6e");
  for (const nlohmann::json& file : receipt["files"]) {
    EXPECT_EQ(file["bytes"].get<size_t>(), ReadWhole(out + "/" + file["file"].get<std::string>()).size());
    EXPECT_EQ(file["digest"].get<std::string>().size(), 32u);
  }

  // Every operand of every program is the caller's, or its bytes are here, of the type and shape that are listed.
  const Result<TensorMap> tables = ReadSafetensors(out + "/tables.safetensors");
  ASSERT_TRUE(tables.has_value()) << ToText(tables.error());
  std::set<std::string> used;
  const nlohmann::json listed = nlohmann::json::parse(ReadWhole(out + "/operands.json"));
  for (const nlohmann::json& program : listed["programs"]) {
    const std::string text = ReadWhole(out + "/" + program["file"].get<std::string>());
    EXPECT_NE(text.find("module @" + program["module"].get<std::string>()), std::string::npos);
    for (const nlohmann::json& operand : program["operands"]) {
      const std::string name = operand["name"];
      const std::string source = operand["source"];
      EXPECT_TRUE(source == "caller" || source == "forward" || source == "contract" || source == "plan" ||
                  source == "part")
          << name << " " << source;
      if (source == "contract") {
        EXPECT_DOUBLE_EQ(operand["value"].get<double>(), 0.125);
      }
      if (source != "plan") continue;
      used.insert(name);
      ASSERT_EQ(tables->count(name), 1u) << name;
      EXPECT_EQ(ToText(tables->at(name).type), operand["type"].get<std::string>());
      EXPECT_EQ(tables->at(name).shape, operand["shape"].get<std::vector<int64_t>>());
    }
    EXPECT_FALSE(program["results"].empty());
  }
  EXPECT_EQ(used.size(), tables->size());
}

TEST(EmitCommand, AFolderThatHasSomething_IsLeftAlone) {
  const TemporaryFolder folder;
  WriteWhole(folder.File("mine"), "what was there");
  const ProgramResult result = Tessera({"emit", kContract, "--out", folder.path()});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("TSR-R003"), std::string::npos) << result.err;
  EXPECT_EQ(NamesIn(folder.path()), std::set<std::string>{"mine"});
  EXPECT_EQ(ReadWhole(folder.File("mine")), "what was there");
  fs::create_directory(folder.File("empty"));
  EXPECT_EQ(Tessera({"emit", kContract, "--out", folder.File("empty")}).exit_code, 0);
}

TEST(EmitCommand, WhatNoLaneHas_IsRefusedAndNothingIsMade) {
  const TemporaryFolder folder;
  const std::string out = folder.File("out");
  const ProgramResult dim = Tessera({"emit", "causal:300:d80:bf16", "--out", out});
  EXPECT_EQ(dim.exit_code, 3);
  EXPECT_NE(dim.err.find("tpu.head_dim"), std::string::npos) << dim.err;
  const ProgramResult scale = Tessera({"emit", "causal:300:d128:bf16", "--lane", "splash", "--out", out});
  EXPECT_EQ(scale.exit_code, 3);
  EXPECT_NE(scale.err.find("splash.score"), std::string::npos) << scale.err;
  EXPECT_TRUE(NamesIn(folder.path()).empty());
  EXPECT_EQ(Tessera({"emit", kContract, "--lane", "splash", "--out", out}).exit_code, 0);
  EXPECT_TRUE(fs::exists(out + "/splash_mha_fwd_residuals.mosaic"));
}

TEST(EmitCommand, SeveralChips_SaysWhatEachOperandIsSharedOver) {
  const TemporaryFolder folder;
  const std::string out = folder.File("out");
  const ProgramResult result = Tessera({"emit", kContract, "--chips", "2", "--out", out});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json listed = nlohmann::json::parse(ReadWhole(out + "/operands.json"));
  for (const nlohmann::json& program : listed["programs"]) {
    EXPECT_EQ(program["chips"], 2);
    const std::string text = ReadWhole(out + "/" + program["file"].get<std::string>());
    EXPECT_NE(text.find("sdy.manual_computation"), std::string::npos);
    for (const nlohmann::json& operand : program["operands"]) {
      const std::string name = operand["name"];
      const int64_t axis = name == "q" || name == "k" || name == "v" || name == "do" || name == "lse" ||
                                   name == "delta" || name.rfind("mask_of_", 0) == 0
                               ? 1
                               : -1;
      EXPECT_EQ(operand["chip_axis"], axis) << name;
    }
  }
  const ProgramResult uneven = Tessera({"emit", kContract, "--chips", "3", "--out", folder.File("none")});
  EXPECT_EQ(uneven.exit_code, 3);
  EXPECT_NE(uneven.err.find("TSR-L002"), std::string::npos) << uneven.err;
  EXPECT_EQ(Tessera({"emit", kContract, "--chips", "0", "--out", folder.File("none")}).exit_code, 2);
  EXPECT_FALSE(fs::exists(folder.File("none")));
}

TEST(CompileCommand, TopologyOfAnotherTarget_IsNamed) {
  for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
           {"--topology", "v6e"}, {"--topology", "v6e:1x1", "--target", "v5e"}, {"--topology", "nosuch:1x1"}}) {
    std::vector<std::string> arguments = {"compile", kContract};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProgramResult result = Tessera(arguments);
    EXPECT_EQ(result.exit_code, 2) << result.out;
    EXPECT_NE(result.err.find("TSR-"), std::string::npos) << result.err;
  }
}

// Where the compiler is told to write its schedules is gone afterwards, also when there is no compiler.
TEST(CompileCommand, FolderOfSchedules_IsNotLeftBehind) {
  const TemporaryFolder folder;
  const std::string temporary = folder.File("tmp");
  fs::create_directory(temporary);
  ProgramOptions options;
  options.env = {{"TMPDIR", temporary}};
  const ProgramResult result = Tessera(
      {"compile", kContract, "--lane", "xla_pallas", "--topology", "v6e:1x1", "--emit", folder.File("out")}, options);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(fs::is_empty(temporary));
}

}  // namespace
}  // namespace tessera
