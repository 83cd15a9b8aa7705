// The one list of a receipt's fields, in the order they are written. Writing, reading and the documentation's field
// table all follow it.
#pragma once

#include "tessera/receipt.h"

namespace tessera {

// Calls visit("name", field) for every field; ReceiptType is Receipt or const Receipt.
template <class ReceiptType, class Visit>
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
  visit("fallback_reason", r.fallback_reason);
  visit("target", r.target);
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

}  // namespace tessera
