// See context.h.
#include "lanes/xla/stablehlo/context.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>

#include "lanes/xla/stablehlo/context_ragged.h"
#include "lanes/xla/stablehlo/context_ring.h"
#include "lanes/xla/stablehlo/context_tiles.h"
#include "lanes/xla/stablehlo/tiles.h"

namespace tessera::stablehlo {
namespace {

std::string_view ToText(ContextKind kind) {
  switch (kind) {
    case ContextKind::kGather:
      return "gather";
    case ContextKind::kHeads:
      return "heads";
    case ContextKind::kSparse:
      return "sparse";
    case ContextKind::kRing:
      return "ring";
  }
  return "";
}

constexpr const char* kWalk = "walk";

enum class Part : uint8_t { kForward, kBackward, kBring };
std::string_view ToText(Part part) {
  return part == Part::kForward ? "forward" : part == Part::kBackward ? "backward" : "bring";
}

class Context {
 public:
  Context(const ContextSpec& spec, Part part, const Program* walk)
      : spec_(spec),
        walk_(walk),
        pass_(fmt::format("context_{}_{}{}{}", ToText(part), spec.is_ragged ? "ragged" : ToText(spec.kind),
                          spec.brings_rows ? "_rows" : "", walk == nullptr ? "" : "_kernels")),
        inputs_(part == Part::kBring ? BroughtInputs(spec) : Inputs(spec, part == Part::kBackward, walk)),
        b_(BeginModule(spec.local, pass_, inputs_)) {
    if (walk_ != nullptr) b_.AddFunction(kWalk, walk_->text);
  }

  Result<ContextProgram> LowerForward() {
    const AttentionTensors brought = Bring();
    const Values rows =
        walk_ == nullptr ? ForwardRows(b_, spec_.local, brought)
                         : Walked({{"q", brought.q}, {"k", brought.k}, {"v", brought.v}}, {"o", "lse", "max", "tiles"});
    const Shape& local = spec_.local.shape;
    const Value o = b_.Convert(b_.Reshape(rows[0], {local.batch, local.num_q_heads, local.q_len, local.dim_v}),
                               ElementOf(local.dtype));
    const Value lse = b_.Reshape(rows[1], {local.batch, local.num_q_heads, local.q_len});
    return Finish({{"o", ToTokens(o), 2}, {"lse", lse, IsHeads() ? 1 : 2}, {"tiles", b_.Reshape(rows[3], {1}), 0}});
  }

  Result<ContextProgram> LowerBring() {
    const AttentionTensors brought = Bring();
    std::vector<ContextOutput> outputs = {{"brought_k", brought.k, IsHeads() ? 1 : 2},
                                          {"brought_v", brought.v, IsHeads() ? 1 : 2}};
    if (IsHeads()) outputs.push_back({"brought_q", brought.q, 1});
    return Finish(outputs);
  }

  Result<ContextProgram> LowerBackward() {
    const Value dout = ToHeads(b_.Input("do"));
    const Value lse = ToHeads(b_.Input("lse"));
    const Value delta = ToHeads(b_.Input("delta"));
    if (spec_.brings_rows) return FinishBackward(BackwardRows(b_, spec_.local, BringRows({dout, lse, delta})));
    const AttentionTensors brought = Bring();
    const std::map<std::string, Value> tensors = {{"q", brought.q}, {"k", brought.k}, {"v", brought.v},
                                                  {"do", dout},     {"lse", lse},     {"delta", delta}};
    const Values rows = walk_ == nullptr ? BackwardRows(b_, spec_.local, {brought, dout, lse, delta})
                                         : Walked(tensors, {"dq", "dk", "dv", "tiles", "dsink_logits"});
    return FinishBackward(rows);
  }

