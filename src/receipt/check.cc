// What a receipt must satisfy to be believed: its parts agree with each other. Lanes are those its decisions name, and
// no table is asked: a receipt of another build, with other lanes, is as good as one of this.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string_view>

#include "base/hash.h"
#include "receipt/uses.h"
#include "tessera/receipt.h"
#include "tessera/target.h"
#include "tessera/version.h"

namespace tessera {
namespace {

constexpr std::string_view kSteps[] = {"contract", "request",     "read",    "inputs",    "decide",  "batch",
                                       "plan",     "decide_plan", "bind",    "workspace", "forward", "backward",
                                       "check",    "write",       "compile", "emit"};
// What a total is made of, beside things too small to time.
constexpr std::string_view kParts[] = {"prepare",      "plan",          "bind",   "compile.forward", "compile.backward",
                                       "load.forward", "load.backward", "digest", "forward",         "backward"};
constexpr std::string_view kModes[] = {"native", "payload", "bridge", "interpreted"};
constexpr std::string_view kDeterminisms[] = {"bitwise", "plugin"};
constexpr std::string_view kRequestedByName = "requested by name";
// Those of the attention, and what a run adds.
constexpr std::string_view kOptions[] = {
#define TESSERA_OPTION(name, member, use) #name,
#include "receipt/options.def"
#undef TESSERA_OPTION
    "layout", "plan", "row_max", "target", "workers"};
constexpr std::string_view kVersions[] = {"arch", "compiler", "contract", "plan", "receipt", "tessera"};

// A whole number in decimal, as the receipt writes them.
std::optional<int64_t> ToNumber(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text != fmt::format("{}", value)) return std::nullopt;
  return value;
}

// "host", "gpu:0".
bool IsMemory(std::string_view text) {
  if (text == "host") return true;
  const bool is_device = text.rfind("gpu:", 0) == 0 || text.rfind("tpu:", 0) == 0;
  return is_device && ToNumber(text.substr(4)).value_or(-1) >= 0;
}

// "64x48".
bool IsTile(std::string_view text) {
  const size_t cross = std::min(text.find('x'), text.size());
  return ToNumber(text.substr(0, cross)) && ToNumber(text.substr(std::min(cross + 1, text.size())));
}

template <size_t N>
bool IsOneOf(const std::string_view (&words)[N], std::string_view word) {
  return std::find(std::begin(words), std::end(words), word) != std::end(words);
}

class Checker {
 public:
  Checker(const Receipt& receipt, const MaskTerms* terms) : r_(receipt), terms_(terms) {}

  std::vector<Violation> Check() {
    CheckOutcome();
    CheckMaps();
    CheckContract();
    CheckLanes();
    CheckUses();
    CheckDecisions();
    CheckRequest();
    CheckFallback();
    CheckDigests();
    CheckCounts();
    CheckCache();
    CheckTiles();
    CheckTimings();
    return std::move(violations_);
  }

 private:
  void Expect(bool holds, std::string field, std::string expected) {
    if (!holds) violations_.push_back({std::move(field), std::move(expected)});
  }

  void CheckOutcome() {
    Expect(r_.version == kReceiptVersion, "version",
           fmt::format("{} expected, got one of version {}: compare only", kReceiptVersion, r_.version));
    Expect(r_.ok == r_.failed_at.empty(), "failed_at", "empty if and only if ok");
    Expect(r_.ok == r_.error.empty(), "error", "empty if and only if ok");
    Expect(r_.failed_at.empty() || IsOneOf(kSteps, r_.failed_at), "failed_at",
           fmt::format("one of {}", fmt::join(kSteps, ", ")));
    const bool is_of_run = r_.failed_at == "workspace" || r_.failed_at == "forward" || r_.failed_at == "backward";
    Expect(!IsUnrun() || !is_of_run, "failed_at", "no step of a run where nothing was to be run");
    Expect(IsCompileOnly() || r_.failed_at != "compile", "failed_at",
           "compile only where programs were to be compiled");
    Expect(IsEmitOnly() || r_.failed_at != "emit", "failed_at", "emit only where programs were to be emitted");
  }

