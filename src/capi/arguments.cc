// Structs of calls to values: what is unknown or out of range is TSR-A001, what only does not fit is left to the
// library.
#include "capi/arguments.h"

#include <fmt/format.h>

#include <span>

#include "capi/structs.h"

namespace tessera::capi {
namespace {

Result<MemorySpace> ReadMemory(int64_t kind, int64_t ordinal, std::string_view name, std::string_view where) {
  const int64_t known = TESSERA_TRY(ReadChoice(kind, 3, {name, "memory"}, "TESSERA_MEMORY_HOST, _GPU or _TPU", where));
  if (ordinal < 0 || (known == TESSERA_MEMORY_HOST && ordinal != 0)) {
    return BadArgument(where, fmt::format("{}ordinal is {}; {} expected", name, ordinal,
                                          known == TESSERA_MEMORY_HOST ? "0 for the host's memory" : "0 or more"));
  }
  return MemorySpace{static_cast<MemoryKind>(known), ordinal};
}

// A C pointer has no length: what the contract says is taken to be there.
template <class Float>
std::span<Float> Floats(Float* floats, int64_t count) {
  return floats == nullptr ? std::span<Float>() : std::span<Float>(floats, static_cast<size_t>(count));
}

Status ReadPlanOptions(const tessera_attention_options& options, std::string_view where, PlanOptions& out) {
  if (options.tile_q != 0 || options.tile_kv != 0) out.tile = TileSize{options.tile_q, options.tile_kv};
  out.widen_class = TESSERA_TRY(ReadFlag(options.widen_class, "options->widen_class", where));
  out.verify_stages = TESSERA_TRY(ReadFlag(options.verify_stages, "options->verify_stages", where));
  out.disable = TESSERA_TRY(ReadNames(options.disable, options.num_disable, {"options->disable", where}));
  return {};
}

Status ReadXlaOptions(const tessera_attention_options& options, std::string_view where, XlaOptions& out) {
  out.plugin = TextOr(options.plugin, "");
  out.device = options.device;
  if (TESSERA_TRY(ReadFlag(options.set_optimization, "options->set_optimization", where))) {
    out.optimization = options.optimization;
  } else if (options.optimization != 0) {
    return BadArgument(where, "options->optimization is given without options->set_optimization");
  }
  out.keep_programs = !TESSERA_TRY(ReadFlag(options.forget_programs, "options->forget_programs", where));
  return {};
}

}  // namespace

Result<AttentionOptions> ReadAttentionOptions(const tessera_attention_options* given, std::string_view where) {
  AttentionOptions out;
  if (given == nullptr) return out;
  const tessera_attention_options options = TESSERA_TRY(ReadStruct(given, {"options", where}));
  out.lane = TextOr(options.lane, out.lane);
  out.isa = TextOr(options.isa, out.isa);
  out.exclude = TESSERA_TRY(ReadNames(options.exclude, options.num_exclude, {"options->exclude", where}));
  out.strict = TESSERA_TRY(ReadFlag(options.strict, "options->strict", where));
  const int64_t passes =
      TESSERA_TRY(ReadChoice(options.passes, (TESSERA_FORWARD | TESSERA_BACKWARD) + 1, {"options->", "passes"},
                             "TESSERA_FORWARD, TESSERA_BACKWARD or both", where));
  out.forward = passes == 0 || (passes & TESSERA_FORWARD) != 0;
  out.backward = (passes & TESSERA_BACKWARD) != 0;
  if (options.threads != 0) out.threads = options.threads;
  out.memory = TESSERA_TRY(ReadMemory(options.memory, options.ordinal, "options->", where));
  out.ledger = TextOr(options.ledger, "");
  out.experimental = TESSERA_TRY(ReadFlag(options.experimental, "options->experimental", where));
  TESSERA_TRY(ReadXlaOptions(options, where, out.xla));
  TESSERA_TRY(ReadPlanOptions(options, where, out.plan));
  return out;
}

Result<TensorRef> ReadTensor(const tessera_tensor& tensor, const Shape& shape, std::string_view name,
                             std::string_view where) {
  TensorRef ref{.type = ToElementType(shape.dtype),
                .data = static_cast<std::byte*>(tensor.data),
                .batch_stride = tensor.batch_stride,
                .head_stride = tensor.head_stride,
                .token_stride = tensor.token_stride};
  if (tensor.data == nullptr) return ref;  // not given: what else it says is not looked at
  switch (TESSERA_TRY(ReadChoice(tensor.dtype, TESSERA_DTYPE_F16 + 1, {name, "dtype"}, "a TESSERA_DTYPE", where))) {
    case TESSERA_DTYPE_F32:
      ref.type = ElementType::kF32;
      break;
    case TESSERA_DTYPE_BF16:
      ref.type = ElementType::kBf16;
      break;
    case TESSERA_DTYPE_F16:
      ref.type = ElementType::kF16;
      break;
    default:
      break;
  }
  ref.space = TESSERA_TRY(ReadMemory(tensor.memory, tensor.ordinal, name, where));
  return ref;
}

Result<TensorRef> ReadTensorAt(const tessera_tensor* tensor, const Shape& shape, std::string_view name,
                               std::string_view where) {
  return tensor == nullptr ? TensorRef{} : ReadTensor(*tensor, shape, name, where);
}

Result<RunTensors> ReadArgs(const tessera_args* given, const Shape& shape, std::string_view where) {
  const tessera_args args = TESSERA_TRY(ReadStruct(given, {"args", where}));
  const int64_t rows = shape.batch * shape.num_q_heads * shape.q_len;
  RunTensors out;
  out.q = TESSERA_TRY(ReadTensor(args.q, shape, "args->q.", where));
  out.k = TESSERA_TRY(ReadTensor(args.k, shape, "args->k.", where));
  out.v = TESSERA_TRY(ReadTensor(args.v, shape, "args->v.", where));
  out.dout = TESSERA_TRY(ReadTensor(args.dout, shape, "args->dout.", where));
  out.sink_logits = Floats(args.sink_logits, shape.num_q_heads);
  out.o = TESSERA_TRY(ReadTensor(args.o, shape, "args->o.", where));
  out.lse = Floats(args.lse, rows);
  out.row_max = Floats(args.row_max, rows);
  out.delta = Floats(args.delta, rows);
  out.dq = TESSERA_TRY(ReadTensor(args.dq, shape, "args->dq.", where));
  out.dk = TESSERA_TRY(ReadTensor(args.dk, shape, "args->dk.", where));
  out.dv = TESSERA_TRY(ReadTensor(args.dv, shape, "args->dv.", where));
  out.dsink_logits = Floats(args.dsink_logits, shape.num_q_heads);
  return out;
}

Result<CallOptions> ReadCallOptions(const tessera_call_options* given, std::string_view where) {
  CallOptions out;
  if (given == nullptr) return out;
  const tessera_call_options call = TESSERA_TRY(ReadStruct(given, {"call", where}));
  out.stream = call.stream;
  if (call.workspace_bytes < 0 || (call.workspace == nullptr) != (call.workspace_bytes == 0)) {
    return BadArgument(where, fmt::format("call->workspace_bytes is {} and call->workspace is {}: both or neither",
                                          call.workspace_bytes, call.workspace == nullptr ? "NULL" : "given"));
  }
  out.workspace = {static_cast<std::byte*>(call.workspace), static_cast<size_t>(call.workspace_bytes)};
  if (call.image_bytes < 0 || (call.image == nullptr) != (call.image_bytes == 0)) {
    return BadArgument(where, fmt::format("call->image_bytes is {} and call->image is {}: both or neither",
                                          call.image_bytes, call.image == nullptr ? "NULL" : "given"));
  }
  out.image = {static_cast<const std::byte*>(call.image), static_cast<size_t>(call.image_bytes)};
  out.digests = TESSERA_TRY(ReadFlag(call.digests, "call->digests", where));
  out.input_source = TextOr(call.input_source, "");
  out.batch_source = TextOr(call.batch_source, "");
  out.contract_source = TextOr(call.contract_source, "");
  return out;
}

}  // namespace tessera::capi
