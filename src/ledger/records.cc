// See tessera/records.h. The words in these records are other systems' and are kept as they write them.
#include "tessera/records.h"

#include <fmt/format.h>

#include <algorithm>

#include "io/json_writer.h"

namespace tessera {
namespace {

// One object on one line: Line().Text("lane", lane).Done().
class Line {
 public:
  Line() { json_.BeginObject(); }
  Line& Text(std::string_view name, std::string_view value) {
    json_.Key(name).Text(value);
    return *this;
  }
  Line& MaybeText(std::string_view name, const std::optional<std::string>& value) {
    if (value) return Text(name, std::string_view(*value));
    json_.Key(name).Null();
    return *this;
  }
  Line& Int(std::string_view name, int64_t value) {
    json_.Key(name).Int(value);
    return *this;
  }
  Line& Bool(std::string_view name, bool value) {
    json_.Key(name).Bool(value);
    return *this;
  }
  std::string Done() { return json_.EndObject().Take(); }

 private:
  JsonWriter json_;
};

std::string Trimmed(std::string text) {
  const auto is_space = [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); };
  text.erase(std::find_if_not(text.rbegin(), text.rend(), is_space).base(), text.end());
  text.erase(text.begin(), std::find_if_not(text.begin(), text.end(), is_space));
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return text;
}

// What a caller who has no wish writes.
bool IsAuto(const std::string& trimmed) { return trimmed.empty() || trimmed == "auto"; }

std::string MissingOf(const BackendProbe& probe) {
  if (!probe.has_package && !probe.has_device) return "its package and its device are missing";
  return probe.has_package ? "its device is missing" : "its package is missing";
}

}  // namespace

Result<ExactTokenRecord> MakeExactTokenRecord(const ExactTokenStep& step) {
  std::vector<Violation> violations;
  if (step.indexer.empty()) violations.push_back({"indexer", "a name expected"});
  if (step.seq_len < 0) violations.push_back({"seq_len", fmt::format("0 or more expected, got {}", step.seq_len)});
  if (step.returned_tokens && step.actual_backend.empty()) {
    violations.push_back({"actual_backend", "the backend that ran the tokens expected"});
  }
  if (!violations.empty()) return Fail(ErrorCode::kBadArgument, std::move(violations), "exact-token record");
  ExactTokenRecord record;
  record.indexer = step.indexer;
  record.seq_len = step.seq_len;
  if (!step.returned_tokens) {
    record.path = "reroute_to_full";
    record.reason = "indexer_returned_none";
    return record;
  }
  record.path = "exact_token";
  record.backend = step.actual_backend;
  record.requested_backend = step.requested_backend;
  record.actual_backend = step.actual_backend;
  record.runtime_mode = "exact_token";
  return record;
}

std::string ToJson(const ExactTokenRecord& r) {
  if (r.path == "reroute_to_full") {
    return Line()
        .Text("path", r.path)
        .Text("reason", r.reason)
        .Text("indexer", r.indexer)
        .Int("seq_len", r.seq_len)
        .Done();
  }
  return Line()
      .Text("path", r.path)
      .Text("indexer", r.indexer)
      .Text("backend", r.backend)
      .Int("seq_len", r.seq_len)
      .Text("requested_backend", r.requested_backend)
      .Text("actual_backend", r.actual_backend)
      .Text("runtime_mode", r.runtime_mode)
      .Done();
}

std::optional<ExactTokenRecord> ExactTokenRecordOf(const Receipt& receipt, const MaskTerms* terms) {
  if (receipt.picks.source.empty() || receipt.executed.empty()) return std::nullopt;
  const Result<Contract> contract = ParseContract(receipt.contract_text, ".", terms);
  if (!contract) return std::nullopt;
  const bool is_rerouted = receipt.picks.source == "reroute_to_full";
  // Only a caller's indexer can return nothing.
  Result<ExactTokenRecord> record = MakeExactTokenRecord({.indexer = is_rerouted ? "caller" : receipt.picks.source,
                                                          .returned_tokens = !is_rerouted,
                                                          .seq_len = contract->shape.kv_len,
                                                          .requested_backend = receipt.requested,
                                                          .actual_backend = receipt.executed});
  if (!record) return std::nullopt;
  return std::move(*record);
}

