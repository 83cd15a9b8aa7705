// Attention by the programs of a lane of XLA's, taken in as functions, one for each mask and pass: loops over the
// plan's tiles on any plugin, or a TPU's kernels. A plan's tables are operands, with room for any batch's. Where
// several devices share the tokens of a row, keys and values are brought first, and what they get of gradients is given
// back in f32.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>

#include "base/math.h"
#include "base/try.h"
#include "engine/state.h"
#include "lanes/xla/kernel_tables.h"
#include "lanes/xla/stablehlo/context_tiles.h"
#include "lanes/xla/stablehlo/tiles.h"
#include "model/attention.h"
#include "model/sharing.h"
#include "planner/prepared.h"
#include "shard/context_program.h"
#include "shard/exchange.h"

namespace tessera::model {
namespace {

using stablehlo::ContextKind;
using stablehlo::Element;
using stablehlo::Program;
using stablehlo::ProgramSpec;
using stablehlo::Type;
using stablehlo::Values;

// Operands that the model's own values are, and those that no batch changes.
const std::set<std::string, std::less<>> kNotTables = {"q",       "k",           "v",  "scale", "part",
                                                       "softcap", "sink_logits", "do", "lse",   "delta"};

struct PassProgram {
  Program program;
  std::string function;           // its name in a model's program
  std::vector<NamedType> tables;  // by the lane's names
  std::string Named(const std::string& table) const { return fmt::format("{}.{}", function, table); }
};

struct MaskPrograms {
  ProgramSpec spec;
  PassProgram forward, backward;
};

// A sparse exchange's operands, of each mask.
constexpr const char* kRoundTables[] = {"sends", "receives", "bounds"};
std::string RoundInput(size_t mask, std::string_view table) {
  return fmt::format("attention_exchange_{}.{}", mask, table);
}

// What a batch's cuts are until all devices have theirs: tables of the rounds, by mask.
struct BoundShards final : BoundAttention {
  std::vector<shard::DeviceTables> rounds;
};

PassProgram ToPass(Program program, std::string function) {
  PassProgram pass{.program = std::move(program), .function = std::move(function), .tables = {}};
  for (const NamedType& input : pass.program.inputs) {
    if (!kNotTables.contains(input.name)) pass.tables.push_back(input);
  }
  return pass;
}

class ProgramAttention final : public AttentionSubstitute {
 public:
  ProgramAttention(LayerAttention layers, const lanes::xla::Lowering& lowering, std::vector<MaskPrograms> masks,
                   std::optional<Sharing> sharing = {})
      : layers_(std::move(layers)),
        s_(layers_.spec),
        lowering_(lowering),
        masks_(std::move(masks)),
        sharing_(std::move(sharing)) {
    if (sharing_) s_.row_tokens = sharing_->row_tokens;
  }

  std::vector<NamedType> Inputs(bool has_backward) const override {
    std::vector<NamedType> inputs;
    ForPasses(has_backward, [&](const MaskPrograms&, const PassProgram& pass) {
      for (const NamedType& table : pass.tables) inputs.push_back({pass.Named(table.name), table.type});
    });
    for (size_t i = 0; IsSparse() && i < masks_.size(); ++i) {
      const stablehlo::ContextSpec& spec = sharing_->specs[i];
      const int64_t sizes[] = {spec.rounds, spec.rounds, static_cast<int64_t>(spec.steps.size()) + 1};
      for (size_t t = 0; t < std::size(kRoundTables); ++t) {
        inputs.push_back({RoundInput(i, kRoundTables[t]), {Element::kI32, {sizes[t]}}});
      }
    }
    return inputs;
  }
  // A trip count that differed between devices would hang them.
  std::set<std::string> SharedInputs() const override {
    std::set<std::string> names;
    for (size_t i = 0; IsSparse() && i < masks_.size(); ++i) names.insert(RoundInput(i, "bounds"));
    return names;
  }

  int64_t RowTokens() const override { return s_.row_tokens; }
  std::optional<ContextUse> Context() const override {
    if (!sharing_) return std::nullopt;
    return ContextUse{.exchange = IsSparse()    ? Exchange::kSparse
                                  : IsOfHeads() ? Exchange::kHeads
                                                : Exchange::kAllGather,
                      .reason = sharing_->reason};
  }

