// Contracts and batches of the C interface.
#include "capi/handles.h"

namespace {

using namespace tessera;        // NOLINT: the C functions below cannot be in the namespace
using namespace tessera::capi;  // NOLINT

}  // namespace

int tessera_contract_parse(const char* text, const char* base_dir, tessera_contract** contract, tessera_error** error) {
  if (contract != nullptr) *contract = nullptr;
  return Guard(__func__, error, [&, where = __func__]() -> Status {
    if (Status ok = NotNull(contract, "contract", where); !ok) return ok;
    if (Status ok = NotNull(text, "text", where); !ok) return ok;
    Result<Contract> parsed = ParseContract(text, base_dir == nullptr ? "." : base_dir);
    if (!parsed) return tl::unexpected(std::move(parsed.error()));
    Result<std::string> key = ContractKey(*parsed);
    if (!key) return tl::unexpected(std::move(key.error()));
    std::string canonical = ToToml(*parsed);
    *contract = new tessera_contract{std::make_shared<const Contract>(std::move(*parsed)), std::move(*key),
                                     std::move(canonical)};
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
    if (Status ok = NotNull(contract, "contract", where); !ok) return ok;
    if (Status ok = NotNull(json, "json", where); !ok) return ok;
    *json = CopyText(ToJson(*contract->contract));
    return {};
  });
}

void tessera_contract_free(tessera_contract* contract) { delete contract; }

int tessera_batch_parse(const char* json, tessera_batch** batch, tessera_error** error) {
  if (batch != nullptr) *batch = nullptr;
  return Guard(__func__, error, [&, where = __func__]() -> Status {
    if (Status ok = NotNull(batch, "batch", where); !ok) return ok;
    if (Status ok = NotNull(json, "json", where); !ok) return ok;
    Result<Batch> parsed = ParseBatch(json);
    if (!parsed) return tl::unexpected(std::move(parsed.error()));
    *batch = new tessera_batch{std::make_shared<const Batch>(std::move(*parsed))};
    return {};
  });
}

void tessera_batch_free(tessera_batch* batch) { delete batch; }