 private:
  Result<ContextProgram> FinishBackward(const Values& rows) {
    const Shape& local = spec_.local.shape;
    const int64_t q_len = spec_.brings_rows ? spec_.tokens : local.q_len;
    const int64_t kv_len = spec_.brings_rows ? spec_.tokens : local.kv_len;
    const Value dq = b_.Reshape(rows[0], {local.batch, local.num_q_heads, q_len, local.dim_qk});
    const Value dk = b_.Reshape(rows[1], {local.batch, local.num_kv_heads, kv_len, local.dim_qk});
    const Value dv = b_.Reshape(rows[2], {local.batch, local.num_kv_heads, kv_len, local.dim_v});
    const std::pair<Value, Value> keys = spec_.brings_rows ? std::pair{dk, dv} : GiveBack(dk, dv);
    std::vector<ContextOutput> outputs = {
        {"dq", ToTokens(dq), 2}, {"dk", keys.first, 2}, {"dv", keys.second, 2}, {"tiles", b_.Reshape(rows[3], {1}), 0}};
    if (spec_.local.has_sink_logits) {
      const int64_t of_head = rows[4].type.dims[0] / (local.batch * local.num_q_heads);
      const Value shares = b_.Reshape(rows[4], {local.batch, local.num_q_heads, of_head});
      outputs.push_back({"dsink_logits", b_.Reduce(Reduction::kAdd, shares, {0, 2}), 0});
    }
    return Finish(outputs);
  }

  Result<ContextProgram> Finish(const std::vector<ContextOutput>& outputs) {
    std::vector<int64_t> axes;
    for (const NamedType& input : inputs_) axes.push_back(AxisOf(input.name));
    return FinishContext(b_, spec_, {ModuleName(pass_, spec_.local.class_key), inputs_, std::move(axes)}, outputs);
  }

  // What the program of one device gives of what was brought; of these names, those that it has.
  Values Walked(const std::map<std::string, Value>& tensors, const std::vector<std::string>& names) {
    Values operands;
    for (const NamedType& input : walk_->inputs) {
      const auto found = tensors.find(input.name);
      operands.push_back(found != tensors.end() ? found->second : b_.Input(input.name));
    }
    std::vector<Type> types;
    for (const NamedType& output : walk_->outputs) types.push_back(output.type);
    const Values given = b_.CallFunction(kWalk, operands, types);
    Values out;
    for (const std::string& name : names) {
      for (size_t i = 0; i < given.size(); ++i) {
        if (walk_->outputs[i].name == name) out.push_back(given[i]);
      }
    }
    return out;
  }

  // As the local program's, but for the tokens of its own that a device brings.
  static std::vector<NamedType> Inputs(const ContextSpec& spec, bool is_backward, const Program* walk) {
    std::vector<NamedType> inputs = walk != nullptr ? walk->inputs
                                    : is_backward   ? BackwardInputs(spec.local)
                                                    : CommonInputs(spec.local, {Direction::kForward});
    for (NamedType& input : inputs) {
      const bool is_of_keys = input.name == "k" || input.name == "v";
      if (!is_of_keys && !IsOfQueries(input.name)) continue;
      input.type.dims[1] = is_of_keys ? spec.shape.num_kv_heads : spec.shape.num_q_heads;
      input.type.dims[2] = spec.tokens;
    }
    if (spec.kind == ContextKind::kSparse && spec.is_ragged) {
      const std::vector<NamedType> more = RaggedInputs(spec);
      inputs.insert(inputs.end(), more.begin(), more.end());
    } else if (spec.kind == ContextKind::kSparse) {
      inputs.push_back({"sends", {Element::kI32, {spec.rounds}}});
      inputs.push_back({"receives", {Element::kI32, {spec.rounds}}});
      inputs.push_back({"bounds", {Element::kI32, {static_cast<int64_t>(spec.steps.size()) + 1}}});
      if (spec.brings_rows) {
        inputs.push_back({"row_sends", {Element::kI32, {spec.row_rounds}}});
        inputs.push_back({"row_receives", {Element::kI32, {spec.row_rounds}}});
        inputs.push_back({"row_bounds", {Element::kI32, {static_cast<int64_t>(spec.steps.size()) + 1}}});
      }
    }
    return inputs;
  }
  static std::vector<NamedType> BroughtInputs(const ContextSpec& spec) {
    std::vector<NamedType> inputs = Inputs(spec, false, nullptr);
    std::erase_if(inputs, [&](const NamedType& input) {
      const bool is_brought =
          input.name == "k" || input.name == "v" || (input.name == "q" && spec.kind == ContextKind::kHeads);
      return !is_brought && !IsOfExchange(input.name) && input.name != "bounds";
    });
    return inputs;
  }
  static bool IsOfExchange(const std::string& name) {
    for (const char* own : {"sends", "receives", "slots", "arrivals", "trades", "row_sends", "row_receives"}) {
      if (name == own) return true;
    }
    return false;
  }
  static bool IsOfQueries(const std::string& name) {
    return name == "q" || name == "do" || name == "lse" || name == "delta";
  }
  bool IsHeads() const { return spec_.kind == ContextKind::kHeads; }

