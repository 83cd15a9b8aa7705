// `tessera emit`: a folder that a TPU user can take away is whole and consistent, or is not there.
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "program_test.h"
#include "support/npy_file.h"
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

  // A receipt like any other, of a mode that claims nothing.
  const Result<Receipt> receipt = ReadReceipt(out + "/receipt.json");
  ASSERT_TRUE(receipt.has_value()) << ToText(receipt.error());
  EXPECT_EQ(nlohmann::json::parse(result.out), nlohmann::json::parse(ReadWhole(out + "/receipt.json")));
  EXPECT_EQ(receipt->executed, "xla_pallas");
  EXPECT_EQ(receipt->target, "v6e");
  EXPECT_EQ(receipt->runtime_mode, "emitted");
  EXPECT_EQ(receipt->owner, "trace_pallas");
  EXPECT_EQ(receipt->ran_on, "");
  EXPECT_EQ(receipt->device, DeviceUse{});
  EXPECT_EQ(receipt->compiles, 0);
  EXPECT_GT(receipt->tiles.full + receipt->tiles.partial, 0);
  EXPECT_EQ(receipt->tiles_executed, 0);
  EXPECT_EQ(receipt->metadata_limit, 1048576);
  EXPECT_GE(receipt->decisions.size(), Engine().Lanes().size());
  ASSERT_EQ(receipt->programs.size(), 2u);
  ASSERT_EQ(receipt->kernels.size(), 2u);
  for (const KernelUse& kernel : receipt->kernels) {
    EXPECT_TRUE(fs::exists(out + "/" + kernel.name + ".mosaic"));
    EXPECT_GT(kernel.vector_bytes, 0);
    EXPECT_EQ(kernel.vector_limit, 33554432);
    EXPECT_GT(kernel.scalar_bytes, 0);
    EXPECT_EQ(kernel.scalar_limit, 1048576);
  }
  std::set<std::string> digested = {"receipt.json"};
  for (const FileUse& file : receipt->files) {
    const std::string bytes = ReadWhole(out + "/" + file.name);
    EXPECT_EQ(file.bytes, static_cast<int64_t>(bytes.size()));
    EXPECT_EQ(file.digest, FileDigest(bytes)) << file.name;
    digested.insert(file.name);
  }
  EXPECT_EQ(digested, names) << "a digest of every file";
  const ProgramResult checked = Tessera({"receipt", "check", out + "/receipt.json"});
  EXPECT_EQ(checked.exit_code, 0) << checked.err;
  EXPECT_NE(checked.out.find("xla_pallas emitted for v6e and not compiled"), std::string::npos) << checked.out;
  EXPECT_EQ(Tessera({"run", "--from-receipt", out + "/receipt.json"}).exit_code, 2) << "nothing ran";

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

// What a receipt of emitted programs may not say.
TEST(EmitCommand, ReceiptThatClaimsMore_IsRefused) {
  const TemporaryFolder folder;
  const std::string out = folder.File("out");
  ASSERT_EQ(Tessera({"emit", kContract, "--out", out}).exit_code, 0);
  const nlohmann::json good = nlohmann::json::parse(ReadWhole(out + "/receipt.json"));
  const auto complaint = [](const nlohmann::json& json) {
    const Result<Receipt> receipt = ParseReceipt(json.dump());
    return receipt ? std::string() : ToText(receipt.error());
  };
  EXPECT_EQ(complaint(good), "");
  const auto with = [&](const char* at, const nlohmann::json& value) {
    nlohmann::json json = good;
    json[nlohmann::json::json_pointer(at)] = value;
    return complaint(json);
  };
  EXPECT_NE(with("/runtime_mode", "compile-only").find("runtime_mode"), std::string::npos);
  EXPECT_NE(with("/runtime_mode", "payload").find("runtime_mode"), std::string::npos);
  EXPECT_NE(with("/ran_on", "TPU v6e").find("ran_on"), std::string::npos);
  EXPECT_NE(with("/device/name", "TPU v6e").find("device"), std::string::npos);
  EXPECT_NE(with("/programs/0/source", "compiled").find("programs[0].source"), std::string::npos);
  EXPECT_NE(with("/compiles", 2).find("compiles"), std::string::npos);
  EXPECT_NE(with("/tiles_executed", 1).find("tiles_executed"), std::string::npos);
  EXPECT_NE(with("/kernels/0/vector_bytes", int64_t{1} << 40).find("kernels[0].vector_bytes"), std::string::npos);
  EXPECT_NE(with("/files/1/digest", "none").find("files[1].digest"), std::string::npos);
  EXPECT_NE(with("/files/1/name", good["files"][0]["name"]).find("files[1].name"), std::string::npos);
  nlohmann::json other = good;
  other["options"].erase("emit_only");
  EXPECT_NE(complaint(other), "");
}

