// Calls of the C interface and their receipts: the caller's pointers become views, and the engine does the rest.
#include <fmt/format.h>

#include <cstring>

#include "capi/arguments.h"
#include "capi/handles.h"
#include "capi/structs.h"
#include "tessera/receipt.h"
#include "tessera/run.h"

namespace tessera::capi {

void GiveReceipt(const Receipt& from, tessera_receipt** to) {
  if (to != nullptr) *to = new tessera_receipt{from.ok, ToJson(from), ToLine(from)};
}

}  // namespace tessera::capi

namespace {

using namespace tessera;        // NOLINT: the C functions below cannot be in the namespace
using namespace tessera::capi;  // NOLINT

using PassFunction = Status (Bound::*)(const RunTensors&, const CallOptions&) const;

Status Call(const tessera_bound* bound, PassFunction pass, const tessera_args* args, const tessera_call_options* call,
            tessera_receipt** receipt, std::string_view where) {
  TESSERA_TRY(NotNull(bound, "bound", where));
  CallOptions options = TESSERA_TRY(ReadCallOptions(call, where));
  const RunTensors tensors = TESSERA_TRY(ReadArgs(args, bound->shape, where));
  if (receipt == nullptr) return (bound->bound.*pass)(tensors, options);
  Receipt filled;
  options.receipt = &filled;
  options.batch = bound->batch.get();
  Status status = (bound->bound.*pass)(tensors, options);
  GiveReceipt(filled, receipt);
  return status;
}

}  // namespace

int tessera_attention_bind(const tessera_attention* attention, const tessera_plan* plan, tessera_bound** bound,
                           tessera_error** error) {
  if (bound != nullptr) *bound = nullptr;
  return Guard(__func__, error, [&, where = __func__]() -> Status {
    TESSERA_TRY(NotNull(bound, "bound", where));
    TESSERA_TRY(NotNull(attention, "attention", where));
    TESSERA_TRY(NotNull(plan, "plan", where));
    const Attention& of = attention->attention;
    // A plan may be bound many times and freed meanwhile, so each has its bytes; they were checked when it was made.
    const std::span<const std::byte> bytes = plan->plan.bytes();
    Bound made = TESSERA_TRY(of.Bind(plan::Trust({bytes.begin(), bytes.end()})));
    *bound = new tessera_bound{std::move(made), of.contract().shape, plan->batch};
    return {};
  });
}

int tessera_attention_rebind(const tessera_attention* attention, const tessera_bound* earlier, const tessera_plan* plan,
                             void* stream, tessera_bound** bound, tessera_error** error) {
  if (bound != nullptr) *bound = nullptr;
  return Guard(__func__, error, [&, where = __func__]() -> Status {
    TESSERA_TRY(NotNull(bound, "bound", where));
    TESSERA_TRY(NotNull(attention, "attention", where));
    TESSERA_TRY(NotNull(earlier, "earlier", where));
    TESSERA_TRY(NotNull(plan, "plan", where));
    const Attention& of = attention->attention;
    const std::span<const std::byte> bytes = plan->plan.bytes();
    Bound made = TESSERA_TRY(of.Rebind(earlier->bound, plan::Trust({bytes.begin(), bytes.end()}), stream));
    *bound = new tessera_bound{std::move(made), of.contract().shape, plan->batch};
    return {};
  });
}

int tessera_attention_image(const tessera_attention* attention, const tessera_plan* plan, void* image, int64_t capacity,
                            int64_t* image_bytes, tessera_error** error) {
  return Guard(__func__, error, [&, where = __func__]() -> Status {
    TESSERA_TRY(NotNull(attention, "attention", where));
    TESSERA_TRY(NotNull(plan, "plan", where));
    TESSERA_TRY(NotNull(image_bytes, "image_bytes", where));
    if (capacity < 0 || (image == nullptr && capacity != 0)) {
      return BadArgument(where,
                         fmt::format("capacity is {} and image is {}", capacity, image == nullptr ? "NULL" : "given"));
    }
    const std::vector<std::byte> made = TESSERA_TRY(attention->attention.Image(plan->plan));
    *image_bytes = static_cast<int64_t>(made.size());
    if (*image_bytes <= capacity) std::memcpy(image, made.data(), made.size());
    return {};
  });
}

