// Engines and attentions of the C interface.
#include "tessera/engine.h"

#include <fmt/format.h>

#include "capi/arguments.h"
#include "capi/handles.h"
#include "capi/structs.h"
#include "engine/state.h"

namespace {

using namespace tessera;        // NOLINT: the C functions below cannot be in the namespace
using namespace tessera::capi;  // NOLINT

Result<EngineOptions> ReadOptions(const tessera_engine_options* given, std::string_view where) {
  if (given == nullptr) return OptionsFromEnvironment();
  const tessera_engine_options options = TESSERA_TRY(ReadStruct(given, {"options", where}));
  EngineOptions out;
  out.lane = TextOr(options.lane, out.lane);
  out.isa = TextOr(options.isa, out.isa);
  out.machine_isa = TextOr(options.machine_isa, "");
  out.plugin = TextOr(options.plugin, "");
  out.ledger = TextOr(options.ledger, "");
  out.xla_folder = TextOr(options.xla_folder, "");
  out.xla_flags = TextOr(options.xla_flags, "");
  if (options.max_prepared != 0) {
    out.max_prepared = options.max_prepared < 0 ? 0 : static_cast<size_t>(options.max_prepared);
  }
  return out;
}

// Quoted, as JSON has it.
std::string Quote(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<int>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string ToJsonText(const tessera_attention& handle) {
  const Selection& selection = handle.attention.selection();
  std::string out = fmt::format("{{\"lane\": {}, \"rule\": {}, \"key\": {}, \"decisions\": [", Quote(handle.lane),
                                Quote(EngineAccess::Of(handle.attention)->selection_rule), Quote(handle.key));
  const char* separator = "";
  for (const LaneDecision& made : selection.decisions) {
    const Decision& decision = made.decision;
    out += fmt::format("{}{{\"lane\": {}, \"step\": {}, \"accepted\": {}, \"reason\": {}, \"detail\": {}}}", separator,
                       Quote(made.lane), Quote(made.step), decision.accepted,
                       Quote(decision.accepted ? "" : ReasonText(decision.reason)), Quote(decision.detail));
    separator = ", ";
  }
  return out + "]}";
}

}  // namespace

int tessera_engine_new(const tessera_engine_options* options, tessera_engine** engine, tessera_error** error) {
  if (engine != nullptr) *engine = nullptr;
  return Guard(__func__, error, [&, where = __func__]() -> Status {
    TESSERA_TRY(NotNull(engine, "engine", where));
    EngineOptions read = TESSERA_TRY(ReadOptions(options, where));
    *engine = new tessera_engine{Engine(std::move(read))};
    return {};
  });
}

void tessera_engine_free(tessera_engine* engine) { delete engine; }

int tessera_attention_new(const tessera_engine* engine, const tessera_contract* contract, const char* target,
                          const tessera_attention_options* options, tessera_attention** attention,
                          tessera_error** error) {
  if (attention != nullptr) *attention = nullptr;
  return Guard(__func__, error, [&, where = __func__]() -> Status {
    TESSERA_TRY(NotNull(attention, "attention", where));
    TESSERA_TRY(NotNull(engine, "engine", where));
    TESSERA_TRY(NotNull(contract, "contract", where));
    const AttentionOptions read = TESSERA_TRY(ReadAttentionOptions(options, where));
    const Target found = TESSERA_TRY(ReadTarget(target));
    Attention made = TESSERA_TRY(engine->engine.Prepare(*contract->contract, found, read));
    std::string lane = EngineAccess::Of(made)->selected;
    std::string key = Digest(made.key());
    *attention = new tessera_attention{std::move(made), std::move(lane), std::move(key)};
    return {};
  });
}

int tessera_attention_check(const tessera_attention* attention, tessera_error** error) {
  return Guard(__func__, error, [&, where = __func__]() -> Status {
    TESSERA_TRY(NotNull(attention, "attention", where));
    return attention->attention.CheckAccepted();
  });
}

const char* tessera_attention_lane(const tessera_attention* attention) {
  return attention == nullptr ? "" : attention->lane.c_str();
}
const char* tessera_attention_key(const tessera_attention* attention) {
  return attention == nullptr ? "" : attention->key.c_str();
}

int tessera_attention_json(const tessera_attention* attention, char** json, tessera_error** error) {
  if (json != nullptr) *json = nullptr;
  return Guard(__func__, error, [&, where = __func__]() -> Status {
    TESSERA_TRY(NotNull(attention, "attention", where));
    TESSERA_TRY(NotNull(json, "json", where));
    *json = CopyText(ToJsonText(*attention));
    return {};
  });
}

void tessera_attention_free(tessera_attention* attention) { delete attention; }
