// See shard_pass.h.
#include "shard/shard_pass.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/hash.h"
#include "base/try.h"
#include "engine/state.h"
#include "tessera/dtype.h"

namespace tessera::shard {

Result<lanes::xla::Place> OpenDevices(const Engine& engine, XlaOptions xla, const Target& target, int64_t devices,
                                      bool compile_only) {
  if (xla.plugin.empty()) xla.plugin = engine.options().plugin;
  lanes::xla::Place place;
  const lanes::xla::PlaceRequest request{xla, target, compile_only, devices};
  const Decision open = lanes::xla::OpenPlace(*EngineAccess::Of(engine)->xla, request, &place);
  if (!open.accepted) {
    // The plugin is there, and its devices are too few.
    if (open.reason == ReasonCode::kXlaDevice) return Fail(ErrorCode::kMeshDevices, open.detail, target.name);
    return Fail(ErrorCode::kPluginUnusable,
                fmt::format("no program runs on {} devices of {}: {} ({})", devices, target.name,
                            ReasonMeaning(open.reason), open.detail),
                std::string(ReasonText(open.reason)));
  }
  if (place.topology != nullptr && static_cast<int64_t>(place.topology->devices().size()) < devices) {
    return Fail(ErrorCode::kMeshDevices,
                fmt::format("{} devices are needed and {} has {}", devices, place.topology->name(),
                            place.topology->devices().size()),
                target.name);
  }
  return place;
}

void DescribePass(ContextPass pass, const std::string& name, const std::string& text, const ShardTable& table,
                  ShardPass& out) {
  out.name = pass == ContextPass::kForward ? "forward" : "backward";
  out.program = name;
  Hasher hasher;
  hasher.Text(text);
  out.key = ShardKey(table, Hex(hasher.Finish()));
}

Status ReadFigures(const pjrt::CompiledProgram& program, ShardPass& out) {
  const pjrt::ProgramFigures figures = TESSERA_TRY(program.Figures());
  out.argument_bytes = figures.argument_bytes;
  out.output_bytes = figures.output_bytes;
  out.temp_bytes = figures.temp_bytes;
  return {};
}

ProgramLimits LimitsOf(const ShardRunOptions& options, const ShardPass& pass) {
  return {.device_bytes = options.max_device_bytes, .temp_bytes = pass.temp_bytes};
}

Status CountBytes(const ContextPlan& plan, ContextPass pass, const std::vector<CarriedCollective>& carried,
                  ShardPass& out) {
  for (const CarriedCollective& one : carried) {
    out.collectives.push_back({one.text, one.bytes_per_trip, one.trips});
    out.carried_bytes += one.bytes_per_trip * one.trips;
  }
  const std::vector<int64_t> received = ReceivedBytes(carried, plan.shards);
  out.largest_received = *std::max_element(received.begin(), received.end());
  const int64_t once = plan.BytesOf(Exchange::kAllGather).total;
  // A backward gathers once more, and gives f32 back.
  const int64_t element = BytesOf(plan.contract.shape.dtype);
  out.allgather_bytes = pass == ContextPass::kForward ? once : once + once / element * 4;
  return {};
}

}  // namespace tessera::shard