  bool HasInput(const std::string& name) const {
    return std::any_of(inputs_.begin(), inputs_.end(), [&](const NamedType& input) { return input.name == name; });
  }

  // Along which axis an input is cut. Where every device has the same keys in the same order, their tables are the
  // same.
  int64_t AxisOf(const std::string& name) const {
    if (IsOfQueries(name) || name == "k" || name == "v") return 2;
    if (name == "sink_logits" || name == "mask_of") return IsHeads() ? 0 : kWhole;
    if (walk_ != nullptr && !IsOfAll(name)) return 0;
    if (name == "q_documents") return IsHeads() ? kWhole : 1;
    const bool is_own = spec_.kind == ContextKind::kSparse || spec_.brings_rows;  // not everybody's in the same order
    if (name == "kv_documents" || name == "kv_ranks") return is_own ? 1 : kWhole;
    for (const Direction direction : {Direction::kForward, Direction::kDq, Direction::kDkv}) {
      if (name == ListInput(direction, "counts") || name == ListInput(direction, "slots"))
        return IsHeads() ? kWhole : 0;
    }
    return IsOfExchange(name) ? 0 : kWhole;
  }

  static bool IsOfAll(const std::string& name) {
    return name == "scale" || name == "softcap" || name == "part" || name == "bounds";
  }

  // [batch, heads, tokens of a device, ..]: all tokens of some of the heads, and back.
  Value ToHeads(const Value& x) {
    return IsHeads() ? b_.Trade(x, {.split = 1, .join = 2}, OneGroup(spec_.devices)) : x;
  }
  Value ToTokens(const Value& x) {
    return IsHeads() ? b_.Trade(x, {.split = 2, .join = 1}, OneGroup(spec_.devices)) : x;
  }
  Value Gather(const Value& x) { return b_.Gather(x, 2, OneGroup(spec_.devices)); }

  AttentionTensors Bring() {
    const Value q = HasInput("q") ? b_.Input("q") : Value{};
    const Value k = b_.Input("k");
    const Value v = b_.Input("v");
    switch (spec_.kind) {
      case ContextKind::kGather:
        return {q, Gather(k), Gather(v)};
      case ContextKind::kHeads:
        return {ToHeads(q), ToHeads(k), ToHeads(v)};
      case ContextKind::kSparse: {
        const auto [keys, values] =
            spec_.is_ragged ? RaggedExchange(b_, spec_).Bring(k, v) : TileExchange(b_, spec_, RoundsOf(b_)).Bring(k, v);
        return {q, keys, values};
      }
      case ContextKind::kRing:
        break;  // brings nothing first: context_ring.cc
    }
    return {};
  }

  struct OfRows {
    Value dout, lse, delta;
  };
  // A device's own keys and rows first, and behind them what was brought of either: the rows of dQ are the first of the
  // queries, those of dK and dV the first of the keys.
  GradientTensors BringRows(const OfRows& own) {
    const AttentionTensors brought = Bring();
    if (spec_.kind == ContextKind::kSparse) {
      const TileRounds rounds{b_.Input("row_sends"), b_.Input("row_receives"), b_.Input("row_bounds")};
      const Values rows = TileExchange(b_, spec_, rounds).BringRows({brought.q, own.dout, own.lse, own.delta});
      return {{rows[0], brought.k, brought.v}, rows[1], rows[2], rows[3]};
    }
    const auto both = [&](const Value& x) { return b_.Concatenate({x, Gather(x)}, 2); };
    return {
        {both(brought.q), b_.Concatenate({b_.Input("k"), brought.k}, 2), b_.Concatenate({b_.Input("v"), brought.v}, 2)},
        both(own.dout),
        both(own.lse),
        both(own.delta)};
  }

