// `tessera run --from-receipt`: asks again for exactly what a receipt's run was asked for. What could change a bit of
// the outputs and is not the same here is a difference, and any difference is a refusal; docs/receipts.md has the list.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>

#include "run_files.h"
#include "shorthand.h"

namespace tessera::program {
namespace {

constexpr std::string_view kFile = "file ";
constexpr std::string_view kSeed = "seed ";

bool StartsWith(std::string_view text, std::string_view start) { return text.substr(0, start.size()) == start; }

std::string ThenAndHere(const std::string& then, const std::string& here) {
  return fmt::format("{} then, {} here", then.empty() ? "nothing" : then, here.empty() ? "nothing" : here);
}

// An error as one line: what is wrong, with its code.
std::string OneLine(const Error& error) {
  std::string text = ToText(error);
  for (size_t at = text.find('\n'); at != std::string::npos; at = text.find('\n')) {
    text.replace(at, text.find_first_not_of("\n ", at) - at, "; ");
  }
  return text;
}

bool HasIsa(const LaneInfo& lane, const std::string& isa) {
  return std::find(lane.isas.begin(), lane.isas.end(), isa) != lane.isas.end();
}

template <class Number>
bool ReadNumber(std::string_view text, Number* out) {
  const char* end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, *out);
  return read.ec == std::errc() && read.ptr == end && !text.empty();
}

class Preparation {
 public:
  Preparation(Receipt receipt, RunArguments& arguments, RunFiles& files) : arguments_(arguments), files_(files) {
    repeat_.receipt = std::move(receipt);
  }

  Repeat Prepare() {
    if (!receipt_.ok) {
      Differ("ok", fmt::format("its run failed at {}, so there are no outputs to repeat; it said: {}",
                               receipt_.failed_at, receipt_.error.substr(0, receipt_.error.find('\n'))));
    }
    CompareVersions();
    if (receipt_.runtime_mode == "compile-only") {
      Differ("runtime_mode", "its programs were compiled and none was run, so there are no outputs to repeat");
      return std::move(repeat_);
    }
    if (receipt_.runtime_mode == kEmitted) {
      Differ("runtime_mode", "its programs were emitted and nothing was run, so there are no outputs to repeat");
      return std::move(repeat_);
    }
    if (!receipt_.class_request.request.empty()) {
      Differ(
          "class_request",
          fmt::format("its run was that of a request ({}) padded to its class, and neither the request's contract nor "
                      "its batch is in the receipt: run the request again with --class",
                      receipt_.class_request.request));
      return std::move(repeat_);
    }
    if (!receipt_.ok) return std::move(repeat_);
    if (receipt_.output_digest == kNotTaken) {
      Differ("output_digest", "not taken then, so there is nothing to compare the outputs with");
    }
    ReadOptions();
    ReadTarget();
    ReadContract();
    ReadBatchAgain();
    ReadInputsAgain();
    CompareLanes();
    CompareIsas();
    ComparePlans();
    return std::move(repeat_);
  }

 private:
  void Differ(std::string field, std::string text) {
    repeat_.differences.push_back({std::move(field), std::move(text)});
  }

  void CompareVersions() {
    const std::map<std::string, std::string> here = Versions();
    for (const auto& [name, version] : receipt_.versions) {
      const auto found = here.find(name);
      const std::string now = found == here.end() ? "" : found->second;
      if (version != now) Differ("versions." + name, ThenAndHere(version, now));
    }
    for (const auto& [name, version] : here) {
      if (receipt_.versions.count(name) == 0) Differ("versions." + name, ThenAndHere("", version));
    }
  }

  // Every option is known and means something here; one this version does not have could have meant anything. What was
  // asked for then is what is asked for again.
  void ReadOptions() {
    RunOptions& run = arguments_.run;
    const std::optional<int64_t> threads_asked = run.threads;
    auto then = OptionsOf(receipt_);
    if (!then) {
      for (const Violation& violation : then.error().violations) Differ(violation.field, violation.expected);
      return;
    }
    run = std::move(*then);
    run.digests = true;
    if (const auto workers = receipt_.options.find("workers"); workers != receipt_.options.end()) {
      if (!ReadNumber(workers->second, &workers_)) Differ("options.workers", workers->second);
    }
    if (run.lane != receipt_.requested) Differ("options.lane", ThenAndHere(receipt_.requested, run.lane));
    if (!run.forward) Differ("options.forward", "a backward alone, from results this receipt does not have");
    if (threads_asked && threads_asked != run.threads) {
      if (run.threads) Note(fmt::format("threads: {} then, {} asked for", *run.threads, *threads_asked));
      run.threads = threads_asked;
    }
  }

  void ReadTarget() {
    auto target = FindTarget(receipt_.target);
    if (!target) return Differ("target", ThenAndHere(receipt_.target, "no target of that name"));
    // The plan is balanced for a number of workers, which for the target cpu is the machine's.
    if (workers_ > 0 && workers_ != target->workers) {
      Note(fmt::format("workers of {}: {} then, {} here; planned for {} again", target->name, workers_, target->workers,
                       workers_));
      target->workers = workers_;
    }
    files_.target = std::move(*target);
  }