  Status Begin(Builder& b, bool has_backward) const override {
    ForPasses(has_backward,
              [&](const MaskPrograms&, const PassProgram& pass) { b.AddFunction(pass.function, pass.program.text); });
    return {};
  }

  Attended Forward(Builder& b, const AttentionInputs& in) const override {
    const MaskPrograms& mask = masks_[in.mask];
    const Values out = Call(b, mask.forward, in, {});
    const auto given = [&](std::string_view name) {
      return FromTiles(b, Given(b, mask.forward, out, name), mask.spec, Side::kQuery);
    };
    const Value o = ToTokens(b, given("o"));
    return {b.Transpose(o, {0, 2, 1, 3}), given("lse")};
  }

  AttentionGradients Backward(Builder& b, const AttentionInputs& in, const Attended& attended,
                              const Value& dout) const override {
    const MaskPrograms& mask = masks_[in.mask];
    const Value delta = b.Transpose(b.Reduce(stablehlo::Reduction::kAdd, b.Mul(attended.o, dout), {3}), {0, 2, 1});
    const Value by_head = b.Convert(b.Transpose(dout, {0, 2, 1, 3}), in.qkv.type.element);
    const Values out =
        Call(b, mask.backward, in, {{"do", ToHeads(b, by_head)}, {"lse", attended.lse}, {"delta", ToHeads(b, delta)}});
    const auto given = [&](std::string_view name) { return Given(b, mask.backward, out, name); };
    const Value dq = ToTokens(b, FromTiles(b, given("dq"), mask.spec, Side::kQuery));
    const Value dk_of_all = FromTiles(b, given("dk"), mask.spec, Side::kKey);
    const auto [dk, dv] = GiveKeysBack(b, in.mask, dk_of_all, FromTiles(b, given("dv"), mask.spec, Side::kKey));
    AttentionGradients gradients;
    gradients.qkv = b.Transpose(b.Concatenate({dq, dk, dv}, 1), {0, 2, 1, 3});
    if (s_.sink_logits) {
      const Value all = given("dsink_logits");
      const Value shares = b.Reshape(all, {s_.rows, s_.num_q_heads, all.type.dims[0] / (s_.rows * s_.num_q_heads)});
      gradients.sink_logits = b.Reduce(stablehlo::Reduction::kAdd, shares, {0, 2});
    }
    return gradients;
  }

  Result<std::vector<KernelText>> Kernels(bool has_backward) const override {
    std::vector<KernelText> texts;
    for (size_t i = 0; lowering_.kernels != nullptr && i < masks_.size(); ++i) {
      for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
        if (pass == Pass::kBackward && !has_backward) continue;
        for (KernelText& text : TESSERA_TRY(lowering_.kernels(masks_[i].spec, pass))) {
          texts.push_back({fmt::format("{}_{}", text.name, i), std::move(text.text)});
        }
      }
    }
    return texts;
  }

  // All devices take as many rounds of every step as those that need most.
  Status Agree(std::span<const std::unique_ptr<BoundAttention>> all) const override {
    for (size_t i = 0; IsSparse() && i < masks_.size(); ++i) {
      const stablehlo::ContextSpec& spec = sharing_->specs[i];
      std::vector<shard::DeviceTables*> tables;
      for (const auto& one : all) tables.push_back(&static_cast<BoundShards&>(*one).rounds[i]);
      TESSERA_TRY(shard::AgreeOnRounds(spec, tables));
      const int64_t tiles = shard::TilesCarried(spec, tables.front()->front().at("bounds"));
      for (size_t place = 0; place < all.size(); ++place) {
        all[place]->use->bytes += tiles * shard::KeyTileBytes(spec.shape, spec.tile);
        for (size_t shard = 0; shard < tables[place]->size(); ++shard) {
          for (const char* name : kRoundTables) {
            const std::vector<int32_t>& table = (*tables[place])[shard].at(name);
            AppendTable(table, {Element::kI32, {static_cast<int64_t>(table.size())}}, all[place]->operands[shard]);
          }
        }
      }
    }
    return {};
  }