  // Gradients of the keys that a device has, those it was brought among them, to who they belong to.
  std::pair<Value, Value> GiveBack(const Value& dk, const Value& dv) {
    const DeviceGroups all = OneGroup(spec_.devices);
    switch (spec_.kind) {
      case ContextKind::kGather:
        return {b_.SumPiece(dk, 2, all), b_.SumPiece(dv, 2, all)};
      case ContextKind::kHeads:
        return {ToTokens(dk), ToTokens(dv)};
      case ContextKind::kSparse:
        if (spec_.is_ragged) return RaggedExchange(b_, spec_).GiveBack(dk, dv);
        return TileExchange(b_, spec_, RoundsOf(b_)).GiveBack(dk, dv);
      case ContextKind::kRing:
        break;
    }
    return {};
  }

  const ContextSpec& spec_;
  const Program* const walk_;
  const std::string pass_;
  std::vector<NamedType> inputs_;
  Builder b_;
};

}  // namespace

Result<ContextProgram> FinishContext(Builder& b, const ContextSpec& spec, ContextInputs given,
                                     const std::vector<ContextOutput>& outputs) {
  ContextProgram out;
  out.devices = {.name = "context", .size = spec.devices, .inputs = std::move(given.axes), .outputs = {}};
  Values values;
  std::vector<NamedType> named;
  for (const ContextOutput& output : outputs) {
    values.push_back(output.value);
    named.push_back({output.name, output.value.type});
    out.devices.outputs.push_back(output.axis);
  }
  const Result<std::string> text = b.FinishOver(out.devices, values);
  if (!text) return tl::unexpected(text.error());
  out.program = {std::move(given.module), *text, given.inputs, std::move(named), 1, spec.devices};
  return out;
}

void SetLocalSpec(const ProgramSpec& whole, ContextSpec& spec) {
  ProgramSpec& local = spec.local;
  local = whole;
  local.shape = spec.shape;
  local.parts = 1;
  const int64_t all = spec.devices * spec.tokens;
  if (spec.kind == ContextKind::kHeads) {
    local.shape.num_q_heads /= spec.devices;
    local.shape.num_kv_heads /= spec.devices;
  }
  local.shape.q_len = spec.kind == ContextKind::kHeads ? all : spec.tokens;
  local.shape.kv_len = all;
  if (spec.kind == ContextKind::kSparse) local.shape.kv_len = spec.tokens + (spec.received + 1) * spec.tile;
  if (spec.kind == ContextKind::kRing) local.shape.kv_len = spec.tokens;
  if (spec.brings_rows) {
    const bool is_sparse = spec.kind == ContextKind::kSparse;
    local.shape.q_len = spec.tokens + (is_sparse ? (spec.row_received + 1) * spec.tile : all);
    if (!is_sparse) local.shape.kv_len = spec.tokens + all;
  }
  for (const Direction direction : {Direction::kForward, Direction::kDq, Direction::kDkv}) {
    ListShape& list = local.lists[static_cast<size_t>(direction)];
    const bool is_dkv = direction == Direction::kDkv;
    const int64_t tokens = spec.brings_rows ? spec.tokens : is_dkv ? local.shape.kv_len : local.shape.q_len;
    list.rows = tokens / (is_dkv ? list.tile_kv : list.tile_q);
  }
}

Result<ContextProgram> LowerContextForward(const ContextSpec& spec, const Program* walk) {
  return spec.kind == ContextKind::kRing ? LowerRing(spec, false, walk)
                                         : Context(spec, Part::kForward, walk).LowerForward();
}
Result<ContextProgram> LowerContextBring(const ContextSpec& spec) {
  return Context(spec, Part::kBring, nullptr).LowerBring();
}
Result<ContextProgram> LowerContextBackward(const ContextSpec& spec, const Program* walk) {
  return spec.kind == ContextKind::kRing ? LowerRing(spec, true, walk)
                                         : Context(spec, Part::kBackward, walk).LowerBackward();
}

}  // namespace tessera::stablehlo