  // Nothing is selected before the contract, the request and the files it names are known to be good.
  bool HasSelection() const {
    return r_.failed_at != "contract" && r_.failed_at != "request" && r_.failed_at != "read";
  }
  // A run whose outputs failed a check afterwards, or could not be written, still had outputs.
  bool HasOutputs() const { return r_.ok || r_.failed_at == "check" || r_.failed_at == "write"; }
  bool HasPlan() const { return !r_.plan_fingerprint.empty(); }
  std::string Option(const char* name) const {
    const auto found = r_.options.find(name);
    return found == r_.options.end() ? std::string() : found->second;
  }

  // Programs were to be made, and none to be run.
  bool IsCompileOnly() const { return r_.options.count(kCompileOnlyOption) == 1; }

  // They were to be written, and not even compiled.
  bool IsEmitOnly() const { return r_.options.count(kEmitOnlyOption) == 1; }
  bool IsUnrun() const { return IsCompileOnly() || IsEmitOnly(); }

  // The lanes there are, as far as a receipt says: each decided on the contract.
  bool IsLane(std::string_view name) const { return FindDecision(name, "contract") != nullptr; }

  bool HasForcedIsa() const { return Option("isa") != "auto"; }

  void CheckLanes() {
    const bool is_forced = r_.requested != "auto";
    if (HasSelection()) {
      Expect(!is_forced || IsLane(r_.requested), "requested", "\"auto\" or a lane's name");
      Expect(IsLane(r_.selected), "selected", "a lane's name");
      Expect(!is_forced || r_.selected == r_.requested, "selected", "the requested lane, when one is forced");
      const std::string end = fmt::format("-> {}", r_.selected);
      const bool ends_so = r_.selection_rule.size() > end.size() &&
                           r_.selection_rule.compare(r_.selection_rule.size() - end.size(), end.size(), end) == 0;
      Expect(is_forced ? r_.selection_rule == kRequestedByName : ends_so, "selection_rule",
             is_forced ? fmt::format("\"{}\"", kRequestedByName)
                       : fmt::format("the rule that gave {}: it ends with \"{}\"", r_.selected, end));
    } else {
      Expect(r_.selected.empty(), "selected", "empty: the run failed before selection");
      Expect(r_.selection_rule.empty(), "selection_rule", "empty: the run failed before selection");
      Expect(r_.decisions.empty(), "decisions", "none: the run failed before selection");
      Expect(r_.executed.empty(), "executed", "empty: the run failed before selection");
    }
    Expect(!r_.ok || !r_.executed.empty(), "executed", "a lane's name when ok");
    Expect(!r_.target.empty(), "target", "a target's name");
    if (r_.executed.empty()) {
      Expect(r_.runtime_mode.empty(), "runtime_mode", "empty when nothing ran");
      Expect(r_.kernel.empty(), "kernel", "empty when nothing ran");
      Expect(r_.isa.empty(), "isa", "empty when nothing ran");
      Expect(r_.determinism.empty(), "determinism", "empty when nothing ran");
      Expect(!HasOutputs() && (r_.failed_at != "backward" || Option("forward") == "false"), "executed",
             fmt::format("a lane's name when the run came as far as {}", r_.failed_at));
      return;
    }
    Expect(IsLane(r_.executed), "executed", "a lane's name");
    const std::string unrun = IsCompileOnly() ? kCompileOnly : IsEmitOnly() ? kEmitted : "";
    Expect(unrun.empty() ? IsOneOf(kModes, r_.runtime_mode) : r_.runtime_mode == unrun, "runtime_mode",
           unrun.empty() ? fmt::format("one of {}", fmt::join(kModes, ", ")) : unrun);
    Expect(r_.runtime_mode != "interpreted" || Option("interpret") == "true", "options.interpret",
           "true where a kernel was interpreted");
    Expect(r_.runtime_mode != "payload" || Option("interpret") != "true", "options.interpret",
           "false where a kernel ran on its machine");
    Expect(!is_forced || r_.executed == r_.requested, "executed", "the requested lane, when one is forced");
    Expect(IsOneOf(kDeterminisms, r_.determinism), "determinism", "bitwise or plugin");
    Expect(!r_.kernel.empty(), "kernel", "the kernel's name when a lane ran");
    Expect(!r_.isa.empty(), "isa", "an instruction set's name when a lane ran");
    // A set may have kernels for some types only: another then runs on the set that it builds on, and says so.
    const std::string own_kernel = "_" + r_.isa;
    const bool is_named = r_.kernel.size() > own_kernel.size() &&
                          r_.kernel.compare(r_.kernel.size() - own_kernel.size(), own_kernel.size(), own_kernel) == 0;
    const std::string asked = Option("isa");
    Expect(!asked.empty() && asked.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == std::string::npos,
           "options.isa", "auto, or an instruction set's name");
    Expect(!HasForcedIsa() || r_.isa == asked || is_named, "isa",
           "the instruction set of options.isa, when one is forced, or the one that the kernel is named after");
    Expect(HasOutputs() || r_.failed_at == "backward", "executed",
           fmt::format("empty: a run that failed at {} ran nothing", r_.failed_at));
    Expect(Option("strict") != "true" || r_.executed == r_.selected, "executed", "the selected lane in a strict run");
  }

