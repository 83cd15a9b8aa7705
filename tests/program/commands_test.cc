// Each subcommand does its job when the input is good.
#include <algorithm>
#include <sstream>

#include "program_test.h"
#include "tessera/tessera.h"

namespace tessera {
namespace {

const std::vector<std::string> kPacked = {Example("packed.toml"), "--batch", Example("packed_batch.json")};

std::vector<std::string> Packed(std::string command, std::vector<std::string> more = {}) {
  std::vector<std::string> arguments = {std::move(command)};
  arguments.insert(arguments.end(), kPacked.begin(), kPacked.end());
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

bool Contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Program, Version_NamesEveryVersion) {
  const ProgramResult result = Tessera({"--version"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out.find(std::string("tessera ") + kVersion), 0u) << result.out;
}

TEST(Program, Help_EveryCommandHasAnExampleThatNamesIt) {
  const std::vector<std::vector<std::string>> commands = {
      {"plan"},    {"explain"},      {"run"},     {"verify"},          {"bench"}, {"bench", "planner"},
      {"lanes"},   {"bench", "run"}, {"receipt"}, {"receipt", "show"}, {"demo"},  {"receipt", "check"},
      {"compile"}, {"emit"},         {"bridge"},  {"tpu-cost"},
  };
  for (std::vector<std::string> command : commands) {
    std::string name = "tessera";
    for (const std::string& word : command) name += " " + word;
    command.push_back("--help");
    const ProgramResult result = Tessera(command);
    EXPECT_EQ(result.exit_code, 0) << name;
    EXPECT_EQ(result.err, "") << name;
    const size_t examples = result.out.find("Examples:");
    ASSERT_NE(examples, std::string::npos) << name;
    EXPECT_NE(result.out.find(name, examples), std::string::npos) << name;
  }
  EXPECT_TRUE(Contains(Tessera({"--help"}).out, "Exit status"));
}

TEST(Program, NoArguments_ShowsHelpAndFails) {
  const ProgramResult result = Tessera({});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.out, "");
  EXPECT_TRUE(Contains(result.err, "explain"));
}

TEST(Plan, Examples_AllPlanOnEveryTarget) {
  const std::vector<std::vector<std::string>> examples = {
      {"causal.toml"},   {"window_sink.toml"}, {"packed.toml", "packed_batch.json"},
      {"per_head.toml"}, {"prefix.json"},      {"cross.toml", "cross_batch.json"}};
  for (const std::vector<std::string>& example : examples) {
    for (const Target& target : Targets()) {
      std::vector<std::string> arguments = {"plan", Example(example[0]), "--verify-stages", "--target", target.name};
      if (example.size() > 1) arguments.insert(arguments.end(), {"--batch", Example(example[1])});
      const ProgramResult result = Tessera(arguments);
      EXPECT_EQ(result.exit_code, 0) << example[0] << " " << target.name << ": " << result.err;
      EXPECT_EQ(result.err, "");
    }
  }
}

TEST(Plan, Summary_SaysCountsWidthBytesAndKeys) {
  const ProgramResult result = Tessera(Packed("plan", {"--target", "v6e", "--tile", "64x32"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* part : {"contract key", "class key", "mask digest", "covers", "cleanups", "forward", "dq", "dkv",
                           "64x32", "metadata", "v6e has", "fits", "stage", "classify", "pack"}) {
    EXPECT_TRUE(Contains(result.out, part)) << part;
  }
}

TEST(Plan, Json_IsOneDocumentThatAgreesWithThePlanFile) {
  const TemporaryFolder folder;
  const std::string file = folder.File("packed.plan");
  const ProgramResult result = Tessera(Packed("plan", {"--json", "--out", file}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json json = OnlyDocument(result);
  ASSERT_TRUE(json.is_object());
  auto plan = ReadPlan(file);
  ASSERT_TRUE(plan) << ToText(plan.error());
  EXPECT_EQ(json["plan"]["fingerprint"], ToHex(plan->view().fingerprint));
  EXPECT_EQ(json["plan"], ParseJson(ToJson(plan->view())));
  EXPECT_EQ(OnlyDocument(Tessera({"plan", file, "--json"})), json["plan"]);
  EXPECT_EQ(folder.NumFiles(), 1u);
}

TEST(Plan, SameInputTwice_SameBytes) {
  const TemporaryFolder folder;
  ASSERT_EQ(Tessera(Packed("plan", {"--out", folder.File("a.plan")})).exit_code, 0);
  ASSERT_EQ(Tessera(Packed("plan", {"--out", folder.File("b.plan")})).exit_code, 0);
  EXPECT_EQ(ReadWhole(folder.File("a.plan")), ReadWhole(folder.File("b.plan")));
}

TEST(Plan, StandardInput_IsAContract) {
  const ProgramResult result = Tessera({"plan", "-"}, {.input = ReadWhole(Example("causal.toml"))});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(Contains(result.out, "forward"));
}

TEST(Plan, DisabledStage_IsReported) {
  int disabled = 0;
  for (const StageInfo& info : Stages()) {
    if (!info.can_disable) continue;
    ++disabled;
    const ProgramResult result = Tessera(Packed("plan", {"--disable", info.name}));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_TRUE(Contains(result.out, "disabled")) << info.name;
    const ProgramResult verified = Tessera(Packed("verify", {"--disable", info.name}));
    EXPECT_EQ(verified.exit_code, 0) << info.name << ": " << verified.err;
    EXPECT_EQ(Tessera(Packed("explain", {"--disable", info.name})).exit_code, 0);
    EXPECT_TRUE(OnlyDocument(Tessera(Packed("plan", {"--disable", info.name, "--json"}))).is_object());
  }
  EXPECT_GT(disabled, 0);
}

TEST(Explain, Packed_DrawsTheMapAndNamesEveryStage) {
  const ProgramResult result = Tessera(Packed("explain"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* part : {"█", "▒", "same document", "valid prefix", "distinct", "cleanups"}) {
    EXPECT_TRUE(Contains(result.out, part)) << part;
  }
  const ProgramResult routed = Tessera({"explain", Example("routed.toml")});
  for (const StageInfo& stage : Stages()) EXPECT_TRUE(Contains(routed.out, "  " + stage.name)) << stage.name;
  const ProgramResult ascii = Tessera(Packed("explain", {"--ascii"}));
  EXPECT_TRUE(std::all_of(ascii.out.begin(), ascii.out.end(), [](char c) { return c >= 0; }));
  EXPECT_TRUE(Contains(ascii.out, "##"));
}

TEST(Explain, Dump_EveryStageHasOne) {
  for (const StageInfo& stage : Stages()) {
    const ProgramResult result = Tessera({"explain", Example("routed.toml"), "--dump", stage.name});
    EXPECT_EQ(result.exit_code, 0) << stage.name << ": " << result.err;
    EXPECT_NE(result.out, "") << stage.name;
  }
  const ProgramResult idle = Tessera(Packed("explain", {"--dump", "score"}));
  EXPECT_NE(idle.exit_code, 0);
  EXPECT_TRUE(Contains(idle.err, "did not run")) << idle.err;
}

// The worked example of docs/routing.md, line by line.
TEST(Route, TheWorkedExample_IsWhatThePageShows) {
  const std::string page = ReadWhole(TESSERA_SOURCE_DIR "/docs/routing.md");
  const ProgramResult result = Tessera({"route", Example("routed.toml"), "--query", "4000"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  size_t lines = 0;
  std::istringstream out(result.out);
  for (std::string line; std::getline(out, line);) {
    const std::string first = line.substr(0, line.find(' '));
    if (first != "picks" && first != "unions" && first != "recall" && first != "mass" && first != "query") continue;
    EXPECT_TRUE(Contains(page, line + "\n")) << line;
    ++lines;
  }
  EXPECT_EQ(lines, 6u);
}

TEST(Route, Picks_CanBeBroughtBack) {
  const TemporaryFolder folder;
  const std::string picks = folder.File("picks.json");
  const ProgramResult result = Tessera({"route", Example("routed.toml"), "--query", "4000", "--out", picks, "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* part : {"mean_union", "recall", "mass_kept", "legalise"}) EXPECT_TRUE(Contains(result.out, part));
  EXPECT_TRUE(Contains(result.err, "query 4000, batch row 0, KV head 1: blocks 0 ")) << result.err;
  std::string text = ReadWhole(Example("routed.toml"));
  text.erase(text.find("[routing]"));
  const std::string plain = folder.File("plain.toml");
  ASSERT_TRUE(WriteFile(plain, text).has_value());
  const ProgramResult routed = Tessera({"run", Example("routed.toml"), "--json"});
  const ProgramResult brought = Tessera({"run", plain, "--batch", picks, "--json"});
  ASSERT_EQ(brought.exit_code, 0) << brought.err;
  const auto digest = [](const std::string& json) { return json.substr(json.find("output_digest"), 60); };
  EXPECT_EQ(digest(routed.out), digest(brought.out));
}

TEST(Explain, At_AgreesWithTheMask) {
  // Documents of 101, 37, ... tokens under causal and window(127, 0): see examples/packed_batch.json.
  struct Question {
    std::string at;
    std::string row;
    bool allowed;
  };
  const std::vector<Question> questions = {{"100,0", "0", true},   {"101,100", "0", false}, {"101,101", "0", true},
                                           {"50,51", "0", false},  {"200,73", "1", true},   {"200,72", "1", false},
                                           {"272,272", "1", true}, {"300,299", "1", false}};
  for (const Question& question : questions) {
    const ProgramResult result =
        Tessera(Packed("explain", {"--at", question.at, "--batch-row", question.row, "--head", "3", "--json"}));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(OnlyDocument(result)["allowed"], question.allowed) << question.at << ": " << result.err;
    EXPECT_TRUE(Contains(result.err, question.allowed ? " sees key " : " does not see key "));
  }
}

// A plan decompressed to a file is that plan's mask: read back as a bitmap it means the same pairs.
TEST(Explain, Dense_ReadBackAsABitmapIsTheSameMask) {
  Proves("R9");
  const TemporaryFolder folder;
  const std::string shape = "version = 1\n[shape]\nq_len = 300\nkv_len = 410\ndim_qk = 8\n[mask]\n";
  ASSERT_TRUE(WriteFile(folder.File("a.toml"), shape + "expr = \"causal and (window(37, 0) or sink(4))\"\n"));
  ASSERT_TRUE(WriteFile(folder.File("b.toml"), shape + "expr = \"bitmap('mask.npy')\"\n"));
  const ProgramResult dense = Tessera({"explain", folder.File("a.toml"), "--dense", folder.File("mask.npy")});
  ASSERT_EQ(dense.exit_code, 0) << dense.err;
  const auto digest = [&](const char* name) {
    return OnlyDocument(Tessera({"plan", folder.File(name), "--json"}))["plan"]["mask_digest"];
  };
  EXPECT_EQ(digest("a.toml"), digest("b.toml"));
}

TEST(Explain, PlanFile_NeedsNoContract) {
  const TemporaryFolder folder;
  const std::string file = folder.File("packed.plan");
  ASSERT_EQ(Tessera(Packed("plan", {"--out", file})).exit_code, 0);
  const ProgramResult result = Tessera({"explain", file, "--batch-row", "1"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(Contains(result.out, "batch row 1, head 0"));
  EXPECT_TRUE(OnlyDocument(Tessera({"explain", file, "--json"})).is_object());
}

TEST(Explain, Policy_IsOneDocument) {
  const ProgramResult result = Tessera({"explain", "--policy"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(OnlyDocument(result), ParseJson(MixedDocumentPolicyJson()));
}

TEST(Run, Check_PassesAndWritesOutputsAndReceipt) {
  const TemporaryFolder folder;
  const std::string out = folder.File("o.safetensors");
  const std::string receipt = folder.File("receipt.json");
  const ProgramResult result = Tessera(
      Packed("run", {"--seed", "5", "--backward", "--max", "--check", "--out", out, "--receipt", receipt, "--json"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json json = OnlyDocument(result);
  EXPECT_EQ(json["ok"], true);
  EXPECT_EQ(json["executed"], "cpu");
  EXPECT_EQ(json["fallback_reason"], "");
  EXPECT_EQ(json, ParseJson(ReadWhole(receipt)));
  auto tensors = ReadSafetensors(out);
  ASSERT_TRUE(tensors) << ToText(tensors.error());
  for (const char* name : {"o", "lse", "max", "dq", "dk", "dv"}) EXPECT_EQ(tensors->count(name), 1u) << name;
  EXPECT_EQ(json["output_digest"], Digest(*tensors));
  EXPECT_EQ(Tessera({"receipt", "check", receipt}).exit_code, 0);
  EXPECT_TRUE(Contains(Tessera({"receipt", "show", receipt}).out, json["plan_fingerprint"].get<std::string>()));
  EXPECT_EQ(folder.NumFiles(), 2u);
}

TEST(Run, InputsFromFile_EqualInputsFromSeedInEitherLayout) {
  const TemporaryFolder folder;
  auto contract = ReadContract(Example("packed.toml"));
  ASSERT_TRUE(contract);
  for (const Layout layout : {Layout::kBhtd, Layout::kBthd}) {
    const std::string name = layout == Layout::kBhtd ? "bhtd" : "bthd";
    const std::string file = folder.File(name + ".safetensors");
    ASSERT_TRUE(WriteSafetensors(file, MakeInputs(*contract, 11, true, layout)));
    const auto digest = [&](std::vector<std::string> more) {
      more.insert(more.end(), {"--layout", name, "--backward", "--check", "--json"});
      const ProgramResult result = Tessera(Packed("run", more));
      EXPECT_EQ(result.exit_code, 0) << result.err;
      return OnlyDocument(result)["output_digest"];
    };
    EXPECT_EQ(digest({"--inputs", file}), digest({"--seed", "11"})) << name;
  }
}

TEST(Run, LaneFromEnvironment_IsTheDefaultAndIsRecorded) {
  const ProgramOptions env{.env = {{"TESSERA_LANE", "reference"}}};
  const ProgramResult result = Tessera(Packed("run", {"--json"}), env);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(OnlyDocument(result)["requested"], "reference");
  EXPECT_EQ(OnlyDocument(result)["options"]["lane"], "reference");
  // The command line wins.
  EXPECT_EQ(OnlyDocument(Tessera(Packed("run", {"--json", "--lane", "auto"}), env))["requested"], "auto");
}

TEST(Run, FromReceipt_GivesTheSameBitsOrSaysWhatDiffers) {
  const TemporaryFolder folder;
  const std::string receipt = folder.File("receipt.json");
  ASSERT_EQ(Tessera(Packed("run", {"--seed", "9", "--backward", "--max", "--tile", "64x48", "--layout", "bthd",
                                   "--receipt", receipt}))
                .exit_code,
            0);
  const ProgramResult again = Tessera({"run", "--from-receipt", receipt, "--json"});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  const nlohmann::json first = ParseJson(ReadWhole(receipt));
  const nlohmann::json second = OnlyDocument(again);
  for (const char* field : {"output_digest", "input_digest", "batch_digest", "plan_fingerprint", "options"}) {
    EXPECT_EQ(second[field], first[field]) << field;
  }
  // A receipt of other outputs is not reproduced.
  nlohmann::json other = first;
  other["output_digest"] = std::string(32, '0');
  WriteWhole(receipt, other.dump());
  const ProgramResult differs = Tessera({"run", "--from-receipt", receipt});
  EXPECT_EQ(differs.exit_code, 1);
  EXPECT_EQ(differs.err.find("tessera: TSR-R006"), 0u) << differs.err;
}

TEST(Run, Refused_ExitsThreeWithAReceipt) {
  const std::vector<std::vector<std::string>> requests = {{"--lane", "cuda", "--target", "h200"},
                                                          {"--strict", "--target", "h200"},
                                                          {"--strict", "--exclude", "cpu"},
                                                          {"--exclude", "reference", "--exclude", "cpu"},
                                                          {"--lane", "reference", "--exclude", "reference"}};
  for (const std::vector<std::string>& request : requests) {
    const TemporaryFolder folder;
    const std::string receipt = folder.File("receipt.json");
    const std::string out = folder.File("o.safetensors");
    std::vector<std::string> more = {"--json", "--receipt", receipt, "--out", out};
    more.insert(more.end(), request.begin(), request.end());
    const ProgramResult result = Tessera(Packed("run", more));
    EXPECT_EQ(result.exit_code, 3) << request[0] << result.err;
    EXPECT_EQ(result.err.find("tessera: TSR-L00"), 0u) << result.err;
    const nlohmann::json json = OnlyDocument(result);
    EXPECT_EQ(json["ok"], false);
    EXPECT_NE(json["failed_at"], "");
    EXPECT_EQ(ParseJson(ReadWhole(receipt)), json);
    EXPECT_EQ(Tessera({"receipt", "check", receipt}).exit_code, 0) << Tessera({"receipt", "check", receipt}).err;
    EXPECT_FALSE(std::filesystem::exists(out));
  }
}

TEST(Verify, ContractPlanAndCase_AllPass) {
  const TemporaryFolder folder;
  EXPECT_EQ(Tessera(Packed("verify", {"--backward", "--lane", "reference"})).exit_code, 0);
  const std::string file = folder.File("packed.plan");
  ASSERT_EQ(Tessera(Packed("plan", {"--out", file})).exit_code, 0);
  EXPECT_EQ(Tessera({"verify", file}).exit_code, 0);
  const nlohmann::json cases = OnlyDocument(Tessera({"verify", "--list", "--json"}));
  ASSERT_GT(cases.size(), 0u);
  const ProgramResult result = Tessera({"verify", cases[0]["name"].get<std::string>(), "--json", "--seed", "3"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json json = OnlyDocument(result);
  EXPECT_EQ(json["pass"], true);
  EXPECT_GT(json["mask"]["pairs"], 0);
  EXPECT_GT(json["outputs"]["outputs"].size(), 0u);
}

TEST(Bench, PlannerAndRun_PrintTimes) {
  for (const char* what : {"planner", "run"}) {
    const ProgramResult result = Tessera(
        {"bench", what, Example("cross.toml"), "--batch", Example("cross_batch.json"), "--repeat", "2", "--json"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const nlohmann::json json = OnlyDocument(result);
    EXPECT_EQ(json["repeats"], 2);
    EXPECT_GT(json["best_ns"], 0);
    EXPECT_GT(json["surviving_tiles"], 0);
    EXPECT_TRUE(Contains(result.err, "best"));
  }
}

TEST(Bench, Stability_CountsOneBuildPerContract) {
  Proves("R31 R91");
  const ProgramResult result = Tessera({"bench", "--stability", "--batches", "50", "--seed", "9", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json json = OnlyDocument(result);
  EXPECT_TRUE(json["pass"]);
  ASSERT_GE(json["contracts"].size(), 3u);
  for (const nlohmann::json& row : json["contracts"]) {
    EXPECT_EQ(row["batches"], 50);
    EXPECT_EQ(row["builds"], 1) << row.dump();
    EXPECT_EQ(row["hits"], 49);
    EXPECT_GT(row["distinct_plans"], 5);
    EXPECT_EQ(row["classes"], 1);
    EXPECT_GT(row["plan_ns_without_cache"], 0);
  }
  EXPECT_TRUE(Contains(result.err, "builds"));
  const ProgramResult own =
      Tessera({"bench", "--stability", "--contract", Example("packed.toml"), "--batches", "3", "--json"});
  ASSERT_EQ(own.exit_code, 0) << own.err;
  EXPECT_EQ(OnlyDocument(own)["contracts"].size(), 1u);
  // Neither, both, or an option of the other one.
  EXPECT_EQ(Tessera({"bench"}).exit_code, 2);
  EXPECT_EQ(Tessera({"bench", "--stability", "planner", Example("causal.toml")}).exit_code, 2);
  EXPECT_EQ(Tessera({"bench", "--batches", "5", "planner", Example("causal.toml")}).exit_code, 2);
  EXPECT_EQ(Tessera({"bench", "--stability", "--batches", "0"}).exit_code, 2);
}

TEST(Lanes, Table_EndsWithReference) {
  const ProgramResult result = Tessera({"lanes"});
  EXPECT_EQ(result.exit_code, 0);
  for (const LaneInfo& lane : Engine().Lanes()) EXPECT_TRUE(Contains(result.out, lane.name)) << lane.name;
  const nlohmann::json json = OnlyDocument(Tessera({"lanes", "--json"}));
  EXPECT_EQ(json["lanes"].size(), Engine().Lanes().size());
  EXPECT_EQ(json["lanes"].back()["isas"], nlohmann::json({"scalar"}));
  EXPECT_TRUE(Contains(result.out, "scalar"));
}

TEST(Lanes, Choice_IsByNameOrTheFirstThatIsThere) {
  Proves("R60");
  const nlohmann::json detected = OnlyDocument(Tessera({"lanes", "--json"}))["chosen"];
  EXPECT_EQ(detected["backend"], "cpu");
  EXPECT_EQ(detected["source"], "autodetect");
  EXPECT_TRUE(Contains(detected["reason"].get<std::string>(), "cuda: its device is missing")) << detected;
  const ProgramResult words = Tessera({"lanes", "--target", "h200"});
  EXPECT_TRUE(Contains(words.out, "a plain contract on h200 would run on cpu (autodetect)")) << words.out;
  const nlohmann::json named = OnlyDocument(Tessera({"lanes", "--lane", "reference", "--json"}))["chosen"];
  EXPECT_EQ(named["source"], "explicit");
  const ProgramResult gone = Tessera({"lanes", "--target", "h200", "--lane", "cuda"});
  EXPECT_EQ(gone.exit_code, 3) << "asked for by name, never another";
  // Where the lane is built, a machine lacks its GPU, or, as a plain contract is f32, it lacks kernels for that.
  EXPECT_TRUE(Contains(gone.err, "its device is missing") || Contains(gone.err, "its package is missing")) << gone.err;
  EXPECT_TRUE(Contains(Tessera({"lanes", "--target", "cpu", "--lane", "cuda"}).err, "its device is missing"));
}

TEST(Lanes, RoutedContract_SaysWhatIsSupportedWithPicks) {
  Proves("R35");
  const nlohmann::json routed = OnlyDocument(Tessera({"lanes", Example("routed.toml"), "--json"}))["support"];
  EXPECT_EQ(routed["cpu"]["local_window"], true);
  EXPECT_EQ(routed["cpu"]["general_doc_ids"], true);
  EXPECT_EQ(routed["cpu"]["valid_prefix"], true);
  EXPECT_FALSE(routed.contains("cuda")) << "a lane that refuses supports nothing";
  EXPECT_TRUE(Contains(Tessera({"lanes", Example("routed.toml")}).out, "documents yes"));
  EXPECT_FALSE(OnlyDocument(Tessera({"lanes", Example("causal.toml"), "--json"})).contains("support"));
}

TEST(Lanes, Moba_SaysWhichBackendItGetsAndWhy) {
  Proves("R59");
  const nlohmann::json flash = OnlyDocument(Tessera({"lanes", "--moba", "flash"}));
  EXPECT_EQ(flash["actual_backend"], "triton");
  EXPECT_EQ(flash["fallback_reason"], "flash_cute_runtime_unavailable");
  EXPECT_EQ(OnlyDocument(Tessera({"lanes", "--moba", " Auto "}))["requested_backend"], "triton");
  EXPECT_NE(Tessera({"lanes", "--moba", "cuda"}).exit_code, 0);
}

TEST(Receipt, Show_HasTheRecordOfItsPicks) {
  Proves("R59");
  const TemporaryFolder folder;
  const std::string file = folder.File("receipt.json");
  ASSERT_EQ(Tessera({"run", Example("routed.toml"), "--receipt", file}).exit_code, 0);
  const ProgramResult shown = Tessera({"receipt", "show", file});
  EXPECT_TRUE(Contains(shown.out, R"({"path":"exact_token","indexer":"routing","backend":"cpu")")) << shown.out;
}

TEST(Lanes, ContractOnTpu_IsSelectedByTheTable) {
  Proves("R49");
  const auto selected = [](const std::string& contract) {
    const ProgramResult result = Tessera({"lanes", contract, "--target", "v6e", "--json"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return OnlyDocument(result);
  };
  EXPECT_EQ(selected("causal:512:d64:bf16")["selected"], "splash");
  // Its scale is no power of two, which the stock kernel refuses.
  EXPECT_EQ(selected(Example("causal.toml"))["selected"], "xla_pallas");
  EXPECT_EQ(selected(Example("window_sink.toml"))["selected"], "xla_pallas");
  const nlohmann::json packed = selected(Example("packed.toml"));
  EXPECT_EQ(packed["selected"], "xla_pallas");
  EXPECT_NE(packed["rule"], "");
  EXPECT_GE(packed["decisions"].size(), Engine().Lanes().size());
  for (const nlohmann::json& decision : packed["decisions"]) {
    EXPECT_EQ(decision["accepted"].get<bool>(), decision["reason"] == "") << decision.dump();
  }
}

TEST(Receipt, TamperedWith_CheckExitsOne) {
  const TemporaryFolder folder;
  const std::string file = folder.File("receipt.json");
  ASSERT_EQ(Tessera(Packed("run", {"--receipt", file, "--exclude", "cpu"})).exit_code, 0);
  nlohmann::json json = ParseJson(ReadWhole(file));
  EXPECT_EQ(json["executed"], "reference");
  json["fallback_reason"] = "";  // although another lane was selected
  WriteWhole(file, json.dump());
  const ProgramResult result = Tessera({"receipt", "check", file});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.err.find("tessera: TSR-R005"), 0u) << result.err;
}

TEST(Demo, Runs_ChecksAndLeavesAReceipt) {
  const TemporaryFolder folder;
  const std::string file = folder.File("receipt.json");
  const ProgramResult result = Tessera({"demo", "--receipt", file});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  for (const char* part : {"██", "▒▒", "softcap", "passed", "receipt", "backward"}) {
    EXPECT_TRUE(Contains(result.out, part)) << part;
  }
  EXPECT_TRUE(Contains(result.out, file));
  EXPECT_LE(std::count(result.out.begin(), result.out.end(), '\n'), 60);
  EXPECT_EQ(Tessera({"receipt", "check", file}).exit_code, 0);
  EXPECT_EQ(folder.NumFiles(), 1u);
}

}  // namespace
}  // namespace tessera
