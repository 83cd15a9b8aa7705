// See context.h.
#include "lanes/xla/stablehlo/context.h"

#include <fmt/format.h>

#include <algorithm>

#include "lanes/xla/stablehlo/context_ring.h"
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

class Context {
 public:
  Context(const ContextSpec& spec, bool is_backward)
      : spec_(spec),
        pass_(fmt::format("context_{}_{}", is_backward ? "backward" : "forward", ToText(spec.kind))),
        inputs_(Inputs(spec, is_backward)),
        b_(BeginModule(spec.local, pass_, inputs_)) {}

  Result<ContextProgram> LowerForward() {
    const Values rows = ForwardRows(b_, spec_.local, Bring());
    const Shape& local = spec_.local.shape;
    const Value o = b_.Convert(b_.Reshape(rows[0], {local.batch, local.num_q_heads, local.q_len, local.dim_v}),
                               ElementOf(local.dtype));
    const Value lse = b_.Reshape(rows[1], {local.batch, local.num_q_heads, local.q_len});
    return Finish({{"o", ToTokens(o), 2}, {"lse", lse, IsHeads() ? 1 : 2}, {"tiles", b_.Reshape(rows[3], {1}), 0}});
  }

  Result<ContextProgram> LowerBackward() {
    const Value dout = ToHeads(b_.Input("do"));
    const Value lse = ToHeads(b_.Input("lse"));
    const Value delta = ToHeads(b_.Input("delta"));
    const Values rows = BackwardRows(b_, spec_.local, {Bring(), dout, lse, delta});
    const Shape& local = spec_.local.shape;
    const Value dq = b_.Reshape(rows[0], {local.batch, local.num_q_heads, local.q_len, local.dim_qk});
    const Value dk = b_.Reshape(rows[1], {local.batch, local.num_kv_heads, local.kv_len, local.dim_qk});
    const Value dv = b_.Reshape(rows[2], {local.batch, local.num_kv_heads, local.kv_len, local.dim_v});
    const std::pair<Value, Value> keys = GiveBack(dk, dv);
    std::vector<ContextOutput> outputs = {
        {"dq", ToTokens(dq), 2}, {"dk", keys.first, 2}, {"dv", keys.second, 2}, {"tiles", b_.Reshape(rows[3], {1}), 0}};
    if (spec_.local.has_sink_logits) {
      const int64_t of_head = rows[4].type.dims[0] / (local.batch * local.num_q_heads);
      const Value shares = b_.Reshape(rows[4], {local.batch, local.num_q_heads, of_head});
      outputs.push_back({"dsink_logits", b_.Reduce(Reduction::kAdd, shares, {0, 2}), 0});
    }
    return Finish(outputs);
  }

 private:
  Result<ContextProgram> Finish(const std::vector<ContextOutput>& outputs) {
    std::vector<int64_t> axes;
    for (const NamedType& input : inputs_) axes.push_back(AxisOf(input.name));
    return FinishContext(b_, spec_, {ModuleName(pass_, spec_.local.class_key), inputs_, std::move(axes)}, outputs);
  }

  // As the local program's, but for the tokens of its own that a device brings.
  static std::vector<NamedType> Inputs(const ContextSpec& spec, bool is_backward) {
    std::vector<NamedType> inputs =
        is_backward ? BackwardInputs(spec.local) : CommonInputs(spec.local, {Direction::kForward});
    for (NamedType& input : inputs) {
      const bool is_of_keys = input.name == "k" || input.name == "v";
      if (!is_of_keys && !IsOfQueries(input.name)) continue;
      input.type.dims[1] = is_of_keys ? spec.shape.num_kv_heads : spec.shape.num_q_heads;
      input.type.dims[2] = spec.tokens;
    }
    if (spec.kind == ContextKind::kSparse) {
      inputs.push_back({"sends", {Element::kI32, {spec.rounds}}});
      inputs.push_back({"receives", {Element::kI32, {spec.rounds}}});
      inputs.push_back({"bounds", {Element::kI32, {static_cast<int64_t>(spec.steps.size()) + 1}}});
    }
    return inputs;
  }
  static bool IsOfQueries(const std::string& name) {
    return name == "q" || name == "do" || name == "lse" || name == "delta";
  }
  bool IsHeads() const { return spec_.kind == ContextKind::kHeads; }

  // Along which axis an input is cut. Where every device has the same keys in the same order, their tables are the
  // same.
  int64_t AxisOf(const std::string& name) const {
    if (IsOfQueries(name) || name == "k" || name == "v") return 2;
    if (name == "sink_logits" || name == "mask_of") return IsHeads() ? 0 : kWhole;
    if (name == "q_documents") return IsHeads() ? kWhole : 1;
    if (name == "kv_documents" || name == "kv_ranks") return spec_.kind == ContextKind::kSparse ? 1 : kWhole;
    for (const Direction direction : {Direction::kForward, Direction::kDq, Direction::kDkv}) {
      if (name == ListInput(direction, "counts") || name == ListInput(direction, "slots"))
        return IsHeads() ? kWhole : 0;
    }
    return name == "sends" || name == "receives" ? 0 : kWhole;
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
    const Value q = b_.Input("q");
    const Value k = b_.Input("k");
    const Value v = b_.Input("v");
    switch (spec_.kind) {
      case ContextKind::kGather:
        return {q, Gather(k), Gather(v)};
      case ContextKind::kHeads:
        return {ToHeads(q), ToHeads(k), ToHeads(v)};
      case ContextKind::kSparse:
        return BringTiles(q, k, v);
      case ContextKind::kRing:
        break;  // brings nothing first: context_ring.cc
    }
    return {};
  }