  void CheckUses() {
    for (Violation& v : CheckLedgerUse(r_, HasSelection())) violations_.push_back(std::move(v));
    for (Violation& v : CheckDeviceUse(r_)) violations_.push_back(std::move(v));
    for (Violation& v : CheckCrossing(r_)) violations_.push_back(std::move(v));
    for (Violation& v : CheckPrograms(r_)) violations_.push_back(std::move(v));
    for (Violation& v : CheckEmitted(r_)) violations_.push_back(std::move(v));
    for (Violation& v : CheckWorkUse(r_, contract_ ? &contract_->shape : nullptr)) violations_.push_back(std::move(v));
    for (Violation& v : CheckPicksUse(r_.picks, contract_ ? &*contract_ : nullptr)) {
      violations_.push_back(std::move(v));
    }
    for (Violation& v : CheckClassUse(r_.class_request, contract_ ? &contract_->shape : nullptr)) {
      violations_.push_back(std::move(v));
    }
  }

  const Decision* FindDecision(std::string_view lane, std::string_view step) const {
    for (const LaneDecision& d : r_.decisions) {
      if (d.lane == lane && d.step == step) return &d.decision;
    }
    return nullptr;
  }

  void CheckDecisions() {
    for (size_t i = 0; i < r_.decisions.size(); ++i) {
      const LaneDecision& d = r_.decisions[i];
      const std::string at = fmt::format("decisions[{}]", i);
      Expect(!d.lane.empty(), at + ".lane", "a lane's name");
      Expect(d.step == "contract" || d.step == "plan", at + ".step", "\"contract\" or \"plan\"");
      Expect(d.decision.accepted == (d.decision.reason == ReasonCode::kNone), at + ".reason",
             "empty if and only if accepted");
      const auto same = [&](const LaneDecision& other) { return other.lane == d.lane && other.step == d.step; };
      Expect(std::count_if(r_.decisions.begin(), r_.decisions.end(), same) == 1, at,
             fmt::format("one decision of a lane on a {}", d.step));
      if (d.step != "plan") continue;
      const Decision* on_contract = FindDecision(d.lane, "contract");
      Expect(on_contract != nullptr && on_contract->accepted, at,
             "a decision on a plan only of a lane that accepted the contract");
      Expect(HasPlan(), at, "no decision on a plan where there is no plan");
    }
    if (r_.executed.empty()) return;
    for (const char* step : {"contract", "plan"}) {
      const Decision* decision = FindDecision(r_.executed, step);
      Expect(decision != nullptr && decision->accepted, "decisions",
             fmt::format("{} ran, so it must have accepted the {}", r_.executed, step));
    }
  }

  // The caller's words and the lanes' answers to them.
  void CheckRequest() {
    if (!HasSelection()) return;
    const std::vector<std::string> excluded = SplitNames(Option("exclude"));
    for (size_t i = 0; i < excluded.size(); ++i) {
      Expect(IsLane(excluded[i]), "options.exclude", fmt::format("lanes' names, not \"{}\"", excluded[i]));
    }
    for (size_t i = 0; i < r_.decisions.size(); ++i) {
      const LaneDecision& d = r_.decisions[i];
      if (d.step != "contract") continue;
      const std::string at = fmt::format("decisions[{}].reason", i);
      const bool is_excluded = std::find(excluded.begin(), excluded.end(), d.lane) != excluded.end();
      Expect(is_excluded == (d.decision.reason == ReasonCode::kExcluded), at,
             "dispatch.excluded if and only if options.exclude names the lane");
      const bool is_other = r_.requested != "auto" && d.lane != r_.requested && !is_excluded;
      Expect(is_other == (d.decision.reason == ReasonCode::kNotRequested), at,
             "dispatch.not_requested if and only if another lane was asked for by name");
      Expect(HasForcedIsa() || d.decision.reason != ReasonCode::kIsa, at,
             "dispatch.isa only where options.isa forces an instruction set");
    }
  }

