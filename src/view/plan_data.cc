#include "view/plan_data.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "io/json_writer.h"

namespace tessera::view {
namespace {

static_assert(std::endian::native == std::endian::little, "the page reads little-endian integers");

std::string Base64(std::span<const std::byte> bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t at = 0; at < bytes.size(); at += 3) {
    const size_t count = std::min<size_t>(3, bytes.size() - at);
    uint32_t group = 0;
    for (size_t i = 0; i < count; ++i) group |= std::to_integer<uint32_t>(bytes[at + i]) << (16 - 8 * i);
    for (size_t i = 0; i < 4; ++i) text += i <= count ? kDigits[group >> (18 - 6 * i) & 63U] : '=';
  }
  return text;
}

template <class T>
std::string Base64Of(std::span<const T> values) {
  return Base64(std::as_bytes(values));
}

// 64-bit offsets of a plan this page can hold fit 32 bits: VerifyPlan bounds slots, segments and words far below.
std::string Offsets(std::span<const uint64_t> offsets) {
  const std::vector<uint32_t> narrow(offsets.begin(), offsets.end());
  return Base64Of<uint32_t>(narrow);
}

struct Runs {
  std::vector<uint32_t> offsets{0};
  std::vector<uint32_t> values;  // first slot, how many, cleanup
  bool operator==(const Runs&) const = default;
};

Runs RunsOf(const Worklist& list) {
  Runs runs;
  for (size_t row = 0; row + 1 < list.row_offsets.size(); ++row) {
    bool is_first = true;
    for (const Slot& slot : list.Row(row)) {
      const size_t size = runs.values.size();
      if (!is_first && runs.values[size - 3] + runs.values[size - 2] == slot.index &&
          runs.values[size - 1] == slot.cleanup) {
        ++runs.values[size - 2];
      } else {
        runs.values.insert(runs.values.end(), {slot.index, 1, slot.cleanup});
      }
      is_first = false;
    }
    runs.offsets.push_back(static_cast<uint32_t>(runs.values.size() / 3));
  }
  return runs;
}

bool HasEqualParts(const Worklist& a, const Worklist& b) { return std::ranges::equal(a.parts, b.parts); }

void PutDirections(JsonWriter& out, const PlanView& plan) {
  std::array<Runs, kNumDirections> runs;
  out.Key("directions").BeginArray();
  for (size_t d = 0; d < kNumDirections; ++d) {
    const auto direction = static_cast<Direction>(d);
    const Worklist& list = plan.Of(direction);
    runs[d] = RunsOf(list);
    uint64_t widest = 0;
    for (size_t row = 0; row + 1 < list.row_offsets.size(); ++row) {
      widest = std::max(widest, list.row_offsets[row + 1] - list.row_offsets[row]);
    }
    const TileCounts tiles = CountTiles(plan, direction);
    out.BeginObject().Key("name").Text(ToText(direction));
    out.Key("tile_q").Int(list.tile_q).Key("tile_kv").Int(list.tile_kv).Key("rows").Int(list.rows_per_mask);
    out.Key("width_capacity").Int(list.width_capacity).Key("widest").Int(static_cast<int64_t>(widest));
    out.Key("full").Int(tiles.full).Key("partial").Int(tiles.partial).Key("empty").Int(tiles.empty);
    // dq mostly walks what forward does.
    const bool is_repeated =
        direction == Direction::kDq && runs[d] == runs[0] && HasEqualParts(list, plan.worklists[0]);
    out.Key("same_as");
    if (is_repeated) {
      out.Int(0);
    } else {
      out.Null();
      out.Key("run_offsets").Text(Base64Of<uint32_t>(runs[d].offsets));
      out.Key("runs").Text(Base64Of<uint32_t>(runs[d].values));
      out.Key("parts").Text(Base64Of<Part>(list.parts));
    }
    out.EndObject();
  }
  out.EndArray();
}

void PutCleanups(JsonWriter& out, const PlanView& plan) {
  constexpr std::array<std::string_view, 4> kNames = {"documents", "valid", "blocks", "sink_document"};
  out.Key("conditions").BeginArray();
  for (const Condition& condition : plan.conditions) {
    out.BeginObject().Key("kind").Text(kNames[static_cast<size_t>(condition.kind)]);
    out.Key("count").Int(condition.count).EndObject();
  }
  out.EndArray();
  out.Key("num_cleanups").Int(plan.NumCleanups());
  out.Key("cleanup_offsets").Text(Base64Of<uint32_t>(plan.cleanup_offsets));
  out.Key("items").Text(Base64Of<CleanupItem>(plan.items));
  out.Key("bit_offsets").Text(Offsets(plan.bit_tile_offsets));
  out.Key("bit_words").Text(Base64Of<uint64_t>(plan.bit_words));
}

void PutSegments(JsonWriter& out, const PlanView& plan) {
  out.Key("q_segment_offsets").Text(Offsets(plan.q_segment_offsets));
  out.Key("q_segments").Text(Base64Of<Segment>(plan.q_segments));
  out.Key("kv_segment_offsets").Text(Offsets(plan.kv_segment_offsets));
  out.Key("kv_segments").Text(Base64Of<Segment>(plan.kv_segments));
  out.Key("q_valid").Text(Base64Of<int32_t>(plan.q_valid)).Key("kv_valid").Text(Base64Of<int32_t>(plan.kv_valid));
}

// What the page calls a term; one that it cannot evaluate is "stored": the plan has its pairs as bits or rows.
std::string_view PageName(TermKind kind) {
  switch (kind) {
    case TermKind::kFull:
      return "full";
    case TermKind::kCausal:
      return "causal";
    case TermKind::kWindow:
      return "window";
    case TermKind::kChunk:
      return "chunk";
    case TermKind::kPrefix:
      return "prefix";
    case TermKind::kSink:
      return "sink";
    case TermKind::kSinkDocument:
      return "sink_document";
    case TermKind::kDocuments:
    case TermKind::kDocumentsEqual:
      return "documents";
    case TermKind::kValid:
      return "valid";
    case TermKind::kBlocks:
    case TermKind::kBitmap:
    case TermKind::kRegistered:
      return "stored";
  }
  return "stored";
}

void PutExpr(JsonWriter& out, const MaskExpr& expr) {
  out.BeginObject().Key("op");
  if (expr.op == MaskExpr::Op::kTerm) {
    out.Text("term").Key("kind").Text(PageName(expr.term.kind)).Key("text").Text(ToText(expr));
    out.Key("first").Int(expr.term.first).Key("second").Int(expr.term.second);
  } else {
    out.Text(expr.op == MaskExpr::Op::kAnd ? "and" : "or").Key("children").BeginArray();
    for (const MaskExpr& child : expr.children) PutExpr(out, child);
    out.EndArray();
  }
  out.EndObject();
}

void PutContract(JsonWriter& out, const Contract* contract) {
  out.Key("contract").Text(contract == nullptr ? "" : ToToml(*contract));
  out.Key("offset").Int(contract == nullptr ? 0 : contract->mask.offset);
  out.Key("masks").BeginArray();
  if (contract != nullptr) {
    for (const MaskExpr& expr : contract->mask.heads) PutExpr(out, expr);
  }
  out.EndArray();
}

void PutReports(JsonWriter& out, const ShownPlan& shown) {
  out.Key("stages").BeginArray();
  for (const StageReport& stage : shown.stages) {
    out.BeginObject().Key("name").Text(stage.name).Key("ns").Int(stage.ns);
    out.Key("disabled").Bool(stage.disabled).Key("summary").Text(stage.summary).EndObject();
  }
  out.EndArray().Key("lanes").BeginArray();
  for (const ShownLane& lane : shown.lanes) {
    out.BeginObject().Key("lane").Text(lane.lane).Key("selected").Bool(lane.selected);
    out.Key("accepted").Bool(lane.accepted).Key("why").Text(lane.why).EndObject();
  }
  out.EndArray().Key("notes").BeginArray();
  for (const std::string& note : shown.notes) out.Text(note);
  out.EndArray();
}

// More than this many picks would be most of the file.
constexpr size_t kMostPicks = size_t{1} << 18;

void PutPicks(JsonWriter& out, const ShownPlan& shown) {
  const Picks* picks = shown.picks;
  out.Key("picks");
  if (picks == nullptr || picks->blocks.size() > kMostPicks || picks->shape.size() != 4 ||
      picks->shape[1] != shown.plan->q_len) {
    out.Null();
    return;
  }
  const std::vector<float> none;
  const std::vector<float>& scores = shown.pick_scores == nullptr ? none : *shown.pick_scores;
  out.BeginObject().Key("block_tokens").Int(picks->block_tokens).Key("heads").Int(picks->shape[2]);
  out.Key("top_n").Int(picks->shape[3]).Key("blocks").Text(Base64Of<int32_t>(picks->blocks));
  out.Key("scores").Text(Base64Of<float>(scores)).EndObject();
}

}  // namespace

