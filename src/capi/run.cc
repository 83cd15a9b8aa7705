// Runs and receipts of the C interface: the caller's pointers become views, and dispatch does the rest.
#include "tessera/run.h"

#include <fmt/format.h>

#include "capi/handles.h"
#include "capi/structs.h"
#include "tessera/receipt.h"

namespace {

using namespace tessera;        // NOLINT: the C functions below cannot be in the namespace
using namespace tessera::capi;  // NOLINT

Result<RunOptions> ReadOptions(const tessera_run_options* given, int64_t what, std::string_view where) {
  RunOptions out;
  if (what < 1 || what > (TESSERA_FORWARD | TESSERA_BACKWARD)) {
    return BadArgument(where, fmt::format("what is {}; TESSERA_FORWARD, TESSERA_BACKWARD or both expected", what));
  }
  out.forward = (what & TESSERA_FORWARD) != 0;
  out.backward = (what & TESSERA_BACKWARD) != 0;
  if (given == nullptr) return out;
  Result<tessera_run_options> options = ReadStruct(given, {"options", where});
  if (!options) return tl::unexpected(std::move(options.error()));
  if (options->lane != nullptr) out.lane = options->lane;
  Result<std::vector<std::string>> exclude =
      ReadNames(options->exclude, options->num_exclude, {"options->exclude", where});
  if (!exclude) return tl::unexpected(std::move(exclude.error()));
  out.exclude = std::move(*exclude);
  Result<bool> strict = ReadFlag(options->strict, "options->strict", where);
  if (!strict) return tl::unexpected(std::move(strict.error()));
  out.strict = *strict;
  if (options->threads != 0) out.threads = options->threads;
  if (options->isa != nullptr) out.isa = options->isa;
  if (options->input_source != nullptr) out.input_source = options->input_source;
  if (options->batch_source != nullptr) out.batch_source = options->batch_source;
  return out;
}

// Collects the views of the caller's tensors; the first unknown dtype is kept as the error.
class Binder {
 public:
  Binder(const Shape& shape, std::string_view where) : shape_(shape), where_(where) {}

  TensorRef Tensor(const tessera_tensor& tensor, std::string_view name) {
    TensorRef ref{.type = ToElementType(shape_.dtype),
                  .data = static_cast<std::byte*>(tensor.data),
                  .batch_stride = tensor.batch_stride,
                  .head_stride = tensor.head_stride,
                  .token_stride = tensor.token_stride};
    if (tensor.dtype == TESSERA_DTYPE_F32) ref.type = ElementType::kF32;
    if (tensor.dtype == TESSERA_DTYPE_BF16) ref.type = ElementType::kBf16;
    if (tensor.dtype == TESSERA_DTYPE_F16) ref.type = ElementType::kF16;
    if (tensor.dtype < TESSERA_DTYPE_CONTRACT || tensor.dtype > TESSERA_DTYPE_F16) {
      status_ = BadArgument(where_, fmt::format("args->{}.dtype is {}; a TESSERA_DTYPE expected", name, tensor.dtype));
    }
    return ref;
  }
  // A C pointer has no length: what the contract says is taken to be there.
  template <class Float>
  std::span<Float> Rows(Float* floats) const {
    return Floats(floats, shape_.batch * shape_.num_q_heads * shape_.q_len);
  }
  template <class Float>
  std::span<Float> Heads(Float* floats) const {
    return Floats(floats, shape_.num_q_heads);
  }
  const Status& status() const { return status_; }

 private:
  template <class Float>
  static std::span<Float> Floats(Float* floats, int64_t count) {
    return floats == nullptr ? std::span<Float>() : std::span<Float>(floats, static_cast<size_t>(count));
  }

  const Shape& shape_;
  std::string_view where_;
  Status status_;
};

Result<RunTensors> ReadArgs(const tessera_run_args* given, const Shape& shape, std::string_view where) {
  Result<tessera_run_args> args = ReadStruct(given, {"args", where});
  if (!args) return tl::unexpected(std::move(args.error()));
  Binder bind(shape, where);
  RunTensors tensors;
  tensors.q = bind.Tensor(args->q, "q");
  tensors.k = bind.Tensor(args->k, "k");
  tensors.v = bind.Tensor(args->v, "v");
  tensors.dout = bind.Tensor(args->dout, "dout");
  tensors.sink_logits = bind.Heads(args->sink_logits);
  tensors.o = bind.Tensor(args->o, "o");
  tensors.lse = bind.Rows(args->lse);
  tensors.row_max = bind.Rows(args->row_max);
  tensors.delta = bind.Rows(args->delta);
  tensors.dq = bind.Tensor(args->dq, "dq");
  tensors.dk = bind.Tensor(args->dk, "dk");
  tensors.dv = bind.Tensor(args->dv, "dv");
  tensors.dsink_logits = bind.Heads(args->dsink_logits);
  if (!bind.status()) return tl::unexpected(bind.status().error());
  return tensors;
}

}  // namespace

int tessera_run(const tessera_plan* plan, int64_t what, const tessera_run_args* args,
                const tessera_run_options* options, tessera_receipt** receipt, tessera_error** error) {
  if (receipt != nullptr) *receipt = nullptr;
  return Guard(__func__, error, [&, where = __func__]() -> Status {
    if (Status ok = NotNull(plan, "plan", where); !ok) return ok;
    Result<RunOptions> run_options = ReadOptions(options, what, where);
    if (!run_options) return tl::unexpected(std::move(run_options.error()));
    run_options->plan = plan->options;
    Result<RunTensors> tensors = ReadArgs(args, plan->contract->shape, where);
    if (!tensors) return tl::unexpected(std::move(tensors.error()));
    RunOutcome outcome =
        RunPlan(*plan->contract, {&plan->plan, plan->batch.get()}, *tensors, plan->target, *run_options);
    if (receipt != nullptr) {
      *receipt = new tessera_receipt{outcome.receipt.ok, ToJson(outcome.receipt), ToLine(outcome.receipt)};
    }
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