  // Where something ran: on the kind of machine that was planned for, where its name is known here.
  bool RanElsewhere() const { return target_ && !IsUnrun() && r_.device.kind != ToText(target_->kind); }

  void CheckFallback() {
    const std::string_view off_machine = ReasonText(ReasonCode::kOffMachine);
    if (!r_.executed.empty()) {
      const bool is_own = r_.selected == r_.executed;
      Expect(!r_.fallback_reason.empty() || (is_own && !RanElsewhere()), "fallback_reason",
             "empty only if the selected lane ran, on the machine that was planned for");
      Expect(r_.fallback_reason.empty() || !is_own || r_.fallback_reason == off_machine, "fallback_reason",
             fmt::format("empty or {}, where the selected lane ran", off_machine));
      Expect(r_.fallback_reason != off_machine || !target_ || RanElsewhere() || r_.device.kind != "cpu",
             "fallback_reason", "another reason: it ran on the machine that was planned for");
    }
    if (r_.fallback_reason == off_machine && r_.selected == r_.executed) return;
    // Strictly, what would run here for another machine does not.
    const Decision* on_plan = FindDecision(r_.selected, "plan");
    if (r_.failed_at == "decide_plan" && on_plan != nullptr && on_plan->accepted) {
      Expect(r_.fallback_reason == off_machine, "fallback_reason",
             fmt::format("{}: the selected lane accepted the plan", off_machine));
      return;
    }
    if (r_.fallback_reason.empty()) {
      const auto refused = [&](const LaneDecision& d) { return d.lane == r_.selected && !d.decision.accepted; };
      Expect(std::none_of(r_.decisions.begin(), r_.decisions.end(), refused), "fallback_reason",
             "the reason of the selected lane, which refused");
      return;
    }
    Expect(FindReason(r_.fallback_reason).has_value(), "fallback_reason", "a catalogued reason");
    const bool is_refusal = std::any_of(r_.decisions.begin(), r_.decisions.end(), [&](const LaneDecision& d) {
      return d.lane == r_.selected && ReasonText(d.decision.reason) == r_.fallback_reason;
    });
    Expect(is_refusal, "fallback_reason", "the reason in the selected lane's own decision");
  }

  // A plan made elsewhere need not bring its batch, and took no time here.
  bool HasGivenPlan() const { return Option("plan") == "given"; }
  // A backward alone starts from the results of an earlier forward.
  bool HasForward() const { return Option("forward") != "false"; }

  void CheckDigests() {
    struct Field {
      const char* name;
      const std::string& value;
      bool is_required;
      bool is_asked_for = false;  // and else it may be "not taken"
    };
    const bool has_plan = !r_.executed.empty();
    const Field fields[] = {{"contract_key", r_.contract_key, r_.failed_at != "contract"},
                            {"class_key", r_.class_key, has_plan || HasPlan()},
                            {"mask_digest", r_.mask_digest, has_plan || HasPlan()},
                            {"plan_fingerprint", r_.plan_fingerprint, has_plan},
                            {"input_digest", r_.input_digest, HasSelection(), true},
                            {"batch_digest", r_.batch_digest, HasSelection() && !HasGivenPlan(), true},
                            {"output_digest", r_.output_digest, r_.ok && !IsUnrun(), true}};
    for (const Field& field : fields) {
      const bool is_good = IsHex(field.value) || (field.value.empty() && !field.is_required) ||
                           (field.is_asked_for && field.value == kNotTaken);
      Expect(is_good, field.name,
             field.is_asked_for ? "32 lower-case hex digits, or \"not taken\"" : "32 lower-case hex digits");
    }
    if (!has_plan && !HasPlan()) {
      Expect(r_.class_key.empty() && r_.mask_digest.empty(), "class_key", "empty, as mask_digest, without a plan");
    }
    constexpr std::string_view kSeed = "seed ";
    if (r_.input_source.substr(0, kSeed.size()) == kSeed) {
      uint64_t seed = 0;
      const char* end = r_.input_source.data() + r_.input_source.size();
      const auto read = std::from_chars(r_.input_source.data() + kSeed.size(), end, seed);
      Expect(read.ec == std::errc() && read.ptr == end, "input_source", "\"seed N\" with a number of 64 bits");
    }
    Expect(HasOutputs() || r_.output_digest.empty(), "output_digest", "empty: a failed run has no outputs");
    Expect(!IsUnrun() || r_.output_digest.empty(), "output_digest", "empty where nothing was run");
  }

