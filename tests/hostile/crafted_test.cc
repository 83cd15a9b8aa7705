// Files whose numbers lie: counts, lengths, offsets and nesting made to overflow, to allocate or to recurse without
// end. Each is refused with the limit in words and next to no memory.
#include <cstring>

#include "hostile_files.h"
#include "plan/layout.h"

namespace tessera {
namespace {

std::string Repeat(std::string_view text, size_t times) {
  std::string out;
  out.reserve(text.size() * times);
  for (size_t i = 0; i < times; ++i) out += text;
  return out;
}

std::string Npy(const std::string& shape, std::string_view data) {
  const std::string header = "{'descr': '|b1', 'fortran_order': False, 'shape': " + shape + ", }";
  std::string file("\x93NUMPY\x02\x00", 8);
  const auto size = static_cast<uint32_t>(header.size());
  file.append(reinterpret_cast<const char*>(&size), 4);
  return file + header + std::string(data);
}

std::string Tensors(uint64_t header_bytes, std::string_view rest) {
  std::string file(8, '\0');
  std::memcpy(file.data(), &header_bytes, 8);
  return file + std::string(rest);
}
std::string Tensors(std::string_view header, std::string_view data) {
  return Tensors(uint64_t{header.size()}, std::string(header) + std::string(data));
}

class Crafted : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* expr : {"causal", "valid", "bitmap('mask.npy')"}) {
      WriteWhole(folder_.File(std::string(expr).substr(0, 5) + ".toml"), SmallContract(expr));
    }
  }
  // Puts the bytes where the command reads them and expects one message with the code and the words.
  void Expect(const std::string& name, const std::string& bytes, const std::vector<std::string>& command,
              const std::string& code, const std::string& words) {
    SCOPED_TRACE(testing::PrintToString(command) + " of " + words);
    WriteWhole(folder_.File(name), bytes);
    const ProgramResult result = RunHere(folder_.path(), command);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_EQ(result.err.rfind("tessera: " + code, 0), 0u) << result.err;
    EXPECT_NE(result.err.find(words), std::string::npos) << result.err;
    EXPECT_LT(result.err.size(), 4000u);
  }
  void ExpectContract(const std::string& text, const std::string& code, const std::string& words) {
    Expect("crafted", text, {"plan", "crafted"}, code, words);
  }
  void ExpectBatch(const std::string& bytes, const std::string& words) {
    Expect("crafted", bytes, {"plan", "valid.toml", "--batch", "crafted"}, "TSR-C006", words);
  }
  void ExpectInputs(const std::string& bytes, const std::string& words) {
    Expect("crafted", bytes, {"run", "causa.toml", "--inputs", "crafted"}, "TSR-R004", words);
  }
  void ExpectBitmap(const std::string& bytes, const std::string& words) {
    Expect("mask.npy", bytes, {"plan", "bitma.toml"}, "TSR-C005", words);
  }

  TemporaryFolder folder_;
};

TEST_F(Crafted, ContractNesting_IsBounded) {
  for (const size_t depth : {size_t{100}, size_t{1'000'000}}) {
    ExpectContract("x = " + Repeat("[", depth), "TSR-C001", "TOML");
    ExpectContract("x = " + Repeat("{a=", depth), "TSR-C001", "TOML");
    ExpectContract("a" + Repeat(".a", depth) + " = 1\n", "TSR-C001", "more than 16 parts");
    ExpectContract("[a" + Repeat(".a", depth) + "]\n", "TSR-C001", "more than 16 parts");
    ExpectContract("{\"x\": " + Repeat("[", depth), "TSR-C001", "nested deeper than 64");
    ExpectContract(Repeat("{\"x\":", depth), "TSR-C001", "nested deeper than 64");
  }
}

