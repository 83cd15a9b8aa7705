// Classes, compiling and program texts of the C interface.
#include "tessera/compile.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/tensor_row.h"
#include "capi/arguments.h"
#include "capi/handles.h"
#include "capi/structs.h"
#include "tessera/normalise.h"

struct tessera_class {
  std::shared_ptr<const tessera::Contract> contract;
  tessera::RequestClass of;
};

struct tessera_programs {
  std::vector<tessera::ProgramText> programs;
};

namespace {

using namespace tessera;        // NOLINT: the C functions below cannot be in the namespace
using namespace tessera::capi;  // NOLINT

// Dense, as compiling takes what routing reads: nothing there is called often enough to mind the copy.
Tensor CopyTensor(const TensorRef& from, const std::vector<int64_t>& axes) {
  Tensor out = Tensor::Zeros(from.type, axes);
  std::byte* to = out.bytes.data();
  const int64_t row_bytes = axes[3] * BytesOf(from.type);
  for (int64_t b = 0; b < axes[0]; ++b) {
    for (int64_t h = 0; h < axes[1]; ++h) {
      for (int64_t t = 0; t < axes[2]; ++t) to = std::copy_n(RowAt(from, b, h, t), row_bytes, to);
    }
  }
  return out;
}

struct Request {
  std::shared_ptr<const Contract> contract;
  std::shared_ptr<const Batch> batch;
  Target target;
  RunOptions options;
  TensorMap inputs;
};

Result<Request> ReadRequest(const tessera_compile_request* given, std::string_view where) {
  const tessera_compile_request read = TESSERA_TRY(ReadStruct(given, {"request", where}));
  TESSERA_TRY(NotNull(read.contract, "request->contract", where));
  Request out;
  out.contract = read.contract->contract;
  static_cast<AttentionOptions&>(out.options) = TESSERA_TRY(ReadAttentionOptions(read.options, where));
  out.target = TESSERA_TRY(ReadTarget(read.target));
  const Shape& shape = out.contract->shape;
  const TensorRef q = TESSERA_TRY(ReadTensorAt(read.q, shape, "request->q->", where));
  const TensorRef k = TESSERA_TRY(ReadTensorAt(read.k, shape, "request->k->", where));
  if (q.space.kind != MemoryKind::kHost || k.space.kind != MemoryKind::kHost) {
    return BadArgument(where, "request->q and request->k must be in the host's memory");
  }
  if (out.contract->routing) {
    if (q.data != nullptr) out.inputs["q"] = CopyTensor(q, {shape.batch, shape.num_q_heads, shape.q_len, shape.dim_qk});
    if (k.data != nullptr) {
      out.inputs["k"] = CopyTensor(k, {shape.batch, shape.num_kv_heads, shape.kv_len, shape.dim_qk});
    }
  }
  out.batch = BatchOf(read.batch);
  return out;
}

Status WriteOperand(const ProgramOperand& from, tessera_array* array, std::string_view where) {
  tessera_array out{};
  out.name = from.name.c_str();
  out.dtype = ToText(from.tensor.type).data();  // a literal
  out.shape = from.tensor.shape.data();
  out.rank = static_cast<int64_t>(from.tensor.shape.size());
  if (!from.tensor.bytes.empty()) out.data = from.tensor.bytes.data();
  out.num_bytes = from.tensor.bytes.size();
  return WriteStruct(out, array, {"array", where});
}

}  // namespace

int tessera_class_new(const tessera_contract* contract, const char* target, const tessera_attention_options* options,
                      tessera_class** of, tessera_error** error) {
  if (of != nullptr) *of = nullptr;
  return Guard(__func__, error, [&, where = __func__]() -> Status {
    TESSERA_TRY(NotNull(of, "of", where));
    TESSERA_TRY(NotNull(contract, "contract", where));
    const AttentionOptions read = TESSERA_TRY(ReadAttentionOptions(options, where));
    const Target found = TESSERA_TRY(ReadTarget(target));
    RequestClass made = TESSERA_TRY(Normalise(*contract->contract, found, read.plan));
    *of = new tessera_class{contract->contract, std::move(made)};
    return {};
  });
}

const char* tessera_class_key(const tessera_class* of) { return of == nullptr ? "" : of->of.key.c_str(); }

int tessera_class_get_sizes(const tessera_class* of, tessera_class_sizes* sizes, tessera_error** error) {
  return Guard(__func__, error, [&, where = __func__]() -> Status {
    TESSERA_TRY(NotNull(of, "of", where));
    const Shape& s = of->of.shape;
    return WriteStruct({0, s.batch, s.q_len, s.kv_len, s.num_q_heads, s.num_kv_heads, s.dim_qk, s.dim_v,
                        of->of.exact_slots, of->of.class_slots},
                       sizes, {"sizes", where});
  });
}

