// Receipts as JSON and as one line. Reading is strict: every field, no other field, the right type.
#include "tessera/receipt.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/host.h"
#include "base/spelling.h"
#include "io/file.h"
#include "io/json_events.h"
#include "receipt/fields.h"
#include "receipt/limits.h"
#include "tessera/target.h"
#include "tessera/version.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

Json ToValue(int64_t value) { return value; }
Json ToValue(double value) { return value; }
Json ToValue(bool value) { return value; }
Json ToValue(const std::string& value) { return value; }
Json ToValue(const std::map<std::string, std::string>& map) {
  Json object = Json::object();
  for (const auto& [key, value] : map) object[key] = value;
  return object;
}
template <HasFields Group>
Json ToValue(const Group& group) {
  Json object = Json::object();
  VisitFields(group, [&](const char* name, const auto& field) { object[name] = ToValue(field); });
  return object;
}
Json ToValue(const std::vector<LaneDecision>& decisions) {
  Json array = Json::array();
  for (const LaneDecision& d : decisions) {
    array.push_back(Json{{"lane", d.lane},
                         {"step", d.step},
                         {"accepted", d.decision.accepted},
                         {"reason", ReasonText(d.decision.reason)},
                         {"detail", d.decision.detail}});
  }
  return array;
}
template <HasFields Group>
Json ToValue(const std::vector<Group>& groups) {
  Json array = Json::array();
  for (const Group& group : groups) array.push_back(ToValue(group));
  return array;
}

// Reads values into fields and collects what is wrong, with the place as "decisions[2].lane".
class Reader {
 public:
  std::vector<Violation> violations;

  void Read(const Json& json, const std::string& at, int64_t& out) {
    const bool fits = json.is_number_integer() &&
                      (!json.is_number_unsigned() || json.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX));
    if (fits) {
      out = json.get<int64_t>();
    } else {
      violations.push_back({at, "an integer expected"});
    }
  }
  void Read(const Json& json, const std::string& at, double& out) {
    if (json.is_number() && std::isfinite(json.get<double>())) {
      out = json.get<double>();
    } else {
      violations.push_back({at, "a number expected"});
    }
  }
  void Read(const Json& json, const std::string& at, bool& out) {
    if (json.is_boolean()) {
      out = json.get<bool>();
    } else {
      violations.push_back({at, "true or false expected"});
    }
  }
  void Read(const Json& json, const std::string& at, std::string& out) {
    if (json.is_string()) {
      out = json.get<std::string>();
    } else {
      violations.push_back({at, "a string expected"});
    }
  }
  void Read(const Json& json, const std::string& at, std::map<std::string, std::string>& out) {
    if (!IsObject(json, at)) return;
    for (const auto& [key, value] : json.items()) Read(value, at + "." + key, out[key]);
  }
  template <HasFields Group>
  void Read(const Json& json, const std::string& at, Group& out) {
    if (!IsObject(json, at)) return;
    std::vector<std::string> known;
    VisitFields(out, [&](const char* name, const auto&) { known.push_back(name); });
    RefuseOthers(json, at, known);
    VisitFields(out, [&](const char* name, auto& field) { Member(json, at, name, field); });
  }
  void Read(const Json& json, const std::string& at, LaneDecision& out) {
    if (!IsObject(json, at)) return;
    RefuseOthers(json, at, {"lane", "step", "accepted", "reason", "detail"});
    Member(json, at, "lane", out.lane);
    Member(json, at, "step", out.step);
    Member(json, at, "accepted", out.decision.accepted);
    Member(json, at, "detail", out.decision.detail);
    std::string reason;
    Member(json, at, "reason", reason);
    if (std::optional<ReasonCode> code = FindReason(reason)) {
      out.decision.reason = *code;
    } else {
      violations.push_back(
          {at + ".reason", fmt::format("a catalogued reason expected, got \"{}\"", Shorten(reason, 80))});
    }
  }
  template <class T>
  void Read(const Json& json, const std::string& at, std::vector<T>& out) {
    if (!json.is_array()) {
      violations.push_back({at, "an array expected"});
      return;
    }
    out.resize(json.size());
    for (size_t i = 0; i < out.size(); ++i) Read(json[i], fmt::format("{}[{}]", at, i), out[i]);
  }

  template <class T>
  void Member(const Json& object, const std::string& at, const char* name, T& out) {
    const std::string place = at.empty() ? name : at + "." + name;
    if (auto it = object.find(name); it != object.end()) {
      Read(*it, place, out);
    } else {
      violations.push_back({place, "missing"});
    }
  }
  void RefuseOthers(const Json& object, const std::string& at, const std::vector<std::string>& known) {
    for (const auto& [key, value] : object.items()) {
      if (std::find(known.begin(), known.end(), key) != known.end()) continue;
      const std::string name = Shorten(key, 80);
      violations.push_back({at.empty() ? name : at + "." + name, "no such field"});
    }
  }

 private:
  bool IsObject(const Json& json, const std::string& at) {
    if (!json.is_object()) violations.push_back({at, "an object expected"});
    return json.is_object();
  }
};

