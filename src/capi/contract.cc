// Contracts of the C interface.
#include "tessera/contract.h"

#include "capi/handles.h"
#include "capi/structs.h"

namespace tessera::capi {

Result<tessera_contract*> MakeContractHandle(Contract contract) {
  std::string key = TESSERA_TRY(ContractKey(contract));
  std::string canonical = ToToml(contract);
  return new tessera_contract{std::make_shared<const Contract>(std::move(contract)), std::move(key),
                              std::move(canonical)};
}

}  // namespace tessera::capi

namespace {

using namespace tessera;        // NOLINT: the C functions below cannot be in the namespace
using namespace tessera::capi;  // NOLINT

int64_t DTypeNumber(DType dtype) {
  switch (dtype) {
    case DType::kBf16:
      return TESSERA_DTYPE_BF16;
    case DType::kF16:
      return TESSERA_DTYPE_F16;
    default:
      return TESSERA_DTYPE_F32;
  }
}

}  // namespace

int tessera_contract_parse(const char* text, const char* base_dir, tessera_contract** contract, tessera_error** error) {
  if (contract != nullptr) *contract = nullptr;
  return Guard(__func__, error, [&, where = __func__]() -> Status {
    TESSERA_TRY(NotNull(contract, "contract", where));
    TESSERA_TRY(NotNull(text, "text", where));
    Contract parsed = TESSERA_TRY(ParseContract(text, TextOr(base_dir, ".")));
    *contract = TESSERA_TRY(MakeContractHandle(std::move(parsed)));
    return {};
  });
}

const char* tessera_contract_key(const tessera_contract* contract) {
  return contract == nullptr ? "" : contract->key.c_str();
}

const char* tessera_contract_text(const tessera_contract* contract) {
  return contract == nullptr ? "" : contract->text.c_str();
}

int tessera_contract_json(const tessera_contract* contract, char** json, tessera_error** error) {
  if (json != nullptr) *json = nullptr;
  return Guard(__func__, error, [&, where = __func__]() -> Status {
    TESSERA_TRY(NotNull(contract, "contract", where));
    TESSERA_TRY(NotNull(json, "json", where));
    *json = CopyText(ToJson(*contract->contract));
    return {};
  });
}

int tessera_contract_shape(const tessera_contract* contract, tessera_shape* shape, tessera_error** error) {
  return Guard(__func__, error, [&, where = __func__]() -> Status {
    TESSERA_TRY(NotNull(contract, "contract", where));
    const Shape& from = contract->contract->shape;
    return WriteStruct({.struct_size = 0,
                        .batch = from.batch,
                        .q_len = from.q_len,
                        .kv_len = from.kv_len,
                        .num_q_heads = from.num_q_heads,
                        .num_kv_heads = from.num_kv_heads,
                        .dim_qk = from.dim_qk,
                        .dim_v = from.dim_v,
                        .dtype = DTypeNumber(from.dtype),
                        .sink_logits = contract->contract->score.sink_logits ? 1 : 0},
                       shape, {"shape", where});
  });
}

void tessera_contract_free(tessera_contract* contract) { delete contract; }