std::string PlanData(const ShownPlan& shown) {
  const PlanView& plan = *shown.plan;
  JsonWriter out;
  out.BeginObject().Key("name").Text(shown.name);
  out.Key("batch").Int(plan.batch).Key("heads").Int(plan.num_q_heads);
  out.Key("q_len").Int(plan.q_len).Key("kv_len").Int(plan.kv_len).Key("num_masks").Int(plan.num_masks);
  out.Key("mask_capacity").Int(plan.mask_capacity).Key("cleanup_capacity").Int(plan.cleanup_capacity);
  out.Key("part_capacity").Int(plan.part_capacity).Key("metadata_bytes").Int(MetadataBytes(plan));
  out.Key("workers").Int(shown.workers).Key("scalar_bytes").Int(shown.scalar_bytes);
  out.Key("contract_key").Text(ToHex(plan.contract_key)).Key("class_key").Text(ToHex(plan.class_key));
  out.Key("fingerprint").Text(ToHex(plan.fingerprint));
  out.Key("mask_of").Text(Base64Of<uint32_t>(plan.mask_of));
  PutDirections(out, plan);
  PutCleanups(out, plan);
  PutSegments(out, plan);
  PutPicks(out, shown);
  PutContract(out, shown.contract);
  PutReports(out, shown);
  return out.EndObject().Take();
}

}  // namespace tessera::view
