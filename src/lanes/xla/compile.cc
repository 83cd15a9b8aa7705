// See compile.h.
#include "lanes/xla/compile.h"

#include <fmt/format.h>

#include <map>
#include <mutex>
#include <utility>

#include "base/clock.h"
#include "base/hash.h"
#include "lanes/xla/pjrt/find_plugins.h"
#include "lanes/xla/pjrt/topology.h"
#include "lanes/xla/plugins.h"
#include "lanes/xla/programs.h"

namespace tessera::lanes::xla {
namespace {

// How libtpu calls the smallest machine of each target. A name it does not know is an error; an empty one is a TPU v2.
struct NamedTopology {
  std::string_view target;
  std::string_view topology;
};
constexpr NamedTopology kTopologies[] = {{"v6e", "v6e:1x1"}, {"v5e", "v5e:2x2"}, {"v5p", "v5p:2x2x1"}};

std::string_view TopologyOf(const Target& target) {
  for (const NamedTopology& named : kTopologies) {
    if (named.target == target.name) return named.topology;
  }
  return "";
}

// A TPU's client needs the TPU; the other plugins compile with theirs.
bool NeedsTopology(const Target& target) { return target.kind == TargetKind::kTpu && !pjrt::HasTpu(); }

// Made once per process, and never destroyed: a plugin's threads may outlive static objects.
Result<const pjrt::Topology*> GetTopology(const pjrt::Plugin& plugin, const std::string& name) {
  static std::mutex& mutex = *new std::mutex();
  static auto& made = *new std::map<std::pair<const pjrt::Plugin*, std::string>, pjrt::Topology>();
  const std::lock_guard lock(mutex);
  const auto key = std::make_pair(&plugin, name);
  if (const auto at = made.find(key); at != made.end()) return &at->second;
  Result<pjrt::Topology> topology = pjrt::Topology::Create(plugin, name);
  if (!topology) return tl::unexpected(topology.error());
  return &made.emplace(key, std::move(*topology)).first->second;
}

// Where a program is compiled: one of the two.
struct Place {
  Session session;
  const pjrt::Topology* topology = nullptr;
};

Decision OpenTopology(const Target& target, const XlaOptions& options, Place* place) {
  const PluginChoice choice = ChoosePlugin(options, target.kind, Purpose::kCompile);
  if (!choice.decision.accepted) return choice.decision;
  const Result<const pjrt::Plugin*> plugin = pjrt::Plugin::Load(choice.path);
  if (!plugin) return Decision::No(ReasonCode::kXlaPlugin, plugin.error().message);
  const Result<const pjrt::Topology*> topology = GetTopology(**plugin, std::string(TopologyOf(target)));
  if (!topology) return Decision::No(ReasonCode::kXlaPlugin, topology.error().message);
  if (!Fits((*topology)->platform(), target.kind)) {
    return Decision::No(ReasonCode::kXlaPlatform,
                        fmt::format("the plugin {} compiles for \"{}\"", choice.path, (*topology)->platform()));
  }
  const Decision decision = CheckDevice(options.device, (*topology)->devices(), (*topology)->name());
  if (decision.accepted) place->topology = *topology;
  return decision;
}

Decision Open(const Target& target, const XlaOptions& options, Place* place) {
  return NeedsTopology(target) ? OpenTopology(target, options, place)
                               : OpenSession(options, target.kind, &place->session);
}

XlaUse TopologyUse(const pjrt::Topology& topology, int64_t device) {
  XlaUse use = UseOf(topology.plugin());
  use.platform = topology.platform();
  use.device = device;
  use.device_kind = topology.devices()[static_cast<size_t>(device)].kind;
  use.topology = topology.name();
  return use;
}

std::string KeyOf(const pjrt::Topology& topology, const stablehlo::Program& program,
                  const pjrt::CompileOptions& options) {
  Hasher hasher;
  for (const std::string& part :
       {topology.plugin().info().identity, topology.name(), pjrt::Encode(options), program.text}) {
    hasher.Text(part);
  }
  return Hex(hasher.Finish());
}

Status CompileFor(const pjrt::Topology& topology, const stablehlo::Program& program, const XlaOptions& options,
                  XlaProgramUse* use) {
  const pjrt::CompileOptions compile = CompileOptionsFor(program, options);
  const Clock clock;
  const Result<pjrt::CompiledProgram> compiled = topology.Compile(program.text, compile);
  if (!compiled) return tl::unexpected(compiled.error());
  use->compile_ns = clock.Ns();
  use->source = "compiled";
  use->parts = program.parts;
  use->key = KeyOf(topology, program, compile);
  return Describe(*compiled, use);
}

class XlaCompile final : public Compiler {
 public:
  Decision Decide(const Contract&, const Target& target, const XlaOptions& options) const override {
    if (NeedsTopology(target) && TopologyOf(target).empty()) {
      std::string known;
      for (const NamedTopology& named : kTopologies) known += fmt::format(" {}", named.target);
      return Decision::No(ReasonCode::kXlaNoTopology,
                          fmt::format("the target is \"{}\", and known are{}", target.name, known));
    }
    return ChoosePlugin(options, target.kind, Purpose::kCompile).decision;
  }

  Decision DecidePlan(const Contract& contract, const PlanView& plan, const Target& target,
                      const XlaOptions& options) const override {
    const Decision fits = CheckSize(stablehlo::SpecOf(contract, plan, target.kind));
    if (!fits.accepted) return fits;
    Place place;
    return Open(target, options, &place);
  }

  Result<ProgramText> Lower(const Contract& contract, const PlanView& plan, const Target& target,
                            Pass pass) const override {
    const stablehlo::ProgramSpec spec = stablehlo::SpecOf(contract, plan, target.kind);
    const Decision fits = CheckSize(spec);
    if (!fits.accepted) return Fail(ErrorCode::kTooLarge, fits.detail);
    return xla::Lower(spec, pass).map([](stablehlo::Program program) {
      return ProgramText{std::move(program.name), std::move(program.text)};
    });
  }

  Result<RunStats> Compile(const CompileRequest& request, Pass pass) const override {
    const stablehlo::ProgramSpec spec = stablehlo::SpecOf(*request.contract, *request.plan, request.target->kind);
    const Result<stablehlo::Program> program = xla::Lower(spec, pass);
    if (!program) return tl::unexpected(program.error());
    Place place;
    if (const Decision decision = Open(*request.target, request.xla, &place); !decision.accepted) {
      return Fail(ErrorCode::kPluginUnusable, decision.detail);
    }
    const bool is_elsewhere = place.topology != nullptr;
    RunStats stats{KernelName(request.contract->shape.dtype), "pjrt", 0};
    stats.xla = is_elsewhere ? TopologyUse(*place.topology, request.xla.device) : UseOf(place.session);
    const Status ok = is_elsewhere ? CompileFor(*place.topology, *program, request.xla, &stats.program)
                                   : CompileAnew(place.session, *program, request.xla, &stats.program);
    if (!ok) return tl::unexpected(ok.error());
    return stats;
  }
};

}  // namespace

const Compiler& XlaCompiler() {
  static const XlaCompile kCompiler;
  return kCompiler;
}

}  // namespace tessera::lanes::xla