Result<BackendChoice> ChooseBackend(const std::optional<std::string>& requested,
                                    const std::vector<BackendProbe>& in_order) {
  const std::string asked = Trimmed(requested.value_or(""));
  std::vector<std::string> names;
  for (const BackendProbe& probe : in_order) names.push_back(probe.name);
  if (!IsAuto(asked)) {
    const auto probe =
        std::find_if(in_order.begin(), in_order.end(), [&](const BackendProbe& p) { return p.name == asked; });
    if (probe == in_order.end()) {
      return Fail(ErrorCode::kLaneUnknown,
                  fmt::format("there is no backend \"{}\"; there are {}", asked, fmt::join(names, ", ")), "backend");
    }
    if (!probe->IsAvailable()) {
      return Fail(ErrorCode::kLaneRefused, fmt::format("{} was asked for by name, but {}", asked, MissingOf(*probe)),
                  "backend");
    }
    return BackendChoice{asked, "explicit", "asked for by name"};
  }
  std::vector<std::string> missing;
  for (const BackendProbe& probe : in_order) {
    if (probe.IsAvailable()) {
      return BackendChoice{probe.name, "autodetect",
                           missing.empty() ? "the first in order, and it is there"
                                           : fmt::format("the first that is there: {}", fmt::join(missing, ", "))};
    }
    missing.push_back(fmt::format("{}: {}", probe.name, MissingOf(probe)));
  }
  return Fail(ErrorCode::kLaneRefused, fmt::format("no backend is there: {}", fmt::join(missing, ", ")), "backend");
}

std::string ToJson(const BackendChoice& choice) {
  return Line().Text("backend", choice.backend).Text("source", choice.source).Text("reason", choice.reason).Done();
}

Result<MobaRecord> ResolveMoba(const std::optional<std::string>& requested, const BackendProbe& flash) {
  std::string asked = Trimmed(requested.value_or(""));
  if (IsAuto(asked)) asked = "triton";
  if (asked != "triton" && asked != "flash") {
    return Fail(ErrorCode::kLaneUnknown, fmt::format("a MoBA backend is triton or flash, got \"{}\"", asked),
                "moba backend");
  }
  MobaRecord record{.semantic_branch = "block_sparse",
                    .router_type = "moba",
                    .requested_backend = asked,
                    .requested_backend_source = "runtime_contract",
                    .actual_backend = asked,
                    .runtime_mode = "blockized_sparse_cuda",
                    .fallback_reason = std::nullopt,
                    .note = "the backend changes how blocks are read, never which"};
  if (asked == "flash" && !flash.IsAvailable()) {
    record.actual_backend = "triton";
    record.fallback_reason = "flash_cute_runtime_unavailable";
  }
  return record;
}

std::string ToJson(const MobaRecord& r) {
  return Line()
      .Text("semantic_branch", r.semantic_branch)
      .Text("router_type", r.router_type)
      .Text("requested_backend", r.requested_backend)
      .Text("requested_backend_source", r.requested_backend_source)
      .Text("actual_backend", r.actual_backend)
      .Text("runtime_mode", r.runtime_mode)
      .MaybeText("fallback_reason", r.fallback_reason)
      .Text("note", r.note)
      .Done();
}

ClusteredSupport SupportOf(const ClusteredKernel& kernel) {
  if (!kernel.is_available) return {};
  using Names = std::vector<std::string_view>;
  static const Names kContract = {"exact_mask_contract", "mask_contract", "attention_mask_contract",
                                  "mask_info",           "mask_meta",     "exact_mask"};
  static const Names kWindow = {"window_size", "local_window"};
  static const Names kDocuments = {"doc_ids",     "q_doc_ids",     "kv_doc_ids",
                                   "segment_ids", "q_segment_ids", "kv_segment_ids"};
  static const Names kPrefix = {"valid_token_counts", "q_valid_token_counts", "kv_valid_token_counts",
                                "attention_validity"};
  const auto declares = [](const PhaseParameters& phase, const Names& known) {
    return std::any_of(phase.names.begin(), phase.names.end(), [&](const std::string& name) {
      return std::find(known.begin(), known.end(), name) != known.end();
    });
  };
  const auto both = [&](const Names& known) {
    return declares(kernel.phase1, known) && declares(kernel.phase3, known);
  };
  return {.local_window = both(kWindow),
          .general_doc_ids = both(kDocuments),
          .valid_prefix = both(kPrefix),
          .phase1_has_contract = declares(kernel.phase1, kContract),
          .phase2_has_contract = declares(kernel.phase2, kContract),
          .phase3_has_contract = declares(kernel.phase3, kContract)};
}

std::string ToJson(const ClusteredSupport& support) {
  return Line()
      .Bool("local_window", support.local_window)
      .Bool("general_doc_ids", support.general_doc_ids)
      .Bool("valid_prefix", support.valid_prefix)
      .Bool("phase1_has_contract", support.phase1_has_contract)
      .Bool("phase2_has_contract", support.phase2_has_contract)
      .Bool("phase3_has_contract", support.phase3_has_contract)
      .Done();
}

}  // namespace tessera
