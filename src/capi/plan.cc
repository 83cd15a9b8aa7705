// Plans of the C interface.
#include <fmt/format.h>

#include <cstring>
#include <vector>

#include "capi/handles.h"
#include "capi/structs.h"

namespace {

using namespace tessera;        // NOLINT: the C functions below cannot be in the namespace
using namespace tessera::capi;  // NOLINT

Result<PlanOptions> ReadOptions(const tessera_plan_options* given, std::string_view where) {
  PlanOptions out;
  if (given == nullptr) return out;
  Result<tessera_plan_options> options = ReadStruct(given, {"options", where});
  if (!options) return tl::unexpected(std::move(options.error()));
  if (options->tile_q != 0 || options->tile_kv != 0) out.tile = TileSize{options->tile_q, options->tile_kv};
  Result<bool> widen = ReadFlag(options->widen_class, "options->widen_class", where);
  if (!widen) return tl::unexpected(std::move(widen.error()));
  out.widen_class = *widen;
  Result<bool> verify = ReadFlag(options->verify_stages, "options->verify_stages", where);
  if (!verify) return tl::unexpected(std::move(verify.error()));
  out.verify_stages = *verify;
  Result<std::vector<std::string>> disable =
      ReadNames(options->disable, options->num_disable, {"options->disable", where});
  if (!disable) return tl::unexpected(std::move(disable.error()));
  out.disable = std::move(*disable);
  return out;
}

Result<Target> ReadTarget(const char* name) { return FindTarget(name == nullptr ? "cpu" : name); }

struct PlanParts {
  std::shared_ptr<const Contract> contract;
  std::shared_ptr<const Batch> batch;
  Target target;
  PlanOptions options;
  Plan plan;
};

tessera_plan* MakeHandle(PlanParts parts) {
  const PlanView& view = parts.plan.view();
  std::string fingerprint = ToHex(view.fingerprint);
  std::string class_key = ToHex(view.class_key);
  std::string mask_digest = ToHex(view.mask_digest);
  return new tessera_plan{std::move(parts.contract), std::move(parts.batch), std::move(parts.target),
                          std::move(parts.options),  std::move(parts.plan),  std::move(fingerprint),
                          std::move(class_key),      std::move(mask_digest)};
}

// The tile a loaded plan was made with, for receipts: known when every direction has the same.
PlanOptions OptionsOf(const PlanView& plan) {
  const Worklist& first = plan.worklists[0];
  for (const Worklist& list : plan.worklists) {
    if (list.tile_q != first.tile_q || list.tile_kv != first.tile_kv) return {};
  }
  PlanOptions options;
  options.tile = TileSize{first.tile_q, first.tile_kv};
  return options;
}

}  // namespace

int tessera_plan_make(const tessera_contract* contract, const tessera_batch* batch, const char* target,
                      const tessera_plan_options* options, tessera_plan** plan, tessera_error** error) {
  if (plan != nullptr) *plan = nullptr;
  return Guard(__func__, error, [&, where = __func__]() -> Status {
    if (Status ok = NotNull(plan, "plan", where); !ok) return ok;
    if (Status ok = NotNull(contract, "contract", where); !ok) return ok;
    Result<PlanOptions> read = ReadOptions(options, where);
    if (!read) return tl::unexpected(std::move(read.error()));
    Result<Target> found = ReadTarget(target);
    if (!found) return tl::unexpected(std::move(found.error()));
    const std::shared_ptr<const Batch> facts = batch == nullptr ? std::make_shared<const Batch>() : batch->batch;
    Result<PlanResult> made = MakePlan(*contract->contract, *facts, *found, *read);
    if (!made) return tl::unexpected(std::move(made.error()));
    *plan = MakeHandle({contract->contract, facts, std::move(*found), std::move(*read), std::move(made->plan)});
    return {};
  });
}

int tessera_plan_load(const tessera_contract* contract, const char* target, const void* bytes, size_t num_bytes,
                      tessera_plan** plan, tessera_error** error) {
  if (plan != nullptr) *plan = nullptr;
  return Guard(__func__, error, [&, where = __func__]() -> Status {
    if (Status ok = NotNull(plan, "plan", where); !ok) return ok;
    if (Status ok = NotNull(contract, "contract", where); !ok) return ok;
    if (Status ok = NotNull(bytes, "bytes", where); !ok) return ok;
    Result<Target> found = ReadTarget(target);
    if (!found) return tl::unexpected(std::move(found.error()));
    const auto* first = static_cast<const std::byte*>(bytes);
    Result<Plan> loaded = Plan::FromBytes(std::vector<std::byte>(first, first + num_bytes));
    if (!loaded) return tl::unexpected(std::move(loaded.error()));
    if (const std::string key = ToHex(loaded->view().contract_key); key != contract->key) {
      return Fail(ErrorCode::kPlanMismatch,
                  fmt::format("the plan was made for contract {}, but this contract is {}", key, contract->key), where);
    }
    PlanOptions options = OptionsOf(loaded->view());
    *plan = MakeHandle({contract->contract, nullptr, std::move(*found), std::move(options), std::move(*loaded)});
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

int tessera_plan_json(const tessera_plan* plan, char** json, tessera_error** error) {
  if (json != nullptr) *json = nullptr;
  return Guard(__func__, error, [&, where = __func__]() -> Status {
    if (Status ok = NotNull(plan, "plan", where); !ok) return ok;
    if (Status ok = NotNull(json, "json", where); !ok) return ok;
    *json = CopyText(ToJson(plan->plan.view()));
    return {};
  });
}

int tessera_plan_tile_counts(const tessera_plan* plan, int64_t direction, tessera_tile_counts* counts,
                             tessera_error** error) {
  return Guard(__func__, error, [&, where = __func__]() -> Status {
    if (Status ok = NotNull(plan, "plan", where); !ok) return ok;
    if (direction < 0 || direction >= static_cast<int64_t>(kNumDirections)) {
      return BadArgument(where,
                         fmt::format("direction is {}; TESSERA_DIRECTION_FORWARD, _DQ or _DKV expected", direction));
    }
    const TileCounts tiles = CountTiles(plan->plan.view(), static_cast<Direction>(direction));
    return WriteStruct({0, tiles.empty, tiles.partial, tiles.full}, counts, {"counts", where});
  });
}

void tessera_plan_free(tessera_plan* plan) { delete plan; }