// Takes every value a receipt could have and counts them.
class Measure : public JsonHandler {
 public:
  bool OnInteger(int64_t) override { return Count(); }
  bool OnText(std::string_view) override { return Count(); }
  bool OnOther(std::string_view) override { return Count(); }
  bool OnKey(std::string_view) override { return true; }
  bool OnObjectBegin() override { return Count(); }
  bool OnObjectEnd() override { return true; }
  bool OnArrayBegin() override { return Count(); }
  bool OnArrayEnd() override { return true; }

 private:
  bool Count() {
    return ++values_ <= kMaxReceiptValues || Refuse(fmt::format("it has more than {} values", kMaxReceiptValues));
  }
  int64_t values_ = 0;
};

// Version 1 had one group for the plugin and one for each pass's program. What it did not say stays empty.
void ReadAsVersion1(Json& json) {
  const auto take = [&](const char* name) {
    const auto found = json.find(name);
    Json value = found == json.end() || !found->is_object() ? Json::object() : *found;
    json.erase(name);
    return value;
  };
  Json device = ToValue(DeviceUse{});
  const Json xla = take("xla");
  for (const auto& [name, value] : xla.items()) {
    device[name == "device" ? "ordinal" : name == "device_kind" ? "name" : name] = value;
  }
  Json programs = Json::array();
  for (const char* pass : {"forward", "backward"}) {
    Json program = take(fmt::format("xla_{}", pass).c_str());
    if (const auto source = program.find("source"); source == program.end() || *source == "") continue;
    program["pass"] = pass;
    programs.push_back(std::move(program));
  }
  json["ran_on"] = "";
  json["device"] = std::move(device);
  json["programs"] = std::move(programs);
  json["work"] = ToValue(WorkUse{});
}

