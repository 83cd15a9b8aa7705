// What a receipt must satisfy to be believed: its parts agree with each other and with the tables of this version.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "dispatch/lane_table.h"
#include "tessera/receipt.h"
#include "tessera/version.h"

namespace tessera {
namespace {

constexpr std::string_view kSteps[] = {"contract",    "request",   "inputs",  "decide",   "batch", "plan",
                                       "decide_plan", "workspace", "forward", "backward", "check"};
constexpr std::string_view kOptions[] = {"backward", "exclude", "lane",    "layout",
                                         "strict",   "target",  "threads", "tile"};
constexpr std::string_view kVersions[] = {"arch", "compiler", "contract", "plan", "receipt", "tessera"};

bool IsHex32(std::string_view text) {
  return text.size() == 32 &&
         std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool IsLane(std::string_view name) { return FindLane(LaneTable(), name) != nullptr; }

class Checker {
 public:
  explicit Checker(const Receipt& receipt) : r_(receipt) {}

  std::vector<Violation> Check() {
    CheckOutcome();
    CheckLanes();
    CheckDecisions();
    CheckFallback();
    CheckDigests();
    CheckContract();
    CheckCounts();
    CheckMaps();
    return std::move(violations_);
  }

 private:
  void Expect(bool holds, std::string field, std::string expected) {
    if (!holds) violations_.push_back({std::move(field), std::move(expected)});
  }

  void CheckOutcome() {
    Expect(r_.version == kReceiptVersion, "version", fmt::format("{} expected, got {}", kReceiptVersion, r_.version));
    Expect(r_.ok == r_.failed_at.empty(), "failed_at", "empty if and only if ok");
    Expect(r_.ok == r_.error.empty(), "error", "empty if and only if ok");
    Expect(r_.failed_at.empty() || std::find(std::begin(kSteps), std::end(kSteps), r_.failed_at) != std::end(kSteps),
           "failed_at", fmt::format("one of {}", fmt::join(kSteps, ", ")));
  }

  // Nothing is selected before the contract and the request are known to be good.
  bool HasSelection() const { return r_.failed_at != "contract" && r_.failed_at != "request"; }

  void CheckLanes() {
    const bool is_forced = r_.requested != "auto";
    if (HasSelection()) {
      Expect(!is_forced || IsLane(r_.requested), "requested", "\"auto\" or a lane's name");
      Expect(IsLane(r_.selected), "selected", "a lane's name");
      Expect(!is_forced || r_.selected == r_.requested, "selected", "the requested lane, when one is forced");
      Expect(!r_.selection_rule.empty(), "selection_rule", "the matching line of the target's table");
    } else {
      Expect(r_.selected.empty(), "selected", "empty: the run failed before selection");
    }
    Expect(!r_.ok || !r_.executed.empty(), "executed", "a lane's name when ok");
    Expect(!r_.target.empty(), "target", "a target's name");
    if (r_.executed.empty()) {
      Expect(r_.runtime_mode.empty(), "runtime_mode", "empty when nothing ran");
      return;
    }
    const LaneRow* row = FindLane(LaneTable(), r_.executed);
    Expect(row != nullptr, "executed", "a lane's name");
    if (row == nullptr) return;
    Expect(r_.runtime_mode == row->runtime_mode, "runtime_mode",
           fmt::format("\"{}\", which is how {} runs", row->runtime_mode, row->name));
    Expect(!is_forced || r_.executed == r_.requested, "executed", "the requested lane, when one is forced");
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
      Expect(IsLane(d.lane), at + ".lane", "a lane's name");
      Expect(d.step == "contract" || d.step == "plan", at + ".step", "\"contract\" or \"plan\"");
      Expect(d.decision.accepted == (d.decision.reason == ReasonCode::kNone), at + ".reason",
             "empty if and only if accepted");
    }
    if (!HasSelection()) return;
    for (const LaneRow& row : LaneTable()) {
      const auto count = std::count_if(r_.decisions.begin(), r_.decisions.end(), [&](const LaneDecision& d) {
        return d.lane == row.name && d.step == "contract";
      });
      Expect(count == 1, "decisions", fmt::format("one decision of {} on the contract, got {}", row.name, count));
    }
    if (r_.executed.empty()) return;
    for (const char* step : {"contract", "plan"}) {
      const Decision* decision = FindDecision(r_.executed, step);
      Expect(decision != nullptr && decision->accepted, "decisions",
             fmt::format("{} ran, so it must have accepted the {}", r_.executed, step));
    }
  }

  void CheckFallback() {
    if (!r_.executed.empty()) {
      Expect(r_.fallback_reason.empty() == (r_.selected == r_.executed), "fallback_reason",
             "empty if and only if the selected lane ran");
    }
    if (r_.fallback_reason.empty()) return;
    Expect(FindReason(r_.fallback_reason).has_value(), "fallback_reason", "a catalogued reason");
    const bool is_refusal = std::any_of(r_.decisions.begin(), r_.decisions.end(), [&](const LaneDecision& d) {
      return d.lane == r_.selected && ReasonText(d.decision.reason) == r_.fallback_reason;
    });
    Expect(is_refusal, "fallback_reason", "the reason in the selected lane's own decision");
  }

  // A plan made elsewhere need not bring its batch.
  bool HasGivenPlan() const {
    const auto it = r_.options.find("plan");
    return it != r_.options.end() && it->second == "given";
  }

  void CheckDigests() {
    struct Field {
      const char* name;
      const std::string& value;
      bool is_required;
    };
    const bool has_plan = !r_.executed.empty();
    const Field fields[] = {{"contract_key", r_.contract_key, r_.failed_at != "contract"},
                            {"class_key", r_.class_key, has_plan},
                            {"mask_digest", r_.mask_digest, has_plan},
                            {"plan_fingerprint", r_.plan_fingerprint, has_plan},
                            {"input_digest", r_.input_digest, true},
                            {"batch_digest", r_.batch_digest, !HasGivenPlan()},
                            {"output_digest", r_.output_digest, r_.ok}};
    for (const Field& field : fields) {
      const bool is_good = IsHex32(field.value) || (field.value.empty() && !field.is_required);
      Expect(is_good, field.name, "32 lower-case hex digits");
    }
    // A run whose outputs failed a check afterwards still had outputs.
    Expect(r_.ok || r_.failed_at == "check" || r_.output_digest.empty(), "output_digest",
           "empty: a failed run has no outputs");
  }

  void CheckContract() {
    if (r_.contract_text.empty()) {
      Expect(r_.failed_at == "contract", "contract_text", "the contract's canonical text");
      return;
    }
    Result<Contract> contract = ParseContract(r_.contract_text);
    // A bitmap's file need not be here, and without it the key cannot be made again.
    if (!contract && contract.error().code == ErrorCode::kBitmapInvalid) return;
    if (!contract && contract.error().code == ErrorCode::kFileRead) return;
    Result<std::string> key = contract ? ContractKey(*contract) : tl::unexpected(contract.error());
    Expect(key.has_value(), "contract_text", "a contract that parses");
    Expect(!key.has_value() || *key == r_.contract_key, "contract_key", "the key of contract_text");
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
    // A native run executes every surviving tile and nothing else; "dense in disguise" shows here.
    if (r_.ok && r_.runtime_mode == "native") {
      Expect(r_.tiles_executed == r_.tiles.partial + r_.tiles.full, "tiles_executed",
             "tiles.partial + tiles.full, when every surviving tile ran");
      Expect(r_.tiles_executed_backward == r_.tiles_backward.partial + r_.tiles_backward.full,
             "tiles_executed_backward", "tiles_backward.partial + tiles_backward.full, when every surviving tile ran");
    }
    for (size_t i = 0; i < r_.timings.size(); ++i) {
      Expect(r_.timings[i].ns >= 0, fmt::format("timings[{}].ns", i), "0 or more");
    }
  }

  void CheckMaps() {
    for (std::string_view name : kOptions) {
      Expect(r_.options.count(std::string(name)) == 1, fmt::format("options.{}", name), "present");
    }
    for (std::string_view name : kVersions) {
      Expect(r_.versions.count(std::string(name)) == 1, fmt::format("versions.{}", name), "present");
    }
  }

  const Receipt& r_;
  std::vector<Violation> violations_;
};

}  // namespace

std::vector<Violation> CheckReceipt(const Receipt& receipt) { return Checker(receipt).Check(); }

}  // namespace tessera