  Result<std::unique_ptr<BoundAttention>> Bind(const RowBatch& rows, bool has_backward) const override {
    if (sharing_) return BindShards(rows, has_backward);
    auto bound = std::make_unique<BoundAttention>();
    std::vector<Plan> plans;
    for (size_t i = 0; i < masks_.size(); ++i) {
      PlanResult planned = TESSERA_TRY(layers_.attentions[i].Plan(BatchFor(layers_.facts[i], rows)));
      TESSERA_TRY(CheckRoom(masks_[i].spec, planned.plan.view(), lowering_.has_kernels));
      plans.push_back(std::move(planned.plan));
    }
    std::vector<std::vector<std::byte>>& operands = bound->operands.emplace_back();
    ForPasses(has_backward, [&](const MaskPrograms& mask, const PassProgram& pass) {
      const auto i = static_cast<size_t>(&mask - masks_.data());
      const lanes::xla::PlanTables tables = lowering_.tables(mask.spec, plans[i].view(), pass.program.inputs);
      for (const NamedType& table : pass.tables) {
        const auto bytes = std::as_bytes(std::span(tables.at(table.name)));
        operands.emplace_back(bytes.begin(), bytes.end());
      }
    });
    return bound;
  }

 private:
  template <class Visit>
  void ForPasses(bool has_backward, const Visit& visit) const {
    for (const MaskPrograms& mask : masks_) {
      visit(mask, mask.forward);
      if (has_backward) visit(mask, mask.backward);
    }
  }

  bool IsOfHeads() const { return sharing_ && sharing_->kind == ContextKind::kHeads; }
  bool IsSparse() const { return sharing_ && sharing_->kind == ContextKind::kSparse; }
  bool IsGathered() const { return sharing_ && sharing_->kind == ContextKind::kGather; }
  // [B, H, T of a device, ...]: all tokens of some of the heads, and back.
  Value ToHeads(Builder& b, const Value& x) const {
    return IsOfHeads() ? b.Trade(x, {.split = 1, .join = 2}, sharing_->shards.groups) : x;
  }
  Value ToTokens(Builder& b, const Value& x) const {
    return IsOfHeads() ? b.Trade(x, {.split = 2, .join = 1}, sharing_->shards.groups) : x;
  }
  Value BringKeys(Builder& b, const Value& x) const {
    return IsGathered() ? b.Gather(x, 2, sharing_->shards.groups) : ToHeads(b, x);
  }
  stablehlo::TileExchange Tiles(Builder& b, size_t mask) const {
    return {b,
            sharing_->lowered[mask],
            {b.Input(RoundInput(mask, "sends")), b.Input(RoundInput(mask, "receives")),
             b.Input(RoundInput(mask, "bounds"))}};
  }
  // Every device's share of a key's gradient goes to who has the key, and is added in a fixed order: that of the
  // devices, or its own first and then those of each round.
  std::pair<Value, Value> GiveKeysBack(Builder& b, size_t mask, const Value& dk, const Value& dv) const {
    if (IsSparse()) return Tiles(b, mask).GiveBack(dk, dv);
    const auto give = [&](const Value& x) {
      return IsGathered() ? b.SumPiece(x, 2, sharing_->shards.groups) : ToTokens(b, x);
    };
    const Value own_dk = give(dk);
    return {own_dk, give(dv)};
  }

  Result<std::unique_ptr<BoundAttention>> BindShards(const RowBatch& rows, bool has_backward) const {
    auto bound = std::make_unique<BoundShards>();
    const auto shards = static_cast<size_t>(sharing_->shards.shards);
    bound->operands.resize(shards);
    const std::vector<ContextPlan> plans = TESSERA_TRY(PlanAll(*sharing_, layers_, rows));
    for (size_t shard = 0; shard < shards; ++shard) {
      bound->tokens.push_back(shard::ShardTokens(plans.front(), shard));
    }
    ContextUse& use = bound->use.emplace(*Context());
    ++use.batches[static_cast<size_t>(plans.front().form)];
    for (size_t i = 0; i < masks_.size(); ++i) {
      TESSERA_TRY(CheckRoom(masks_[i].spec, plans[i].plan->view(), false));
      shard::DeviceTables tables = TESSERA_TRY(shard::MakeDeviceTables(
          sharing_->specs[i], plans[i], {Direction::kForward, Direction::kDq, Direction::kDkv}));
      const auto append = [&](const PassProgram& pass) {
        for (size_t shard = 0; shard < shards; ++shard) {
          for (const NamedType& table : pass.tables) {
            AppendTable(tables[shard].at(table.name), table.type, bound->operands[shard]);
          }
        }
      };
      append(masks_[i].forward);
      if (has_backward) append(masks_[i].backward);
      use.worst_balance = std::max(use.worst_balance, plans[i].TileBalance());
      use.allgather_bytes += plans[i].BytesOf(Exchange::kAllGather).total;
      if (!IsSparse()) use.bytes += plans[i].BytesOf(use.exchange).total;
      if (IsSparse()) bound->rounds.push_back(std::move(tables));
    }
    return bound;
  }