// "plan 0.121 ms, forward 0.324 ms": those of the main steps that were timed.
std::string MainTimings(const Receipt& receipt) {
  std::vector<std::string> texts;
  for (const Timing& timing : receipt.timings) {
    const bool is_work = timing.name == "forward" || timing.name == "backward";
    if (timing.name != "plan" && !is_work && timing.name.rfind("compile.", 0) != 0) continue;
    std::string name = timing.name;
    std::replace(name.begin(), name.end(), '.', ' ');
    texts.push_back(fmt::format("{} {:.3f} ms", name, static_cast<double>(timing.ns) / 1e6));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

// "natively", "as a payload": how a lane ran, in a sentence.
std::string_view ModeText(std::string_view mode) {
  if (mode == "native") return "natively ";
  if (mode == "payload") return "as a payload ";
  if (mode == "bridge") return "through a bridge ";
  return mode == "interpreted" ? "interpreted " : "";
}

// "natively on Neoverse-V1"; "on Neoverse-V1, planned for v6e" where that is another machine.
std::string WhereText(const Receipt& r) {
  const std::string_view here = r.ran_on.empty() ? "a machine it does not name" : std::string_view(r.ran_on);
  const Result<Target> target = FindTarget(r.target);
  if (target && ToText(target->kind) == r.device.kind) {
    return fmt::format("{}on {}", ModeText(r.runtime_mode), here);
  }
  return fmt::format("on {}, planned for {}", here, r.target);
}

// "16 of 32 tiles (2 full, 14 partial)", of the forward; of the backward where it ran alone.
std::string TilesText(const Receipt& r) {
  const auto forward = r.options.find("forward");
  const bool is_backward = forward != r.options.end() && forward->second == "false";
  const TileCounts& tiles = is_backward ? r.tiles_backward : r.tiles;
  return fmt::format(
      "{} of {} {}tiles ({} full, {} partial)", is_backward ? r.tiles_executed_backward : r.tiles_executed,
      tiles.empty + tiles.partial + tiles.full, is_backward ? "backward " : "", tiles.full, tiles.partial);
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

}  // namespace

std::string ToJson(const Receipt& receipt) {
  Json json = Json::object();
  VisitFields(receipt, [&](const char* name, const auto& field) { json[name] = ToValue(field); });
  // File names may hold bytes that are not UTF-8: replaced rather than refused.
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

Result<Receipt> ParseReceiptFields(std::string_view text) {
  // Walked once before a tree is built of it, so that no text can make a tree that is large or deep.
  Measure measure;
  if (const std::string problem = WalkJson(text, kMaxReceiptNesting, measure); !problem.empty()) {
    return Fail(ErrorCode::kReceiptInvalid, "the receipt is not well-formed JSON: " + problem);
  }
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return Fail(ErrorCode::kReceiptInvalid, "the receipt must be one JSON object");
  if (const auto version = json.find("version"); version != json.end() && *version == 1) ReadAsVersion1(json);
  Receipt receipt;
  Reader reader;
  std::vector<std::string> known;
  VisitFields(receipt, [&](const char* name, auto& field) {
    known.push_back(name);
    reader.Member(json, "", name, field);
  });
  reader.RefuseOthers(json, "", known);
  if (!reader.violations.empty()) return Fail(ErrorCode::kReceiptInvalid, std::move(reader.violations));
  return receipt;
}

Result<Receipt> ParseReceipt(std::string_view text, const MaskTerms* terms) {
  Result<Receipt> receipt = ParseReceiptFields(text);
  if (!receipt) return receipt;
  std::vector<Violation> violations = CheckReceipt(*receipt, terms);
  if (!violations.empty()) return Fail(ErrorCode::kReceiptInvalid, std::move(violations));
  return receipt;
}

Result<Receipt> ReadReceipt(const std::string& path, bool is_strict, const MaskTerms* terms) {
  Result<std::string> text = ReadFile(path, kMaxReceiptBytes);
  if (!text) return tl::unexpected(text.error());
  Result<Receipt> receipt = ParseReceiptFields(*text);
  if (receipt && (is_strict || receipt->versions == Versions())) {
    std::vector<Violation> violations = CheckReceipt(*receipt, terms);
    if (!violations.empty()) return Fail(ErrorCode::kReceiptInvalid, std::move(violations), path);
  }
  if (!receipt) receipt.error().where = path;
  return receipt;
}

std::string ToLine(const Receipt& r) {
  std::string asked = "asked " + r.requested;
  if (!r.selected.empty() && r.selected != r.requested) asked += ", selected " + r.selected;
  if (!r.fallback_reason.empty()) asked += ": " + r.fallback_reason;
  if (!r.ok) {
    const std::string first_line = r.error.substr(0, r.error.find('\n'));
    return fmt::format("failed at {} ({}) for {}: {}", r.failed_at, asked, r.target, first_line);
  }
  const std::string keys = fmt::format("contract {}, plan {}; {}", r.contract_key.substr(0, 8),
                                       r.plan_fingerprint.substr(0, 8), MainTimings(r));
  if (r.runtime_mode == kCompileOnly) {
    const std::string& machine = r.device.topology.empty() ? r.target : r.device.topology;
    return fmt::format("{} compiled for {} ({}), {} programs, {}", r.executed, machine, asked, r.compiles, keys);
  }
  return fmt::format("{} ran ({}) {}, {}, {}", r.executed, asked, WhereText(r), TilesText(r), keys);
}

std::string ShapeText(const Shape& s) {
  return fmt::format("b{} q{} kv{} h{}/{} d{}/{} {}", s.batch, s.q_len, s.kv_len, s.num_q_heads, s.num_kv_heads,
                     s.dim_qk, s.dim_v, ToText(s.dtype));
}

WorkUse WorkOf(const Shape& shape, int64_t pairs, int64_t forward_ns, int64_t backward_ns) {
  const auto gflops = [&](int64_t dims, int64_t ns) {
    return ns <= 0 ? 0.0 : 2.0 * static_cast<double>(pairs) * static_cast<double>(dims) / static_cast<double>(ns);
  };
  return {.pairs = pairs,
          .forward_gflops = gflops(shape.dim_qk + shape.dim_v, forward_ns),
          .backward_gflops = gflops(3 * shape.dim_qk + 2 * shape.dim_v, backward_ns)};
}

ProgramUse ProgramOf(const Receipt& receipt, std::string_view pass) {
  for (const ProgramUse& program : receipt.programs) {
    if (program.pass == pass) return program;
  }
  return {};
}

std::map<std::string, std::string> Versions() {
  return {
      {"arch", std::string(Architecture())},
      {"compiler", CompilerName()},
      {"contract", fmt::format("{}", kContractVersion)},
      {"plan", fmt::format("{}", kPlanVersion)},
      {"receipt", fmt::format("{}", kReceiptVersion)},
      {"tessera", kVersion},
  };
}

}  // namespace tessera
