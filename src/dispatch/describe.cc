// The part of a receipt that is known before anything is tried.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "base/hash.h"
#include "dispatch/run.h"
#include "dispatch/tensors.h"
#include "tessera/ledger.h"
#include "tessera/version.h"

namespace tessera {
namespace {

// Absent and empty must differ: presence enters the hash before the content.
template <class T, class Add>
void HashOptional(Hasher& hasher, const std::optional<T>& value, Add add) {
  hasher.Int(value.has_value() ? 1 : 0);
  if (value.has_value()) add(*value);
}

std::string CompilerName() {
#if defined(__clang__)
  return fmt::format("clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#elif defined(__GNUC__)
  return fmt::format("gcc {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#else
  return "unknown";
#endif
}

std::string Arch() {
#if defined(__aarch64__)
  return "aarch64";
#elif defined(__x86_64__)
  return "x86_64";
#else
  return "unknown";
#endif
}

std::string YesNo(bool value) { return value ? "true" : "false"; }

}  // namespace

std::string BatchDigest(const Batch& batch) {
  Hasher hasher;
  auto add_values = [&](const auto& values) {
    hasher.Int(static_cast<int64_t>(values.size()));
    hasher.Bytes(values.data(), values.size() * sizeof(values[0]));
  };
  auto add_ids = [&](const IdRows& ids) {
    hasher.Int(ids.rows);
    hasher.Int(ids.len);
    add_values(ids.values);
  };
  HashOptional(hasher, batch.doc_ids, add_ids);
  HashOptional(hasher, batch.q_doc_ids, add_ids);
  HashOptional(hasher, batch.kv_doc_ids, add_ids);
  HashOptional(hasher, batch.valid_tokens, add_values);
  HashOptional(hasher, batch.valid_slots, add_values);
  HashOptional(hasher, batch.base_block_tokens, [&](int64_t tokens) { hasher.Int(tokens); });
  HashOptional(hasher, batch.q_valid_tokens, add_values);
  HashOptional(hasher, batch.kv_valid_tokens, add_values);
  HashOptional(hasher, batch.picks, [&](const Picks& picks) {
    hasher.Int(picks.block_tokens);
    add_values(picks.shape);
    add_values(picks.blocks);
  });
  // Only those that are there, each with its place: a batch without them keeps the digest it had before they came.
  int64_t place = 0;
  for (const std::optional<IntRows>* rows : {&batch.doc_lengths, &batch.q_doc_lengths, &batch.kv_doc_lengths,
                                             &batch.cu_seqlens, &batch.q_cu_seqlens, &batch.kv_cu_seqlens}) {
    ++place;
    if (!rows->has_value()) continue;
    hasher.Int(place);
    hasher.Int(static_cast<int64_t>((*rows)->size()));
    for (const std::vector<int32_t>& row : **rows) add_values(row);
  }
  return Hex(hasher.Finish());
}

std::map<std::string, std::string> Versions() {
  return {
      {"arch", Arch()},
      {"compiler", CompilerName()},
      {"contract", fmt::format("{}", kContractVersion)},
      {"plan", fmt::format("{}", kPlanVersion)},
      {"receipt", fmt::format("{}", kReceiptVersion)},
      {"tessera", kVersion},
  };
}

int64_t ThreadsOf(const RunRequest& request) {
  return std::max<int64_t>(request.options.threads.value_or(request.target.workers), 1);
}

// The one place that reads the environment: what it says becomes part of the request, and of the receipt.
std::string AskedIsa(const RunOptions& options) {
  if (options.isa != "auto") return options.isa;
  const char* from_environment = std::getenv("TESSERA_ISA");
  return from_environment == nullptr || *from_environment == '\0' ? options.isa : from_environment;
}

XlaOptions AskedXla(const XlaOptions& options) {
  XlaOptions asked = options;
  const char* from_environment = std::getenv("TESSERA_PJRT_PLUGIN");
  if (asked.plugin.empty() && from_environment != nullptr) asked.plugin = from_environment;
  return asked;
}

void DescribeRequest(const RunRequest& request, Receipt& receipt) {
  const RunOptions& options = request.options;
  receipt.version = kReceiptVersion;
  receipt.requested = options.lane;
  receipt.target = request.target.name;
  receipt.metadata_limit = request.target.scalar_bytes;
  receipt.input_source = options.input_source;
  // Memory of the caller's is not read before it is checked: until then this is the digest of nothing.
  receipt.input_digest = Digest(request.inputs != nullptr ? *request.inputs : TensorMap{});
  receipt.batch_source = options.batch_source;
  receipt.contract_source = options.contract_source;
  if (request.batch != nullptr) receipt.batch_digest = BatchDigest(*request.batch);
  receipt.options = {
      {"backward", YesNo(options.backward)},
      {"disable", fmt::format("{}", fmt::join(options.plan.disable, ","))},
      {"exclude", fmt::format("{}", fmt::join(options.exclude, ","))},
      {"experimental", YesNo(options.experimental)},
      {"forward", YesNo(options.forward)},
      {"isa", request.isa},
      {"lane", options.lane},
      {"layout", std::string(ToText(request.tensors != nullptr ? Layout::kBhtd : options.layout))},
      {"optimization", request.xla.optimization ? fmt::format("{}", *request.xla.optimization) : "default"},
      {"plan", request.plan != nullptr ? "given" : "made"},
      {"plugin", request.xla.plugin},
      {"plugin_device", fmt::format("{}", request.xla.device)},
      {"row_max", YesNo(request.tensors != nullptr ? !request.tensors->row_max.empty() : options.row_max)},
      {"strict", YesNo(options.strict)},
      {"target", request.target.name},
      {"threads", fmt::format("{}", ThreadsOf(request))},
      {"tile", options.plan.tile ? fmt::format("{}x{}", options.plan.tile->q, options.plan.tile->kv) : "default"},
      {"widen_class", YesNo(options.plan.widen_class)},
      {"workers", fmt::format("{}", std::max<int64_t>(request.target.workers, 1))},
  };
  // Only there where it is true.
  if (request.asked == Asked::kCompile) receipt.options[kCompileOnlyOption] = "true";
  receipt.versions = Versions();
  receipt.ledger = {.file = options.ledger, .machine = MachineId()};
}

Receipt ReceiptOf(const UnbegunRun& run, const RunOptions& options, const Error& error) {
  const Contract no_contract;
  Result<Target> known = FindTarget(run.target);
  const Target target = known ? *known : Target{.name = run.target, .description = {}};
  const Contract& contract = run.contract == nullptr ? no_contract : *run.contract;
  Receipt receipt;
  RunRequest request{
      .table = LaneTable(), .contract = contract, .batch = run.batch, .target = target, .options = options};
  request.inputs = run.inputs;
  request.isa = AskedIsa(options);
  request.xla = AskedXla(options.xla);
  DescribeRequest(request, receipt);
  if (run.inputs == nullptr) receipt.input_digest.clear();
  if (run.contract != nullptr) {
    receipt.contract_text = ToToml(*run.contract);
    receipt.contract_key = ContractKey(*run.contract).value_or("");
  }
  receipt.failed_at = run.failed_at;
  receipt.error = ToText(error);
  return receipt;
}

}  // namespace tessera
