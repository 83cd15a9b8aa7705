// What the tests of hostile files share: one good file for every reader, and the command that reads it.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <string>
#include <vector>

#include "program/program_test.h"
#include "tessera/tessera.h"

namespace tessera {

constexpr unsigned kMaxSeconds = 120;  // a program that hangs is ended, and its test fails
// Enough for the program, also under a sanitizer, and not for a file of many GiB.
constexpr int64_t kMaxPeakBytes = int64_t{1} << 30;
constexpr const char* kTemporaryName = ".tessera-";  // how every temporary name begins

// The program in a folder, ended when it hangs, and shown to have taken no memory to speak of.
inline ProgramResult RunHere(const std::string& folder, std::vector<std::string> arguments,
                             ProgramOptions options = {}) {
  options.folder = folder;
  options.max_seconds = kMaxSeconds;
  const ProgramResult result = Tessera(std::move(arguments), options);
  EXPECT_NE(result.exit_code, 128 + SIGALRM) << "it hung";
  EXPECT_LT(result.exit_code, 128) << "it was ended by a signal";
  EXPECT_LT(result.peak_bytes, kMaxPeakBytes);
  return result;
}

struct FileReader {
  std::string name;                  // of the file, in the test's folder
  std::vector<std::string> command;  // reads it
  std::string unreadable_code;       // of a file that cannot be read
};

inline std::string SmallContract(const std::string& expr) {
  return fmt::format(
      "version = 1\n[shape]\nq_len = 40\ndim_qk = 4\n[mask]\nexpr = \"{}\"\n[tiles]\nq = 16\nkv = 16\nreason = \"a "
      "test\"\n",
      expr);
}

// Fills the folder with a good file of every kind.
inline std::vector<FileReader> MakeGoodFiles(const TemporaryFolder& folder) {
  const auto put = [&](const std::string& name, std::string_view bytes) { WriteWhole(folder.File(name), bytes); };
  put("causal.toml", SmallContract("causal"));
  put("valid.toml", SmallContract("valid"));
  put("bits.toml", SmallContract("bitmap('mask.npy')"));
  put("contract.toml", SmallContract("causal"));
  auto contract = ParseContract(SmallContract("causal"));
  EXPECT_TRUE(contract.has_value());
  if (!contract) return {};
  put("contract.json", ToJson(*contract));
  put("batch.json", R"({"valid_tokens": [7]})");
  put("batch.safetensors", ToSafetensors({{"valid_tokens", Tensor::Zeros(ElementType::kI32, {1})}}));
  put("qkv.safetensors", ToSafetensors(MakeInputs(*contract, 1, false)));
  const auto make = [&](std::vector<std::string> command) {
    const ProgramResult result = RunHere(folder.path(), std::move(command));
    EXPECT_EQ(result.exit_code, 0) << result.err;
  };
  make({"explain", "causal.toml", "--dense", "mask.npy"});
  make({"plan", "causal.toml", "--out", "good.plan"});
  make({"run", "causal.toml", "--receipt", "receipt.json"});
  return {
      {"contract.toml", {"plan", "contract.toml"}, "TSR-R002"},
      {"contract.json", {"plan", "contract.json"}, "TSR-R002"},
      {"batch.json", {"plan", "valid.toml", "--batch", "batch.json"}, "TSR-R002"},
      {"batch.safetensors", {"plan", "valid.toml", "--batch", "batch.safetensors"}, "TSR-R002"},
      {"mask.npy", {"plan", "bits.toml"}, "TSR-C005"},
      {"qkv.safetensors", {"run", "causal.toml", "--inputs", "qkv.safetensors"}, "TSR-R002"},
      {"good.plan", {"explain", "good.plan"}, "TSR-R002"},
      {"receipt.json", {"receipt", "show", "receipt.json"}, "TSR-R002"},
      {"receipt.json", {"receipt", "check", "receipt.json"}, "TSR-R002"},
      {"receipt.json", {"receipt", "diff", "receipt.json", "receipt.json"}, "TSR-R002"},
      {"receipt.json", {"run", "--from-receipt", "receipt.json"}, "TSR-R002"},
  };
}

struct FileWriter {
  std::vector<std::string> command;  // the name of the file to write comes after it
  std::function<bool(const std::string& bytes)> is_good;
};

inline std::vector<FileWriter> FileWriters() {
  return {
      {{"plan", "causal.toml", "--out"},
       [](const std::string& bytes) {
         const auto* begin = reinterpret_cast<const std::byte*>(bytes.data());
         return Plan::FromBytes({begin, begin + bytes.size()}).has_value();
       }},
      {{"run", "causal.toml", "--out"}, [](const std::string& bytes) { return ParseSafetensors(bytes).has_value(); }},
      {{"run", "causal.toml", "--receipt"}, [](const std::string& bytes) { return ParseReceipt(bytes).has_value(); }},
      {{"explain", "causal.toml", "--dense"}, [](const std::string& bytes) { return bytes.size() == 128 + 40 * 40; }},
  };
}

}  // namespace tessera
