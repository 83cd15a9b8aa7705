// The receipt of a run as JSON, and the rules that it keeps.
#include <fmt/format.h>

#include <cmath>

#include "base/hash.h"
#include "base/try.h"
#include "io/json_writer.h"
#include "io/tree_reader.h"
#include "tessera/train.h"
#include "tessera/version.h"
#include "train/calibration.h"
#include "train/log.h"
#include "train/schedule.h"

namespace tessera {
namespace {

constexpr JsonLimits kLimits{.max_depth = 16, .max_values = 1 << 20};

template <class Checks, class Visit>
void VisitChecks(Checks& checks, const Visit& visit) {
  visit("all_losses_finite", checks.all_losses_finite);
  visit("no_nan_loss", checks.no_nan_loss);
  visit("exit_code_zero", checks.exit_code_zero);
  visit("has_steps", checks.has_steps);
  visit("no_oom", checks.no_oom);
}

void WriteReal(JsonWriter& json, const char* key, const std::optional<double>& value) {
  json.Key(key);
  if (value) {
    json.Real(*value);
  } else {
    json.Null();
  }
}

void WriteTexts(JsonWriter& json, const char* key, const std::vector<std::string>& texts) {
  json.Key(key).Texts({texts.begin(), texts.end()});
}

void WritePrograms(const std::vector<ProgramUse>& programs, JsonWriter& json) {
  json.Key("programs").BeginArray();
  for (const ProgramUse& program : programs) {
    json.BeginObject().Key("pass").Text(program.pass).Key("source").Text(program.source).Key("key").Text(program.key);
    json.Key("compile_s").Real(static_cast<double>(program.compile_ns) * 1e-9);
    if (program.code_bytes >= 0) json.Key("code_bytes").Int(program.code_bytes);
    if (!program.custom_calls.empty()) json.Key("custom_calls").Text(program.custom_calls);
    if (!program.fingerprint.empty()) json.Key("fingerprint").Text(program.fingerprint);
    json.EndObject();
  }
  json.EndArray();
}

void WriteGoodput(const Goodput& goodput, JsonWriter& json) {
  json.Key("goodput").BeginObject();
  json.Key("wall_s").Real(goodput.wall_s).Key("spans_s").BeginObject();
  for (size_t i = 0; i < kNumSpans; ++i) json.Key(ToText(static_cast<SpanKind>(i))).Real(goodput.spans_s[i]);
  json.EndObject().Key("goodput").Real(goodput.goodput).Key("idle_s").Real(goodput.idle_s).EndObject();
}

void WriteContext(const ContextUse& use, JsonWriter& json) {
  json.Key("context").BeginObject().Key("exchange").Text(ToText(use.exchange)).Key("reason").Text(use.reason);
  json.Key("cuts").BeginObject();
  for (const CutForm form : kCutForms) json.Key(ToText(form)).Int(use.batches[static_cast<size_t>(form)]);
  json.EndObject().Key("bytes").Int(use.bytes).Key("allgather_bytes").Int(use.allgather_bytes);
  json.Key("worst_balance").Real(use.worst_balance).EndObject();
}

void WriteSharding(const ShardingUse& sharding, JsonWriter& json) {
  json.Key("sharding").BeginObject().Key("mesh").Text(ToText(sharding.mesh));
  json.Key("devices").Int(sharding.mesh.NumDevices()).Key("fingerprint").Text(sharding.fingerprint);
  json.Key("metrics").Text("global");
  json.Key("total_bytes").Int(sharding.figures.total_bytes).Key("device_bytes").Int(sharding.figures.device_bytes);
  json.Key("replicated_bytes").Int(sharding.figures.replicated_bytes).Key("programs").BeginArray();
  for (const ShardingUse::Program& program : sharding.programs) {
    json.BeginObject().Key("pass").Text(program.pass).Key("device_bytes").Int(program.device_bytes);
    json.Key("carried_bytes").Int(program.carried_bytes);
    WriteTexts(json, "collectives", program.collectives);
    json.EndObject();
  }
  json.EndArray();
  if (sharding.context) WriteContext(*sharding.context, json);
  json.EndObject();
}

}  // namespace

std::string ToJson(const TrainReceipt& receipt) {
  JsonWriter json(2);
  json.BeginObject();
  json.Key("train_receipt_version").Int(kTrainReceiptVersion).Key("tessera").Text(kVersion);
  json.Key("mode").Text(receipt.mode).Key("target").Text(receipt.target).Key("ended").Text(receipt.ended);
  json.Key("digests").BeginObject().Key("model").Text(receipt.model_digest).Key("data").Text(receipt.data_digest);
  json.Key("state").Text(receipt.state_digest).EndObject();
  json.Key("steps").BeginObject().Key("first").Int(receipt.first_step).Key("made").Int(receipt.steps);
  json.Key("last").Int(receipt.last_step).Key("tokens").Int(receipt.tokens);
  json.Key("tokens_per_s").Real(receipt.tokens_per_s).EndObject();
  json.Key("vocabulary").BeginObject().Key("vocab").Int(receipt.vocab).Key("padded_vocab").Int(receipt.padded_vocab);
  json.Key("pad_multiple").Int(receipt.vocab_multiple).Key("platform_vocab").Int(kPlatformVocab);
  json.Key("platform_cap").Int(kPlatformIds).Key("tokenizer").Text(receipt.tokenizer);
  json.Key("packing").Text(receipt.packer).EndObject();
  json.Key("compiles").Int(receipt.compiles);
  WritePrograms(receipt.programs, json);
  WriteTexts(json, "contract_keys", receipt.contract_keys);
  WriteTexts(json, "class_keys", receipt.class_keys);
  json.Key("substitutes").BeginArray();
  for (const Substitute& substitute : receipt.substitutes) {
    json.BeginObject().Key("key").Text(substitute.key).Key("name").Text(substitute.name);
    json.Key("reason").Text(substitute.reason).EndObject();
  }
  json.EndArray();
  json.Key("plugin").Text(receipt.plugin).Key("execution_mode").Text(receipt.execution_mode);
  json.Key("retries").Int(receipt.retries).Key("micro_batch_rows").Int(receipt.micro_batch_rows);
  json.Key("calibration").BeginObject().Key("schema_version").Int(train::kStartupSchemaVersion);
  json.Key("signature").Text(receipt.calibration).Key("estimated_gib").Real(receipt.estimated_gib);
  WriteReal(json, "peak_gib", receipt.peak_gib);
  std::optional<double> delta;
  if (receipt.peak_gib) delta = train::StartupDelta(*receipt.peak_gib, receipt.estimated_gib);
  WriteReal(json, "delta_gib", delta);
  json.EndObject();
  json.Key("determinism").Text(receipt.determinism);
  WriteTexts(json, "notes", receipt.notes);
  json.Key("losses").BeginObject();
  WriteReal(json, "first", receipt.first_loss);
  WriteReal(json, "last", receipt.last_loss);
  WriteReal(json, "held_out", receipt.held_out_loss);
  WriteReal(json, "bigram_held_out", receipt.bigram_loss);
  json.EndObject();
  if (!receipt.telemetry.empty()) {
    json.Key("telemetry");
    train::WriteTelemetry(receipt.telemetry, json);
  }
  if (receipt.sharding) WriteSharding(*receipt.sharding, json);
  WriteGoodput(receipt.goodput, json);
  json.Key("checks").BeginObject();
  VisitChecks(receipt.checks, [&](const char* name, bool value) { json.Key(name).Bool(value); });
  json.EndObject().EndObject();
  return json.Take() + "\n";
}

namespace {

// What a receipt's numbers say of each other.
class ReceiptChecker : public TreeReader {
 public:
  void Check(const DocumentValue& receipt) {
    if (!IsTable(receipt, "")) return;
    if (Int(receipt, "", "train_receipt_version") != kTrainReceiptVersion)
      Violate("train_receipt_version", fmt::format("{}", kTrainReceiptVersion));
    const std::string mode = Text(receipt, "", "mode");
    if (mode != "train" && mode != "compile_only") Violate("mode", "train or compile_only");
    const std::string ended = Text(receipt, "", "ended");
    if (ended.empty()) Violate("ended", "a word");
    CheckSteps(receipt);
    CheckGoodput(receipt);
    CheckSharding(receipt);
    if (const DocumentValue* programs = Find(receipt, "", "programs");
        programs != nullptr && IsArray(*programs, "programs") &&
        static_cast<int64_t>(programs->items.size()) != Int(receipt, "", "compiles"))
      Violate("compiles", "as many as there are programs");
    const DocumentValue* checks = Find(receipt, "", "checks");
    if (checks == nullptr || !IsTable(*checks, "checks")) return;
    TrainChecks found;
    VisitChecks(found, [&](const char* name, bool& out) {
      if (const DocumentValue* value = Find(*checks, "checks", name); value != nullptr)
        Read(*value, Place("checks", name), out);
    });
    const bool is_good = ended == "finished" || ended == "interrupted";
    if (found.exit_code_zero != is_good) Violate("checks.exit_code_zero", "what `ended` says");
    if (found.has_steps != (steps_ > 0)) Violate("checks.has_steps", "what steps.made says");
    if (const DocumentValue* substitutes = Find(receipt, "", "substitutes");
        substitutes != nullptr && IsArray(*substitutes, "substitutes") && substitutes->items.size() != 7 &&
        (!substitutes->items.empty() || ended != "interrupted" || found.has_steps))
      Violate("substitutes", "one for each of the seven keys, or none where the run ended before they were chosen");
  }

