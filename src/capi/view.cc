// The page of the C interface.
#include "tessera/view.h"

#include <fmt/format.h>

#include "capi/arguments.h"
#include "capi/handles.h"
#include "capi/structs.h"
#include "tessera/route.h"

namespace {

using namespace tessera;        // NOLINT: the C functions below cannot be in the namespace
using namespace tessera::capi;  // NOLINT

std::vector<ShownLane> LanesOf(const tessera_attention& attention) {
  std::vector<ShownLane> lanes;
  for (const LaneDecision& made : attention.attention.selection().decisions) {
    const Decision& decision = made.decision;
    ShownLane lane{
        .lane = made.lane, .selected = made.lane == attention.lane, .accepted = decision.accepted, .why = {}};
    if (!decision.accepted) {
      lane.why = fmt::format("{}: {}", ReasonText(decision.reason), ReasonMeaning(decision.reason));
      if (!decision.detail.empty()) lane.why += fmt::format(" ({})", decision.detail);
    }
    lanes.push_back(std::move(lane));
  }
  return lanes;
}

Result<ShownPlan> Show(const tessera_attention& attention, const tessera_plan& plan, const char* name,
                       std::string_view where) {
  const Contract& contract = attention.attention.contract();
  const Result<std::string> key = ContractKey(contract);
  if (!key) return tl::unexpected(key.error());
  if (ToHex(plan.plan.view().contract_key) != *key) {
    return Fail(ErrorCode::kPlanMismatch, "the plan was made for another contract", std::string(where));
  }
  ShownPlan shown;
  shown.name = TextOr(name, "plan");
  shown.plan = &plan.plan.view();
  shown.contract = &contract;
  shown.workers = attention.attention.target().workers;
  shown.scalar_bytes = attention.attention.target().scalar_bytes;
  shown.lanes = LanesOf(attention);
  return shown;
}

// What the plan's picks came from, scored again.
Result<std::optional<RouteResult>> RouteOf(const tessera_view_options& options, std::string_view where) {
  const Contract& contract = options.attention->attention.contract();
  const std::shared_ptr<const Batch>& batch = options.plan->batch;
  if (!contract.routing || options.q == nullptr || options.k == nullptr || batch == nullptr) return std::nullopt;
  const TensorRef q = TESSERA_TRY(ReadTensorAt(options.q, contract.shape, "options->q->", where));
  const TensorRef k = TESSERA_TRY(ReadTensorAt(options.k, contract.shape, "options->k->", where));
  if (q.space.kind != MemoryKind::kHost || k.space.kind != MemoryKind::kHost) {
    return BadArgument(where, "options->q and options->k must be in the host's memory");
  }
  RouteOptions route;
  route.keep_scores = true;
  route.plan.widen_class = true;  // the plan was made: what it fits is no question here
  return TESSERA_TRY(Route(contract, *batch, {.q = q, .k = k}, route));
}

}  // namespace

int tessera_view_html(const tessera_view_options* options, char** html, tessera_error** error) {
  if (html != nullptr) *html = nullptr;
  return Guard(__func__, error, [&, where = __func__]() -> Status {
    TESSERA_TRY(NotNull(html, "html", where));
    const tessera_view_options read = TESSERA_TRY(ReadStruct(options, {"options", where}));
    TESSERA_TRY(NotNull(read.attention, "options->attention", where));
    TESSERA_TRY(NotNull(read.plan, "options->plan", where));
    ViewSubject subject;
    subject.plans.push_back(TESSERA_TRY(Show(*read.attention, *read.plan, read.name, where)));
    const std::optional<RouteResult> routed = TESSERA_TRY(RouteOf(read, where));
    if (routed) {
      subject.plans[0].picks = &routed->picks;
      subject.plans[0].pick_scores = &routed->scores;
    }
    subject.title = subject.plans[0].name;
    if (read.other_plan != nullptr) {
      TESSERA_TRY(NotNull(read.other_attention, "options->other_attention", where));
      subject.plans.push_back(TESSERA_TRY(Show(*read.other_attention, *read.other_plan, read.other_name, where)));
      subject.title += " and " + subject.plans[1].name;
    }
    if (read.receipt != nullptr) subject.receipts.push_back(read.receipt->json);
    *html = CopyText(TESSERA_TRY(MakeViewHtml(subject)));
    return {};
  });
}
