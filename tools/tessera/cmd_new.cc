// `tessera new`: a contract to start from, with every field said in a comment.
#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "program.h"

namespace tessera::program {
namespace {

struct Options {
  std::string file;
  std::string out;
  std::string mask = "causal";
  int64_t length = 8192;
  int64_t batch = 1;
  std::string heads = "8/2";
  int64_t dim = 128;
  std::string dtype = "bf16";
};

constexpr const char* kFooter =
    "A file that is there already is left as it is.\n\n"
    "Examples:\n"
    "  tessera new\n"
    "  tessera new packed.toml\n"
    "  tessera new --mask 'causal and documents' --length 4096 --heads 16/4 --out packed.toml";

// 8 or 8/2: query heads, and key heads where they are fewer.
struct Heads {
  int64_t query = 0;
  int64_t key = 0;
};

Result<Heads> ParseHeads(const std::string& text) {
  const auto number = [](const std::string& digits) -> int64_t {
    return NumberProblem(digits, {1, 999'999}).empty() ? std::stoll(digits) : 0;
  };
  const size_t slash = text.find('/');
  const Heads heads{number(text.substr(0, slash)), number(slash == std::string::npos ? text : text.substr(slash + 1))};
  if (heads.query == 0 || heads.key == 0) {
    return Fail(ErrorCode::kBadArgument, fmt::format("'{}' is no count of heads: 8, or 8/2 for 2 key heads", text),
                "--heads");
  }
  return heads;
}

// A TOML string that holds any expression.
std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + '"';
}

std::string ContractText(const Options& options, const Heads& heads) {
  return fmt::format(
      R"(# A contract: which tokens may attend to which, and how scores are formed. docs/contract.md says all of it.
version = 1

[shape]
batch = {}
q_len = {}
{:<26}# where keys are more or fewer than queries
num_q_heads = {}
{:<26}# must divide num_q_heads
dim_qk = {}
{:<26}# where values have another width
{:<26}# f32, bf16 or f16

[mask]
# Terms: full, causal, window(left, right), chunk(size), prefix(count), sink(count), sink(count, document), documents,
# documents(equal), valid, blocks, bitmap("file.npy"); joined by and, or and parentheses.
# documents, valid and blocks are filled in by a batch: tessera run THIS --batch BATCH.json
expr = {}
# heads = ["causal", ...] # instead of expr: one mask for each query head

[score]
# scale = 0.0884          # default 1/sqrt(dim_qk)
# softcap = 30.0          # default 0: off
# sink_logits = true      # one learnable logit for each query head
)",
      options.batch, options.length, fmt::format("# kv_len = {}", options.length), heads.query,
      fmt::format("num_kv_heads = {}", heads.key), options.dim, fmt::format("# dim_v = {}", options.dim),
      fmt::format("dtype = \"{}\"", options.dtype), Quoted(options.mask));
}

int WriteNew(Options options) {
  if (!options.out.empty() && !options.file.empty()) {
    return Report(Error{ErrorCode::kBadArgument, "two files are named, and one contract is written", "tessera new", {}},
                  false);
  }
  if (options.out.empty()) options.out = options.file;
  const Result<Heads> heads = ParseHeads(options.heads);
  if (!heads) return Report(heads.error(), false);
  const std::string text = ContractText(options, *heads);
  // What we hand out must be good, whatever was asked for; a bitmap's file is looked for in this folder.
  if (Status ok = DeclareBitmaps(text, "."); !ok) return Report(ok.error(), false);
  if (auto contract = TheEngine().Parse(text); !contract) return Report(contract.error(), false);
  if (options.out.empty()) {
    Print(text);
    return kGood;
  }
  // Somebody may have filled it in since; a pipe or a device has nothing to lose.
  std::error_code ignored;
  if (std::filesystem::is_regular_file(options.out, ignored)) {
    return Report(Error{ErrorCode::kFileWrite, "it is there already; give another name, or remove it", options.out, {}},
                  false);
  }
  if (auto written = WriteFile(options.out, text); !written) return Report(written.error(), false);
  Print(fmt::format("wrote {}; try: tessera explain {}\n", options.out, options.out));
  return kGood;
}

}  // namespace

void AddNew(Command& app, Action& action) {
  auto options = std::make_shared<Options>();
  Command* sub = app.AddCommand("new", "Write a commented contract to start from");
  sub->AddOption("--mask", options->mask, "The mask expression")->TypeName("EXPR")->ShowDefault();
  sub->AddNumber("--length", options->length, {1}, "Tokens of a row")->TypeName("N")->ShowDefault();
  sub->AddNumber("--batch", options->batch, {1}, "Rows")->TypeName("N")->ShowDefault();
  sub->AddOption("--heads", options->heads, "Query heads, or query/key heads")->TypeName("N[/M]")->ShowDefault();
  sub->AddNumber("--dim", options->dim, {1}, "Head dim")->TypeName("N")->ShowDefault();
  sub->AddOption("--dtype", options->dtype, "Type of the tensors")->OneOf({"f32", "bf16", "f16"})->ShowDefault();
  sub->AddOption("--out", options->out, "Write to this file; without it, to standard output")->Writes("FILE.toml");
  sub->AddOption("file", options->file, "The same as --out")->Writes("FILE.toml");
  sub->Footer(kFooter);
  sub->OnParsed([options, &action] { action = [options] { return WriteNew(*options); }; });
}

}  // namespace tessera::program
