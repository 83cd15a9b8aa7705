// The one list of a receipt's fields, and of the fields of each group in it, in the order they are written. Writing,
// reading, comparing and the documentation's field table all follow it: a new group is a struct in tessera/receipt.h, a
// VisitFields here, and a line in that of Receipt.
#pragma once

#include <concepts>
#include <type_traits>

#include "tessera/receipt.h"

namespace tessera {

// T is Of or const Of.
template <class T, class Of>
concept MaybeConst = std::same_as<std::remove_const_t<T>, Of>;

// VisitFields(group, visit) calls visit("name", field) for every field.
template <MaybeConst<TileCounts> Group, class Visit>
void VisitFields(Group& g, Visit&& visit) {
  visit("empty", g.empty);
  visit("partial", g.partial);
  visit("full", g.full);
}

template <MaybeConst<CacheUse> Group, class Visit>
void VisitFields(Group& g, Visit&& visit) {
  visit("outcome", g.outcome);
  visit("key", g.key);
  visit("hits", g.hits);
  visit("misses", g.misses);
  visit("builds", g.builds);
  visit("evictions", g.evictions);
}

template <MaybeConst<LedgerUse> Group, class Visit>
void VisitFields(Group& g, Visit&& visit) {
  visit("file", g.file);
  visit("verdict", g.verdict);
  visit("chose", g.chose);
  visit("over", g.over);
  visit("entry", g.entry);
  visit("note", g.note);
  visit("machine", g.machine);
}

template <MaybeConst<PicksUse> Group, class Visit>
void VisitFields(Group& g, Visit&& visit) {
  visit("source", g.source);
  visit("reason", g.reason);
  visit("picks", g.picks);
  visit("kept", g.kept);
  visit("nan_scores", g.nan_scores);
  visit("widest_union", g.widest_union);
}

template <MaybeConst<ClassUse> Group, class Visit>
void VisitFields(Group& g, Visit&& visit) {
  visit("request", g.request);
  visit("padded", g.padded);
  visit("request_key", g.request_key);
  visit("exact_slots", g.exact_slots);
  visit("class_slots", g.class_slots);
}

template <MaybeConst<DeviceUse> Group, class Visit>
void VisitFields(Group& g, Visit&& visit) {
  visit("kind", g.kind);
  visit("name", g.name);
  visit("ordinal", g.ordinal);
  visit("memory", g.memory);
  visit("driver", g.driver);
  visit("plugin", g.plugin);
  visit("platform", g.platform);
  visit("platform_version", g.platform_version);
  visit("pjrt", g.pjrt);
  visit("stablehlo", g.stablehlo);
  visit("topology", g.topology);
  visit("guard", g.guard);
}

template <MaybeConst<CrossingUse> Group, class Visit>
void VisitFields(Group& g, Visit&& visit) {
  visit("runtime", g.runtime);
  visit("interpreter", g.interpreter);
  visit("library", g.library);
  visit("calls", g.calls);
  visit("bytes_in", g.bytes_in);
  visit("copied_in", g.copied_in);
  visit("copies_in", g.copies_in);
  visit("bytes_out", g.bytes_out);
  visit("copies_out", g.copies_out);
}

template <MaybeConst<ProgramUse> Group, class Visit>
void VisitFields(Group& g, Visit&& visit) {
  visit("pass", g.pass);
  visit("name", g.name);
  visit("source", g.source);
  visit("note", g.note);
  visit("key", g.key);
  visit("compile_ns", g.compile_ns);
  visit("parts", g.parts);
  visit("argument_bytes", g.argument_bytes);
  visit("output_bytes", g.output_bytes);
  visit("temp_bytes", g.temp_bytes);
  visit("code_bytes", g.code_bytes);
  visit("instructions", g.instructions);
  visit("opcodes", g.opcodes);
  visit("custom_calls", g.custom_calls);
  visit("collectives", g.collectives);
}

template <MaybeConst<KernelUse> Group, class Visit>
void VisitFields(Group& g, Visit&& visit) {
  visit("name", g.name);
  visit("vector_bytes", g.vector_bytes);
  visit("vector_limit", g.vector_limit);
  visit("scalar_bytes", g.scalar_bytes);
  visit("scalar_limit", g.scalar_limit);
}

template <MaybeConst<FileUse> Group, class Visit>
void VisitFields(Group& g, Visit&& visit) {
  visit("name", g.name);
  visit("bytes", g.bytes);
  visit("digest", g.digest);
}

template <MaybeConst<WorkUse> Group, class Visit>
void VisitFields(Group& g, Visit&& visit) {
  visit("pairs", g.pairs);
  visit("forward_gflops", g.forward_gflops);
  visit("backward_gflops", g.backward_gflops);
}

template <MaybeConst<Timing> Group, class Visit>
void VisitFields(Group& g, Visit&& visit) {
  visit("name", g.name);
  visit("ns", g.ns);
}

template <MaybeConst<Receipt> ReceiptType, class Visit>
void VisitFields(ReceiptType& r, Visit&& visit) {
  visit("version", r.version);
  visit("ok", r.ok);
  visit("failed_at", r.failed_at);
  visit("error", r.error);
  visit("requested", r.requested);
  visit("selected", r.selected);
  visit("selection_rule", r.selection_rule);
  visit("executed", r.executed);
  visit("runtime_mode", r.runtime_mode);
  visit("owner", r.owner);
  visit("fallback_reason", r.fallback_reason);
  visit("target", r.target);
  visit("ran_on", r.ran_on);
  visit("device", r.device);
  visit("crossing", r.crossing);
  visit("ledger", r.ledger);
  visit("decisions", r.decisions);
  visit("contract_key", r.contract_key);
  visit("contract_text", r.contract_text);
  visit("contract_source", r.contract_source);
  visit("class_key", r.class_key);
  visit("class_request", r.class_request);
  visit("picks", r.picks);
  visit("mask_digest", r.mask_digest);
  visit("plan_fingerprint", r.plan_fingerprint);
  visit("tiles", r.tiles);
  visit("tiles_executed", r.tiles_executed);
  visit("tiles_backward", r.tiles_backward);
  visit("tiles_executed_backward", r.tiles_executed_backward);
  visit("plan_bytes", r.plan_bytes);
  visit("metadata_bytes", r.metadata_bytes);
  visit("metadata_limit", r.metadata_limit);
  visit("kernel", r.kernel);
  visit("isa", r.isa);
  visit("compiles", r.compiles);
  visit("cache_hits", r.cache_hits);
  visit("cache", r.cache);
  visit("programs", r.programs);
  visit("kernels", r.kernels);
  visit("files", r.files);
  visit("work", r.work);
  visit("workspace_bytes", r.workspace_bytes);
  visit("determinism", r.determinism);
  visit("input_source", r.input_source);
  visit("input_digest", r.input_digest);
  visit("batch_source", r.batch_source);
  visit("batch_digest", r.batch_digest);
  visit("output_digest", r.output_digest);
  visit("options", r.options);
  visit("versions", r.versions);
  visit("timings", r.timings);
}

struct IgnoreField {
  template <class T>
  void operator()(const char*, T&) const {}
};

// What VisitFields knows the fields of.
template <class T>
concept HasFields = requires(T& value) {
  VisitFields(value, IgnoreField{});
};

}  // namespace tessera