  // The receipt's own text, with bitmaps looked for beside the contract's file, which may have moved.
  void ReadContract() {
    RunOptions& run = arguments_.run;
    const std::string& given = arguments_.problem.contract;
    run.contract_source = given.empty() ? receipt_.contract_source : SourceOf(given);
    std::string folder = ".";
    if (StartsWith(run.contract_source, kFile)) {
      folder = std::filesystem::path(run.contract_source.substr(kFile.size())).parent_path().string();
    }
    if (!given.empty()) CompareContractFile(given);
    auto contract = ParseContract(receipt_.contract_text, folder.empty() ? "." : folder);
    if (!contract) return Differ("contract_text", OneLine(contract.error()));
    const std::string key = ContractKey(*contract).value_or("");
    if (key != receipt_.contract_key) Differ("contract_key", ThenAndHere(receipt_.contract_key, key));
    files_.contract = std::move(*contract);
  }

  void CompareContractFile(const std::string& path) {
    auto contract = ReadContractArgument(path);
    if (!contract) return Differ("contract_source", OneLine(contract.error()));
    const std::string key = ContractKey(*contract).value_or("");
    if (key != receipt_.contract_key) Differ("contract_key", ThenAndHere(receipt_.contract_key, key + " in " + path));
  }

  void ReadBatchAgain() {
    BatchArguments given = arguments_.problem.batch;
    const std::string& source = receipt_.batch_source;
    if (given.IsEmpty()) given = BatchArgumentsOf(source);
    if (given.IsEmpty() && !source.empty()) {
      return Differ("batch_source", fmt::format("its batch was {}: give it with --batch", source));
    }
    arguments_.run.batch_source = SourceOf(given);
    // Documents in arguments are spread over the contract's rows.
    if (!files_.contract && given.file.empty() && !given.IsEmpty()) return;  // said already
    auto batch = ReadBatchArguments(given, files_.contract ? *files_.contract : Contract{});
    if (!batch) return Differ("batch_source", OneLine(batch.error()));
    const std::string digest = BatchDigest(*batch);
    if (digest != receipt_.batch_digest) {
      return Differ("batch_digest",
                    ThenAndHere(receipt_.batch_digest, given.file.empty() ? digest : digest + " in " + given.file));
    }
    files_.batch = std::move(*batch);
  }

  void ReadInputsAgain() {
    std::string& path = arguments_.inputs;
    const std::string& source = receipt_.input_source;
    const bool is_seed = path.empty() && StartsWith(source, kSeed);
    if (path.empty() && StartsWith(source, kFile)) path = source.substr(kFile.size());
    arguments_.run.input_source = path.empty() ? source : "file " + path;
    if (is_seed && !ReadNumber(std::string_view(source).substr(kSeed.size()), &arguments_.seed)) {
      return Differ("input_source", fmt::format("\"{}\" is not a seed", source));
    }
    if (path.empty() && !is_seed) {
      return Differ("input_source", source.empty() ? "it does not say where its inputs came from: give --inputs"
                                                   : fmt::format("its inputs were {}: give --inputs", source));
    }
    if (!files_.contract) return;  // said already, and nobody knows what to make or to allow
    auto inputs = ReadInputs(*files_.contract,
                             {arguments_.inputs, arguments_.seed, arguments_.run.backward, arguments_.run.layout});
    if (!inputs) return Differ("input_source", OneLine(inputs.error()));
    const std::string digest = Digest(*inputs);
    if (digest != receipt_.input_digest) {
      return Differ("input_digest",
                    ThenAndHere(receipt_.input_digest, digest + " from " + arguments_.run.input_source));
    }
    files_.inputs = std::move(*inputs);
  }

  // The lane that ran must be one that would run here. What the others say is worth a note, and where it would lead to
  // another lane this one is asked for by name.
  void CompareLanes() {
    if (!files_.contract || !files_.target) return;
    auto selection = TheEngine().Select(*files_.contract, *files_.target);
    if (!selection) return Differ("executed", OneLine(selection.error()));
    std::map<std::string, Decision> here;
    for (const LaneDecision& d : selection->decisions) here[d.lane] = d.decision;
    const auto text = [](const Decision& d) { return d.accepted ? "yes" : "no, " + std::string(ReasonText(d.reason)); };
    if (here.count(receipt_.executed) == 0) {
      return Differ("executed", ThenAndHere(receipt_.executed, "no lane of that name"));
    }
    if (const Decision& decision = here[receipt_.executed]; !decision.accepted) {
      Differ("executed", fmt::format("{} ran then; here it says {} ({})", receipt_.executed, text(decision),
                                     ReasonMeaning(decision.reason)));
    }
    // An instruction set that was forced then is forced here too, and the same lanes are without it.
    const std::string& isa = arguments_.run.isa;
    for (const LaneInfo& lane : TheEngine().Lanes()) {
      Decision& decision = here[lane.name];
      const bool is_without = isa != "auto" && lane.name != receipt_.executed && !HasIsa(lane, isa);
      if (decision.accepted && is_without) decision = Decision::No(ReasonCode::kIsa);
    }
    bool is_other = false;
    for (const LaneDecision& d : receipt_.decisions) {
      const bool is_own = d.decision.reason != ReasonCode::kExcluded && d.decision.reason != ReasonCode::kNotRequested;
      if (d.step != "contract" || !is_own || here.count(d.lane) == 0) continue;
      if (d.decision.accepted == here[d.lane].accepted || d.lane == receipt_.executed) continue;
      Note(fmt::format("{} on the contract: {} then, {} here", d.lane, text(d.decision), text(here[d.lane])));
      is_other = true;
    }
    // What a ledger chose then is asked for by name: the ledger may say something else by now, or be gone.
    if (!receipt_.ledger.chose.empty()) {
      Note(fmt::format("lane: {} was the choice of a ledger then, asked for by name here", receipt_.ledger.chose));
      is_other = true;
    }
    if (is_other) arguments_.run.lane = receipt_.executed;
  }