  static void AppendTable(std::vector<int32_t> values, const Type& type, std::vector<std::vector<std::byte>>& out) {
    values.resize(static_cast<size_t>(stablehlo::NumElements(type)));  // words have room behind them
    const auto bytes = std::as_bytes(std::span(values));
    out.emplace_back(bytes.begin(), bytes.end());
  }

  static Status CheckRoom(const ProgramSpec& spec, const PlanView& plan, bool has_kernels) {
    if (static_cast<int64_t>(plan.items.size()) < spec.items &&
        static_cast<int64_t>(plan.bit_words.size()) * 2 <= spec.words &&
        (!has_kernels || lanes::xla::StoredNeedOf(plan).tiles <= spec.stored_tiles)) {
      return {};
    }
    return Fail(ErrorCode::kTooLarge,
                fmt::format("the plan has {} cleanup items; the model's program has room for {}", plan.items.size(),
                            spec.items - 1),
                "attention");
  }

  // What a pass gives, by its name, in f32.
  static Value Given(Builder& b, const PassProgram& pass, const Values& out, std::string_view name) {
    size_t i = 0;
    while (i + 1 < out.size() && pass.program.outputs[i].name != name) ++i;
    return b.Convert(out[i], Element::kF32);
  }

  // [B, H, T, D] of the heads [first, first + count).
  Value Heads(Builder& b, const Value& qkv, int64_t first, int64_t count) const {
    const int64_t begin[] = {0, 0, first, 0};
    const int64_t end[] = {s_.rows, s_.row_tokens, first + count, s_.head_dim};
    return b.Transpose(b.Slice(qkv, begin, end), {0, 2, 1, 3});
  }

  Values Call(Builder& b, const PassProgram& pass, const AttentionInputs& in,
              const std::vector<std::pair<std::string, Value>>& more) const {
    const Contract& contract = layers_.attentions[in.mask].contract();
    Values operands;
    std::pair<Value, Value> brought;  // both at once, with the first
    for (const NamedType& input : pass.program.inputs) {
      const auto given =
          std::find_if(more.begin(), more.end(), [&](const auto& one) { return one.first == input.name; });
      if (given != more.end()) {
        operands.push_back(given->second);
      } else if (input.name == "q") {
        operands.push_back(ToHeads(b, Heads(b, in.qkv, 0, s_.num_q_heads)));
      } else if (IsSparse() && input.name == "k") {
        const Value k = Heads(b, in.qkv, s_.num_q_heads, s_.num_kv_heads);
        brought = Tiles(b, in.mask).Bring(k, Heads(b, in.qkv, s_.num_q_heads + s_.num_kv_heads, s_.num_kv_heads));
        operands.push_back(brought.first);
      } else if (IsSparse() && input.name == "v") {
        operands.push_back(brought.second);
      } else if (input.name == "k") {
        operands.push_back(BringKeys(b, Heads(b, in.qkv, s_.num_q_heads, s_.num_kv_heads)));
      } else if (input.name == "v") {
        operands.push_back(BringKeys(b, Heads(b, in.qkv, s_.num_q_heads + s_.num_kv_heads, s_.num_kv_heads)));
      } else if (input.name == "scale") {
        operands.push_back(b.Constant(input.type, contract.score.scale));
      } else if (input.name == "softcap") {
        operands.push_back(b.Constant(input.type, contract.score.softcap));
      } else if (input.name == "part") {
        operands.push_back(b.Int(0));
      } else if (input.name == "sink_logits") {
        operands.push_back(in.sink_logits);
      } else {
        operands.push_back(b.Input(pass.Named(input.name)));
      }
    }
    std::vector<Type> results;
    for (const NamedType& output : pass.program.outputs) results.push_back(output.type);
    return b.CallFunction(pass.function, operands, results);
  }

