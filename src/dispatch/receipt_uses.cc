// See receipt_uses.h.
#include "dispatch/receipt_uses.h"

#include <fmt/format.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <string_view>
#include <utility>

#include "base/hash.h"
#include "dispatch/ledger.h"
#include "dispatch/run.h"

namespace tessera {
namespace {

bool HasAccepted(const Receipt& receipt, std::string_view lane) {
  return std::any_of(receipt.decisions.begin(), receipt.decisions.end(), [&](const LaneDecision& d) {
    return d.lane == lane && d.step == "contract" && d.decision.accepted;
  });
}

struct Expectations {
  void Expect(bool holds, std::string field, std::string expected) {
    if (!holds) violations.push_back({std::move(field), std::move(expected)});
  }
  std::vector<Violation> violations;
};

// The numbers of ShapeText, or nothing for any other text.
std::vector<int64_t> SizesIn(const std::string& text) {
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    Shape s;
    s.dtype = dtype;
    const int read = std::sscanf(
        text.c_str(), "b%" SCNd64 " q%" SCNd64 " kv%" SCNd64 " h%" SCNd64 "/%" SCNd64 " d%" SCNd64 "/%" SCNd64,
        &s.batch, &s.q_len, &s.kv_len, &s.num_q_heads, &s.num_kv_heads, &s.dim_qk, &s.dim_v);
    if (read == 7 && ShapeText(s) == text) {
      return {s.batch, s.q_len, s.kv_len, s.num_q_heads, s.num_kv_heads, s.dim_qk, s.dim_v};
    }
  }
  return {};
}

}  // namespace

std::vector<Violation> CheckLedgerUse(const Receipt& receipt, bool has_selection) {
  const LedgerUse& use = receipt.ledger;
  Expectations out;
  out.Expect(!use.machine.empty(), "ledger.machine", "what this machine is");
  if (use.file.empty() || !has_selection) {
    for (const auto& [field, text] : {std::pair<const char*, const std::string&>{"verdict", use.verdict},
                                      {"chose", use.chose},
                                      {"over", use.over},
                                      {"entry", use.entry},
                                      {"note", use.note}}) {
      out.Expect(text.empty(), fmt::format("ledger.{}", field), "empty where no ledger was asked");
    }
    return std::move(out.violations);
  }
  const bool is_not_asked = use.verdict == kLedgerNotAsked;
  out.Expect(IsLedgerVerdict(use.verdict), "ledger.verdict", "a ledger's verdict");
  out.Expect(!use.note.empty(), "ledger.note", "the reason of the verdict");
  out.Expect(receipt.requested == "auto" || is_not_asked, "ledger.verdict",
             "not_asked where a lane was asked for by name");
  const bool has_entry = use.verdict == "tied" || use.verdict == "experimental" || use.verdict == "promoted";
  out.Expect(has_entry ? IsHex(use.entry) : use.entry.empty(), "ledger.entry",
             "the 32 hex digits of the entry where one decided, else empty");
  out.Expect(use.chose.empty() == use.over.empty(), "ledger.over", "empty if and only if nothing was chosen");
  if (use.chose.empty()) return std::move(out.violations);
  const auto option = receipt.options.find("experimental");
  const bool is_experimental = option != receipt.options.end() && option->second == "true";
  out.Expect(has_entry && (use.verdict != "experimental" || is_experimental), "ledger.chose",
             "empty: the verdict chooses nothing");
  out.Expect(use.chose == receipt.selected, "ledger.chose", "the selected lane");
  for (const std::string& lane : {use.chose, use.over}) {
    out.Expect(HasAccepted(receipt, lane), "ledger.chose",
               fmt::format("a choice between lanes that accepted the contract, not {}", lane));
  }
  return std::move(out.violations);
}

