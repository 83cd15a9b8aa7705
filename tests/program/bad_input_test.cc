// Bad input of every kind gets one message with a code, a non-zero exit, and leaves existing files as they were.
#include <fmt/format.h>
#include <sys/mount.h>

#include <random>

#include "program_test.h"
#include "support/seed.h"
#include "tessera/tessera.h"

namespace tessera {
namespace {

constexpr const char* kGoodContract = R"(version = 1
[shape]
q_len = 64
kv_len = 64
dim_qk = 8
dim_v = 8
[mask]
expr = "{}"
[tiles]
q = 16
kv = 16
reason = "a test"
)";

std::string ContractWith(const std::string& expr) {
  std::string text = kGoodContract;
  return text.replace(text.find("{}"), 2, expr);
}

// One message: it starts the output, has the code, and no second message or usage text follows.
void ExpectOneMessage(const ProgramResult& result, const std::string& code, int exit_code) {
  EXPECT_EQ(result.exit_code, exit_code) << result.err;
  EXPECT_EQ(result.err.find("tessera: " + code), 0u) << "wanted " << code << ", got: " << result.err;
  EXPECT_EQ(result.err.find("tessera: ", 1), std::string::npos) << result.err;
  EXPECT_EQ(result.err.find("Usage"), std::string::npos) << result.err;
  EXPECT_LT(result.err.size(), 2000u) << result.err;
  EXPECT_EQ(result.out, "");
}

class BadInput : public testing::Test {
 protected:
  // A file with this content, in the test's folder.
  std::string Put(const std::string& name, std::string_view bytes) {
    WriteWhole(folder_.File(name), bytes);
    return folder_.File(name);
  }
  std::string Contract(const std::string& expr = "causal") { return Put("good.toml", ContractWith(expr)); }

  // Runs with every output option the command has pointed at files that exist, and expects them untouched.
  void Expect(std::vector<std::string> arguments, const std::string& code, int exit_code = 2) {
    SCOPED_TRACE(testing::PrintToString(arguments));
    const bool is_run = arguments[0] == "run";
    const bool is_plan = arguments[0] == "plan";
    const std::string out = Put("old_out", "what was there");
    if (is_run || is_plan) arguments.insert(arguments.end(), {"--out", out});
    const size_t files = folder_.NumFiles();
    ExpectOneMessage(Tessera(arguments), code, exit_code);
    EXPECT_EQ(ReadWhole(out), "what was there");
    EXPECT_EQ(folder_.NumFiles(), files) << "a file was left behind";
  }

