// Makes what of a request no batch changes.
#include "dispatch/prepare.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/try.h"
#include "dispatch/select.h"
#include "planner/stages.h"

namespace tessera {
namespace {

bool HasIsa(const MadeLane& made, std::string_view isa) {
  const std::vector<std::string_view> isas = IsasOf(made);
  return isa == "auto" || std::find(isas.begin(), isas.end(), isa) != isas.end();
}

Decision DecideRow(const PrepareRequest& request, const MadeLane& made, const MaskFacts& facts) {
  const AttentionOptions& options = request.options;
  const LaneRow& row = *made.row;
  if (std::find(options.exclude.begin(), options.exclude.end(), row.name) != options.exclude.end()) {
    return Decision::No(ReasonCode::kExcluded);
  }
  if (IsForced(options) && row.name != options.lane) {
    return Decision::No(ReasonCode::kNotRequested, fmt::format("{} was asked for", options.lane));
  }
  if (!IsForced(options) && row.IsOnlyByName() && made.lane != nullptr) return Decision::No(ReasonCode::kOnlyByName);
  Decision decision = DecideContract(made, request.contract, facts, request.target, request.compile_only);
  if (!decision.accepted) return decision;
  if (!HasIsa(made, options.isa)) {
    return Decision::No(ReasonCode::kIsa, fmt::format("{} was asked for, and here it has {}", options.isa,
                                                      fmt::join(IsasOf(made), ", ")));
  }
  const bool is_copied = request.may_copy && options.memory.kind == MemoryKind::kHost;
  if (options.memory.kind != row.memory && !is_copied) {
    return Decision::No(ReasonCode::kMemorySpace, fmt::format("the tensors are in {}", ToText(options.memory)));
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
  for (const MadeLane& made : request.lanes) {
    selection.decisions.push_back({std::string(made.row->name), "contract", DecideRow(request, made, facts)});
  }
  return selection;
}

void CollectBitmaps(const MaskExpr& expr, std::set<const Bitmap*>& bitmaps) {
  if (expr.term.bitmap != nullptr) bitmaps.insert(expr.term.bitmap.get());
  for (const MaskExpr& child : expr.children) CollectBitmaps(child, bitmaps);
}

// What grows with a contract: its static sets, its texts, and the bitmaps it keeps alive.
int64_t MemoryOf(const Prepared& run) {
  size_t bytes = sizeof(Prepared) + 2 * run.contract_text.size();
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
  const auto has_it = [&](const MadeLane& made) { return HasIsa(made, request.options.isa); };
  if (std::any_of(request.lanes.begin(), request.lanes.end(), has_it)) return {};
  std::vector<std::string> available;
  for (const MadeLane& made : request.lanes) {
    if (made.lane == nullptr) continue;
    available.push_back(fmt::format("{} ({})", fmt::join(IsasOf(made), ", "), made.row->name));
  }
  return Fail(ErrorCode::kIsaUnavailable,
              fmt::format("no lane has the instruction set \"{}\" on this machine; there are {}", request.options.isa,
                          fmt::join(available, ", ")),
              "isa");
}

Result<std::shared_ptr<const Prepared>> Prepare(const PrepareRequest& request) {
  TESSERA_TRY(CheckNames(request));
  const auto planning = std::make_shared<const PreparedContract>(TESSERA_TRY(PrepareContract(request.contract)));
  const MaskFacts facts = TESSERA_TRY(DescribeMaskWith(planning->contract, planning->sets));

  auto run = std::make_shared<Prepared>();
  run->spelling = SpellingOf(request);
  run->contract = planning->contract;
  run->contract_text = ToToml(run->contract);
  run->facts = facts;
  run->target = request.target;
  run->selection = Select(request, facts);
  run->planning = planning;
  run->key = ForwardKeyOf(request, *planning);
  const LaneRow* selected = FindLane(request.table, run->selection.lane);
  run->key.use_pallas = selected != nullptr && selected->runtime_mode == "payload";
  run->key.form_digest = FormDigest(planning->sets, facts);
  if (Result<ClassShape> shape = MakeClassShape(*planning, request.target, request.options.plan)) {
    run->shape = *shape;
    run->key.class_key = planner::ClassKeyOf(planning->contract, planning->sets, *shape);
  }
  run->key_digest = Digest(run->key);
  run->bytes = MemoryOf(*run);
  return run;
}

}  // namespace tessera
