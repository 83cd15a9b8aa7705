#include "engine/describe.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/hash.h"
#include "dispatch/options.h"
#include "engine/tensors.h"
#include "tessera/ledger.h"
#include "tessera/version.h"

namespace tessera {
namespace {

// Absent and empty must differ: presence enters the hash before the content.
template <class T, class Add>
void HashOptional(Hasher& hasher, const std::optional<T>& value, Add add) {
  hasher.Int(value.has_value() ? 1 : 0);
  if (value.has_value()) add(*value);
}

int64_t TimeOf(const Receipt& receipt, std::string_view name) {
  for (const Timing& timing : receipt.timings) {
    if (timing.name == name) return timing.ns;
  }
  return 0;
}

}  // namespace

std::string BatchDigest(const Batch& batch) {
  Hasher hasher;
  auto add_values = [&](const auto& values) {
    hasher.Int(static_cast<int64_t>(values.size()));
    hasher.Bytes(values.data(), values.size() * sizeof(values[0]));
  };
  auto add_ids = [&](const IdRows& ids) {
    hasher.Int(ids.rows);
    hasher.Int(ids.len);
    add_values(ids.values);
  };
  HashOptional(hasher, batch.doc_ids, add_ids);
  HashOptional(hasher, batch.q_doc_ids, add_ids);
  HashOptional(hasher, batch.kv_doc_ids, add_ids);
  HashOptional(hasher, batch.valid_tokens, add_values);
  HashOptional(hasher, batch.valid_slots, add_values);
  HashOptional(hasher, batch.base_block_tokens, [&](int64_t tokens) { hasher.Int(tokens); });
  HashOptional(hasher, batch.q_valid_tokens, add_values);
  HashOptional(hasher, batch.kv_valid_tokens, add_values);
  HashOptional(hasher, batch.picks, [&](const Picks& picks) {
    hasher.Int(picks.block_tokens);
    add_values(picks.shape);
    add_values(picks.blocks);
  });
  // Only those that are there, each with its place: a batch without them keeps the digest it had before they came.
  int64_t place = 0;
  for (const std::optional<IntRows>* rows : {&batch.doc_lengths, &batch.q_doc_lengths, &batch.kv_doc_lengths,
                                             &batch.cu_seqlens, &batch.q_cu_seqlens, &batch.kv_cu_seqlens}) {
    ++place;
    if (!rows->has_value()) continue;
    hasher.Int(place);
    hasher.Int(static_cast<int64_t>((*rows)->size()));
    for (const std::vector<int32_t>& row : **rows) add_values(row);
  }
  return Hex(hasher.Finish());
}

void DescribeRequest(const RequestFacts& facts, Receipt& receipt) {
  receipt.version = kReceiptVersion;
  receipt.requested = facts.options.lane;
  receipt.target = facts.target.name;
  receipt.metadata_limit = facts.target.scalar_bytes;
  receipt.input_digest = receipt.batch_digest = kNotTaken;
  VisitOptions(facts.options, [&](std::string_view name, const auto& value, OptionUse) {
    receipt.options[std::string(name)] = OptionText(value);
  });
  // What runs is said, not what was left open.
  receipt.options["threads"] = OptionText(facts.threads);
  receipt.options["layout"] = ToText(facts.layout);
  receipt.options["row_max"] = OptionText(facts.row_max);
  receipt.options["plan"] = facts.plan_given ? "given" : "made";
  receipt.options["target"] = facts.target.name;
  receipt.options["workers"] = OptionText(std::max<int64_t>(facts.target.workers, 1));
  // Each only there where it is true.
  if (facts.compile_only && !facts.emit_only) receipt.options[kCompileOnlyOption] = "true";
  if (facts.emit_only) receipt.options[kEmitOnlyOption] = "true";
  receipt.versions = Versions();
  receipt.ledger = {.file = facts.options.ledger, .machine = MachineId()};
}

void DescribeAttention(const AttentionState& attention, Receipt& receipt) {
  const Prepared& prepared = *attention.prepared;
  receipt.contract_key = prepared.key.contract_key;
  receipt.contract_text = attention.is_same_spelling ? prepared.contract_text : ToToml(attention.contract);
  receipt.cache = attention.cache;
  receipt.ledger = attention.ledger;
  receipt.selected = attention.selected;
  receipt.selection_rule = attention.selection_rule;
  receipt.decisions = prepared.selection.decisions;
  for (const LaneDecision& decision : receipt.decisions) {
    if (decision.lane == attention.selected) receipt.fallback_reason = ReasonText(decision.decision.reason);
  }
  receipt.timings.push_back({"prepare", attention.prepare_ns});
}

void DescribePlan(const PlanView& view, const AttentionOptions& options, Receipt& receipt) {
  receipt.class_key = ToHex(view.class_key);
  receipt.mask_digest = ToHex(view.mask_digest);
  receipt.plan_fingerprint = ToHex(view.fingerprint);
  receipt.plan_bytes = static_cast<int64_t>(view.bytes.size());
  receipt.metadata_bytes = MetadataBytes(view);
  if (options.forward) receipt.tiles = CountTiles(view, Direction::kForward);
}

void DescribePicks(const PicksReport& report, Receipt& receipt) {
  receipt.picks = {.source = report.source,
                   .reason = report.source == kRerouted ? "indexer_returned_none" : "",
                   .picks = report.picks,
                   .kept = report.kept,
                   .nan_scores = report.nan_scores,
                   .widest_union = report.widest_union};
}

void DescribeBinding(const BoundState& bound, Receipt& receipt) {
  receipt.decisions.insert(receipt.decisions.end(), bound.decisions.begin(), bound.decisions.end());
  receipt.fallback_reason = bound.fallback_reason;
  for (const Pass pass : PassesOf(bound.attention->options)) {
    receipt.workspace_bytes = std::max(receipt.workspace_bytes, bound.lane->WorkspaceBytes(pass));
  }
  receipt.timings.push_back({"bind", bound.bind_ns});
}

void DescribeLane(const BoundState& bound, Receipt& receipt) {
  const LaneRow& row = *bound.row;
  const BoundLane::Facts facts = bound.lane->Describe();
  const bool is_run = !bound.attention->compile_only;
  receipt.executed = row.name;
  const bool is_interpreted = facts.device.kind == "interpreter";
  const char* unrun = bound.attention->emit_only ? kEmitted : kCompileOnly;
  receipt.runtime_mode = !is_run ? unrun : is_interpreted ? "interpreted" : std::string(row.runtime_mode);
  receipt.owner = row.runtime_mode == "payload" ? kOwnerPallas : row.runtime_mode == "bridge" ? kOwnerJax : "";
  receipt.determinism = row.determinism;
  receipt.kernel = facts.kernel;
  receipt.isa = facts.isa;
  receipt.device = facts.device;
  if (is_run) {
    receipt.ran_on = is_interpreted ? facts.device.kind : facts.device.name;
  } else {
    receipt.device.memory.clear();  // no tensor was anywhere
  }
  receipt.programs = facts.programs;
  for (const ProgramUse& program : facts.programs) {
    const bool is_compiled = program.source == "compiled";
    ++(is_compiled ? receipt.compiles : receipt.cache_hits);
    if (program.compile_ns == 0) continue;
    receipt.timings.push_back({(is_compiled ? "compile." : "load.") + program.pass, program.compile_ns});
  }
}

void DescribeEmitted(const ProgramText& program, const Target& target, Receipt& receipt) {
  receipt.programs.push_back({.pass = program.pass,
                              .name = program.name,
                              .source = kEmitted,
                              .note = program.note,
                              .key = FileDigest(program.text),
                              .parts = program.parts,
                              .argument_bytes = -1,
                              .output_bytes = -1,
                              .temp_bytes = -1,
                              .code_bytes = -1});
  for (const KernelText& kernel : program.kernels) {
    receipt.kernels.push_back({.name = kernel.name,
                               .vector_bytes = kernel.vector_bytes,
                               .vector_limit = target.vector_bytes,
                               .scalar_bytes = kernel.scalar_bytes,
                               .scalar_limit = target.scalar_bytes});
  }
}

void DescribePass(const BoundState& bound, Pass pass, const PassRun& run, Receipt& receipt) {
  if (pass == Pass::kForward) {
    receipt.tiles_executed = run.tiles;
  } else {
    receipt.tiles_backward = CountTiles(bound.plan.view(), Direction::kDkv);
    receipt.tiles_executed_backward = run.tiles;
  }
  receipt.timings.push_back({std::string(ToText(pass)), run.ns});
  if (run.crossing.calls == 0) return;
  CrossingUse sum = run.crossing;
  sum.calls += receipt.crossing.calls;
  sum.bytes_in += receipt.crossing.bytes_in;
  sum.copied_in += receipt.crossing.copied_in;
  sum.copies_in += receipt.crossing.copies_in;
  sum.bytes_out += receipt.crossing.bytes_out;
  sum.copies_out += receipt.crossing.copies_out;
  receipt.crossing = std::move(sum);
}

void DescribeWork(const BoundState& bound, Receipt& receipt) {
  receipt.work =
      WorkOf(bound.attention->contract.shape, PairsOf(bound), TimeOf(receipt, "forward"), TimeOf(receipt, "backward"));
}

}  // namespace tessera
