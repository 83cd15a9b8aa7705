// See programs.h.
#include "lanes/xla/programs.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/clock.h"
#include "base/try.h"
#include "lanes/xla/lowerings.h"
#include "lanes/xla/pjrt/schedules.h"
#include "lanes/xla/store/host_features.h"
#include "lanes/xla/store/program_store.h"

namespace tessera::lanes::xla {
namespace {

pjrt::ElementType ToPjrt(stablehlo::Element element) {
  switch (element) {
    case stablehlo::Element::kI1:
      return pjrt::ElementType::kPred;
    case stablehlo::Element::kI8:
      return pjrt::ElementType::kS8;
    case stablehlo::Element::kI16:
      return pjrt::ElementType::kS16;
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

ProgramKey KeyOf(const Session& session, std::string program, const pjrt::CompileOptions& options,
                 const std::string& flags, std::string layout) {
  const pjrt::Client& client = *session.client;
  const pjrt::PluginInfo& plugin = client.plugin().info();
  // A CPU program is made for the very core; others for the kind of device.
  const std::string host =
      client.platform() == "cpu" ? HostFeatures() : client.devices()[static_cast<size_t>(session.device)].kind;
  return {.program = std::move(program),
          .options = HashOf(pjrt::Encode(options) + flags),
          .plugin = fmt::format("{} {} {} {}", plugin.identity, client.platform(), client.platform_version(),
                                plugin.stablehlo_version),
          .host = host,
          .layout = std::move(layout)};
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

}  // namespace

pjrt::TensorType ToTensorType(const stablehlo::Type& type) { return {ToPjrt(type.element), type.dims}; }

pjrt::CompileOptions CompileOptionsFor(const stablehlo::Program& program, const XlaOptions& options) {
  pjrt::CompileOptions compile;
  if (options.optimization) compile.overrides["xla_backend_optimization_level"] = *options.optimization;
  if (program.devices > 1) {
    compile.num_partitions = program.devices;
    compile.use_spmd = true;
    compile.use_shardy = true;
  }
  for (const stablehlo::NamedType& input : program.inputs) {
    compile.inputs.push_back(ToTensorType(input.type));
  }
  return compile;
}

namespace {

// The part that the compiled program itself tells.
Status Describe(const pjrt::CompiledProgram& program, ProgramUse* use) {
  const pjrt::ProgramFigures figures = TESSERA_TRY(program.Figures());
  use->argument_bytes = figures.argument_bytes;
  use->output_bytes = figures.output_bytes;
  use->temp_bytes = figures.temp_bytes;
  use->code_bytes = figures.generated_code_bytes;
  const pjrt::OptimizedProgram optimized = TESSERA_TRY(program.Optimized());
  use->name = optimized.module_name;
  use->instructions = optimized.instructions;
  use->opcodes = CountsText(optimized.opcodes);
  use->custom_calls = CountsText(optimized.custom_calls);
  use->collectives = CountsText(optimized.collectives);
  use->vector_bytes = optimized.vector_bytes;
  return {};
}

// A program of several devices runs on the client's first.
pjrt::CompileOptions CompileOptionsOn(const Session& session, const stablehlo::Program& program,
                                      const XlaOptions& options) {
  pjrt::CompileOptions compile = CompileOptionsFor(program, options);
  const std::span<const pjrt::DeviceInfo> devices = session.client->devices();
  for (size_t d = 0; program.devices > 1 && d < devices.size() && d < static_cast<size_t>(program.devices); ++d) {
    compile.device_ids.push_back(devices[d].id);
  }
  return compile;
}

// One program on its way from text to an executable: what it is compiled with, where it lies on disk, and what there
// is to say of it.
struct Making {
  Making(const Session& session_in, WrittenProgram written, const XlaSettings& settings)
      : session(session_in),
        program(std::move(written.program)),
        compile(CompileOptionsOn(session, program, written.options)),
        key(KeyOf(session, HashOf(program.text), compile, settings.flags, written.prefix)),
        store(settings.folder + "/programs", written.options.keep_programs ? kMaxProgramStoreBytes : 0),
        is_kept(written.options.keep_programs) {
    use.pass = std::move(written.pass);
    use.name = program.name;
    use.parts = program.parts;
    use.key = written.prefix + HashOf(key.program + key.options + key.plugin + key.host);
    AddNote(use.note, settings.flags);
  }

  Result<pjrt::Executable> CompileAndPut() {
    const Clock clock;
    pjrt::Executable compiled = TESSERA_TRY(session.client->Compile(program.text, compile));
    use.source = "compiled";
    use.compile_ns = clock.Ns();
    if (!is_kept) return compiled;
    const Result<std::vector<std::byte>> bytes = compiled.Serialize();
    AddNote(use.note, bytes ? store.Put(key, *bytes).reason : "not kept on disk: " + bytes.error().message);
    return compiled;
  }

  // From the disk where it is there and can be loaded, else compiled and put there.
  Result<pjrt::Executable> LoadOrCompile() {
    const Clock clock;
    const FindResult found = store.Find(key);
    AddNote(use.note, found.reason);
    if (found.bytes) {
      Result<pjrt::Executable> loaded = session.client->Deserialize(*found.bytes, compile);
      if (loaded) {
        use.source = "disk";
        use.compile_ns = clock.Ns();
        return loaded;
      }
      AddNote(use.note, "an entry on disk did not load: " + loaded.error().message);
    }
    return CompileAndPut();
  }

  const Session& session;
  stablehlo::Program program;
  pjrt::CompileOptions compile;
  ProgramKey key;
  ProgramStore store;
  bool is_kept;
  ProgramUse use;
};

Hash128 MemoryKey(const Session& session, const ProgramQuestion& question) {
  const auto& [class_key, shape, has_softcap, has_sink_logits, has_documents, has_valid, masks, lists, items, words,
               stored_tiles, parts, calls, band, chips, chips_share_heads, is_wide, sub_tile_kv, is_backward_apart,
               has_stats, scalar_bytes, vector_bytes] = question.spec;
  const auto& [batch, q_len, kv_len, num_q_heads, num_kv_heads, dim_qk, dim_v, dtype] = shape;
  Hasher hasher;
  hasher.Int(static_cast<int64_t>(reinterpret_cast<intptr_t>(session.client)));
  hasher.Text(question.lowering.name);
  hasher.Int(static_cast<int64_t>(question.pass));
  hasher.Int(question.options.optimization.value_or(-1));
  hasher.Text(class_key);
  for (const int64_t value :
       {batch, q_len, kv_len, num_q_heads, num_kv_heads, dim_qk, dim_v, static_cast<int64_t>(dtype), masks, items,
        words, stored_tiles, parts, chips, sub_tile_kv, scalar_bytes, vector_bytes}) {
    hasher.Int(value);
  }
  for (const bool flag : {has_softcap, has_sink_logits, has_documents, has_valid, chips_share_heads, is_wide,
                          is_backward_apart, has_stats}) {
    hasher.Int(flag ? 1 : 0);
  }
  for (const stablehlo::ListShape& list : lists) {
    for (const int64_t value : {list.tile_q, list.tile_kv, list.rows, list.width, list.row_words}) hasher.Int(value);
  }
  for (const int64_t of_direction : calls) hasher.Int(of_direction);
  hasher.Int(band ? 1 : 0);
  if (band) {
    // No bound is a number that no length reaches.
    for (const int64_t value : {band->offset, band->left.value_or(-1), band->right.value_or(-1)}) hasher.Int(value);
  }
  return hasher.Finish();
}

Result<WrittenProgram> Write(const ProgramQuestion& question) {
  return WrittenProgram{TESSERA_TRY(question.lowering.lower(question.spec, question.pass)),
                        std::string(ToText(question.pass)), question.options};
}

}  // namespace

Result<FoundProgram> Programs::Find(const Session& session, const ProgramQuestion& question) {
  const std::shared_ptr<Entry> entry = entries_.Get(MemoryKey(session, question));
  const std::lock_guard lock(entry->mutex);
  if (entry->program != nullptr) {
    ProgramUse use = entry->program->facts;
    use.source = "memory";
    use.note.clear();
    use.compile_ns = 0;
    return FoundProgram{entry->program, std::move(use)};
  }
  WrittenProgram written = TESSERA_TRY(Write(question));
  FoundProgram made = TESSERA_TRY(Make(session, std::move(written)));
  entry->program = made.program;
  return made;
}

Result<FoundProgram> Programs::Make(const Session& session, WrittenProgram written) const {
  Making making(session, std::move(written), settings_);
  pjrt::Executable executable = TESSERA_TRY(making.LoadOrCompile());
  TESSERA_TRY(Describe(executable.program(), &making.use));
  auto program = std::make_shared<const CompiledPass>(
      CompiledPass{std::move(executable), making.program.inputs, making.program.outputs, std::move(making.use)});
  return FoundProgram{program, program->facts};
}

Result<ProgramUse> Programs::CompileAnew(const Session& session, const ProgramQuestion& question) const {
  WrittenProgram written = TESSERA_TRY(Write(question));
  Making making(session, std::move(written), settings_);
  const pjrt::Executable executable = TESSERA_TRY(making.CompileAndPut());
  TESSERA_TRY(Describe(executable.program(), &making.use));
  return std::move(making.use);
}

namespace {
// That of the target whose chips they are: "v6e:1x1" are of v6e. -1 where no target is known.
int64_t VectorLimitOf(const pjrt::Topology& topology) {
  const Result<Target> target = FindTarget(topology.name().substr(0, topology.name().find(':')));
  return target && target->vector_bytes > 0 ? target->vector_bytes : -1;
}
}  // namespace

Result<ProgramUse> Programs::CompileFor(const pjrt::Topology& topology, const ProgramQuestion& question) const {
  const WrittenProgram written = TESSERA_TRY(Write(question));
  return CompileFor(topology, written);
}

Result<ProgramUse> Programs::CompileFor(const pjrt::Topology& topology, const WrittenProgram& written,
                                        pjrt::OptimizedProgram* inside) const {
  const stablehlo::Program& program = written.program;
  const pjrt::CompileOptions compile = CompileOptionsFor(program, written.options);
  const pjrt::Schedules schedules(settings_.flags);
  const Clock clock;
  const pjrt::CompiledProgram compiled = TESSERA_TRY(topology.Compile(program.text, compile));
  ProgramUse use{.pass = written.pass, .source = "compiled"};
  use.compile_ns = clock.Ns();
  use.parts = program.parts;
  Hasher hasher;
  for (const std::string& part :
       {topology.plugin().info().identity, topology.name(), pjrt::Encode(compile), program.text}) {
    hasher.Text(part);
  }
  use.key = written.prefix + Hex(hasher.Finish());
  TESSERA_TRY(Describe(compiled, &use));
  use.fingerprint = pjrt::HexOf(TESSERA_TRY(compiled.Fingerprint()));
  if (use.vector_bytes >= 0) use.vector_limit = VectorLimitOf(topology);
  use.bundles = schedules.Bundles();
  if (inside != nullptr) *inside = TESSERA_TRY(compiled.Optimized());
  return use;
}

}  // namespace tessera::lanes::xla