  // Another instruction set may round differently, so where what was asked for then leads to another here, the one that
  // ran is asked for by name. What it leads to is what a bound lane says of itself.
  void CompareIsas() {
    if (!files_.contract || !files_.target || !files_.batch) return;
    for (const LaneInfo& lane : TheEngine().Lanes()) {
      if (lane.name != receipt_.executed || lane.isas.empty() || HasIsa(lane, receipt_.isa)) continue;
      return Differ("isa", ThenAndHere(receipt_.isa, fmt::format("{} has {}", lane.name, fmt::join(lane.isas, ", "))));
    }
    const std::string here = IsaHere();
    if (here.empty() || here == receipt_.isa) return;
    Note(fmt::format("isa: {} then, asked for by name here: {}", arguments_.run.isa, receipt_.isa));
    arguments_.run.isa = receipt_.isa;
  }

  // The instruction set that the request leads to on this machine; empty where it does not get so far.
  std::string IsaHere() const {
    const TensorMap nothing;
    auto route = RouteInputsOf(*files_.contract, files_.inputs ? *files_.inputs : nothing, arguments_.run.layout);
    auto attention = TheEngine().Prepare(*files_.contract, *files_.target, arguments_.run);
    if (!route || !attention) return "";
    auto planned = attention->Plan(*files_.batch, route->q, route->k);
    if (!planned) return "";
    auto bound = attention->Bind(std::move(planned->plan));
    return bound ? bound->isa() : "";
  }

  void ComparePlans() {
    if (!files_.contract || !files_.target || !files_.batch) return;
    if (files_.contract->routing && !files_.inputs) return;  // what is missing has been said
    const TensorMap nothing;
    auto made = RouteInputsOf(*files_.contract, files_.inputs ? *files_.inputs : nothing, arguments_.run.layout)
                    .and_then([&](const RouteInputs& route) {
                      return MakePlan(*files_.contract, *files_.batch, *files_.target, arguments_.run.plan, &route);
                    });
    if (!made) return Differ("plan_fingerprint", OneLine(made.error()));
    const PlanView& plan = made->plan.view();
    const auto compare = [&](const char* field, const std::string& then, const std::string& here) {
      if (then != here) Differ(field, ThenAndHere(then, here));
    };
    compare("class_key", receipt_.class_key, ToHex(plan.class_key));
    compare("mask_digest", receipt_.mask_digest, ToHex(plan.mask_digest));
    compare("plan_fingerprint", receipt_.plan_fingerprint, ToHex(plan.fingerprint));
  }

  void Note(std::string text) { repeat_.notes.push_back(std::move(text)); }

  RunArguments& arguments_;
  RunFiles& files_;
  Repeat repeat_;
  const Receipt& receipt_ = repeat_.receipt;
  int64_t workers_ = 0;
};

}  // namespace

Repeat PrepareRepeat(Receipt receipt, RunArguments& arguments, RunFiles& files) {
  return Preparation(std::move(receipt), arguments, files).Prepare();
}

Status CompareRepeat(Repeat& repeat, const Receipt& again, const std::string& where) {
  const Receipt& first = repeat.receipt;
  std::vector<Violation> differences;
  const auto compare = [&](const char* field, const std::string& then, const std::string& here) {
    if (then != here) differences.push_back({field, ThenAndHere(then, here)});
  };
  compare("output_digest", first.output_digest, again.output_digest);
  const bool is_same = differences.empty();
  compare("executed", first.executed, again.executed);
  compare("kernel", first.kernel, again.kernel);
  compare("isa", first.isa, again.isa);
  if (is_same) {
    // The same bits by another way are still the same bits.
    for (const Violation& d : differences) repeat.notes.push_back(d.field + ": " + d.expected);
    return {};
  }
  for (const std::string& note : repeat.notes) differences.push_back({"note", note});
  Error error{ErrorCode::kCheckFailed, "the outputs are not those of the receipt", where, std::move(differences)};
  return tl::unexpected(std::move(error));
}

}  // namespace tessera::program