  // One loop for each step, which begins where the one before ended. Keys and values of a tile go together.
  AttentionTensors BringTiles(const Value& q, const Value& k, const Value& v) {
    const Shape& s = spec_.shape;
    const Value own = b_.Concatenate({k, v}, 3);
    const int64_t room = (spec_.received + 1) * spec_.tile;  // the last is for what nobody needs
    Value got = b_.Constant({own.type.element, {s.batch, s.num_kv_heads, room, s.dim_qk + s.dim_v}}, 0.0);
    for (size_t step = 0; step < spec_.steps.size(); ++step) {
      const auto number = static_cast<int64_t>(step);
      got = b_.For(Entry("bounds", b_.Int(number)), Entry("bounds", b_.Int(number + 1)), {got},
                   [&](const Value& round, const Values& carried) {
                     return Values{Round(own, carried[0], round, spec_.steps[step])};
                   })[0];
    }
    const auto part = [&](int64_t begin, int64_t end) {
      const int64_t from[] = {0, 0, 0, begin};
      const int64_t to[] = {s.batch, s.num_kv_heads, room, end};
      return b_.Slice(got, from, to);
    };
    return {q, b_.Concatenate({k, part(0, s.dim_qk)}, 2), b_.Concatenate({v, part(s.dim_qk, s.dim_qk + s.dim_v)}, 2)};
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
        return GiveTilesBack(b_.Concatenate({dk, dv}, 3));
      case ContextKind::kRing:
        break;
    }
    return {};
  }

  // The rounds of BringTiles once more, along pairs turned round: what came into a slot goes back, and is added where
  // it was sent from. A slot that nobody needed has gradients of zero, which is what its round adds.
  std::pair<Value, Value> GiveTilesBack(const Value& both) {
    const Shape& s = spec_.shape;
    const int64_t dim = s.dim_qk + s.dim_v;
    const auto part = [&](const Value& x, std::vector<int64_t> begin, std::vector<int64_t> end) {
      return b_.Slice(x, begin, end);
    };
    const Value brought = part(both, {0, 0, spec_.tokens, 0}, both.type.dims);
    Value own = part(both, {0, 0, 0, 0}, {s.batch, s.num_kv_heads, spec_.tokens, dim});
    for (size_t step = 0; step < spec_.steps.size(); ++step) {
      const auto number = static_cast<int64_t>(step);
      DevicePairs turned;
      for (const auto& [source, target] : spec_.steps[step]) turned.emplace_back(target, source);
      own = b_.For(Entry("bounds", b_.Int(number)), Entry("bounds", b_.Int(number + 1)), {own},
                   [&](const Value& round, const Values& carried) {
                     const std::vector<int64_t> sizes = {1, s.num_kv_heads, spec_.tile, dim};
                     const std::vector<Value> from = ReceivedAt(round);
                     // Without the batch's axis: who reads the compiled program knows what is given back by it.
                     const Value sent = b_.Reshape(b_.SliceAt(brought, from, sizes), {s.num_kv_heads, spec_.tile, dim});
                     const Value came = b_.Reshape(b_.Permute(sent, turned), sizes);
                     const std::vector<Value> to = SentAt(round);
                     return Values{b_.UpdateAt(carried[0], b_.Add(b_.SliceAt(carried[0], to, sizes), came), to)};
                   })[0];
    }
    return {part(own, {0, 0, 0, 0}, {s.batch, s.num_kv_heads, spec_.tokens, s.dim_qk}),
            part(own, {0, 0, 0, s.dim_qk}, {s.batch, s.num_kv_heads, spec_.tokens, dim})};
  }

  Value Entry(const char* input, const Value& at) {
    const Value place[] = {at};
    return b_.Reshape(b_.SliceAt(b_.Input(input), place, {1}), {});
  }

  // Where the tile of a round is sent from, and where the one that comes goes.
  std::vector<Value> SentAt(const Value& round) { return At(Entry("sends", round), spec_.tokens / spec_.tile); }
  std::vector<Value> ReceivedAt(const Value& round) { return At(Entry("receives", round), spec_.received + 1); }
  std::vector<Value> At(const Value& tile, int64_t tiles_of_row) {
    const Value each = b_.Int(tiles_of_row);
    return {b_.Div(tile, each), b_.Int(0), b_.Mul(b_.Rem(tile, each), b_.Int(spec_.tile)), b_.Int(0)};
  }

  Value Round(const Value& own, const Value& got, const Value& round, const DevicePairs& pairs) {
    const Shape& s = spec_.shape;
    const Value sent = b_.SliceAt(own, SentAt(round), {1, s.num_kv_heads, spec_.tile, s.dim_qk + s.dim_v});
    const Value came = b_.Permute(sent, pairs);
    return b_.UpdateAt(got, came, ReceivedAt(round));
  }

  const ContextSpec& spec_;
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
  for (const Direction direction : {Direction::kForward, Direction::kDq, Direction::kDkv}) {
    ListShape& list = local.lists[static_cast<size_t>(direction)];
    list.rows = direction == Direction::kDkv ? local.shape.kv_len / list.tile_kv : local.shape.q_len / list.tile_q;
  }
}

Result<ContextProgram> LowerContextForward(const ContextSpec& spec) {
  return spec.kind == ContextKind::kRing ? LowerRing(spec, false) : Context(spec, false).LowerForward();
}
Result<ContextProgram> LowerContextBackward(const ContextSpec& spec) {
  return spec.kind == ContextKind::kRing ? LowerRing(spec, true) : Context(spec, true).LowerBackward();
}

}  // namespace tessera::stablehlo