 private:
  int64_t Int(const DocumentValue& table, const std::string& at, const char* name) {
    int64_t value = 0;
    if (const DocumentValue* found = Find(table, at, name); found != nullptr) Read(*found, Place(at, name), value);
    return value;
  }
  double Real(const DocumentValue& table, const std::string& at, const char* name) {
    double value = 0.0;
    if (const DocumentValue* found = Find(table, at, name); found != nullptr) Read(*found, Place(at, name), value);
    return value;
  }
  std::string Text(const DocumentValue& table, const std::string& at, const char* name) {
    std::string value;
    if (const DocumentValue* found = Find(table, at, name); found != nullptr) Read(*found, Place(at, name), value);
    return value;
  }

  void CheckSteps(const DocumentValue& receipt) {
    const DocumentValue* steps = Find(receipt, "", "steps");
    if (steps == nullptr || !IsTable(*steps, "steps")) return;
    const int64_t first = Int(*steps, "steps", "first");
    steps_ = Int(*steps, "steps", "made");
    if (steps_ > 0 && Int(*steps, "steps", "last") != first + steps_ - 1)
      Violate("steps.last", "the first and as many as were made");
  }

  void CheckGoodput(const DocumentValue& receipt) {
    const DocumentValue* goodput = Find(receipt, "", "goodput");
    if (goodput == nullptr || !IsTable(*goodput, "goodput")) return;
    const DocumentValue* spans = Find(*goodput, "goodput", "spans_s");
    if (spans == nullptr || !IsTable(*spans, "goodput.spans_s")) return;
    std::array<double, kNumSpans> seconds = {};
    for (size_t i = 0; i < kNumSpans; ++i)
      seconds[i] = Real(*spans, "goodput.spans_s", std::string(ToText(static_cast<SpanKind>(i))).c_str());
    const Goodput expected = MakeGoodput(seconds, Real(*goodput, "goodput", "wall_s"));
    if (std::abs(Real(*goodput, "goodput", "goodput") - expected.goodput) > 1e-9)
      Violate("goodput.goodput", fmt::format("min(1, step / wall): {}", expected.goodput));
    if (std::abs(Real(*goodput, "goodput", "idle_s") - expected.idle_s) > 1e-6)
      Violate("goodput.idle_s", fmt::format("max(0, wall - spans): {}", expected.idle_s));
  }