  // [B * H * tiles, tile, ...] to [B, H, T, ...] of what the program has.
  enum class Side : uint8_t { kQuery, kKey };
  static Value FromTiles(Builder& b, const Value& tiles, const ProgramSpec& spec, Side side) {
    const Shape& s = spec.shape;
    const int64_t heads = side == Side::kQuery ? s.num_q_heads : s.num_kv_heads;
    std::vector<int64_t> dims = {s.batch, heads, tiles.type.dims[0] * tiles.type.dims[1] / (s.batch * heads)};
    dims.insert(dims.end(), tiles.type.dims.begin() + 2, tiles.type.dims.end());
    const std::vector<int64_t> begin(dims.size(), 0);
    std::vector<int64_t> end = dims;
    end[2] = side == Side::kQuery ? s.q_len : s.kv_len;
    return b.Slice(b.Reshape(tiles, dims), begin, end);
  }

  LayerAttention layers_;
  ModelSpec s_;  // of one device
  const lanes::xla::Lowering& lowering_;
  std::vector<MaskPrograms> masks_;
  std::optional<Sharing> sharing_;
};

// Whatever documents a batch has: a training run must not end where one needs more than those before it.
Status MakeRoomForAny(ProgramSpec& spec, const Attention& attention) {
  const AttentionState& state = *EngineAccess::Of(attention);
  const planner::CleanupRoom most =
      TESSERA_TRY(planner::MostCleanups(*state.prepared->planning, state.prepared->target, state.options.plan));
  while (spec.items <= most.items) spec.items *= 2;
  while (spec.words < 2 * most.bit_words) spec.words *= 2;
  return {};
}

Result<ProgramSpec> SpecFor(const LayerAttention& layers, size_t mask, const Target& target,
                            const lanes::xla::Lowering& lowering) {
  const Attention& attention = layers.attentions[mask];
  const PlanResult planned = TESSERA_TRY(attention.Plan(BatchFor(layers.facts[mask], WholeRows(layers.spec))));
  ProgramSpec spec = stablehlo::SpecOf(attention.contract(), planned.plan.view(), target.kind);
  spec.parts = 1;  // a program runs all of them
  MakeRoom(spec);
  TESSERA_TRY(MakeRoomForAny(spec, attention));
  Decision fits = lanes::xla::CheckSize(spec);
  if (lowering.has_kernels) {
    spec.stored_tiles = lanes::xla::StoredCapacity(planned.plan.view());
    lanes::xla::FitTarget(spec, target);
    if (fits.accepted) fits = lanes::xla::CheckKernelPlan(spec, planned.plan.view(), target);
  }
  if (fits.accepted) return spec;
  return Fail(ErrorCode::kLaneRefused, fmt::format("{}: {}", ReasonText(fits.reason), fits.detail), "attention");
}

Result<MaskPrograms> ProgramsOf(ProgramSpec spec, size_t mask, const lanes::xla::Lowering& lowering) {
  MaskPrograms out;
  out.spec = std::move(spec);
  Program forward = TESSERA_TRY(lowering.lower(out.spec, Pass::kForward));
  Program backward = TESSERA_TRY(lowering.lower(out.spec, Pass::kBackward));
  out.forward = ToPass(std::move(forward), fmt::format("attention_forward_{}", mask));
  out.backward = ToPass(std::move(backward), fmt::format("attention_backward_{}", mask));
  return out;
}

}  // namespace

Result<std::unique_ptr<AttentionSubstitute>> MakeProgramAttention(LayerAttention layers, const Target& target,
                                                                  const lanes::xla::Lowering& lowering) {
  std::vector<MaskPrograms> masks;
  for (size_t i = 0; i < layers.attentions.size(); ++i) {
    ProgramSpec spec = TESSERA_TRY(SpecFor(layers, i, target, lowering));
    masks.push_back(TESSERA_TRY(ProgramsOf(std::move(spec), i, lowering)));
  }
  return std::make_unique<ProgramAttention>(std::move(layers), lowering, std::move(masks));
}

Result<std::unique_ptr<AttentionSubstitute>> MakeContextAttention(LayerAttention layers, const Target& target,
                                                                  const lanes::xla::Lowering& lowering,
                                                                  const TokenShards& tokens) {
  Sharing sharing = TESSERA_TRY(MakeSharing(layers, target, tokens));
  std::vector<MaskPrograms> masks;
  for (size_t i = 0; i < sharing.specs.size(); ++i) {
    masks.push_back(TESSERA_TRY(ProgramsOf(sharing.specs[i].local, i, lowering)));
  }
  return std::make_unique<ProgramAttention>(std::move(layers), lowering, std::move(masks), std::move(sharing));
}

}  // namespace tessera::model