  void CheckContract() {
    if (Result<Target> target = FindTarget(r_.target)) target_ = *target;
    if (r_.contract_text.empty()) {
      Expect(r_.failed_at == "contract", "contract_text", "the contract's canonical text");
      Expect(r_.contract_key.empty(), "contract_key", "empty without a contract");
      return;
    }
    constexpr std::string_view kFile = "file ";
    std::string folder = ".";
    if (r_.contract_source.substr(0, kFile.size()) == kFile) {
      folder = std::filesystem::path(r_.contract_source.substr(kFile.size())).parent_path().string();
    }
    Result<Contract> contract = ParseContract(r_.contract_text, folder.empty() ? "." : folder, terms_);
    // A bitmap's file need not be here, and without it the key cannot be made again.
    if (!contract && contract.error().code == ErrorCode::kBitmapInvalid) return;
    if (!contract && contract.error().code == ErrorCode::kFileRead) return;
    // Nor need a term that only the program of the run registered.
    if (!contract && contract.error().code == ErrorCode::kMaskTermInvalid) return;
    Result<std::string> key = contract ? ContractKey(*contract) : tl::unexpected(contract.error());
    Expect(key.has_value(), "contract_text", "a contract that parses");
    if (!key) return;
    Expect(*key == r_.contract_key, "contract_key", "the key of contract_text");
    Expect(ToToml(*contract) == r_.contract_text, "contract_text", "the contract's canonical text");
    contract_ = std::move(*contract);
  }

  void CheckCounts() {
    struct Field {
      const char* name;
      int64_t value;
    };
    const Field fields[] = {{"tiles.empty", r_.tiles.empty},
                            {"tiles.partial", r_.tiles.partial},
                            {"tiles.full", r_.tiles.full},
                            {"tiles_executed", r_.tiles_executed},
                            {"tiles_backward.empty", r_.tiles_backward.empty},
                            {"tiles_backward.partial", r_.tiles_backward.partial},
                            {"tiles_backward.full", r_.tiles_backward.full},
                            {"tiles_executed_backward", r_.tiles_executed_backward},
                            {"plan_bytes", r_.plan_bytes},
                            {"metadata_bytes", r_.metadata_bytes},
                            {"metadata_limit", r_.metadata_limit},
                            {"compiles", r_.compiles},
                            {"cache_hits", r_.cache_hits},
                            {"workspace_bytes", r_.workspace_bytes}};
    for (const Field& field : fields) Expect(field.value >= 0, field.name, "0 or more");
    if (!HasPlan()) {
      for (const Field& field : {fields[8], fields[9]}) Expect(field.value == 0, field.name, "0 without a plan");
    } else {
      Expect(r_.plan_bytes > 0, "plan_bytes", "more than 0 for a plan");
    }
  }

  // The counts are totals that count this run, where it asked a cache at all.
  void CheckCache() {
    const CacheUse& c = r_.cache;
    const bool has_asked = c.outcome == "hit" || c.outcome == "miss";
    if (!HasSelection()) {
      Expect(c == CacheUse{}, "cache", "nothing: the run failed before it was prepared");
      return;
    }
    Expect(has_asked || c.outcome == "off", "cache.outcome", "hit, miss or off");
    Expect(IsHex(c.key), "cache.key", "32 lower-case hex digits");
    struct Field {
      const char* name;
      int64_t value;
      int64_t least;
    };
    for (const Field& field :
         {Field{"cache.hits", c.hits, c.outcome == "hit" ? 1 : 0},
          Field{"cache.misses", c.misses, c.outcome == "miss" ? 1 : 0},
          Field{"cache.builds", c.builds, has_asked ? 1 : 0}, Field{"cache.evictions", c.evictions, 0}}) {
      Expect(field.value >= field.least, field.name, fmt::format("{} or more", field.least));
      Expect(has_asked || field.value == 0, field.name, "0 where no cache was asked");
    }
    Expect(c.builds <= c.misses, "cache.builds", "no more than misses");
    Expect(c.evictions <= c.builds, "cache.evictions", "no more than builds");
  }

  static int64_t Sum(const TileCounts& tiles) { return tiles.empty + tiles.partial + tiles.full; }

