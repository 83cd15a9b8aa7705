// Plans of the C interface: made by an attention, or loaded.
#include "tessera/plan.h"

#include <fmt/format.h>

#include <vector>

#include "capi/arguments.h"
#include "capi/handles.h"
#include "capi/structs.h"
#include "plan/class_bytes.h"

namespace {

using namespace tessera;        // NOLINT: the C functions below cannot be in the namespace
using namespace tessera::capi;  // NOLINT

tessera_plan* MakeHandle(std::shared_ptr<const Batch> batch, Plan plan) {
  const PlanView& view = plan.view();
  std::string fingerprint = ToHex(view.fingerprint);
  std::string class_key = ToHex(view.class_key);
  std::string mask_digest = ToHex(view.mask_digest);
  std::vector<tessera_plan::Array> arrays = ListArrays(view);
  return new tessera_plan{std::move(batch),       std::move(plan),      std::move(arrays),
                          std::move(fingerprint), std::move(class_key), std::move(mask_digest)};
}

}  // namespace

int tessera_attention_plan(const tessera_attention* attention, const tessera_batch* batch, const tessera_tensor* q,
                           const tessera_tensor* k, tessera_plan** plan, tessera_error** error) {
  if (plan != nullptr) *plan = nullptr;
  return Guard(__func__, error, [&, where = __func__]() -> Status {
    TESSERA_TRY(NotNull(plan, "plan", where));
    TESSERA_TRY(NotNull(attention, "attention", where));
    const Attention& of = attention->attention;
    const Contract& contract = of.contract();
    std::shared_ptr<const Batch> facts = BatchOf(batch);
    const TensorRef q_ref = TESSERA_TRY(ReadTensorAt(q, contract.shape, "q->", where));
    const TensorRef k_ref = TESSERA_TRY(ReadTensorAt(k, contract.shape, "k->", where));
    const bool is_routed = q_ref.data != nullptr && k_ref.data != nullptr;
    PlanResult made = TESSERA_TRY(is_routed ? of.Plan(*facts, q_ref, k_ref) : of.Plan(*facts));
    *plan = MakeHandle(std::move(facts), std::move(made.plan));
    return {};
  });
}

int tessera_plan_load(const tessera_contract* contract, const void* bytes, size_t num_bytes, tessera_plan** plan,
                      tessera_error** error) {
  if (plan != nullptr) *plan = nullptr;
  return Guard(__func__, error, [&, where = __func__]() -> Status {
    TESSERA_TRY(NotNull(plan, "plan", where));
    TESSERA_TRY(NotNull(contract, "contract", where));
    TESSERA_TRY(NotNull(bytes, "bytes", where));
    const auto* first = static_cast<const std::byte*>(bytes);
    Plan loaded = TESSERA_TRY(Plan::FromBytes(std::vector<std::byte>(first, first + num_bytes)));
    if (const std::string key = ToHex(loaded.view().contract_key); key != contract->key) {
      return Fail(ErrorCode::kPlanMismatch,
                  fmt::format("the plan was made for contract {}, but this contract is {}", key, contract->key), where);
    }
    *plan = MakeHandle(nullptr, std::move(loaded));
    return {};
  });
}

const void* tessera_plan_bytes(const tessera_plan* plan, size_t* num_bytes) {
  const std::span<const std::byte> bytes = plan == nullptr ? std::span<const std::byte>() : plan->plan.bytes();
  if (num_bytes != nullptr) *num_bytes = bytes.size();
  return bytes.data();
}

const char* tessera_plan_fingerprint(const tessera_plan* plan) {
  return plan == nullptr ? "" : plan->fingerprint.c_str();
}
const char* tessera_plan_class_key(const tessera_plan* plan) { return plan == nullptr ? "" : plan->class_key.c_str(); }
const char* tessera_plan_mask_digest(const tessera_plan* plan) {
  return plan == nullptr ? "" : plan->mask_digest.c_str();
}

int64_t tessera_plan_class_bytes(const tessera_plan* plan) {
  return plan == nullptr ? 0 : plan::ClassBytes(plan->plan.view());
}

int tessera_plan_json(const tessera_plan* plan, char** json, tessera_error** error) {
  if (json != nullptr) *json = nullptr;
  return Guard(__func__, error, [&, where = __func__]() -> Status {
    TESSERA_TRY(NotNull(plan, "plan", where));
    TESSERA_TRY(NotNull(json, "json", where));
    *json = CopyText(ToJson(plan->plan.view()));
    return {};
  });
}

int tessera_plan_tile_counts(const tessera_plan* plan, int64_t direction, tessera_tile_counts* counts,
                             tessera_error** error) {
  return Guard(__func__, error, [&, where = __func__]() -> Status {
    TESSERA_TRY(NotNull(plan, "plan", where));
    TESSERA_TRY(ReadChoice(direction, static_cast<int64_t>(kNumDirections), {"", "direction"},
                           "TESSERA_DIRECTION_FORWARD, _DQ or _DKV", where));
    const TileCounts tiles = CountTiles(plan->plan.view(), static_cast<Direction>(direction));
    return WriteStruct({0, tiles.empty, tiles.partial, tiles.full}, counts, {"counts", where});
  });
}

void tessera_plan_free(tessera_plan* plan) { delete plan; }
