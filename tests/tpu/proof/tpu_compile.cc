// tpu_compile LIBTPU TOPOLOGY FILE... [TOPOLOGY FILE...]: compiles StableHLO modules for a TPU that is not here, all in
// one process, and prints a line for each (those for several chips are divided among as many of the topology): file,
// fingerprint, bytes of code, of vector memory, bundles of the kernels' schedules (-1 unless LIBTPU_INIT_ARGS asks for
// schedules), seconds; and below it, indented, what a device holds and what each collective carries over all of them,
// of modules for several chips. The compiler's errors are printed in their place, and the exit status says whether
// there were any.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "lanes/xla/pjrt/plugin.h"
#include "lanes/xla/pjrt/schedules.h"
#include "lanes/xla/pjrt/topology.h"

namespace {

using namespace tessera;

// "mhlo.num_partitions = 4 : i32", as our modules and JAX's say it.
int64_t PartitionsOf(const std::string& text) {
  constexpr std::string_view kWords = "mhlo.num_partitions = ";
  const size_t at = text.find(kWords);
  return at == std::string::npos ? 1 : std::strtoll(text.c_str() + at + kWords.size(), nullptr, 10);
}

Result<std::string> Compile(const pjrt::Topology& topology, const char* path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  const char* flags = std::getenv("LIBTPU_INIT_ARGS");
  const pjrt::Schedules schedules(flags == nullptr ? "" : flags);
  const auto begin = std::chrono::steady_clock::now();
  pjrt::CompileOptions options;
  options.num_partitions = PartitionsOf(text.str());
  options.use_spmd = options.use_shardy = options.num_partitions > 1;
  const Result<pjrt::CompiledProgram> program = topology.Compile(text.str(), options);
  if (!program) return tl::unexpected(program.error());
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const Result<pjrt::ProgramFigures> figures = program->Figures();
  if (!figures) return tl::unexpected(figures.error());
  const Result<std::string> fingerprint = program->Fingerprint();
  if (!fingerprint) return tl::unexpected(fingerprint.error());
  const Result<pjrt::OptimizedProgram> optimized = program->Optimized();
  if (!optimized) return tl::unexpected(optimized.error());
  std::string line = fmt::format("{} {} {} {} {:.1f}", pjrt::HexOf(*fingerprint), figures->generated_code_bytes,
                                 optimized->vector_bytes, schedules.Bundles(), seconds);
  if (options.num_partitions == 1) return line;
  line += fmt::format("\n  on each device: arguments {}, outputs {}, temporary {} bytes", figures->argument_bytes,
                      figures->output_bytes, figures->temp_bytes);
  for (const pjrt::Collective& one : optimized->collective_calls) {
    line += fmt::format("\n  {}: {} bytes", pjrt::ToText(one), pjrt::CarriedBytes(one, options.num_partitions));
  }
  return line;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    fmt::print(stderr, "usage: tpu_compile LIBTPU TOPOLOGY FILE... [TOPOLOGY FILE...]\n");
    return 2;
  }
  // Not met in a child process first: it came by hash, and an emulator may be unable to start one.
  const Result<const pjrt::Plugin*> plugin = pjrt::Plugin::Load(argv[1], {.seconds = 0});
  if (!plugin) {
    fmt::print(stderr, "{}\n", ToText(plugin.error()));
    return 2;
  }
  Result<pjrt::Topology> topology = pjrt::Topology::Create(**plugin, argv[2]);
  int status = 0;
  for (int i = 3; i < argc; ++i) {
    // "v5e:2x2": what follows is for other chips.
    if (std::string_view(argv[i]).find(':') != std::string_view::npos) {
      topology = pjrt::Topology::Create(**plugin, argv[i]);
      continue;
    }
    const Result<std::string> line =
        topology ? Compile(*topology, argv[i]) : Result<std::string>(tl::unexpected(topology.error()));
    if (!line) status = 1;
    fmt::print("{} {}\n", argv[i], line ? *line : "error " + ToText(line.error()));
    std::fflush(stdout);
  }
  std::_Exit(status);  // the plugin's threads do not end by themselves
}
