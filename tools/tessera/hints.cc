// See hints.h.
#include "hints.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "tessera/tessera.h"

namespace tessera::program {
namespace {

// Enough to know a file by; a text that is longer is not read again.
constexpr size_t kHeadBytes = size_t{1} << 20;

// Only a file can be looked at twice: a pipe's bytes are gone.
std::string HeadOf(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return {};
  std::ifstream file(path, std::ios::binary);
  std::string head(kHeadBytes, '\0');
  file.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  return head;
}

bool StartsWith(std::string_view text, std::string_view start) { return text.substr(0, start.size()) == start; }

// Eight bytes of length and then JSON.
bool IsTensors(std::string_view head) {
  return head.size() > 9 && head[8] == '{' && head[7] == '\0' && head[6] == '\0';
}

bool IsReceipt(std::string_view head) {
  return head.find("\"contract_key\"") != std::string_view::npos && head.find("\"executed\"") != std::string_view::npos;
}

std::string Hint(const std::string& head, FileUse given_for) {
  using namespace std::string_view_literals;
  if (StartsWith(head, "\x93NUMPY"sv)) {
    return "this is a NumPy array (.npy): write arrays with safetensors.numpy.save_file, by their names";
  }
  if (StartsWith(head, "PK\x03\x04"sv)) {
    return "this is a zip file, as .npz and .pt are: write arrays with safetensors' save_file, by their names";
  }
  if (StartsWith(head, "TSRPLAN"sv)) return "this is a plan: its name must end in .plan";
  const bool is_tensors = IsTensors(head);
  if (is_tensors && given_for == FileUse::kContract) {
    return "this is a safetensors file: give tensors with --inputs, and a batch with --batch";
  }
  if (is_tensors || head.size() >= kHeadBytes) return {};
  if (given_for != FileUse::kReceipt && IsReceipt(head))
    return "this is a receipt: tessera run --from-receipt FILE runs it again";
  if (given_for != FileUse::kBatch) {
    auto batch = ParseBatch(head);
    if (batch && *batch != Batch{}) return "this is a batch: give it with --batch, after the contract";
  }
  const auto names = [&](const char* word) { return head.find(word) != std::string::npos; };
  if (given_for != FileUse::kContract && names("version") && names("shape") && names("mask")) {
    return "this is a contract: it stands by itself, before the options";
  }
  return {};
}

}  // namespace

Error WithFileHint(Error error, const std::string& path, FileUse given_for) {
  const std::string hint = Hint(HeadOf(path), given_for);
  if (!hint.empty()) error.message += "; " + hint;
  return error;
}

}  // namespace tessera::program