  void CheckThere(const char* field, const TileCounts& tiles, bool is_there) {
    if (is_there) {
      Expect(Sum(tiles) > 0, field, "at least one tile");
    } else {
      Expect(Sum(tiles) == 0, field, "zeros where no such plan was made or run");
    }
  }

  void CheckTiles() {
    const bool has_run = !r_.executed.empty();
    // A backward that failed has no counts; one that a check came after has.
    const bool has_backward = has_run && Option("backward") == "true" && r_.failed_at != "backward";
    Expect(r_.failed_at != "backward" || Option("backward") == "true", "failed_at",
           "backward only where one was asked for");
    for (const TileCounts& tiles : {r_.tiles, r_.tiles_backward}) {
      if (tiles.empty < 0 || tiles.partial < 0 || tiles.full < 0) return;  // said already; sums could overflow
      for (const int64_t count : {tiles.empty, tiles.partial, tiles.full}) {
        if (count > (int64_t{1} << 60)) return Expect(false, "tiles", "fewer than 2^60 tiles");
      }
    }
    CheckThere("tiles", r_.tiles, HasPlan() && HasForward());
    CheckThere("tiles_backward", r_.tiles_backward, has_backward);
    const int64_t surviving = r_.tiles.partial + r_.tiles.full;
    const int64_t surviving_backward = r_.tiles_backward.partial + r_.tiles_backward.full;
    // A native run executes every surviving tile and nothing else; "dense in disguise" shows here.
    if (has_run && r_.runtime_mode == "native") {
      Expect(r_.tiles_executed == surviving, "tiles_executed",
             "tiles.partial + tiles.full, when every surviving tile ran");
      Expect(r_.tiles_executed_backward == surviving_backward, "tiles_executed_backward",
             "tiles_backward.partial + tiles_backward.full, when every surviving tile ran");
    } else if (has_run && r_.runtime_mode == "bridge") {
      // What is on the other side skips nothing.
      Expect(r_.tiles_executed == surviving + r_.tiles.empty, "tiles_executed",
             "all of tiles, since a bridge computes every pair");
      Expect(r_.tiles_executed_backward == surviving_backward + r_.tiles_backward.empty, "tiles_executed_backward",
             "all of tiles_backward, since a bridge computes every pair");
    } else if (IsUnrun()) {
      Expect(r_.tiles_executed == 0, "tiles_executed", "0 where nothing was run");
      Expect(r_.tiles_executed_backward == 0, "tiles_executed_backward", "0 where nothing was run");
    } else {
      Expect(r_.tiles_executed <= (has_run ? surviving : 0), "tiles_executed", "at most tiles.partial + tiles.full");
      Expect(r_.tiles_executed_backward <= surviving_backward, "tiles_executed_backward",
             "at most tiles_backward.partial + tiles_backward.full");
    }
  }

  // Parts of a time do not exceed it: all are read from one steady clock.
  void CheckTimings() {
    std::map<std::string, int64_t> times;
    int64_t stages = 0;
    for (size_t i = 0; i < r_.timings.size(); ++i) {
      const Timing& timing = r_.timings[i];
      const std::string at = fmt::format("timings[{}]", i);
      Expect(!timing.name.empty(), at + ".name", "a step's name");
      Expect(times.emplace(timing.name, timing.ns).second, at + ".name", "each step once");
      Expect(timing.ns >= 0 && timing.ns <= kMaxNs, at + ".ns", "0 or more, and below 18 years");
      if (timing.ns < 0 || timing.ns > kMaxNs) return;
      if (timing.name.rfind("plan.", 0) == 0) stages = std::min(stages + timing.ns, kMaxNs + 1);
    }
    const auto time = [&](const char* name) { return times.count(name) == 1 ? times[name] : 0; };
    const auto must_have = [&](const char* name, bool expected) {
      Expect(times.count(name) == 1 || !expected, "timings", fmt::format("a time of {}", name));
    };
    must_have("total", HasSelection());
    must_have("prepare", HasSelection());
    must_have("plan", HasPlan() && !HasGivenPlan());
    must_have("forward", !r_.executed.empty() && HasForward() && !IsUnrun());
    must_have("backward", r_.ok && Option("backward") == "true" && !IsUnrun());
    must_have("compile.forward", r_.ok && IsCompileOnly() && HasForward());
    must_have("compile.backward", r_.ok && IsCompileOnly() && Option("backward") == "true");
    for (const char* pass : {"forward", "backward"}) {
      Expect(times.count(pass) == 0 || !IsUnrun(), "timings", fmt::format("no time of {} where nothing was run", pass));
    }
    Expect(times.count("forward") == 0 || !r_.executed.empty(), "timings", "no time of forward when nothing ran");
    if (times.count("plan") == 1) Expect(stages <= time("plan"), "timings", "stages that take no longer than the plan");
    if (times.count("total") == 1) {
      int64_t parts = 0;
      for (const std::string_view part : kParts) parts += time(std::string(part).c_str());
      Expect(parts <= time("total"), "timings",
             fmt::format("a total that is no shorter than {}", fmt::join(kParts, ", ")));
    }
  }