int64_t tessera_class_head(const tessera_class* of, int64_t q_head) {
  if (of == nullptr || q_head < 0 || q_head >= of->of.request.num_q_heads) return -1;
  return HeadAtClass(of->of, q_head);
}

int tessera_class_contract(const tessera_class* of, tessera_contract** padded, tessera_error** error) {
  if (padded != nullptr) *padded = nullptr;
  return Guard(__func__, error, [&, where = __func__]() -> Status {
    TESSERA_TRY(NotNull(of, "of", where));
    TESSERA_TRY(NotNull(padded, "padded", where));
    Contract made = TESSERA_TRY(AtClass(*of->contract, of->of));
    *padded = TESSERA_TRY(MakeContractHandle(std::move(made)));
    return {};
  });
}

int tessera_class_batch(const tessera_class* of, const tessera_batch* batch, tessera_batch** padded,
                        tessera_error** error) {
  if (padded != nullptr) *padded = nullptr;
  return Guard(__func__, error, [&, where = __func__]() -> Status {
    TESSERA_TRY(NotNull(of, "of", where));
    TESSERA_TRY(NotNull(padded, "padded", where));
    const std::shared_ptr<const Batch> facts = BatchOf(batch);
    auto made = std::make_shared<Batch>(TESSERA_TRY(AtClass(*of->contract, *facts, of->of)));
    *padded = new tessera_batch{std::move(made)};
    return {};
  });
}

void tessera_class_free(tessera_class* of) { delete of; }

int tessera_compile(const tessera_engine* engine, const tessera_compile_request* request, tessera_receipt** receipt,
                    tessera_error** error) {
  if (receipt != nullptr) *receipt = nullptr;
  return Guard(__func__, error, [&, where = __func__]() -> Status {
    TESSERA_TRY(NotNull(engine, "engine", where));
    const Request read = TESSERA_TRY(ReadRequest(request, where));
    RunOutcome outcome = Compile(engine->engine, *read.contract, *read.batch, read.target, read.options, read.inputs);
    GiveReceipt(outcome.receipt, receipt);
    if (outcome.error) return tl::unexpected(std::move(*outcome.error));
    return {};
  });
}

int tessera_lower(const tessera_engine* engine, const tessera_compile_request* request, tessera_programs** programs,
                  tessera_error** error) {
  if (programs != nullptr) *programs = nullptr;
  return Guard(__func__, error, [&, where = __func__]() -> Status {
    TESSERA_TRY(NotNull(programs, "programs", where));
    TESSERA_TRY(NotNull(engine, "engine", where));
    const Request read = TESSERA_TRY(ReadRequest(request, where));
    std::vector<ProgramText> made =
        TESSERA_TRY(LowerPrograms(engine->engine, *read.contract, *read.batch, read.target, read.options, read.inputs));
    *programs = new tessera_programs{std::move(made)};
    return {};
  });
}

size_t tessera_programs_count(const tessera_programs* programs) {
  return programs == nullptr ? 0 : programs->programs.size();
}
const char* tessera_programs_name(const tessera_programs* programs, size_t index) {
  return index < tessera_programs_count(programs) ? programs->programs[index].name.c_str() : "";
}
const char* tessera_programs_text(const tessera_programs* programs, size_t index) {
  return index < tessera_programs_count(programs) ? programs->programs[index].text.c_str() : "";
}

size_t tessera_programs_num_operands(const tessera_programs* programs, size_t index) {
  return index < tessera_programs_count(programs) ? programs->programs[index].operands.size() : 0;
}
size_t tessera_programs_num_results(const tessera_programs* programs, size_t index) {
  return index < tessera_programs_count(programs) ? programs->programs[index].results.size() : 0;
}

int tessera_programs_operand(const tessera_programs* programs, size_t index, size_t operand, const char** source,
                             tessera_array* array, tessera_error** error) {
  return Guard(__func__, error, [&, where = __func__]() -> Status {
    TESSERA_TRY(NotNull(programs, "programs", where));
    if (operand >= tessera_programs_num_operands(programs, index)) {
      return BadArgument(where, fmt::format("there is no operand {} of program {}", operand, index));
    }
    const ProgramOperand& from = programs->programs[index].operands[operand];
    if (source != nullptr) *source = from.source.c_str();
    return WriteOperand(from, array, where);
  });
}

int tessera_programs_result(const tessera_programs* programs, size_t index, size_t result, tessera_array* array,
                            tessera_error** error) {
  return Guard(__func__, error, [&, where = __func__]() -> Status {
    TESSERA_TRY(NotNull(programs, "programs", where));
    if (result >= tessera_programs_num_results(programs, index)) {
      return BadArgument(where, fmt::format("there is no result {} of program {}", result, index));
    }
    return WriteOperand(programs->programs[index].results[result], array, where);
  });
}

void tessera_programs_free(tessera_programs* programs) { delete programs; }
