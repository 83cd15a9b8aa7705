// See programs.h.
#include "lanes/xla/programs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>
#include <mutex>

#include "base/clock.h"
#include "base/hash.h"
#include "io/file.h"
#include "lanes/xla/pjrt/find_plugins.h"
#include "lanes/xla/recent.h"
#include "lanes/xla/store/host_features.h"
#include "lanes/xla/store/program_store.h"

namespace tessera::lanes::xla {
namespace {

pjrt::ElementType ToPjrt(stablehlo::Element element) {
  switch (element) {
    case stablehlo::Element::kI1:
      return pjrt::ElementType::kPred;
    case stablehlo::Element::kI32:
      return pjrt::ElementType::kS32;
    case stablehlo::Element::kUi32:
      return pjrt::ElementType::kU32;
    case stablehlo::Element::kF32:
      return pjrt::ElementType::kF32;
    case stablehlo::Element::kBf16:
      return pjrt::ElementType::kBf16;
    case stablehlo::Element::kF16:
      return pjrt::ElementType::kF16;
  }
  return pjrt::ElementType::kF32;
}

std::string HashOf(std::string_view text) {
  Hasher hasher;
  hasher.Text(text);
  return Hex(hasher.Finish());
}

// ---- on disk

// Options that XLA and libtpu read from the environment by themselves, once in a process; and so do we. XLA_FLAGS may
// be the name of a file that has them.
constexpr int64_t kMaxFlagsBytes = 1 << 20;
const std::string& FlagsOfEnvironment() {
  static const std::string kFlags = [] {
    std::string flags;
    for (const char* name : {"XLA_FLAGS", "LIBTPU_INIT_ARGS"}) {
      const char* value = std::getenv(name);
      if (value == nullptr || *value == '\0') continue;
      const std::string text = *value == '-' ? value : ReadFile(value, kMaxFlagsBytes).value_or(value);
      flags += fmt::format("{}{}={}", flags.empty() ? "" : " ", name, text);
    }
    return flags;
  }();
  return kFlags;
}

ProgramKey KeyOf(const Session& session, std::string_view text, const pjrt::CompileOptions& options) {
  const pjrt::Client& client = *session.client;
  const pjrt::PluginInfo& plugin = client.plugin().info();
  // A CPU program is made for the very core; others for the kind of device.
  const std::string host =
      client.platform() == "cpu" ? HostFeatures() : client.devices()[static_cast<size_t>(session.device)].kind;
  return {.program = HashOf(text),
          .options = HashOf(pjrt::Encode(options) + FlagsOfEnvironment()),
          .plugin = fmt::format("{} {} {} {}", plugin.identity, client.platform(), client.platform_version(),
                                plugin.stablehlo_version),
          .host = host};
}

// "dot 4, while 3": the most frequent first, at most eight.
std::string CountsText(const std::map<std::string, int64_t>& counts) {
  constexpr size_t kMost = 8;
  std::vector<std::pair<std::string, int64_t>> sorted(counts.begin(), counts.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string text;
  for (size_t i = 0; i < sorted.size() && i < kMost; ++i) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", sorted[i].first, sorted[i].second);
  }
  if (sorted.size() > kMost) text += fmt::format(", {} more", sorted.size() - kMost);
  return text;
}

void AddNote(std::string& note, const std::string& text) {
  if (!text.empty()) note += (note.empty() ? "" : "; ") + text;
}

// What a program is compiled with, and where it lies on disk. Names it in `use`.
struct OnDisk {
  OnDisk(const Session& session, const stablehlo::Program& program, const XlaOptions& options, XlaProgramUse* use)
      : compile(CompileOptionsFor(program, options)),
        key(KeyOf(session, program.text, compile)),
        store(pjrt::XlaFolder() + "/programs", options.keep_programs ? kMaxProgramStoreBytes : 0) {
    use->name = program.name;
    use->parts = program.parts;
    use->key = HashOf(key.program + key.options + key.plugin + key.host);
    AddNote(use->note, FlagsOfEnvironment());
  }
  pjrt::CompileOptions compile;
  ProgramKey key;
  ProgramStore store;
};

Result<pjrt::Executable> CompileAndPut(const Session& session, const stablehlo::Program& program,
                                       const XlaOptions& options, const OnDisk& disk, XlaProgramUse* use) {
  const Clock clock;
  Result<pjrt::Executable> compiled = session.client->Compile(program.text, disk.compile);
  if (!compiled) return compiled;
  use->source = "compiled";
  use->compile_ns = clock.Ns();
  if (!options.keep_programs) return compiled;
  const Result<std::vector<std::byte>> bytes = compiled->Serialize();
  AddNote(use->note, bytes ? disk.store.Put(disk.key, *bytes).reason : "not kept on disk: " + bytes.error().message);
  return compiled;
}

// From the disk where it is there and can be loaded, else compiled and put there.
Result<pjrt::Executable> LoadOrCompile(const Session& session, const stablehlo::Program& program,
                                       const XlaOptions& options, XlaProgramUse* use) {
  const OnDisk disk(session, program, options, use);
  const Clock clock;
  const FindResult found = disk.store.Find(disk.key);
  AddNote(use->note, found.reason);
  if (found.bytes) {
    Result<pjrt::Executable> loaded = session.client->Deserialize(*found.bytes, disk.compile);
    if (loaded) {
      use->source = "disk";
      use->compile_ns = clock.Ns();
      return loaded;
    }
    AddNote(use->note, "an entry on disk did not load: " + loaded.error().message);
  }
  return CompileAndPut(session, program, options, disk, use);
}

Result<std::shared_ptr<const CompiledPass>> Make(const Session& session, const stablehlo::ProgramSpec& spec, Pass pass,
                                                 const XlaOptions& options) {
  const Result<stablehlo::Program> program = Lower(spec, pass);
  if (!program) return tl::unexpected(program.error());
  XlaProgramUse facts;
  Result<pjrt::Executable> executable = LoadOrCompile(session, *program, options, &facts);
  if (!executable) return tl::unexpected(executable.error());
  if (Status ok = Describe(executable->program(), &facts); !ok) return tl::unexpected(ok.error());
  return std::make_shared<const CompiledPass>(
      CompiledPass{std::move(*executable), program->inputs, program->outputs, std::move(facts)});
}

// ---- in memory

Hash128 MemoryKey(const Session& session, const stablehlo::ProgramSpec& spec, Pass pass, const XlaOptions& options) {
  const auto& [class_key, shape, has_softcap, has_sink_logits, has_documents, has_valid, masks, lists, items, words,
               parts] = spec;
  const auto& [batch, q_len, kv_len, num_q_heads, num_kv_heads, dim_qk, dim_v, dtype] = shape;
  Hasher hasher;
  hasher.Int(static_cast<int64_t>(reinterpret_cast<intptr_t>(session.client)));
  hasher.Int(static_cast<int64_t>(pass));
  hasher.Int(options.optimization.value_or(-1));
  hasher.Text(class_key);
  for (const int64_t value : {batch, q_len, kv_len, num_q_heads, num_kv_heads, dim_qk, dim_v,
                              static_cast<int64_t>(dtype), masks, items, words, parts}) {
    hasher.Int(value);
  }
  for (const bool flag : {has_softcap, has_sink_logits, has_documents, has_valid}) hasher.Int(flag ? 1 : 0);
  for (const stablehlo::ListShape& list : lists) {
    for (const int64_t value : {list.tile_q, list.tile_kv, list.rows, list.width}) hasher.Int(value);
  }
  return hasher.Finish();
}

// What is looked for and made while its place is locked, so that threads that ask for one program at once wait for one
// compilation.
struct Place {
  std::mutex mutex;
  std::shared_ptr<const CompiledPass> program;
};

class Programs {
 public:
  Result<FoundProgram> Find(const Session& session, const stablehlo::ProgramSpec& spec, Pass pass,
                            const XlaOptions& options) {
    const std::shared_ptr<Place> place = places_.Get(MemoryKey(session, spec, pass, options));
    const std::lock_guard lock(place->mutex);
    if (place->program != nullptr) {
      XlaProgramUse use = place->program->facts;
      use.source = "memory";
      use.note.clear();
      use.compile_ns = 0;
      return FoundProgram{place->program, std::move(use)};
    }
    Result<std::shared_ptr<const CompiledPass>> made = Make(session, spec, pass, options);
    if (!made) return tl::unexpected(made.error());
    place->program = *made;
    return FoundProgram{*made, (*made)->facts};
  }

