// docs/error_codes.md against the program: every code it lists is shown to be what the program answers to the mistake
// that the page describes, or is one that no command line can cause, with the test that does.
#include <functional>
#include <set>

#include "program_test.h"
#include "support/npy_file.h"
#include "tessera/tessera.h"

namespace tessera {
namespace {

// Codes that no command line leads to, and where else they are tested.
const std::map<std::string, std::string> kElsewhere = {
    {"TSR-P004", "tests/planner: takes a plan of gigabytes"},
    {"TSR-P007", "tests/lanes: the program makes its own plans"},
    {"TSR-P008", "tests/planner: a defect"},
    {"TSR-P009", "tests/planner: the program always has inputs"},
    {"TSR-P010", "tests/routing: a batch's own shapes are TSR-C007"},
    {"TSR-X003", "tests/export"},
    {"TSR-L008", "tests/xla: needs a plugin's file"},
    {"TSR-L009", "tests/xla: needs a plugin"},
    {"TSR-L010", "tests/xla: needs a plugin"},
    {"TSR-L011", "tests/cuda: needs a driver"},
    {"TSR-L012", "tests/cuda: needs a driver"},
    {"TSR-L013", "tests/bridge: needs a JAX"},
    {"TSR-R006", "tests/program/commands_test.cc: needs a wrong result"},
    {"TSR-A001", "tests/capi"},
    {"TSR-M001", "tests/mosaic"},
    {"TSR-M002", "tests/mosaic"},
    {"TSR-M003", "tests/mosaic"},
    {"TSR-M004", "tests/mosaic"},
    {"TSR-M005", "tests/mosaic"},
    {"TSR-S006", "tests/shard: needs a plugin"},
    {"TSR-S007", "tests/xla_store: needs a program that was kept for another layout"},
    {"TSR-S008", "tests/shard: needs a device that failed"},
    {"TSR-S021", "tests/context: the program makes its plan itself"},
    {"TSR-S022", "tests/context/command_test.cc: needs a plugin"},
    {"TSR-T001", "tests/model: a run file's own are TSR-T101"},
    {"TSR-T002", "tests/model: a run's rows are checked before"},
    {"TSR-T003", "tests/model: a checkpoint's tensors are checked before"},
    {"TSR-T105", "tests/train: needs a second process"},
    {"TSR-T106", "tests/train: needs a plugin"},
};

std::string Contract(const std::string& expr, const std::string& shape = "", const std::string& more = "") {
  return "version = 1\n[shape]\nq_len = 32\ndim_qk = 8\n" + shape + "[mask]\nexpr = \"" + expr +
         "\"\n[tiles]\nq = 16\nkv = 16\nreason = \"a test\"\n" + more;
}

class Codes : public testing::Test {
 protected:
  std::string Put(const std::string& name, const std::string& bytes) const {
    WriteWhole(folder_.File(name), bytes);
    return folder_.File(name);
  }
  // The code of the first message.
  std::string CodeOf(const std::vector<std::string>& arguments) const {
    const ProgramResult result = Tessera(arguments, {.folder = folder_.path()});
    EXPECT_NE(result.exit_code, 0) << testing::PrintToString(arguments);
    const size_t at = result.err.find("TSR-");
    return at == std::string::npos ? result.err : result.err.substr(at, 8);
  }
  TemporaryFolder folder_;
};

TEST_F(Codes, EveryCodeOfThePage_IsWhatTheProgramAnswers) {
  const std::string good = Put("good.toml", Contract("causal"));
  const std::string receipt = folder_.File("r.json");
  ASSERT_EQ(Tessera({"run", good, "--receipt", receipt}).exit_code, 0);
  const std::string plan = folder_.File("p.plan");
  ASSERT_EQ(Tessera({"plan", good, "--out", plan}).exit_code, 0);
  using Arguments = std::vector<std::string>;
  const auto plan_of = [&](const std::string& text) { return Arguments{"plan", Put("x.toml", text)}; };
  const auto with_batch = [&](const std::string& expr, const std::string& batch) {
    return Arguments{"plan", Put("x.toml", Contract(expr)), "--batch", Put("x.json", batch)};
  };
  const auto bitmap = [&](const std::string& bytes, const std::string& digest = "") {
    Put("mask.npy", bytes);
    return plan_of(Contract("bitmap('mask.npy'" + digest + ")"));
  };
  const auto npy = [](const std::string& shape, size_t count) {
    return NpyBytes("|b1", shape, std::string(count, '\1'));
  };
  const std::string bytes = ReadWhole(plan);
  std::multimap<std::string, std::function<Arguments()>> mistakes = {
      {"TSR-C001", [&] { return plan_of("version = "); }},
      {"TSR-C001", [&] { return plan_of("{\"version\": 1,"); }},
      {"TSR-C002", [&] { return plan_of(Contract("causal", "wrong = 1\n")); }},
      {"TSR-C002", [&] { return plan_of("version = 1\n"); }},
      {"TSR-C003", [&] { return plan_of(Contract("causal", "num_q_heads = 3\nnum_kv_heads = 2\n")); }},
      {"TSR-C003", [&] { return plan_of(Contract("causal", "", "[score]\nsoftcap = -1.0\n")); }},
      {"TSR-C004", [&] { return plan_of(Contract("casual")); }},
      {"TSR-C005", [&] { return plan_of(Contract("bitmap('none.npy')")); }},
      {"TSR-C005", [&] { return bitmap("no array"); }},
      {"TSR-C005", [&] { return bitmap(npy("(32, 31)", 992)); }},
      {"TSR-C005", [&] { return bitmap(npy("(3, 32, 32)", 3072)); }},
      {"TSR-C005", [&] { return bitmap(npy("(32, 32)", 1024), ", '00000000000000000000000000000000'"); }},
      {"TSR-C006", [&] { return with_batch("valid", "{"); }},
      {"TSR-C006", [&] { return with_batch("valid", R"({"valid_token": 3})"); }},
      {"TSR-C006", [&] { return with_batch("valid", R"({"valid_tokens": 3, "valid_tokens": 3})"); }},
      {"TSR-C006", [&] { return with_batch("valid", R"({"valid_tokens": "many"})"); }},
      {"TSR-C007", [&] { return with_batch("valid", R"({"valid_tokens": 33})"); }},
      {"TSR-C007", [&] { return with_batch("valid", R"({"valid_slots": 3, "base_block_tokens": 16})"); }},
      {"TSR-C007", [&] { return with_batch("causal", R"({"valid_tokens": 3})"); }},
      {"TSR-C007", [&] { return with_batch("blocks", R"({"picks": {"block_tokens": 16, "blocks": [[[[0]]]]}})"); }},
      {"TSR-C007",
       [&] { return with_batch("blocks", R"({"picks": {"block_tokens": 16, "blocks": [[[[2]], [[0]]]]}})"); }},
      {"TSR-C008",
       [&] {
         return Arguments{"plan", good, "--target", "mars"};
       }},
      {"TSR-C009", [&] { return plan_of(Contract("own@1(3)")); }},
      {"TSR-P001",
       [&] {
         return Arguments{"plan", good, "--disable", "guess"};
       }},
      {"TSR-P002",
       [&] {
         return Arguments{"plan", good, "--tile", "0x16"};
       }},
      {"TSR-P003", [&] { return plan_of(Contract("causal", "", "[capacity]\nwidth = 1\n")); }},
      {"TSR-P005",
       [&] {
         return Arguments{"explain", Put("cut.plan", bytes.substr(0, bytes.size() / 2))};
       }},
      {"TSR-P006",
       [&] {
         // The version follows the eight bytes that plans begin with.
         std::string other = bytes;
         other[8] = static_cast<char>(other[8] + 1);
         return Arguments{"explain", Put("other.plan", other)};
       }},
      {"TSR-P011",
       [&] { return with_batch("blocks", R"({"picks": {"block_tokens": 16, "blocks": [[[[1, 1]], [[0, 1]]]]}})"); }},
      {"TSR-X001", [&] { return Arguments{"export", good, "--to", "splash", "--tile", "24x24"}; }},
      {"TSR-X002",
       [&] {
         return Arguments{"export", Put("x.toml", Contract("blocks")), "--to", "flex"};
       }},
      {"TSR-L001",
       [&] {
         return Arguments{"run", good, "--lane", "nosuch"};
       }},
      {"TSR-L001",
       [&] {
         return Arguments{"run", good, "--exclude", "nosuch"};
       }},
      {"TSR-L001", [&] { return Arguments{"ledger", "decide", good, "--ledger", receipt, "--custom-lane", "nosuch"}; }},
      {"TSR-L002",
       [&] {
         return Arguments{"run", good, "--lane", "call_jax"};
       }},
      {"TSR-L003",
       [&] {
         return Arguments{"run", good, "--target", "v6e", "--strict"};
       }},
      {"TSR-L004",
       [&] {
         return Arguments{"run", good, "--isa", "nosuch"};
       }},
      {"TSR-L005",
       [&] {
         return Arguments{"ledger", "show", "--ledger", receipt};
       }},
      {"TSR-L006",
       [&] { return Arguments{"ledger", "add", "--ledger", "l", "--custom", receipt, "--default", receipt}; }},
      {"TSR-L007",
       [&] {
         std::string text = Contract("window(3, 0)");
         text.replace(text.find("q_len = 32"), 10, "q_len = 1048577");
         return Arguments{"run", Put("x.toml", text), "--class"};
       }},
      {"TSR-R001",
       [&] {
         EXPECT_TRUE(WriteSafetensors(folder_.File("q"), {{"q", Tensor::Zeros(ElementType::kF32, {1, 1, 32, 8})}}));
         return Arguments{"run", good, "--inputs", "q"};
       }},
      {"TSR-R002",
       [&] {
         return Arguments{"plan", folder_.File("none")};
       }},
      {"TSR-R002",
       [&] {
         return Arguments{"plan", folder_.path()};
       }},
      {"TSR-R003",
       [&] {
         return Arguments{"plan", good, "--out", folder_.File("none/x")};
       }},
      {"TSR-R004",
       [&] {
         return Arguments{"run", good, "--inputs", good};
       }},
      {"TSR-R005",
       [&] {
         return Arguments{"receipt", "show", good};
       }},
      {"TSR-R007",
       [&] {
         return Arguments{"plan", good, "--out", good};
       }},
      {"TSR-R007",
       [&] {
         return Arguments{"plan", good, "--out", ""};
       }},
      {"TSR-R008",
       [&] {
         return Arguments{"verify", "nosuch"};
       }},
      {"TSR-R009",
       [&] {
         std::string text = Contract("causal", "num_q_heads = 256\n");
         text.replace(text.find("q_len = 32"), 10, "q_len = 1000000000");
         return Arguments{"run", Put("x.toml", text)};
       }},
      {"TSR-R010",
       [&] {
         return Arguments{"run", "--from-receipt", receipt, Put("y.toml", Contract("full"))};
       }},
  };
  const auto pack = [&](const std::string& text) {
    return Arguments{"rows", "pack", Put("d.jsonl", text), "--length", "4", "--out", "packed"};
  };
  const std::vector<std::pair<std::string, std::string>> documents = {{"TSR-D001", "{\"tokens\": [1"},
                                                                      {"TSR-D002", "{\"token\": [1]}"},
                                                                      {"TSR-D003", "{\"tokens\": [-1]}"},
                                                                      {"TSR-D004", "{\"tokens\": [1, 2, 3, 4, 5]}"}};
  for (const auto& [code, text] : documents) mistakes.emplace(code, [pack, text = text] { return pack(text); });
  mistakes.emplace("TSR-D005", [&] {
    EXPECT_TRUE(WriteSafetensors(folder_.File("no_rows"), {{"q", Tensor::Zeros(ElementType::kF32, {1})}}));
    return Arguments{"rows", "show", folder_.File("no_rows")};
  });
  mistakes.emplace("TSR-D006", [&] {
    const Arguments good_pack = pack("{\"tokens\": [1, 2]}");
    EXPECT_EQ(Tessera(good_pack, {.folder = folder_.path()}).exit_code, 0);
    return good_pack;
  });
  const auto shard = [&](const std::string& mesh, const std::string& text, const std::string& specs = "") {
    Arguments arguments = {"shard", "check", Put("params.toml", text), "--mesh", mesh};
    if (!specs.empty()) arguments.insert(arguments.end(), {"--specs", Put("specs.toml", specs)});
    return arguments;
  };
  const std::string tensors = "version = 1\n[parameters]\nw = \"f32[6, 4]\"\n";
  const std::string spec = "version = 1\n[[spec]]\nname = \"w\"\naxes = [\"model\", \"none\"]\n";
  mistakes.emplace("TSR-S001", [&] { return shard("data=0", tensors, spec); });
  mistakes.emplace("TSR-S001", [&] { return shard("data=2,data=2", tensors, spec); });
  mistakes.emplace("TSR-S003", [&] { return shard("model=2", "version = 1\n[parameters]\nw = \"f99[6]\"\n"); });
  mistakes.emplace("TSR-S004", [&] { return shard("model=2", tensors, spec + "[[spec]]\nname = \"x\"\naxes = []\n"); });
  mistakes.emplace("TSR-S005", [&] { return shard("model=2", tensors); });
  mistakes.emplace("TSR-S005", [&] { return shard("model=4", tensors, spec); });
  mistakes.emplace("TSR-S001", [&] { return Arguments{"shard", "run", "causal:64", "--mesh", "data=2"}; });
  mistakes.emplace("TSR-S002", [&] { return Arguments{"shard", "run", "causal:64", "--mesh", "context=1"}; });
  mistakes.emplace("TSR-S020",
                   [&] { return Arguments{"shard", "run", "causal:64", "--mesh", "context=2", "--cut", "diagonal"}; });
  const auto train = [&](const std::string& files) {
    return Put("run.toml",
               "version = 1\n[model]\nvocab = 256\nlayers = 1\nwidth = 16\nnum_q_heads = 1\nhead_dim = 8\n"
               "mlp_width = 16\nrow_tokens = 64\n[data]\nfiles = [\"" +
                   files + "\"]\n[train]\nsteps = 1\n");
  };
  mistakes.emplace("TSR-T101", [&] { return Arguments{"train", Put("run.toml", "version = 1\n")}; });
  mistakes.emplace("TSR-T102", [&] { return Arguments{"train", train("*.nosuch")}; });
  mistakes.emplace("TSR-T103", [&] {
    std::filesystem::create_directory(folder_.File("damaged"));
    Put("damaged/checkpoint-00000001.safetensors", "half");
    return Arguments{"train", train("*.toml"), "--out", "damaged", "--resume"};
  });
  mistakes.emplace("TSR-T104", [&] {
    std::filesystem::create_directory(folder_.File("there"));
    Put("there/checkpoint-00000001.safetensors", "");
    return Arguments{"train", train("*.toml"), "--out", "there"};
  });
  std::set<std::string> listed;
  std::istringstream page(ReadWhole(std::string(TESSERA_SOURCE_DIR) + "/docs/error_codes.md"));
  for (std::string line; std::getline(page, line);) {
    if (line.rfind("## TSR-", 0) == 0) listed.insert(line.substr(3));
  }
  for (const auto& [code, arguments] : mistakes) {
    EXPECT_EQ(listed.count(code), 1u) << code;
    const std::vector<std::string> given = arguments();
    EXPECT_EQ(CodeOf(given), code) << testing::PrintToString(given);
  }
  for (const std::string& code : listed) {
    EXPECT_EQ(mistakes.count(code) > 0, kElsewhere.count(code) == 0) << code << " needs a mistake here, or a reason";
  }
}

}  // namespace
}  // namespace tessera
