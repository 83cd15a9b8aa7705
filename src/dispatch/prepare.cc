// Makes what of a run no batch changes, and decides where a run gets it from.
#include "dispatch/prepare.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "dispatch/run.h"
#include "dispatch/select.h"
#include "planner/stages.h"

namespace tessera {
namespace {

bool HasIsa(const LaneRow& row, std::string_view isa) {
  const std::vector<std::string_view> isas = IsasOf(row);
  return isa == "auto" || std::find(isas.begin(), isas.end(), isa) != isas.end();
}

Decision DecideRow(const PrepareRequest& request, const LaneRow& row, const MaskFacts& facts) {
  const RunOptions& options = request.options;
  if (std::find(options.exclude.begin(), options.exclude.end(), row.name) != options.exclude.end()) {
    return Decision::No(ReasonCode::kExcluded);
  }
  if (IsForced(options) && row.name != options.lane) {
    return Decision::No(ReasonCode::kNotRequested, fmt::format("{} was asked for", options.lane));
  }
  Decision decision = DecideContract(row, request.contract, facts, request.target, request.xla, request.asked);
  if (decision.accepted && !HasIsa(row, request.isa)) {
    return Decision::No(ReasonCode::kIsa,
                        fmt::format("{} was asked for, and here it has {}", request.isa, fmt::join(IsasOf(row), ", ")));
  }
  return decision;
}

// Selection and every lane's decision on the contract: two records, neither made from the other.
Selection Select(const PrepareRequest& request, const MaskFacts& facts) {
  Selection selection{.lane = request.options.lane, .rule = "requested by name", .decisions = {}};
  if (!IsForced(request.options)) {
    const SelectionRule& rule = SelectRule(request.contract, facts, request.target);
    selection.lane = rule.lane;
    selection.rule = ToText(rule);
  }
  for (const LaneRow& row : request.table) {
    selection.decisions.push_back({std::string(row.name), "contract", DecideRow(request, row, facts)});
  }
  return selection;
}

void CollectBitmaps(const MaskExpr& expr, std::set<const Bitmap*>& bitmaps) {
  if (expr.term.bitmap != nullptr) bitmaps.insert(expr.term.bitmap.get());
  for (const MaskExpr& child : expr.children) CollectBitmaps(child, bitmaps);
}

// What grows with a contract: its static sets, its texts, and the bitmaps it keeps alive.
int64_t MemoryOf(const PreparedRun& run) {
  size_t bytes = sizeof(PreparedRun) + 2 * run.contract_text.size();
  for (const HeadClass& head : run.planning->sets.classes) {
    for (const RowSet& set : head.holding) {
      bytes += set.slabs().size() * sizeof(Slab) + set.NumIntervals() * sizeof(Interval);
    }
  }
  std::set<const Bitmap*> bitmaps;
  for (const MaskExpr& expr : run.contract.mask.heads) CollectBitmaps(expr, bitmaps);
  for (const Bitmap* bitmap : bitmaps) bytes += bitmap->cells.size();
  return static_cast<int64_t>(bytes);
}

// Every field that differs, with both values.
Error MismatchOf(const ForwardCacheKey& pinned, const ForwardCacheKey& asked) {
  Error error{ErrorCode::kPinnedMismatch,
              fmt::format("this run is pinned to contract {} with {}, and asks for contract {} with {}",
                          pinned.contract_key, ToText(pinned.mask), asked.contract_key, ToText(asked.mask)),
              "pinned",
              {}};
  const std::vector<std::pair<std::string, std::string>> before = FieldsOf(pinned);
  const std::vector<std::pair<std::string, std::string>> now = FieldsOf(asked);
  for (size_t i = 0; i < before.size(); ++i) {
    if (before[i].second == now[i].second) continue;
    error.violations.push_back(
        {before[i].first, fmt::format("{} expected, which was prepared; got {}", before[i].second, now[i].second)});
  }
  return error;
}

CacheUse UseOf(const CachedRun& got) {
  return {.outcome = got.is_hit ? "hit" : "miss",
          .key = got.prepared->key_digest,
          .hits = got.stats.hits,
          .misses = got.stats.misses,
          .builds = got.stats.builds,
          .evictions = got.stats.evictions};
}

Result<Obtained> ObtainUnpinned(const PrepareRequest& request) {
  // What other tables say is not kept: their lanes need not outlive the run. Nor are decisions on compiling alone.
  const bool is_kept = request.asked == Asked::kRun && request.table.data() == LaneTable().data();
  if (request.options.use_cache && is_kept) {
    RunCache& cache = request.options.cache != nullptr ? *request.options.cache : RunCache::Default();
    return RunCacheAccess::Get(cache, request).map([](const CachedRun& got) {
      return Obtained{got.prepared, got.is_same_spelling, UseOf(got)};
    });
  }
  return PrepareAnew(request).map([](const std::shared_ptr<const PreparedRun>& made) {
    return Obtained{made, true, CacheUse{.outcome = "off", .key = made->key_digest}};
  });
}

}  // namespace

Status CheckNames(const PrepareRequest& request) {
  std::vector<std::string> names = request.options.exclude;
  if (IsForced(request.options)) names.push_back(request.options.lane);
  for (const std::string& name : names) {
    if (FindLane(request.table, name) != nullptr) continue;
    std::vector<std::string_view> known;
    for (const LaneRow& row : request.table) known.push_back(row.name);
    return Fail(ErrorCode::kLaneUnknown,
                fmt::format("there is no lane \"{}\"; the lanes are {}", name, fmt::join(known, ", ")));
  }
  const auto has_it = [&](const LaneRow& row) { return HasIsa(row, request.isa); };
  if (std::any_of(request.table.begin(), request.table.end(), has_it)) return {};
  std::vector<std::string> available;
  for (const LaneRow& row : request.table) {
    if (row.lane == nullptr) continue;
    available.push_back(fmt::format("{} ({})", fmt::join(IsasOf(row), ", "), row.name));
  }
  return Fail(ErrorCode::kIsaUnavailable,
              fmt::format("no lane has the instruction set \"{}\" on this machine; there are {}", request.isa,
                          fmt::join(available, ", ")),
              request.options.isa == "auto" ? "TESSERA_ISA" : "isa");
}

Result<std::shared_ptr<const PreparedRun>> PrepareAnew(const PrepareRequest& request) {
  if (Status ok = CheckNames(request); !ok) return tl::unexpected(std::move(ok.error()));
  Result<PreparedContract> contract = PrepareContract(request.contract);
  if (!contract) return tl::unexpected(std::move(contract.error()));
  const auto planning = std::make_shared<const PreparedContract>(std::move(*contract));
  Result<MaskFacts> facts = DescribeMaskWith(planning->contract, planning->sets);
  if (!facts) return tl::unexpected(std::move(facts.error()));

  auto run = std::make_shared<PreparedRun>();
  run->spelling = SpellingOf(request);
  run->contract = planning->contract;
  run->contract_text = ToToml(run->contract);
  run->facts = *facts;
  run->target = request.target;
  run->selection = Select(request, *facts);
  run->planning = planning;
  run->key = ForwardKeyOf(request, *planning);
  const LaneRow* selected = FindLane(request.table, run->selection.lane);
  run->key.use_pallas = selected != nullptr && selected->runtime_mode == "payload";
  run->key.form_digest = FormDigest(planning->sets, *facts);
  if (Result<ClassShape> shape = MakeClassShape(*planning, request.target, request.options.plan)) {
    run->shape = *shape;
    run->key.class_key = planner::ClassKeyOf(planning->contract, planning->sets, *shape);
  }
  run->key_digest = Digest(run->key);
  run->bytes = MemoryOf(*run);
  return run;
}

Result<Obtained> Obtain(const PrepareRequest& request) {
  const std::shared_ptr<const PreparedRun>& pinned = request.options.pinned;
  if (pinned == nullptr) return ObtainUnpinned(request);
  const CacheUse use{.outcome = "off", .key = pinned->key_digest};
  if (SpellingOf(request) == pinned->spelling) return Obtained{pinned, true, use};
  if (request.options.on_change == OnChange::kNewContract) {
    Result<Obtained> got = ObtainUnpinned(request);
    if (got && got->prepared->key == pinned->key) return Obtained{pinned, false, use};
    return got;
  }
  // Another spelling perhaps. What is about to be refused takes nobody's place in a cache.
  const Result<std::shared_ptr<const PreparedRun>> asked = PrepareAnew(request);
  if (!asked) return tl::unexpected(asked.error());
  if ((*asked)->key == pinned->key) return Obtained{pinned, false, use};
  return tl::unexpected(MismatchOf(pinned->key, (*asked)->key));
}

Result<std::shared_ptr<const PreparedRun>> Prepare(const Contract& contract, const Target& target,
                                                   const RunOptions& options) {
  const std::string isa = AskedIsa(options);
  const XlaOptions xla = AskedXla(options.xla);
  return Obtain(
             {.table = LaneTable(), .contract = contract, .target = target, .options = options, .isa = isa, .xla = xla})
      .map([](const Obtained& got) { return got.prepared; });
}

}  // namespace tessera
