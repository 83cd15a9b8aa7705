// Programs of several chips that are only compiled: for a topology that libtpu knows by name. See tessera/shard_run.h.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <thread>

#include "base/clock.h"
#include "base/hash.h"
#include "base/try.h"
#include "lanes/xla/pjrt/schedules.h"
#include "lanes/xla/xla.h"
#include "shard/cut_program.h"
#include "shard/program_table.h"
#include "shard/shard_pass.h"
#include "tessera/compile.h"
#include "tessera/shard_run.h"

namespace tessera {
namespace {

using shard::ContextPass;

struct Grid {
  int64_t width = 1;
  int64_t rows = 1;
};

// "v6e:2x4"; of three numbers the last two are rows.
Result<Grid> GridOf(std::string_view topology) {
  const auto bad = [&] {
    return Fail(ErrorCode::kBadArgument, fmt::format("\"{}\" is no topology: write one as v6e:2x2", topology),
                "topology");
  };
  const size_t colon = topology.find(':');
  if (colon == std::string_view::npos || colon == 0) return bad();
  std::vector<int64_t> sizes;
  for (const char* at = topology.data() + colon + 1; at <= topology.data() + topology.size(); ++at) {
    int64_t size = 0;
    const auto read = std::from_chars(at, topology.data() + topology.size(), size);
    if (read.ec != std::errc() || size < 1 || size > kMaxMeshDevices) return bad();
    sizes.push_back(size);
    at = read.ptr;
    if (at != topology.data() + topology.size() && *at != 'x') return bad();
  }
  if (sizes.size() < 2 || sizes.size() > 3) return bad();
  return Grid{sizes[0], sizes[1] * (sizes.size() == 3 ? sizes[2] : 1)};
}

// One way along all chips in which each step is to a neighbour: every second row backwards. A chip's id is row * width
// + column; a topology that numbers its chips in another way is taken as it is.
std::vector<int64_t> SnakeOrder(const Grid& grid, const pjrt::Topology& topology, int64_t chips) {
  std::vector<int64_t> ids;
  for (const pjrt::DeviceInfo& device : topology.devices()) ids.push_back(device.id);
  std::sort(ids.begin(), ids.end());
  std::vector<int64_t> order;
  for (int64_t row = 0; row < grid.rows; ++row) {
    for (int64_t x = 0; x < grid.width; ++x)
      order.push_back(row * grid.width + (row % 2 == 0 ? x : grid.width - 1 - x));
  }
  std::vector<int64_t> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  if (sorted != ids) order = ids;
  order.resize(static_cast<size_t>(chips));
  return order;
}

// A program of either kind, before it is compiled.
struct Lowered {
  ContextPass pass = ContextPass::kForward;
  ShardText text;
  ShardTable table;                      // audited
  shard::ProgramTensors tensors;         // of the table, in the program's order
  std::optional<shard::CutProgram> cut;  // over a context axis
};

struct Work {
  std::optional<ContextPlan> plan;
  std::vector<Lowered> programs;
  Mesh mesh;
  int64_t plan_ns = 0;
};

Status LowerContext(const Contract& contract, const Batch& batch, const Target& target,
                    const ShardCompileOptions& options, Work& work) {
  const Clock clock;
  ContextOptions context = options.run.context;
  context.shards = work.mesh.NumDevices();
  work.plan = TESSERA_TRY(PlanContext(contract, batch, target, context));
  work.plan_ns = clock.Ns();
  const bool may_bring =
      options.lane == kXlaChunked && (work.plan->exchange != Exchange::kSparse || target.kind != TargetKind::kTpu);
  if (work.plan->gradients == GradientWay::kRows && !may_bring) {
    const char* why = "kernels, and an exchange of counted rows, bring keys alone";
    if (context.gradients == GradientWay::kRows) return Fail(ErrorCode::kContextCut, why, "gradients");
    work.plan->gradients = GradientWay::kReturned;
    work.plan->gradients_reason = fmt::format("returned: {}", why);
  }
  for (const ContextPass pass : {ContextPass::kForward, ContextPass::kBackward}) {
    if (pass == ContextPass::kBackward && !options.run.backward) continue;
    shard::CutProgram cut = TESSERA_TRY(shard::LowerCut(*work.plan, pass, options.lane, target));
    Lowered& lowered = work.programs.emplace_back();
    lowered.pass = pass;
    lowered.text = {cut.lowered.program.name, cut.lowered.program.text};
    lowered.table = TESSERA_TRY(shard::TableOf(*work.plan, pass, cut.lowered, options.run.max_device_bytes));
    lowered.tensors = shard::TensorsOf(cut.lowered);
    lowered.cut = std::move(cut);
  }
  return {};
}

// Heads or rows of the batch: each chip has what it needs, and nothing is sent.
Status LowerApart(const Engine& engine, const Contract& contract, const Batch& batch, const Target& target,
                  const ShardCompileOptions& options, Work& work) {
  const Shape& s = contract.shape;
  const int64_t chips = work.mesh.NumDevices();
  const ContextOptions& context = options.run.context;
  if (context.form || context.exchange || context.gradients) {
    return Fail(
        ErrorCode::kBadArgument,
        fmt::format("a cut of tokens, an exchange and a way of gradients are of the axis {}; along {} nothing is sent",
                    kContextAxis, options.axis),
        context.form       ? "cut"
        : context.exchange ? "exchange"
                           : "gradients");
  }
  const bool is_heads = options.axis == kModelAxis;
  const int64_t shared = is_heads ? s.num_kv_heads : s.batch;
  // The lane shares heads where it can, and rows else.
  if (shared % chips != 0 || (!is_heads && s.num_kv_heads % chips == 0)) {
    return Fail(ErrorCode::kShardAudit,
                shared % chips != 0
                    ? fmt::format("{} {} do not divide by {}={}", shared, is_heads ? "key heads" : "rows of the batch",
                                  options.axis, chips)
                    : fmt::format("{} key heads divide by {} chips, which then share those: take the axis {}",
                                  s.num_kv_heads, chips, kModelAxis),
                ToText(work.mesh));
  }
  RunOptions run;
  run.lane = options.lane;
  run.backward = options.run.backward;
  run.xla = options.run.xla;
  run.plan = options.run.context.plan;
  run.chips = chips;
  for (ProgramText& program : TESSERA_TRY(LowerPrograms(engine, contract, batch, target, run))) {
    Lowered& lowered = work.programs.emplace_back();
    lowered.pass = program.pass == "forward" ? ContextPass::kForward : ContextPass::kBackward;
    const auto declared = [](const std::vector<ProgramOperand>& operands, std::vector<std::string>& names) {
      std::vector<shard::ProgramTensor> out;
      for (const ProgramOperand& operand : operands) {
        out.push_back({operand.name, operand.tensor.type, operand.tensor.shape, operand.chip_axis});
        names.push_back(operand.name);
      }
      return out;
    };
    const shard::DeclaredProgram operands{declared(program.operands, lowered.tensors.arguments),
                                          declared(program.results, lowered.tensors.results)};
    const bool is_backward = lowered.pass == ContextPass::kBackward;
    lowered.table = TESSERA_TRY(shard::MakeProgramTable(
        work.mesh, shard::KnownOfAxis(contract, options.axis, is_backward), operands, options.run.max_device_bytes));
    lowered.text = {std::move(program.name), std::move(program.text)};
  }
  return {};
}

Result<Work> Lower(const Engine& engine, const Contract& contract, const Batch& batch, const Target& target,
                   const ShardCompileOptions& options) {
  const int64_t chips = TESSERA_TRY(ChipsOf(target.topology));
  if (chips < 2) {
    return Fail(ErrorCode::kMeshDevices, fmt::format("{} is one chip: `tessera compile` is for that", target.topology),
                "topology");
  }
  Work work;
  work.mesh = Mesh{{{options.axis, chips}}};
  if (options.axis == kContextAxis) {
    TESSERA_TRY(LowerContext(contract, batch, target, options, work));
  } else if (options.axis == kModelAxis || options.axis == kDataAxis) {
    TESSERA_TRY(LowerApart(engine, contract, batch, target, options, work));
  } else {
    return Fail(ErrorCode::kMeshInvalid,
                fmt::format("expected one of {}, {}, {}, found {}", kContextAxis, kModelAxis, kDataAxis, options.axis),
                "axis");
  }
  return work;
}

}  // namespace

Result<int64_t> ChipsOf(std::string_view topology) {
  const Grid grid = TESSERA_TRY(GridOf(topology));
  if (grid.width * grid.rows > kMaxMeshDevices) {
    return Fail(ErrorCode::kMeshDevices, fmt::format("{} has more than {} chips", topology, kMaxMeshDevices),
                "topology");
  }
  return grid.width * grid.rows;
}

Result<std::vector<ShardText>> LowerShards(const Engine& engine, const Contract& contract, const Batch& batch,
                                           const Target& target, const ShardCompileOptions& options) {
  Work work = TESSERA_TRY(Lower(engine, contract, batch, target, options));
  std::vector<ShardText> texts;
  for (Lowered& program : work.programs) texts.push_back(std::move(program.text));
  return texts;
}

Result<ShardReceipt> CompileShards(const Engine& engine, const Contract& contract, const Batch& batch,
                                   const Target& target, const ShardCompileOptions& options) {
  Work work = TESSERA_TRY(Lower(engine, contract, batch, target, options));
  const int64_t chips = work.mesh.NumDevices();
  ShardReceipt receipt{.mode = "compile-only", .lane = options.lane, .mesh = work.mesh};
  receipt.cores = static_cast<int64_t>(std::thread::hardware_concurrency());
  receipt.contract_key = TESSERA_TRY(ContractKey(contract));
  receipt.plan_ns = work.plan_ns;
  const lanes::xla::Place place = TESSERA_TRY(shard::OpenDevices(engine, options.run.xla, target, chips, true));
  if (place.topology == nullptr) {
    return Fail(ErrorCode::kPluginUnusable, "this machine has the TPU itself: run there", target.topology);
  }
  receipt.device = lanes::xla::UseOf(place, options.run.xla.device);
  pjrt::CompileOptions compile;
  compile.num_partitions = chips;
  compile.use_spmd = true;
  compile.use_shardy = true;
  compile.device_ids = SnakeOrder(TESSERA_TRY(GridOf(target.topology)), *place.topology, chips);
  RunMeter* meter = options.run.meter;
  if (meter != nullptr) meter->Begin(RunStep::kCompile, static_cast<int64_t>(work.programs.size()));
  for (const Lowered& program : work.programs) {
    if (meter != nullptr) meter->done = static_cast<int64_t>(receipt.passes.size());
    ShardPass& pass = receipt.passes.emplace_back();
    const Clock clock;
    const pjrt::CompiledProgram compiled = TESSERA_TRY(place.topology->Compile(program.text.text, compile));
    pass.compile_ns = clock.Ns();
    const pjrt::OptimizedProgram inside = TESSERA_TRY(compiled.Optimized());
    TESSERA_TRY(shard::ReadFigures(compiled, pass));
    pass.vector_bytes = inside.vector_bytes;
    pass.plugin_fingerprint = pjrt::HexOf(TESSERA_TRY(compiled.Fingerprint()));
    TESSERA_TRY(shard::AuditProgram(program.table, program.tensors, inside, shard::LimitsOf(options.run, pass)));
    if (receipt.fingerprint.empty()) receipt.fingerprint = ShardFingerprint(program.table);
    shard::DescribePass(program.pass, program.text.name, program.text.text, program.table, pass);
    if (program.cut) {
      const std::vector<shard::CarriedCollective> carried =
          TESSERA_TRY(shard::CarriedBy(inside.collective_calls, program.cut->spec, *work.plan));
      TESSERA_TRY(shard::CountBytes(*work.plan, program.pass, carried, pass));
      continue;
    }
    for (const pjrt::Collective& one : inside.collective_calls) {
      const int64_t bytes = pjrt::CarriedBytes(one, chips);
      if (bytes < 0 || one.known_trips < 0) {
        return Fail(ErrorCode::kShardProgram, "a compiled collective whose bytes cannot be told: " + pjrt::ToText(one),
                    program.text.name);
      }
      pass.collectives.push_back({pjrt::ToText(one), bytes, one.known_trips});
      pass.carried_bytes += bytes * one.known_trips;
    }
  }
  receipt.plan = std::move(work.plan);
  return receipt;
}

}  // namespace tessera