  // Only a run over a mesh has one.
  void CheckSharding(const DocumentValue& receipt) {
    const DocumentValue* sharding = receipt.Find("sharding");
    if (sharding == nullptr || !IsTable(*sharding, "sharding")) return;
    const Result<Mesh> mesh = ParseMesh(Text(*sharding, "sharding", "mesh"));
    if (!mesh) {
      Violate("sharding.mesh", "axes with their sizes, as in data=2,model=2");
    } else if (Int(*sharding, "sharding", "devices") != mesh->NumDevices()) {
      Violate("sharding.devices", "as many as the mesh has");
    }
    if (Text(*sharding, "sharding", "fingerprint").size() != kHexDigits) {
      Violate("sharding.fingerprint", fmt::format("{} hex digits", kHexDigits));
    }
    CheckContext(*sharding);
    if (Text(*sharding, "sharding", "metrics") != "global") Violate("sharding.metrics", "global");
  }

  // Only with an axis context.
  void CheckContext(const DocumentValue& sharding) {
    const DocumentValue* context = sharding.Find("context");
    if (context == nullptr || !IsTable(*context, "sharding.context")) return;
    if (!ParseExchange(Text(*context, "sharding.context", "exchange"))) {
      Violate("sharding.context.exchange", "allgather, heads or sparse");
    }
    if (Int(*context, "sharding.context", "bytes") < 0) Violate("sharding.context.bytes", "0 or more");
  }

  int64_t steps_ = 0;
};

}  // namespace

bool train::IsFinishedWith(std::string_view json, std::string_view state_digest) {
  const auto tree = ReadJsonTree(json, kLimits);
  const DocumentValue* digests = tree ? tree->Find("digests") : nullptr;
  const DocumentValue* ended = tree ? tree->Find("ended") : nullptr;
  const DocumentValue* state = digests != nullptr ? digests->Find("state") : nullptr;
  const auto is = [](const DocumentValue* value, std::string_view text) {
    return value != nullptr && value->text == text;
  };
  return is(ended, "finished") && is(state, state_digest);
}

Status CheckTrainReceipt(std::string_view json) {
  const auto tree = ReadJsonTree(json, kLimits);
  if (!tree) return Fail(ErrorCode::kReceiptInvalid, tree.error());
  ReceiptChecker checker;
  checker.Check(*tree);
  if (checker.violations.empty()) return {};
  return Fail(ErrorCode::kReceiptInvalid, std::move(checker.violations));
}

}  // namespace tessera