TEST_F(Crafted, MaskText_IsBounded) {
  ExpectContract(SmallContract(Repeat("(", 65) + "causal" + Repeat(")", 65)), "TSR-C004", "more than 64 nested");
  ExpectContract(SmallContract(Repeat("(", 60'000)), "TSR-C004", "more than 64 nested");
  ExpectContract(SmallContract("causal" + Repeat(" or causal", 256)), "TSR-C004", "more than 256 terms");
  ExpectContract(SmallContract(Repeat("x", 65'537)), "TSR-C004", "65537 bytes, expected at most 65536");
  ExpectContract(SmallContract(Repeat("x", 60'000)), "TSR-C004", "column 1");
  ExpectContract(SmallContract("window(99999999999999999999, 0)"), "TSR-C004", "1073741824");
  ExpectContract(SmallContract("bitmap('" + Repeat("x", 60'000) + "')"), "TSR-C005", "unusable");
}

TEST_F(Crafted, LongNames_AreCutInMessages) {
  ExpectContract(Repeat("k", 1'000'000) + " = 1\n", "TSR-C002", "kkk");
  ExpectContract("{\"" + Repeat("k", 1'000'000) + "\": 1}", "TSR-C002", "kkk");
  ExpectBatch("{\"" + Repeat("k", 1'000'000) + "\": 1}", "unknown field");
  ExpectBatch("{\"valid_tokens\": [1], " + Repeat("k", 1'000'000), "parse error");
  ExpectBatch("{\"valid_tokens\": \"" + Repeat("k", 1'000'000), "parse error");
  ExpectInputs(Tensors("{\"" + Repeat("k", 1'000'000) + "\":{}}", ""), "needs dtype");
}

TEST_F(Crafted, ContractBytes_AreBounded) {
  Expect("crafted", Repeat("#", (size_t{1} << 24) + 1), {"plan", "crafted"}, "TSR-R002", "more than the 16777216");
}

TEST_F(Crafted, BatchNesting_IsBounded) {
  for (const size_t depth : {size_t{10}, size_t{1'000'000}}) {
    ExpectBatch("{\"doc_ids\": " + Repeat("[", depth), "more than 4 dimensions");
    ExpectBatch(Repeat("[", depth), "must be an object");
    ExpectBatch("{\"picks\": " + Repeat("{\"picks\":", depth), "picks");
  }
  ExpectBatch("{\"valid_tokens\": [1e99]}", "integers");
  ExpectBatch("{\"valid_tokens\": [18446744073709551616]}", "integers");
  ExpectBatch("{\"doc_ids\": [[4294967296]]}", "int32");
}

TEST_F(Crafted, TensorHeaders_AreHeldToTheFile) {
  ExpectInputs(Tensors(uint64_t{1} << 63, "{}"), "16777216 are allowed");
  ExpectInputs(Tensors(UINT64_MAX, "{}"), "16777216 are allowed");
  ExpectInputs(Tensors(uint64_t{1} << 24, "{}"), "2 are left");
  ExpectInputs(Tensors(R"({"q":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,8]}})", "12345678"),
               "too large");
  ExpectInputs(
      Tensors(
          R"({"q":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"k":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
          "123456789012"),
      "neither overlap nor leave gaps");
  ExpectInputs(Tensors(R"({"q":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", "12345678"), "says bytes 8 to 0");
  ExpectInputs(Tensors(R"({"q":{"dtype":"F32","shape":[2],"data_offsets":[0,9223372036854775807]}})", "12345678"),
               "8 bytes of data");
  ExpectInputs(Tensors(R"({"q":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,2],"data_offsets":[0,8]}})", "12345678"),
               "more than 8 entries");
  std::string many = "{";
  for (int i = 0; i < 5000; ++i) many += fmt::format("{}\"{}\":{{}}", i == 0 ? "" : ",", i);
  ExpectInputs(Tensors(many + "}", ""), "more than 4096 tensors");
  ExpectInputs(Tensors("{\"q\":" + Repeat("{\"a\":", 1'000'000), ""), "unknown field");
  ExpectInputs(Tensors("{\"q\":{\"shape\":" + Repeat("[", 1'000'000), ""), "");
}

TEST_F(Crafted, BitmapShapes_AreHeldToTheFile) {
  ExpectBitmap(Npy("(4294967296, 4294967296)", "1"), "too large");
  ExpectBitmap(Npy("(3037000500, 3037000500, 3037000500)", "1"), "too large");
  ExpectBitmap(Npy("(99999999999999999999, 1)", "1"), "too large");
  ExpectBitmap(Npy("(1073741824, 4)", "1"), "its shape needs 4294967296 bytes of data, 1 are there");
  ExpectBitmap(Npy("(" + Repeat("1, ", 20'000) + ")", "1"), "20000 dimensions");
  ExpectBitmap(Npy("(" + Repeat("1, ", 30'000) + ")", "1"), "65536 are allowed");
  std::string long_header = Npy("(1, 1)", "\1");
  std::memset(long_header.data() + 8, 0xff, 4);
  ExpectBitmap(long_header, "4294967295 bytes; 65536 are allowed");
}

// Each count and offset of a plan's header made huge, one at a time, with the fingerprint made right again.
TEST_F(Crafted, PlanHeaderCounts_AreHeldToTheFile) {
  const std::string path = folder_.File("good.plan");
  ASSERT_EQ(RunHere(folder_.path(), {"plan", "causa.toml", "--out", "good.plan"}).exit_code, 0);
  const std::string good = ReadWhole(path);
  const size_t first = offsetof(plan::Header, batch);
  int refused = 0;
  for (size_t at = first; at < sizeof(plan::Header); at += 8) {
    for (const uint64_t value : {uint64_t{1} << 63, UINT64_MAX, uint64_t{1} << 32, uint64_t{0x0fffffffffffffff}}) {
      std::vector<std::byte> bytes(good.size());
      std::memcpy(bytes.data(), good.data(), good.size());
      std::memcpy(bytes.data() + at, &value, 8);
      const Hash128 fingerprint = plan::FingerprintOf(bytes);
      std::memcpy(bytes.data() + offsetof(plan::Header, fingerprint), &fingerprint, sizeof(fingerprint));
      const Result<Plan> plan = Plan::FromBytes(std::move(bytes));
      if (plan) continue;  // capacities may be large: they only bound
      ++refused;
      EXPECT_EQ(plan.error().code, ErrorCode::kPlanMalformed);
    }
  }
  EXPECT_GT(refused, 100);
  std::string longer = good;
  const uint64_t total = uint64_t{1} << 40;
  std::memcpy(longer.data() + offsetof(plan::Header, total_bytes), &total, 8);
  Expect("long.plan", longer, {"explain", "long.plan"}, "TSR-P005", "the header says 1099511627776 bytes");
}

TEST_F(Crafted, ReceiptTrees_AreBounded) {
  const auto expect = [&](const std::string& text, const std::string& words) {
    Expect("crafted", text, {"receipt", "show", "crafted"}, "TSR-R005", words);
  };
  for (const size_t depth : {size_t{10}, size_t{1'000'000}}) {
    expect(Repeat("[", depth), "nested deeper than 8 levels");
    expect(Repeat("{\"a\":", depth), "nested deeper than 8 levels");
  }
  expect("{\"timings\": [0" + Repeat(",0", 1'000'000) + "]}", "more than 65536 values");
  expect("{\"ok\": true, \"ok\": false}", "appears twice");
}

}  // namespace
}  // namespace tessera
