// Receipts as one line, and the small things that whoever fills or reads one shares.
#include "tessera/receipt.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/hash.h"
#include "base/host.h"
#include "tessera/target.h"
#include "tessera/version.h"

namespace tessera {
namespace {

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
  if (r.runtime_mode == kEmitted) {
    return fmt::format("{} emitted for {} and not compiled ({}), {} programs, {}", r.executed, r.target, asked,
                       r.programs.size(), keys);
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

std::string FileDigest(std::string_view bytes) {
  Hasher hasher;
  hasher.Bytes(bytes.data(), bytes.size());
  return Hex(hasher.Finish());
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