// Each result by what it is, and the sink logits' gradient by how it is added up.
TEST(EmitCommand, SinkLogits_OperandListSaysWhatComesBack) {
  const TemporaryFolder folder;
  const std::string contract = folder.File("sinks.toml");
  WriteWhole(contract,
             "version = 1\n[shape]\nbatch = 2\nq_len = 300\nkv_len = 300\nnum_q_heads = 4\nnum_kv_heads = 2\n"
             "dim_qk = 64\ndim_v = 64\ndtype = \"bf16\"\n[mask]\nexpr = \"causal\"\n[score]\nsink_logits = true\n");
  const std::string out = folder.File("out");
  const ProgramResult result = Tessera({"emit", contract, "--tile", "128x128", "--out", out});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json listed = nlohmann::json::parse(ReadWhole(out + "/operands.json"));
  std::map<std::string, nlohmann::json> results;
  std::set<std::string> words;
  size_t count = 0;
  for (const nlohmann::json& program : listed["programs"]) {
    EXPECT_FALSE(program.contains("compile_options")) << "one chip needs none";
    for (const nlohmann::json& given : program["results"]) {
      const std::string about = given["about"];
      EXPECT_FALSE(about.empty()) << given["name"];
      words.insert(about);
      ++count;
      results[given["name"]] = given;
    }
  }
  EXPECT_EQ(words.size() + 1, count) << "only the two counts of tiles share their words";
  // 2 batch rows, 4 heads, 3 rows of tiles.
  EXPECT_EQ(results.at("dsink_logits")["shape"], nlohmann::json({24}));
  const std::string sinks = results.at("dsink_logits")["about"];
  EXPECT_NE(sinks.find("[batch, heads, rows], added up over batch and rows"), std::string::npos) << sinks;
  EXPECT_NE(results.at("dk")["about"].get<std::string>().find("key head"), std::string::npos);
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
    EXPECT_EQ(program["compile_options"], nlohmann::json::parse(R"({"num_replicas": 1, "num_partitions": 2,
        "use_spmd_partitioning": true, "use_shardy_partitioner": true})"));
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
  const Result<Receipt> receipt = ReadReceipt(out + "/receipt.json");
  ASSERT_TRUE(receipt.has_value()) << ToText(receipt.error());
  EXPECT_EQ(receipt->options.at("chips"), "2");
  const ProgramResult uneven = Tessera({"emit", kContract, "--chips", "3", "--out", folder.File("none")});
  EXPECT_EQ(uneven.exit_code, 3);
  EXPECT_NE(uneven.err.find("TSR-L002"), std::string::npos) << uneven.err;
  EXPECT_EQ(Tessera({"emit", kContract, "--chips", "0", "--out", folder.File("none")}).exit_code, 2);
  EXPECT_FALSE(fs::exists(folder.File("none")));
}

// More stored masks in a tile than a cell has bits: bitmaps that hold under eight different conditions.
TEST(EmitCommand, TooManyStoredMasksInATile_AreRefusedByName) {
  const TemporaryFolder folder;
  std::string expr;
  const char* const conditions[] = {"full",
                                    "valid",
                                    "documents",
                                    "documents and valid",
                                    "sink(9, document)",
                                    "sink(9, document) and valid",
                                    "sink(5, document)",
                                    "sink(5, document) and valid"};
  for (size_t i = 0; i < std::size(conditions); ++i) {
    std::string cells;
    for (size_t cell = 0; cell < 128 * 128; ++cell) cells += static_cast<char>((cell * (2 * i + 3) / 7) % 5 == 0);
    const std::string name = "b" + std::to_string(i) + ".npy";
    WriteBytes(folder.File(name), NpyBytes("|b1", "(128, 128)", cells));
    expr += (i == 0 ? "" : " or ") + ("bitmap('" + name + "') and " + conditions[i]);
  }
  const std::string contract = folder.File("bits.toml");
  WriteWhole(contract,
             "version = 1\n[shape]\nbatch = 1\nq_len = 128\nkv_len = 128\nnum_q_heads = 1\nnum_kv_heads = 1\n"
             "dim_qk = 64\ndim_v = 64\ndtype = \"bf16\"\n[mask]\nexpr = \"" +
                 expr + "\"\n");
  const ProgramResult result = Tessera(
      {"emit", contract, "--documents", "60,68", "--valid", "120", "--tile", "128x128", "--out", folder.File("out")});
  EXPECT_EQ(result.exit_code, 3) << result.err;
  EXPECT_NE(result.err.find("tpu.stored_bits"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("8, and there are 7"), std::string::npos) << result.err;
}

// A kernel's text on this machine: no success of a TPU's, and said so.
TEST(RunCommand, InterpretedKernel_IsSaidInOutputAndReceipt) {
  Proves("R49");
  const TemporaryFolder folder;
  const std::string file = folder.File("receipt.json");
  const std::vector<std::string> run = {"run",         "causal:200:h2/1:d64:bf16",
                                        "--target",    "v6e",
                                        "--lane",      "xla_pallas",
                                        "--interpret", "--backward",
                                        "--check",     "--receipt",
                                        file};
  const ProgramResult result = Tessera(run);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("xla_pallas ran (asked xla_pallas: dispatch.off_machine) on interpreter, planned for v6e"),
            std::string::npos)
      << result.out;
  const Result<Receipt> receipt = ReadReceipt(file);
  ASSERT_TRUE(receipt.has_value()) << ToText(receipt.error());
  EXPECT_EQ(receipt->runtime_mode, "interpreted");
  EXPECT_EQ(receipt->executed, "xla_pallas");
  EXPECT_EQ(receipt->owner, "trace_pallas");
  EXPECT_EQ(receipt->ran_on, "interpreter");
  EXPECT_EQ(receipt->device.kind, "interpreter");
  EXPECT_EQ(receipt->fallback_reason, "dispatch.off_machine");
  EXPECT_EQ(receipt->options.at("interpret"), "true");
  EXPECT_EQ(receipt->tiles_executed, receipt->tiles.full + receipt->tiles.partial);
  EXPECT_GT(receipt->tiles_executed_backward, 0);
  EXPECT_TRUE(receipt->programs.empty() && receipt->compiles == 0) << "no compiler was there";
  std::vector<std::string> strict = run;
  strict.push_back("--strict");
  EXPECT_EQ(Tessera(strict).exit_code, 3);
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