int tessera_bound_forward(const tessera_bound* bound, const tessera_args* args, const tessera_call_options* call,
                          tessera_receipt** receipt, tessera_error** error) {
  if (receipt != nullptr) *receipt = nullptr;
  return Guard(__func__, error,
               [&, where = __func__] { return Call(bound, &Bound::Forward, args, call, receipt, where); });
}

int tessera_bound_backward(const tessera_bound* bound, const tessera_args* args, const tessera_call_options* call,
                           tessera_receipt** receipt, tessera_error** error) {
  if (receipt != nullptr) *receipt = nullptr;
  return Guard(__func__, error,
               [&, where = __func__] { return Call(bound, &Bound::Backward, args, call, receipt, where); });
}

const char* tessera_bound_lane(const tessera_bound* bound) {
  return bound == nullptr ? "" : bound->bound.lane().c_str();
}
const char* tessera_bound_kernel(const tessera_bound* bound) {
  return bound == nullptr ? "" : bound->bound.kernel().c_str();
}
const char* tessera_bound_isa(const tessera_bound* bound) { return bound == nullptr ? "" : bound->bound.isa().c_str(); }
int64_t tessera_bound_workspace_bytes(const tessera_bound* bound) {
  return bound == nullptr ? 0 : bound->bound.workspace_bytes();
}
void tessera_bound_free(tessera_bound* bound) { delete bound; }

int tessera_run(const tessera_engine* engine, const tessera_contract* contract, const tessera_batch* batch,
                const char* target, const tessera_attention_options* options, const tessera_args* args,
                const tessera_call_options* call, tessera_receipt** receipt, tessera_error** error) {
  if (receipt != nullptr) *receipt = nullptr;
  return Guard(__func__, error, [&, where = __func__]() -> Status {
    TESSERA_TRY(NotNull(engine, "engine", where));
    TESSERA_TRY(NotNull(contract, "contract", where));
    const Contract& of = *contract->contract;
    RunOptions run;
    static_cast<AttentionOptions&>(run) = TESSERA_TRY(ReadAttentionOptions(options, where));
    const CallOptions read = TESSERA_TRY(ReadCallOptions(call, where));
    if (read.stream != nullptr) return BadArgument(where, "call->stream is given; a bound call takes one");
    if (!read.workspace.empty()) return BadArgument(where, "call->workspace is given; a bound call takes one");
    if (!read.image.empty()) return BadArgument(where, "call->image is given; a bound call takes one");
    run.digests = read.digests;
    run.input_source = read.input_source;
    run.batch_source = read.batch_source;
    run.contract_source = read.contract_source;
    const RunTensors tensors = TESSERA_TRY(ReadArgs(args, of.shape, where));
    const Target found = TESSERA_TRY(ReadTarget(target));
    const std::shared_ptr<const Batch> facts = BatchOf(batch);
    RunOutcome outcome = RunStrided(engine->engine, of, *facts, tensors, found, run);
    GiveReceipt(outcome.receipt, receipt);
    if (outcome.error) return tl::unexpected(std::move(*outcome.error));
    return {};
  });
}

int tessera_receipt_ok(const tessera_receipt* receipt) { return receipt != nullptr && receipt->ok ? 1 : 0; }

const char* tessera_receipt_json(const tessera_receipt* receipt) {
  return receipt == nullptr ? "" : receipt->json.c_str();
}
const char* tessera_receipt_line(const tessera_receipt* receipt) {
  return receipt == nullptr ? "" : receipt->line.c_str();
}
void tessera_receipt_free(tessera_receipt* receipt) { delete receipt; }
