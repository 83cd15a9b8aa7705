// A run at a request's class: padded in, run, cropped out.
#include <utility>

#include "classes/at_class.h"
#include "engine/run.h"
#include "tessera/normalise.h"

namespace tessera {

RunOutcome RunAtClass(const Engine& engine, const Contract& contract, const Batch& batch, const TensorMap& inputs,
                      const Target& target, const RunOptions& options) {
  const auto fail = [&](const char* step, Error error) {
    RunOutcome outcome;
    // A contract that is not valid has no key to say.
    const Contract* known = step == std::string("contract") ? nullptr : &contract;
    outcome.receipt = ReceiptOf(engine, {.failed_at = step, .target = target.name, .contract = known}, options, error);
    outcome.error = std::move(error);
    return outcome;
  };
  const Result<std::string> key = ContractKey(contract);
  if (!key) return fail("contract", key.error());
  const Result<RequestClass> at = Normalise(contract, target, options.plan);
  if (!at) return fail("request", at.error());
  const Result<Contract> padded = AtClass(contract, *at);
  if (!padded) return fail("request", padded.error());
  const Result<Batch> padded_batch = AtClass(contract, batch, *at);
  if (!padded_batch) return fail("request", padded_batch.error());
  const PadOptions pad{.layout = options.layout};
  const Result<TensorMap> padded_inputs = PadToClass(inputs, *at, pad);
  if (!padded_inputs) return fail("request", padded_inputs.error());
  RunOutcome outcome = Run(engine, *padded, *padded_batch, *padded_inputs, target, options);
  outcome.receipt.class_request = {.request = ShapeText(at->request),
                                   .padded = ShapeText(at->shape),
                                   .request_key = *key,
                                   .exact_slots = at->exact_slots,
                                   .class_slots = at->class_slots};
  if (outcome.error) return outcome;
  // The lane wrote tensors of exactly the padded contract, so these are of the right sizes.
  outcome.outputs = CropToRequest(outcome.outputs, *at, pad).value();
  if (outcome.picks) outcome.picks = CropPicks(*outcome.picks, contract, *at);
  if (options.digests) outcome.receipt.output_digest = Digest(outcome.outputs);
  return outcome;
}

}  // namespace tessera