std::vector<Violation> CheckXlaUse(const Receipt& receipt) {
  Expectations out;
  const XlaUse& use = receipt.xla;
  if (use.plugin.empty()) {
    out.Expect(use == XlaUse{}, "xla", "empty as a whole where nothing went through XLA");
    out.Expect(receipt.executed != "xla_chunked", "xla.plugin", "the plugin that xla_chunked ran through");
    out.Expect(receipt.compiles == 0, "compiles", "0 where nothing went through XLA");
    out.Expect(receipt.cache_hits == 0, "cache_hits", "0 where nothing went through XLA");
  } else {
    out.Expect(receipt.executed == "xla_chunked", "xla", "empty as a whole where another lane ran");
    for (const auto& [field, text] : {std::pair<const char*, const std::string&>{"platform", use.platform},
                                      {"pjrt", use.pjrt},
                                      {"guard", use.guard}}) {
      out.Expect(!text.empty(), fmt::format("xla.{}", field), "what the plugin said");
    }
    const auto asked = receipt.options.find("plugin_device");
    out.Expect(asked != receipt.options.end() && asked->second == fmt::format("{}", use.device), "xla.device",
               "the device of options.plugin_device");
  }
  const bool is_compile_only = receipt.runtime_mode == kCompileOnly;
  out.Expect(use.topology.empty() || is_compile_only, "xla.topology", "empty where a program ran");
  int64_t compiles = 0;
  int64_t hits = 0;
  bool has_any = false;
  for (const auto& [field, program] : {std::pair<const char*, const XlaProgramUse&>{"xla_forward", receipt.xla_forward},
                                       {"xla_backward", receipt.xla_backward}}) {
    if (program.source.empty()) {
      out.Expect(program == XlaProgramUse{}, field, "empty as a whole where the pass did not run");
      continue;
    }
    has_any = true;
    const bool is_compiled = program.source == "compiled";
    const bool is_found = program.source == "memory" || program.source == "disk";
    out.Expect(is_compiled || is_found, fmt::format("{}.source", field), "compiled, memory or disk");
    out.Expect(is_compiled || !is_compile_only, fmt::format("{}.source", field), "compiled, in a compile-only run");
    ++(is_compiled ? compiles : hits);
    out.Expect(IsHex(program.key), fmt::format("{}.key", field), "32 lower-case hex digits");
    out.Expect(!program.name.empty(), fmt::format("{}.name", field), "the compiled module's name");
    const bool has_key = receipt.class_key.empty() || program.name.find(receipt.class_key) != std::string::npos;
    out.Expect(has_key, fmt::format("{}.name", field), "a name that carries the class key");
    out.Expect(program.compile_ns >= 0, fmt::format("{}.compile_ns", field), "0 or more");
    out.Expect(program.parts >= 1, fmt::format("{}.parts", field), "1 or more");
    out.Expect(program.instructions >= 0, fmt::format("{}.instructions", field), "0 or more");
    for (const auto& [name, bytes] : {std::pair<const char*, int64_t>{"argument_bytes", program.argument_bytes},
                                      {"output_bytes", program.output_bytes},
                                      {"temp_bytes", program.temp_bytes},
                                      {"code_bytes", program.code_bytes}}) {
      out.Expect(bytes >= -1, fmt::format("{}.{}", field, name), "0 or more, or -1 where the plugin does not say");
    }
  }
  out.Expect(has_any == !use.plugin.empty(), "xla", "present if and only if a program ran");
  out.Expect(receipt.compiles == compiles, "compiles", "the number of programs that were compiled");
  out.Expect(receipt.cache_hits == hits, "cache_hits", "the number of programs that were found");
  return std::move(out.violations);
}

std::vector<Violation> CheckPicksUse(const PicksUse& use, const Contract* contract) {
  Expectations out;
  if (use.source.empty()) {
    out.Expect(use == PicksUse{}, "picks", "empty as a whole where no plan was made with picks");
    return std::move(out.violations);
  }
  const bool is_rerouted = use.source == "reroute_to_full";
  out.Expect(is_rerouted || use.source == "routing" || use.source == "caller", "picks.source",
             "routing, caller or reroute_to_full");
  out.Expect(use.reason == (is_rerouted ? "indexer_returned_none" : ""), "picks.reason",
             "indexer_returned_none if and only if attention was rerouted to every key");
  if (contract != nullptr) {
    out.Expect(contract->routing.has_value() == (use.source == "routing"), "picks.source",
               "routing if and only if the contract routes");
  }
  out.Expect(use.kept >= 0 && use.kept <= use.picks, "picks.kept", "0 to picks");
  out.Expect(use.nan_scores >= 0, "picks.nan_scores", "0 or more");
  out.Expect(use.widest_union >= 0 && use.widest_union <= use.kept, "picks.widest_union", "0 to kept");
  return std::move(out.violations);
}

std::vector<Violation> CheckClassUse(const ClassUse& use, const Shape* shape) {
  Expectations out;
  if (use.request.empty()) {
    out.Expect(use == ClassUse{}, "class_request", "empty as a whole where no request was padded");
    return std::move(out.violations);
  }
  out.Expect(IsHex(use.request_key), "class_request.request_key", "32 lower-case hex digits");
  const std::vector<int64_t> request = SizesIn(use.request);
  const std::vector<int64_t> padded = SizesIn(use.padded);
  out.Expect(!request.empty(), "class_request.request", "sizes as \"b1 q64 kv64 h2/1 d8/8 f32\"");
  out.Expect(!padded.empty(), "class_request.padded", "sizes as \"b1 q64 kv64 h2/1 d8/8 f32\"");
  if (shape != nullptr) {
    out.Expect(use.padded == ShapeText(*shape), "class_request.padded", "the sizes of contract_text");
  }
  for (size_t i = 0; i < request.size() && request.size() == padded.size(); ++i) {
    out.Expect(request[i] >= 1 && request[i] <= padded[i], "class_request.request", "no more than the class has");
  }
  out.Expect(use.exact_slots >= 1, "class_request.exact_slots", "1 or more");
  out.Expect(use.class_slots >= use.exact_slots, "class_request.class_slots", "at least exact_slots");
  return std::move(out.violations);
}

}  // namespace tessera
