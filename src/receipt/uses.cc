// See uses.h.
#include "receipt/uses.h"

#include <fmt/format.h>

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <set>
#include <string_view>
#include <utility>

#include "base/hash.h"

namespace tessera {
namespace {

bool HasAccepted(const Receipt& receipt, std::string_view lane) {
  return std::any_of(receipt.decisions.begin(), receipt.decisions.end(), [&](const LaneDecision& d) {
    return d.lane == lane && d.step == "contract" && d.decision.accepted;
  });
}

constexpr std::string_view kVerdicts[] = {"no_evidence", "dynamic",  "tied",     "experimental",
                                          "promoted",    "unusable", "not_asked"};

std::string OptionOf(const Receipt& receipt, const char* name) {
  const auto found = receipt.options.find(name);
  return found == receipt.options.end() ? std::string() : found->second;
}

int64_t TimeOf(const Receipt& receipt, std::string_view name) {
  for (const Timing& timing : receipt.timings) {
    if (timing.name == name) return timing.ns;
  }
  return 0;
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
  const bool is_not_asked = use.verdict == "not_asked";
  out.Expect(std::find(std::begin(kVerdicts), std::end(kVerdicts), use.verdict) != std::end(kVerdicts),
             "ledger.verdict", fmt::format("one of {}", fmt::join(kVerdicts, ", ")));
  out.Expect(!use.note.empty(), "ledger.note", "the reason of the verdict");
  out.Expect(receipt.requested == "auto" || is_not_asked, "ledger.verdict",
             "not_asked where a lane was asked for by name");
  const bool has_entry = use.verdict == "tied" || use.verdict == "experimental" || use.verdict == "promoted";
  out.Expect(has_entry ? IsHex(use.entry) : use.entry.empty(), "ledger.entry",
             "the 32 hex digits of the entry where one decided, else empty");
  out.Expect(use.chose.empty() == use.over.empty(), "ledger.over", "empty if and only if nothing was chosen");
  if (use.chose.empty()) return std::move(out.violations);
  const bool is_experimental = OptionOf(receipt, "experimental") == "true";
  out.Expect(has_entry && (use.verdict != "experimental" || is_experimental), "ledger.chose",
             "empty: the verdict chooses nothing");
  out.Expect(use.chose == receipt.selected, "ledger.chose", "the selected lane");
  const std::string end = fmt::format("-> {}; ledger: {} -> {}", use.over, use.verdict, use.chose);
  const std::string& rule = receipt.selection_rule;
  out.Expect(rule.size() > end.size() && rule.compare(rule.size() - end.size(), end.size(), end) == 0, "selection_rule",
             fmt::format("the table's rule and the ledger's: it ends with \"{}\"", end));
  for (const std::string& lane : {use.chose, use.over}) {
    out.Expect(HasAccepted(receipt, lane), "ledger.chose",
               fmt::format("a choice between lanes that accepted the contract, not {}", lane));
  }
  return std::move(out.violations);
}

std::vector<Violation> CheckDeviceUse(const Receipt& receipt) {
  Expectations out;
  const DeviceUse& use = receipt.device;
  const bool is_compile_only = receipt.runtime_mode == kCompileOnly;
  const bool has_run = !receipt.executed.empty() && !is_compile_only;
  if (receipt.executed.empty() || receipt.runtime_mode == kEmitted) {
    out.Expect(use == DeviceUse{}, "device", "empty as a whole where nothing ran");
    out.Expect(receipt.ran_on.empty(), "ran_on", "empty where nothing ran");
    return std::move(out.violations);
  }
  const bool is_interpreter = use.kind == "interpreter";
  out.Expect(use.kind == "cpu" || use.kind == "gpu" || use.kind == "tpu" || is_interpreter, "device.kind",
             "cpu, gpu, tpu or interpreter");
  out.Expect(!use.name.empty(), "device.name", "the device's name");
  const bool is_host = use.kind == "cpu" && use.plugin.empty();
  out.Expect(is_host ? use.ordinal == 0 : use.ordinal >= 0, "device.ordinal",
             is_host ? "0 for this machine's processor" : "0 or more");
  out.Expect(has_run == !use.memory.empty(), "device.memory", "the memory space of the tensors, if and only if it ran");
  const std::string ran_on = !has_run ? "" : is_interpreter ? "interpreter" : use.name;
  out.Expect(receipt.ran_on == ran_on, "ran_on", fmt::format("\"{}\", as device says", ran_on));
  out.Expect(use.topology.empty() || is_compile_only, "device.topology", "empty where a program ran");
  const bool has_plugin = !use.plugin.empty();
  for (const auto& [field, text] : {std::pair<const char*, const std::string&>{"platform", use.platform},
                                    {"pjrt", use.pjrt},
                                    {"guard", use.guard}}) {
    out.Expect(has_plugin == !text.empty(), fmt::format("device.{}", field),
               "what the plugin said, if and only if there is one");
  }
  for (const auto& [field, text] :
       {std::pair<const char*, const std::string&>{"platform_version", use.platform_version},
        {"stablehlo", use.stablehlo},
        {"topology", use.topology}}) {
    out.Expect(has_plugin || text.empty(), fmt::format("device.{}", field), "empty without a plugin");
  }
  out.Expect(!has_plugin || OptionOf(receipt, "plugin_device") == fmt::format("{}", use.ordinal), "device.ordinal",
             "the device of options.plugin_device");
  out.Expect(!has_plugin || !receipt.programs.empty(), "programs", "those that went through the plugin");
  return std::move(out.violations);
}

std::vector<Violation> CheckCrossing(const Receipt& receipt) {
  Expectations out;
  const CrossingUse& use = receipt.crossing;
  const std::string& mode = receipt.runtime_mode;
  const bool is_bridge = mode == "bridge";
  if (is_bridge) {
    out.Expect(receipt.owner == kOwnerJax, "owner", fmt::format("{} of a bridge", kOwnerJax));
  } else if (mode == "payload" || mode == "interpreted") {
    out.Expect(receipt.owner == kOwnerPallas, "owner", fmt::format("{} of a payload", kOwnerPallas));
  } else {
    const bool may_own = (mode == kCompileOnly || mode == kEmitted) && receipt.owner == kOwnerPallas;
    out.Expect(receipt.owner.empty() || may_own, "owner", "empty where the code was plain code of the engine's");
  }
  if (!is_bridge) {
    out.Expect(use == CrossingUse{}, "crossing", "empty as a whole where nothing crossed");
    return std::move(out.violations);
  }
  out.Expect(!use.runtime.empty(), "crossing.runtime", "the runtime's versions");
  out.Expect(use.interpreter == "embedded" || use.interpreter == "host", "crossing.interpreter", "embedded or host");
  out.Expect(use.library.empty() == (use.interpreter == "host"), "crossing.library",
             "the interpreter's library, if and only if it was loaded for this");
  out.Expect(use.calls >= 1, "crossing.calls", "1 or more");
  out.Expect(use.bytes_in > 0, "crossing.bytes_in", "more than 0");
  out.Expect(use.copied_in >= 0 && use.copied_in <= use.bytes_in, "crossing.copied_in", "0 to bytes_in");
  out.Expect(use.copies_in >= 0 && (use.copies_in == 0) == (use.copied_in == 0), "crossing.copies_in",
             "0 if and only if copied_in is");
  out.Expect(use.bytes_out > 0, "crossing.bytes_out", "more than 0");
  out.Expect(use.copies_out >= 1, "crossing.copies_out", "1 or more");
  return std::move(out.violations);
}

std::vector<Violation> CheckPrograms(const Receipt& receipt) {
  Expectations out;
  const bool is_compile_only = receipt.runtime_mode == kCompileOnly;
  const bool is_emitted = receipt.runtime_mode == kEmitted;
  int64_t compiles = 0;
  int64_t hits = 0;
  out.Expect(receipt.programs.empty() || !receipt.executed.empty(), "programs", "none where nothing ran");
  for (size_t i = 0; i < receipt.programs.size(); ++i) {
    const ProgramUse& program = receipt.programs[i];
    const std::string at = fmt::format("programs[{}]", i);
    const bool is_pass = program.pass == "forward" || program.pass == "backward";
    out.Expect(is_pass && OptionOf(receipt, program.pass.c_str()) == "true", at + ".pass",
               "forward or backward, and one that was asked for");
    const bool is_compiled = program.source == "compiled";
    const bool is_found = program.source == "memory" || program.source == "disk";
    out.Expect(is_emitted || is_compiled || is_found, at + ".source", "compiled, memory or disk");
    out.Expect(is_emitted == (program.source == kEmitted), at + ".source",
               "emitted if and only if the runtime mode is");
    out.Expect(is_compiled || !is_compile_only, at + ".source", "compiled, in a compile-only run");
    if (!is_emitted) ++(is_compiled ? compiles : hits);
    out.Expect(IsHex(program.key), at + ".key", "32 lower-case hex digits");
    out.Expect(!program.name.empty(), at + ".name", "the compiled module's name");
    const bool has_key = receipt.class_key.empty() || program.name.find(receipt.class_key) != std::string::npos;
    out.Expect(has_key || (receipt.device.plugin.empty() && !is_emitted), at + ".name",
               "a name that carries the class key");
    out.Expect(program.compile_ns >= 0, at + ".compile_ns", "0 or more");
    out.Expect(program.parts >= 1, at + ".parts", "1 or more");
    out.Expect(program.instructions >= 0, at + ".instructions", "0 or more");
    for (const auto& [name, bytes] : {std::pair<const char*, int64_t>{"argument_bytes", program.argument_bytes},
                                      {"output_bytes", program.output_bytes},
                                      {"temp_bytes", program.temp_bytes},
                                      {"code_bytes", program.code_bytes}}) {
      out.Expect(bytes >= -1, fmt::format("{}.{}", at, name), "0 or more, or -1 where nobody says");
    }
  }
  out.Expect(receipt.compiles == compiles, "compiles", "the number of programs that were compiled");
  out.Expect(receipt.cache_hits == hits, "cache_hits", "the number of programs that were found");
  return std::move(out.violations);
}

std::vector<Violation> CheckEmitted(const Receipt& receipt) {
  Expectations out;
  const bool is_emitted = receipt.runtime_mode == kEmitted;
  out.Expect(is_emitted || receipt.kernels.empty(), "kernels", "none where no program was emitted");
  out.Expect(is_emitted || receipt.files.empty(), "files", "none where no program was emitted");
  out.Expect(!is_emitted || !receipt.programs.empty(), "programs", "those that were emitted");
  for (size_t i = 0; i < receipt.kernels.size(); ++i) {
    const KernelUse& kernel = receipt.kernels[i];
    const std::string at = fmt::format("kernels[{}]", i);
    out.Expect(!kernel.name.empty(), at + ".name", "a kernel's name");
    out.Expect(kernel.scalar_limit == receipt.metadata_limit, at + ".scalar_limit", "metadata_limit");
    out.Expect(kernel.vector_limit >= 0, at + ".vector_limit", "0 or more");
    const auto fits = [](int64_t bytes, int64_t limit) { return bytes >= 0 && (limit == 0 || bytes <= limit); };
    out.Expect(fits(kernel.vector_bytes, kernel.vector_limit), at + ".vector_bytes", "0 to vector_limit");
    out.Expect(fits(kernel.scalar_bytes, kernel.scalar_limit), at + ".scalar_bytes", "0 to scalar_limit");
  }
  std::set<std::string> names;
  for (size_t i = 0; i < receipt.files.size(); ++i) {
    const FileUse& file = receipt.files[i];
    const std::string at = fmt::format("files[{}]", i);
    out.Expect(!file.name.empty() && names.insert(file.name).second, at + ".name", "a file's name, each once");
    out.Expect(file.bytes >= 0, at + ".bytes", "0 or more");
    out.Expect(IsHex(file.digest), at + ".digest", "32 lower-case hex digits");
  }
  return std::move(out.violations);
}

std::vector<Violation> CheckWorkUse(const Receipt& receipt, const Shape* shape) {
  Expectations out;
  const WorkUse& use = receipt.work;
  out.Expect(use.pairs >= 0, "work.pairs", "0 or more");
  for (const auto& [pass, gflops] :
       {std::pair<const char*, double>{"forward", use.forward_gflops}, {"backward", use.backward_gflops}}) {
    const std::string at = fmt::format("work.{}_gflops", pass);
    const int64_t ns = TimeOf(receipt, pass);
    out.Expect(gflops >= 0, at, "0 or more");
    out.Expect(gflops == 0 || (use.pairs > 0 && ns > 0), at, "0 where nothing was counted or timed");
    if (shape == nullptr || gflops <= 0 || ns <= 0) continue;
    const WorkUse derived = WorkOf(*shape, use.pairs, ns, ns);
    const double expected = pass == std::string_view("forward") ? derived.forward_gflops : derived.backward_gflops;
    out.Expect(std::abs(gflops - expected) <= 1e-6 * expected, at, fmt::format("{}, by pairs and time", expected));
  }
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