  TemporaryFolder folder_;
};

TEST_F(BadInput, Files_MissingOrADirectory) {
  for (const char* command : {"plan", "explain", "run", "verify", "lanes"}) {
    Expect({command, folder_.File("none.toml")}, "TSR-R002");
    Expect({command, folder_.path() + "/"}, "TSR-R002");
  }
  Expect({"bench", "planner", folder_.File("none.toml")}, "TSR-R002");
  Expect({"receipt", "show", folder_.File("none.json")}, "TSR-R002");
  Expect({"receipt", "check", folder_.path()}, "TSR-R002");
  Expect({"verify", folder_.File("none.plan")}, "TSR-R002");
  Expect({"explain", folder_.File("none.plan")}, "TSR-R002");
  Expect({"plan", Contract("documents"), "--batch", folder_.File("none.json")}, "TSR-R002");
  Expect({"run", Contract(), "--inputs", folder_.File("none.safetensors")}, "TSR-R002");
  Expect({"run", Contract(), "--inputs", folder_.path()}, "TSR-R002");
}

TEST_F(BadInput, Contract_NamesATermThatThisProgramHasNot) {
  Expect({"plan", Contract("causal and dilated@1(12, 4)")}, "TSR-C009");
  Expect({"plan", Contract("causal and dilated(12, 4)")}, "TSR-C004");
  for (const char* expr : {"dilated@1(12, 4)", "dilated(12, 4)"}) {
    EXPECT_NE(Tessera({"plan", Contract(expr)}).err.find("registered from C++"), std::string::npos) << expr;
    EXPECT_NE(Tessera({"plan", Contract(expr)}).err.find("docs/contract.md"), std::string::npos) << expr;
  }
}

TEST_F(BadInput, Contract_Malformed) {
  Proves("B10");  // an unknown field or term is refused, never taken and ignored
  for (const char* text : {"version = ", "[shape", "{\"version\": 1,", "{]", "\x01\x02\x03", ""}) {
    Expect({"plan", Put("bad.toml", text)}, *text == '\0' ? "TSR-C002" : "TSR-C001");
  }
  Expect({"plan", Put("bad.toml", "version = 1\n[shape]\nq_len = \"many\"\n")}, "TSR-C002");
  Expect({"plan", Put("bad.toml", ContractWith("causal") + "[extra]\nx = 1\n")}, "TSR-C002");
  Expect({"plan", Put("bad.json", R"({"version": 1, "shape": []})")}, "TSR-C002");
  for (const char* expr : {"causal and", "casual", "window(1)", "window(1, 2", "not causal", "(causal", "sink(x)"}) {
    Expect({"plan", Put("bad.toml", ContractWith(expr))}, "TSR-C004");
  }
  std::string no_reason = ContractWith("causal");
  no_reason.replace(no_reason.find("a test"), 6, "");
  Expect({"plan", Put("bad.toml", no_reason)}, "TSR-C003");
}

TEST_F(BadInput, MaskMistake_NamesFieldAndColumn) {
  const ProgramResult result = Tessera({"plan", Put("bad.toml", ContractWith("causal and casual"))});
  EXPECT_NE(result.err.find("mask.expr"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("column 12"), std::string::npos) << result.err;
}

TEST_F(BadInput, Contract_EveryViolationInOneMessage) {
  std::string text = ContractWith("causal");
  text.replace(text.find("q_len = 64"), 10, "q_len = -1");
  text.replace(text.find("dim_v = 8"), 9, "dim_v = 0");
  const ProgramResult result = Tessera({"plan", Put("bad.toml", text)});
  ExpectOneMessage(result, "TSR-C003", 2);
  EXPECT_NE(result.err.find("shape.q_len"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("shape.dim_v"), std::string::npos) << result.err;
}

TEST_F(BadInput, Batch_MalformedOrOfTheWrongShape) {
  const std::string contract = Contract("causal and documents");
  for (const char* text : {"", "{", "[1, 2]", "{\"doc_ids\": [[0, }"}) {
    Expect({"plan", contract, "--batch", Put("bad.json", text)}, "TSR-C006");
  }
  Expect({"plan", contract, "--batch", Put("bad.json", R"({"doc_ids": [[0, 0, 1]]})")}, "TSR-C007");
  Expect({"plan", contract}, "TSR-C007");
  Expect({"plan", Contract(), "--batch", Put("bad.json", R"({"valid_tokens": [3]})")}, "TSR-C007");
  Expect({"plan", Contract("valid"), "--batch", Put("bad.json", R"({"valid_tokens": [65]})")}, "TSR-C007");
  Expect({"plan", Contract("valid"), "--batch", Put("bad.safetensors", "neither tensors nor JSON")}, "TSR-C006");
  const std::string tensors = ToSafetensors({{"valid_tokens", Tensor::Zeros(ElementType::kI32, {1})}});
  EXPECT_EQ(Tessera({"plan", Contract("valid"), "--batch", Put("good.safetensors", tensors)}).exit_code, 0);
  Expect({"plan", Contract("valid"), "--batch", Put("cut.safetensors", tensors.substr(0, tensors.size() - 1))},
         "TSR-C006");
}

TEST_F(BadInput, Bitmap_MissingMalformedOrOfTheWrongShape) {
  const std::string contract = Contract("bitmap('mask.npy')");
  // The message may speak of the file or of the bitmap, but it is one message and says where.
  const auto code_of = [&] { return Tessera({"plan", contract}).err.substr(9, 8); };
  EXPECT_TRUE(code_of() == "TSR-C005" || code_of() == "TSR-R002") << Tessera({"plan", contract}).err;
  Expect({"plan", contract}, code_of());
  for (const std::string_view bytes :
       {std::string_view("not an array"), std::string_view("\x93NUMPY\x01\x00\xff\xff", 10), std::string_view("")}) {
    Put("mask.npy", bytes);
    EXPECT_TRUE(code_of() == "TSR-C005" || code_of() == "TSR-R004") << Tessera({"plan", contract}).err;
    Expect({"plan", contract}, code_of());
  }
  const std::string header = "{'descr': '|b1', 'fortran_order': False, 'shape': (3, 5), }";
  std::string npy("\x93NUMPY\x01\x00", 8);
  npy += static_cast<char>(header.size() + 1);
  npy += '\0';
  npy += header + "\n" + std::string(15, '\1');
  Put("mask.npy", npy);
  EXPECT_TRUE(code_of() == "TSR-C005" || code_of() == "TSR-C003") << Tessera({"plan", contract}).err;
  Expect({"plan", contract}, code_of());
}

TEST_F(BadInput, Inputs_MalformedOrOfTheWrongShape) {
  const std::string contract = Contract();
  const std::string huge_header = std::string("\xff\xff\xff\xff\xff\xff\xff\x7f", 8) + "{}";
  for (const std::string& bytes : {std::string("junk"), std::string(8, '\0'), huge_header, std::string()}) {
    Expect({"run", contract, "--inputs", Put("bad.safetensors", bytes)}, "TSR-R004");
  }
  auto parsed = ParseContract(ContractWith("causal"));
  ASSERT_TRUE(parsed);
  const TensorMap good = MakeInputs(*parsed, 1, false);
  const std::string bytes = ToSafetensors(good);
  Expect({"run", contract, "--inputs", Put("cut.safetensors", bytes.substr(0, bytes.size() - 1))}, "TSR-R004");

  TensorMap missing = good;
  missing.erase("k");
  Expect({"run", contract, "--inputs", Put("bad.safetensors", ToSafetensors(missing))}, "TSR-R001");
  TensorMap wrong = good;
  wrong["v"] = Tensor::Zeros(ElementType::kF32, {1, 1, 64, 9});
  Expect({"run", contract, "--inputs", Put("bad.safetensors", ToSafetensors(wrong))}, "TSR-R001");
  wrong["v"] = Tensor::Zeros(ElementType::kF16, {1, 1, 64, 8});
  Expect({"run", contract, "--inputs", Put("bad.safetensors", ToSafetensors(wrong))}, "TSR-R001");
  // Without `do` there is no backward.
  Expect({"run", contract, "--backward", "--inputs", Put("good.safetensors", bytes)}, "TSR-R001");
}

TEST_F(BadInput, Names_Unknown) {
  const std::string contract = Contract();
  Expect({"run", contract, "--lane", "gpu"}, "TSR-L001");
  Expect({"run", contract, "--exclude", "gpu"}, "TSR-L001");
  Expect({"verify", contract, "--lane", "gpu"}, "TSR-L001");
  for (const char* command : {"plan", "explain", "run", "verify", "lanes"}) {
    Expect({command, contract, "--target", "v9"}, "TSR-C008");
  }
  Expect({"plan", contract, "--disable", "guess"}, "TSR-P001");
  Expect({"plan", contract, "--disable", "pack"}, "TSR-P001");
  Expect({"explain", contract, "--dump", "guess"}, "TSR-P001");
  Expect({"verify", "no_such_case"}, "TSR-R008");
  ExpectOneMessage(Tessera({"run", contract}, {.env = {{"TESSERA_LANE", "gpu"}}}), "TSR-L001", 2);
  Expect({"run", contract, "--isa", "sse9"}, "TSR-L004");
  Expect({"verify", contract, "--isa", "sse9"}, "TSR-L004");
  Expect({"bench", "run", contract, "--isa", "sse9"}, "TSR-L004");
  EXPECT_EQ(Tessera({"demo", "--isa", "sse9"}).exit_code, 2);
  ExpectOneMessage(Tessera({"run", contract}, {.env = {{"TESSERA_ISA", "sse9"}}}), "TSR-L004", 2);
}

TEST_F(BadInput, Arguments_Wrong) {
  const std::string contract = Contract();
  for (const char* tile : {"16", "16x", "x16", "16x16x16", "16 x 16", "ax16", "16x16 "}) {
    Expect({"plan", contract, "--tile", tile}, "TSR-R007");
  }
  for (const char* tile : {"0x16", "-16x16", "16x99999999"}) Expect({"plan", contract, "--tile", tile}, "TSR-P002");
  for (const char* at : {"1", "1,", ",1", "1,2,3", "a,b", "64,0", "0,64", "-1,0"}) {
    Expect({"explain", contract, "--at", at}, "TSR-R007");
  }
  Expect({"explain", contract, "--head", "1"}, "TSR-R007");
  Expect({"explain", contract, "--batch-row", "-1"}, "TSR-R007");
  Expect({"run", contract, "--layout", "dthb"}, "TSR-R007");
  for (const char* threads : {"0", "-1"}) Expect({"run", contract, "--threads", threads}, "TSR-R007");
  Expect({"run", contract, "--seed", "one"}, "TSR-R007");
  Expect({"run", contract, "--seed", "1", "--inputs", "x.safetensors"}, "TSR-R007");
  Expect({"plan"}, "TSR-R007");
  Expect({"run"}, "TSR-R007");
  Expect({"explain"}, "TSR-R007");
  Expect({"verify"}, "TSR-R007");
  Expect({"bench"}, "TSR-R007");
  Expect({"receipt"}, "TSR-R007");
  Expect({"receipt", "eat", "x"}, "TSR-R007");
  Expect({"plan", contract, "--no-such-option"}, "TSR-R007");
  Expect({"plan", contract, "another"}, "TSR-R007");
  Expect({"dance"}, "TSR-R007");
  Expect({"--dance"}, "TSR-R007");
}

TEST_F(BadInput, Sizes_BeyondThisMachine) {
  std::string text = ContractWith("causal");
  text.replace(text.find("q_len = 64"), 10, "q_len = 1000000000\nnum_q_heads = 256");
  text.replace(text.find("kv_len = 64"), 11, "kv_len = 1000000000\nnum_kv_heads = 256");
  Expect({"run", Put("huge.toml", text)}, "TSR-R009");
  Expect({"verify", Put("huge.toml", text)}, "TSR-R009");
}

TEST_F(BadInput, Plan_TruncatedAnywhere) {
  const std::string plan = folder_.File("good.plan");
  ASSERT_EQ(Tessera({"plan", Contract("causal and window(9, 0)"), "--out", plan}).exit_code, 0);
  const std::string bytes = ReadWhole(plan);
  std::vector<size_t> lengths = {0, 1, 7, 8, 9, 15, 16, 31, 32, 63, 64, 127, 128, bytes.size() / 2, bytes.size() - 1};
  const uint64_t seed = PrintedSeed();
  std::mt19937 random(seed);
  for (int i = 0; i < 40; ++i) lengths.push_back(random() % bytes.size());
  for (const size_t length : lengths) {
    if (length >= bytes.size()) continue;
    SCOPED_TRACE(fmt::format("{} of {} bytes", length, bytes.size()));
    const std::string cut = Put("cut.plan", bytes.substr(0, length));
    ExpectOneMessage(Tessera({"verify", cut}), "TSR-P005", 1);
    ExpectOneMessage(Tessera({"explain", cut}), "TSR-P005", 2);
  }
  ExpectOneMessage(Tessera({"plan", Put("junk.plan", "version = 1\n")}), "TSR-P005", 2);
}

TEST_F(BadInput, Receipt_MalformedOrInconsistent) {
  for (const char* text : {"", "{", "[]", "{}", "{\"version\": 1}", "null"}) {
    const std::string file = Put("bad.json", text);
    Expect({"receipt", "check", file}, "TSR-R005", 1);
    Expect({"receipt", "show", file}, "TSR-R005", 2);
  }
}

TEST_F(BadInput, Json_TheErrorIsADocumentToo) {
  const ProgramResult result = Tessera({"plan", Put("bad.toml", ContractWith("casual")), "--json"});
  EXPECT_EQ(result.exit_code, 2);
  const nlohmann::json json = OnlyDocument(result);
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json["error"]["code"], "TSR-C004");
  // A name may hold any bytes; the document stays JSON.
  const ProgramResult odd = Tessera({"plan", folder_.File("\xff\"\n\x01.toml"), "--json"});
  EXPECT_EQ(OnlyDocument(odd)["error"]["code"], "TSR-R002");
}

TEST_F(BadInput, Output_WhereNothingCanBeWritten) {
  const std::string contract = Contract();
  const size_t files = folder_.NumFiles();
  for (const std::string& place : {folder_.File("no_folder/x"), folder_.path(), std::string("/proc/tessera_test")}) {
    ExpectOneMessage(Tessera({"plan", contract, "--out", place}), "TSR-R003", 2);
    EXPECT_EQ(Tessera({"run", contract, "--out", place}).err.find("tessera: TSR-R003"), 0u) << place;
    EXPECT_EQ(Tessera({"run", contract, "--receipt", place}).err.find("tessera: TSR-R003"), 0u) << place;
  }
  EXPECT_EQ(folder_.NumFiles(), files);
}

TEST_F(BadInput, Output_FolderWithoutPermission) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write anywhere";
  const std::string contract = Contract();
  const TemporaryFolder locked;
  std::filesystem::permissions(locked.path(), std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  ExpectOneMessage(Tessera({"plan", contract, "--out", locked.File("x.plan")}), "TSR-R003", 2);
  std::filesystem::permissions(locked.path(), std::filesystem::perms::owner_all);
}

TEST_F(BadInput, Output_DiskFull) {
  const std::string contract = Contract();
  const std::string old = Put("old", "what was there");
  const size_t files = folder_.NumFiles();
  // A limit on the size of written files makes write() fail halfway, as a full disk does.
  const ProgramOptions full{.max_file_bytes = 100};
  ExpectOneMessage(Tessera({"plan", contract, "--out", old}, full), "TSR-R003", 2);
  EXPECT_EQ(Tessera({"run", contract, "--out", old}, full).exit_code, 2);
  EXPECT_EQ(Tessera({"run", contract, "--receipt", old}, full).exit_code, 2);
  EXPECT_EQ(ReadWhole(old), "what was there");
  EXPECT_EQ(folder_.NumFiles(), files) << "a temporary file was left behind";
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  ExpectOneMessage(Tessera({"plan", contract, "--out", "/dev/full"}), "TSR-R003", 2);
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full")) << "a device was replaced by a file";
  const ProgramResult result = Tessera({"plan", contract, "--json"}, {.out_path = "/dev/full"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("tessera: TSR-R003 at standard output"), std::string::npos) << result.err;
}

TEST_F(BadInput, Output_SmallFileSystemFull) {
  const TemporaryFolder disk;
  if (mount("tmpfs", disk.path().c_str(), "tmpfs", 0, "size=16k") != 0) GTEST_SKIP() << "may not mount a file system";
  const std::string old = disk.File("old.safetensors");
  WriteWhole(old, "what was there");
  const ProgramResult result =
      Tessera({"run", Example("cross.toml"), "--batch", Example("cross_batch.json"), "--backward", "--out", old});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.err.find("tessera: TSR-R003"), 0u) << result.err;
  EXPECT_TRUE(ReadWhole(old) == "what was there");
  EXPECT_EQ(disk.NumFiles(), 1u);
  umount(disk.path().c_str());
}

}  // namespace
}  // namespace tessera
