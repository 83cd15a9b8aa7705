// Receipts through the program: a run is repeated bit for bit or refused with every difference, two receipts are
// compared in words, and every failure leaves a receipt that says where.
#include <fmt/format.h>

#include <functional>

#include "program_test.h"
#include "tessera/tessera.h"

namespace tessera {
namespace {

using nlohmann::json;

bool Contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

class ReceiptFiles : public testing::Test {
 protected:
  void SetUp() override {
    Put("doc.toml", R"(version = 1
[shape]
q_len = 40
dim_qk = 4
[mask]
expr = "causal and documents"
[tiles]
q = 16
kv = 16
reason = "a test"
)");
    std::string ids;
    for (int i = 0; i < 40; ++i) ids += fmt::format("{}{}", i == 0 ? "" : ",", i / 17);
    Put("batch.json", "{\"doc_ids\": [[" + ids + "]]}");
    auto contract = ReadContract(File("doc.toml"));
    ASSERT_TRUE(contract) << ToText(contract.error());
    contract_ = *contract;
    ASSERT_TRUE(WriteSafetensors(File("qkv.safetensors"), MakeInputs(contract_, 3, false)));
  }

  std::string File(const std::string& name) const { return folder_.File(name); }
  void Put(const std::string& name, std::string_view bytes) const { WriteWhole(File(name), bytes); }
  // Runs in the test's own folder, so that receipts name files as a user would.
  ProgramResult Do(std::vector<std::string> arguments, ProgramOptions options = {}) const {
    options.folder = folder_.path();
    return Tessera(std::move(arguments), options);
  }
  // Leaves r.json, the receipt of a good run.
  void MakeReceipt(std::vector<std::string> more = {"--inputs", "qkv.safetensors"}) const {
    std::vector<std::string> arguments = {"run", "doc.toml", "--batch", "batch.json", "--receipt", "r.json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProgramResult result = Do(arguments);
    ASSERT_EQ(result.exit_code, 0) << result.err;
  }
  void Edit(const std::function<void(json&)>& change) const {
    json receipt = ParseJson(ReadWhole(File("r.json")));
    change(receipt);
    Put("r.json", receipt.dump());
  }
  // Every line of the refusal, and nothing was run or written.
  std::string Refusal(std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments = {"run", "--from-receipt", "r.json", "--out", "again.safetensors"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProgramResult result = Do(arguments);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_EQ(result.err.rfind("tessera: TSR-R010 at r.json", 0), 0u) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_FALSE(std::filesystem::exists(File("again.safetensors")));
    return result.err;
  }

  TemporaryFolder folder_;
  Contract contract_;
};

TEST_F(ReceiptFiles, Repeat_GivesTheSameOutputs) {
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"--inputs", "qkv.safetensors"},
        {"--seed", "18446744073709551615", "--backward", "--max", "--layout", "bthd"},
        {"--tile", "16x8", "--disable", "balance", "--exclude", "cuda", "--exclude", "cpu", "--threads", "3"},
        {"--target", "v6e", "--lane", "reference", "--widen-class"},
        {"--lane", "cpu", "--strict", "--backward", "--threads", "2"},
        {"--isa", "scalar"}}) {
    MakeReceipt(more);
    const ProgramResult again =
        Do({"run", "--from-receipt", "r.json", "--receipt", "s.json", "--out", "o.safetensors"});
    ASSERT_EQ(again.exit_code, 0) << again.err;
    const json first = ParseJson(ReadWhole(File("r.json")));
    const json second = ParseJson(ReadWhole(File("s.json")));
    EXPECT_TRUE(Contains(again.out, "the same outputs as in r.json: " + first["output_digest"].get<std::string>()));
    EXPECT_EQ(Digest(*ReadSafetensors(File("o.safetensors"))), first["output_digest"].get<std::string>());
    EXPECT_EQ(first["options"], second["options"]);
    const ProgramResult diff = Do({"receipt", "diff", "r.json", "s.json"});
    EXPECT_EQ(diff.exit_code, 0) << diff.out;
    EXPECT_EQ(diff.out.rfind("nothing that matters changed\ntimings\n", 0), 0u) << diff.out;
  }
}

TEST_F(ReceiptFiles, Repeat_EveryDifferenceIsALine) {
  MakeReceipt();
  Edit([](json& r) {
    r["versions"]["tessera"] = "9.9.9";
    r["versions"]["plan"] = "7";
    r["versions"]["driver"] = "550.1";
    r["options"]["precision"] = "fast";
    r["options"]["tile"] = "big";
    r["target"] = "v9";
    r["options"]["target"] = "v9";
    r["contract_key"] = std::string(32, '1');
    r["batch_digest"] = std::string(32, '2');
    r["input_digest"] = std::string(32, '3');
  });
  const std::string text = Refusal();
  for (const char* line : {"\n  versions.tessera: 9.9.9 then, 0.1.0 here\n", "\n  versions.plan: 7 then, 0 here\n",
                           "\n  versions.driver: 550.1 then, nothing here\n", "\n  options.precision: \"fast\" then",
                           "\n  options.tile: \"big\" then", "\n  target: v9 then, no target of that name here\n",
                           "\n  contract_key: 11111111111111111111111111111111 then, ",
                           "\n  batch_digest: 22222222222222222222222222222222 then, ",
                           "\n  input_digest: 33333333333333333333333333333333 then, "}) {
    EXPECT_TRUE(Contains(text, line)) << "no line" << line << "in " << text;
  }
}

TEST_F(ReceiptFiles, Repeat_FilesThatAreGoneOrOthersAreNamed) {
  MakeReceipt();
  Put("other.safetensors", ToSafetensors(MakeInputs(contract_, 4, false)));
  Put("other.json", R"({"valid_tokens": [3]})");
  const std::string other = Refusal({"--inputs", "other.safetensors", "--batch", "other.json"});
  EXPECT_TRUE(Contains(other, "\n  batch_digest: ")) << other;
  EXPECT_TRUE(Contains(other, " in other.json here")) << other;
  EXPECT_TRUE(Contains(other, " from file other.safetensors here")) << other;
  std::filesystem::rename(File("batch.json"), File("moved.json"));
  std::filesystem::rename(File("qkv.safetensors"), File("moved.safetensors"));
  const std::string gone = Refusal();
  EXPECT_TRUE(Contains(gone, "\n  batch_source: TSR-R002 at batch.json: ")) << gone;
  EXPECT_TRUE(Contains(gone, "\n  input_source: TSR-R002 at qkv.safetensors: ")) << gone;
  // Files that only moved are the same files.
  const ProgramResult moved =
      Do({"run", "--from-receipt", "r.json", "--batch", "moved.json", "--inputs", "moved.safetensors"});
  EXPECT_EQ(moved.exit_code, 0) << moved.err;
  Put("moved.safetensors", "junk");
  EXPECT_TRUE(Contains(Refusal({"--batch", "moved.json", "--inputs", "moved.safetensors"}), "input_source: TSR-R004"));
}

TEST_F(ReceiptFiles, Repeat_BitmapsAreFoundBesideTheContract) {
  std::filesystem::create_directory(File("sub"));
  ASSERT_EQ(Do({"explain", "doc.toml", "--batch", "batch.json", "--dense", "sub/mask.npy"}).exit_code, 0);
  std::string text = ReadWhole(File("doc.toml"));
  Put("sub/bits.toml", text.replace(text.find("\"causal and documents\""), 22, "\"bitmap('mask.npy')\""));
  const ProgramResult first = Do({"run", "sub/bits.toml", "--receipt", "r.json"});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(Do({"run", "--from-receipt", "r.json"}).exit_code, 0);
  EXPECT_EQ(Do({"receipt", "check", "r.json"}).exit_code, 0);
  std::filesystem::rename(File("sub"), File("elsewhere"));
  EXPECT_TRUE(Contains(Refusal(), "\n  contract_text: TSR-C005")) << Refusal();
  EXPECT_EQ(Do({"receipt", "check", "r.json"}).exit_code, 0) << "a bitmap may be elsewhere";
  const ProgramResult moved = Do({"run", "elsewhere/bits.toml", "--from-receipt", "r.json"});
  EXPECT_EQ(moved.exit_code, 0) << moved.err;
  // Another contract is not the one the receipt speaks of.
  EXPECT_TRUE(Contains(Refusal({"doc.toml"}), "\n  contract_key: "));
  std::string bits = ReadWhole(File("elsewhere/mask.npy"));
  bits.back() = bits.back() == '\0' ? '\1' : '\0';
  Put("elsewhere/mask.npy", bits);
  const ProgramResult changed = Do({"run", "elsewhere/bits.toml", "--from-receipt", "r.json"});
  EXPECT_EQ(changed.exit_code, 2);
  EXPECT_TRUE(Contains(changed.err, "TSR-R010") && Contains(changed.err, "contract_text: TSR-C005")) << changed.err;
}

TEST_F(ReceiptFiles, Repeat_LanesAndPlansThatDiffer) {
  MakeReceipt();
  const std::string good = ReadWhole(File("r.json"));
  Edit([](json& r) {  // a receipt of another build, which had the XLA lane
    r["versions"]["tessera"] = "0.2.0";
    r["executed"] = "xla_chunked";
    r["fallback_reason"] = "dispatch.excluded";
  });
  const std::string lanes = Refusal();
  EXPECT_TRUE(Contains(lanes, "\n  executed: xla_chunked ran then; here it says no, xla.no_plugin")) << lanes;
  Put("r.json", good);
  Edit([](json& r) { r["isa"] = "sse9"; });
  const std::string isas = Refusal();
  EXPECT_TRUE(Contains(isas, "\n  isa: sse9 then, ")) << isas;
  Put("r.json", good);
  Edit([](json& r) {
    for (const char* key : {"plan_fingerprint", "mask_digest", "class_key"}) r[key] = std::string(32, 'f');
  });
  const std::string plan = Refusal();
  for (const char* key : {"plan_fingerprint", "mask_digest", "class_key"}) {
    EXPECT_TRUE(Contains(plan, fmt::format("\n  {}: {} then, ", key, std::string(32, 'f')))) << plan;
  }
  // Other workers plan otherwise, but the receipt says for how many it was: worth a note.
  MakeReceipt();
  const json first = ParseJson(ReadWhole(File("r.json")));
  const ProgramResult threads = Do({"run", "--from-receipt", "r.json", "--threads", "7"});
  EXPECT_EQ(threads.exit_code, 0) << threads.err;
  EXPECT_TRUE(Contains(threads.out, "note: threads: ")) << threads.out;
  // A lane that would run here and did not then: the one that ran is asked for by name.
  Edit([](json& r) {
    for (json& d : r["decisions"]) {
      if (d["lane"] == "call_jax")
        d = {{"lane", "call_jax"}, {"step", "contract"}, {"accepted", true}, {"reason", ""}, {"detail", ""}};
    }
  });
  const ProgramResult noted = Do({"run", "--from-receipt", "r.json", "--json"});
  EXPECT_EQ(noted.exit_code, 0) << noted.err;
  EXPECT_TRUE(Contains(noted.err, "note: call_jax on the contract: yes then, no, dispatch.only_by_name here"))
      << noted.err;
  EXPECT_EQ(OnlyDocument(noted)["requested"], "cpu");
  EXPECT_EQ(OnlyDocument(noted)["output_digest"], first["output_digest"]);
}

TEST_F(ReceiptFiles, Repeat_OtherOutputsAreAnErrorThatNamesBothDigests) {
  MakeReceipt();
  const json first = ParseJson(ReadWhole(File("r.json")));
  const std::string real = first["output_digest"];
  const std::string kernel = first["kernel"];
  Edit([](json& r) {
    r["output_digest"] = std::string(32, '0');
    r["kernel"] = "another_kernel";
  });
  const ProgramResult result = Do({"run", "--from-receipt", "r.json", "--receipt", "s.json", "--out", "o.safetensors"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_TRUE(Contains(result.err, "output_digest: " + std::string(32, '0') + " then, " + real + " here"))
      << result.err;
  EXPECT_TRUE(Contains(result.err, "kernel: another_kernel then, " + kernel + " here")) << result.err;
  EXPECT_FALSE(std::filesystem::exists(File("o.safetensors")));
  const json receipt = ParseJson(ReadWhole(File("s.json")));
  EXPECT_EQ(receipt["failed_at"], "check");
  EXPECT_EQ(Do({"receipt", "check", "s.json"}).exit_code, 0);
}

TEST_F(ReceiptFiles, Repeat_OfAFailedRunOrABrokenReceipt) {
  ASSERT_EQ(Do({"run", "doc.toml", "--receipt", "r.json"}).exit_code, 2);
  const std::string text = Refusal();
  EXPECT_TRUE(Contains(text, "\n  ok: its run failed at batch")) << text;
  Edit([](json& r) { r["ok"] = true; });
  const ProgramResult broken = Do({"run", "--from-receipt", "r.json"});
  EXPECT_EQ(broken.exit_code, 2);
  EXPECT_EQ(broken.err.rfind("tessera: TSR-R005 at r.json", 0), 0u) << broken.err;
}

TEST_F(ReceiptFiles, Repeat_TakesNoOptionThatTheReceiptHas) {
  MakeReceipt();
  for (const std::vector<std::string>& more : {std::vector<std::string>{"--seed", "1"},
                                               {"--backward"},
                                               {"--lane", "reference"},
                                               {"--target", "v6e"},
                                               {"--tile", "8x8"},
                                               {"--strict"},
                                               {"--max"},
                                               {"--layout", "bthd"}}) {
    std::vector<std::string> arguments = {"run", "--from-receipt", "r.json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProgramResult result = Do(arguments);
    EXPECT_EQ(result.exit_code, 2) << more[0];
    EXPECT_EQ(result.err.rfind("tessera: TSR-R007", 0), 0u) << result.err;
  }
  // The environment is only a default, and the receipt is more.
  EXPECT_EQ(Do({"run", "--from-receipt", "r.json"}, {.env = {{"TESSERA_LANE", "cuda"}}}).exit_code, 0);
  const ProgramResult isa = Do({"run", "--from-receipt", "r.json"}, {.env = {{"TESSERA_ISA", "sse9"}}});
  EXPECT_EQ(isa.exit_code, 0) << isa.err;
  EXPECT_FALSE(Contains(isa.out, "note: isa")) << "what was asked then is asked again: " << isa.out;
}

TEST_F(ReceiptFiles, Diff_SaysInWordsWhatChanged) {
  MakeReceipt();
  std::filesystem::rename(File("r.json"), File("a.json"));
  MakeReceipt({"--seed", "2", "--backward"});
  const ProgramResult result = Do({"receipt", "diff", "a.json", "r.json"});
  EXPECT_EQ(result.exit_code, 1);
  size_t at = 0;
  for (const char* part :
       {"things that matter changed\n", "inputs\n  input_digest: ", "outputs\n  output_digest: ",
        "plan\n  tiles_backward.empty: 0 became ", "options\n  backward: false became true\n", "timings\n"}) {
    const size_t found = result.out.find(part, at);
    ASSERT_NE(found, std::string::npos) << part << " after " << at << " in\n" << result.out;
    at = found;
  }
  const json document = OnlyDocument(Do({"receipt", "diff", "a.json", "r.json", "--json"}));
  EXPECT_EQ(document["same"], false);
  EXPECT_EQ(document["changes"][0]["group"], "inputs");
  EXPECT_EQ(OnlyDocument(Do({"receipt", "diff", "a.json", "a.json", "--json"})),
            (json{{"same", true}, {"changes", json::array()}}));
  EXPECT_EQ(Do({"receipt", "diff", "a.json", "none.json"}).exit_code, 2);
  EXPECT_EQ(Do({"receipt", "diff", "a.json"}).exit_code, 2);
}

TEST_F(ReceiptFiles, EveryFailure_LeavesAReceiptThatSaysWhere) {
  Put("capacity.toml", ReadWhole(File("doc.toml")) + "[capacity]\nwidth = 1\n");
  Put("huge.toml",
      "version = 1\n[shape]\nq_len = 1000000000\nnum_q_heads = 256\ndim_qk = 64\n[mask]\nexpr = \"causal\"\n");
  Put("bad.safetensors", ToSafetensors({{"q", Tensor::Zeros(ElementType::kF32, {1})}}));
  Put("junk", "junk");
  const std::string none = "none";
  const struct {
    std::vector<std::string> arguments;
    const char* failed_at;
    const char* code;
    int exit_code;
  } cases[] = {
      {{"none.toml"}, "contract", "TSR-R002", 2},
      {{"junk"}, "contract", "TSR-C001", 2},
      {{"doc.toml", "--target", "v9"}, "request", "TSR-C008", 2},
      {{"doc.toml", "--tile", "big"}, "request", "TSR-R007", 2},
      {{"doc.toml", "--batch", "batch.json", "--lane", "flash"}, "request", "TSR-L001", 2},
      {{"doc.toml", "--batch", "none"}, "read", "TSR-R002", 2},
      {{"doc.toml", "--batch", "junk"}, "read", "TSR-C006", 2},
      {{"doc.toml", "--batch", "batch.json", "--inputs", "none"}, "read", "TSR-R002", 2},
      {{"doc.toml", "--batch", "batch.json", "--inputs", "junk"}, "read", "TSR-R004", 2},
      {{"huge.toml"}, "read", "TSR-R009", 2},
      {{"doc.toml", "--batch", "batch.json", "--inputs", "bad.safetensors"}, "inputs", "TSR-R001", 2},
      {{"doc.toml", "--batch", "batch.json", "--lane", "cuda"}, "decide", "TSR-L002", 3},
      {{"doc.toml", "--batch", "batch.json", "--strict", "--target", "h200"}, "decide", "TSR-L003", 3},
      {{"doc.toml", "--batch", "batch.json", "--exclude", "reference", "--exclude", "cpu"}, "decide", "TSR-L002", 3},
      {{"doc.toml"}, "batch", "TSR-C007", 2},
      {{"capacity.toml", "--batch", "batch.json"}, "plan", "TSR-P003", 2},
      {{"doc.toml", "--batch", "batch.json", "--disable", "guess"}, "plan", "TSR-P001", 2},
      {{"doc.toml", "--batch", "batch.json", "--disable", "transpose", "--backward"}, "bind", "TSR-P007", 2},
      {{"doc.toml", "--batch", "batch.json", "--out", "no/such/folder"}, "write", "TSR-R003", 2},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(testing::PrintToString(c.arguments));
    Put("old.safetensors", "what was there");
    std::vector<std::string> arguments = {"run", "--receipt", "r.json", "--json"};
    arguments.insert(arguments.end(), c.arguments.begin(), c.arguments.end());
    if (std::string(c.failed_at) != "write") arguments.insert(arguments.end(), {"--out", "old.safetensors"});
    std::filesystem::remove(File("r.json"));
    const ProgramResult result = Do(arguments);
    EXPECT_EQ(result.exit_code, c.exit_code) << result.err;
    EXPECT_EQ(result.err.rfind(std::string("tessera: ") + c.code, 0), 0u) << result.err;
    const json receipt = ParseJson(ReadWhole(File("r.json")));
    ASSERT_TRUE(receipt.is_object());
    EXPECT_EQ(receipt, OnlyDocument(result));
    EXPECT_EQ(receipt["ok"], false);
    EXPECT_EQ(receipt["failed_at"], c.failed_at);
    EXPECT_TRUE(Contains(receipt["error"], c.code)) << receipt["error"];
    EXPECT_TRUE(Contains(result.err, receipt["error"])) << receipt["error"];
    EXPECT_EQ(receipt["contract_text"] == "", std::string(c.failed_at) == "contract");
    EXPECT_EQ(ReadWhole(File("old.safetensors")), "what was there");
    const ProgramResult check = Do({"receipt", "check", "r.json"});
    EXPECT_EQ(check.exit_code, 0) << check.err;
    EXPECT_TRUE(Contains(Do({"receipt", "show", "r.json"}).out, c.code));
  }
}

TEST_F(ReceiptFiles, OutAndReceipt_InOnePlaceAreRefused) {
  for (const char* receipt : {"x", "./x", "sub/../x"}) {
    const ProgramResult result = Do({"run", "doc.toml", "--batch", "batch.json", "--out", "x", "--receipt", receipt});
    EXPECT_EQ(result.exit_code, 2) << receipt;
    EXPECT_TRUE(Contains(result.err, "TSR-R007") && Contains(result.err, "same file")) << result.err;
    EXPECT_FALSE(std::filesystem::exists(File("x")));
  }
}

// The run failed and the receipt cannot be written either: both are said, and the run's exit status stands.
TEST_F(ReceiptFiles, ReceiptThatCannotBeWritten_IsSaidToo) {
  const ProgramResult result =
      Do({"run", "doc.toml", "--batch", "batch.json", "--exclude", "cpu", "--strict", "--receipt", "no/such/folder"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_TRUE(Contains(result.err, "TSR-L003") && Contains(result.err, "TSR-R003")) << result.err;
}

}  // namespace
}  // namespace tessera