 private:
  Recent<Hash128, Place> places_{kMaxPrograms};
};

}  // namespace

std::string_view KernelName(DType dtype) {
  return dtype == DType::kF32 ? "xla_chunked_f32" : dtype == DType::kBf16 ? "xla_chunked_bf16" : "xla_chunked_f16";
}

Decision CheckSize(const stablehlo::ProgramSpec& spec) {
  for (const stablehlo::ListShape& list : spec.lists) {
    const double slots = static_cast<double>(spec.masks) * static_cast<double>(list.rows) *
                         static_cast<double>(list.width) * stablehlo::kSlotColumns;
    if (slots > std::numeric_limits<int32_t>::max()) {
      return Decision::No(ReasonCode::kXlaTooLarge,
                          fmt::format("its padded worklist has {:.0f} numbers, more than 2^31; a tighter "
                                      "capacity.width or larger tiles make it smaller",
                                      slots));
    }
  }
  return Decision::Yes();
}

Result<stablehlo::Program> Lower(const stablehlo::ProgramSpec& spec, Pass pass) {
  return pass == Pass::kForward ? stablehlo::LowerForward(spec) : stablehlo::LowerBackward(spec);
}

pjrt::CompileOptions CompileOptionsFor(const stablehlo::Program& program, const XlaOptions& options) {
  pjrt::CompileOptions compile;
  if (options.optimization) compile.overrides["xla_backend_optimization_level"] = *options.optimization;
  for (const stablehlo::NamedType& input : program.inputs) {
    compile.inputs.push_back({ToPjrt(input.type.element), input.type.dims});
  }
  return compile;
}

Status Describe(const pjrt::CompiledProgram& program, XlaProgramUse* use) {
  const Result<pjrt::ProgramFigures> figures = program.Figures();
  if (!figures) return tl::unexpected(figures.error());
  use->argument_bytes = figures->argument_bytes;
  use->output_bytes = figures->output_bytes;
  use->temp_bytes = figures->temp_bytes;
  use->code_bytes = figures->generated_code_bytes;
  const Result<pjrt::OptimizedProgram> optimized = program.Optimized();
  if (!optimized) return tl::unexpected(optimized.error());
  use->name = optimized->module_name;
  use->instructions = optimized->instructions;
  use->opcodes = CountsText(optimized->opcodes);
  use->custom_calls = CountsText(optimized->custom_calls);
  use->collectives = CountsText(optimized->collectives);
  return {};
}

Status CompileAnew(const Session& session, const stablehlo::Program& program, const XlaOptions& options,
                   XlaProgramUse* use) {
  const OnDisk disk(session, program, options, use);
  const Result<pjrt::Executable> compiled = CompileAndPut(session, program, options, disk, use);
  if (!compiled) return tl::unexpected(compiled.error());
  return Describe(compiled->program(), use);
}

Result<FoundProgram> FindProgram(const Session& session, const stablehlo::ProgramSpec& spec, Pass pass,
                                 const XlaOptions& options) {
  // Never destroyed: a plugin's threads may outlive static objects.
  static Programs& programs = *new Programs();
  return programs.Find(session, spec, pass, options);
}

}  // namespace tessera::lanes::xla