  void CheckMaps() {
    for (std::string_view name : kOptions) {
      Expect(r_.options.count(std::string(name)) == 1, fmt::format("options.{}", name), "present");
    }
    for (std::string_view name : kVersions) {
      const auto found = r_.versions.find(std::string(name));
      Expect(found != r_.versions.end() && !found->second.empty(), fmt::format("versions.{}", name), "present");
    }
    const auto is_one_of = [&](const char* name, std::initializer_list<std::string_view> words) {
      const std::string value = Option(name);
      Expect(std::find(words.begin(), words.end(), value) != words.end(), fmt::format("options.{}", name),
             fmt::format("{}, got \"{}\"", fmt::join(words, " or "), value));
    };
    for (const char* name : {"backward", "experimental", "forward", "interpret", "keep_programs", "row_max",
                             "statistics", "strict", "widen_class"}) {
      is_one_of(name, {"true", "false"});
    }
    if (IsCompileOnly()) is_one_of(kCompileOnlyOption, {"true"});
    if (IsEmitOnly()) is_one_of(kEmitOnlyOption, {"true"});
    Expect(!IsCompileOnly() || !IsEmitOnly(), "options", "compile_only or emit_only, and not both");
    is_one_of("plan", {"made", "given"});
    is_one_of("layout", {"bhtd", "bthd"});
    is_one_of("tpu_backward", {"apart", "auto", "fused"});
    for (const char* name : {"threads", "workers"}) {
      Expect(ToNumber(Option(name)).value_or(0) > 0, fmt::format("options.{}", name), "a number above 0");
    }
    Expect(ToNumber(Option("plugin_device")).has_value(), "options.plugin_device", "a number");
    const std::optional<int64_t> level = ToNumber(Option("optimization"));
    Expect(Option("optimization") == "default" || (level && *level >= 0 && *level <= 3), "options.optimization",
           "\"default\" or 0 to 3");
    Expect(Option("tile") == "default" || IsTile(Option("tile")), "options.tile", "\"default\" or a tile as \"64x48\"");
    Expect(IsMemory(Option("memory")), "options.memory", "\"host\", or a device's as \"gpu:0\"");
    // Of tensors that were copied the place they came from, and how much that was.
    Expect(r_.device.memory.empty() || r_.device.memory == Option("memory") ||
               r_.device.memory.starts_with(std::string(Option("memory")) + ", "),
           "options.memory", "the memory that the lane's device was given tensors in");
    Expect(Option("lane") == r_.requested, "options.lane", "the requested lane");
    Expect(Option("target") == r_.target, "options.target", "the target");
    const auto version = r_.versions.find("receipt");
    Expect(version == r_.versions.end() || version->second == fmt::format("{}", r_.version), "versions.receipt",
           "the version of the receipt");
    for (const char* name : {"contract", "plan"}) {
      const auto found = r_.versions.find(name);
      Expect(found == r_.versions.end() || ToNumber(found->second), fmt::format("versions.{}", name), "a number");
    }
  }

  static constexpr int64_t kMaxNs = int64_t{1} << 59;  // so that as many as kParts can be added

  const Receipt& r_;
  const MaskTerms* terms_;
  std::optional<Contract> contract_;  // where contract_text gives it
  std::optional<Target> target_;      // where it has a name this version knows
  std::vector<Violation> violations_;
};

}  // namespace

std::vector<std::string> SplitNames(const std::string& text) {
  std::vector<std::string> names;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    names.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return names;
}

std::vector<Violation> CheckReceipt(const Receipt& receipt, const MaskTerms* terms) {
  return Checker(receipt, terms).Check();
}

}  // namespace tessera
