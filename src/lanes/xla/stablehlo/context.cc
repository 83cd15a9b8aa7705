// See context.h.
#include "lanes/xla/stablehlo/context.h"

#include <fmt/format.h>

#include <algorithm>

#include "lanes/xla/stablehlo/tiles.h"

namespace tessera::stablehlo {
namespace {

constexpr const char* kPass = "context_forward";

std::string_view ToText(ContextKind kind) {
  return kind == ContextKind::kGather ? "gather" : kind == ContextKind::kHeads ? "heads" : "sparse";
}

class Context {
 public:
  explicit Context(const ContextSpec& spec)
      : spec_(spec),
        inputs_(Inputs(spec)),
        b_(BeginModule(spec.local, fmt::format("{}_{}", kPass, ToText(spec.kind)), inputs_)) {}

  Result<ContextProgram> Lower() {
    const Values rows = ForwardRows(b_, spec_.local, Bring());
    const Shape& local = spec_.local.shape;
    const Value o = b_.Convert(b_.Reshape(rows[0], {local.batch, local.num_q_heads, local.q_len, local.dim_v}),
                               ElementOf(local.dtype));
    const Value lse = b_.Reshape(rows[1], {local.batch, local.num_q_heads, local.q_len});
    const bool is_heads = spec_.kind == ContextKind::kHeads;
    const Values outputs = {is_heads ? Trade(o, {2, 1}) : o, lse, b_.Reshape(rows[3], {1})};
    ContextProgram out;
    out.devices = {.name = "context", .size = spec_.devices, .inputs = {}, .outputs = {2, is_heads ? 1 : 2, 0}};
    for (const NamedType& input : inputs_) out.devices.inputs.push_back(AxisOf(input.name));
    const Result<std::string> text = b_.FinishOver(out.devices, outputs);
    if (!text) return tl::unexpected(text.error());
    out.program = {ModuleName(fmt::format("{}_{}", kPass, ToText(spec_.kind)), spec_.local.class_key),
                   *text,
                   inputs_,
                   {{"o", outputs[0].type}, {"lse", outputs[1].type}, {"tiles", outputs[2].type}},
                   1};
    return out;
  }

 private:
  // As the local program's, but for the tokens of its own that a device brings.
  static std::vector<NamedType> Inputs(const ContextSpec& spec) {
    std::vector<NamedType> inputs = CommonInputs(spec.local, {Direction::kForward});
    for (NamedType& input : inputs) {
      if (input.name == "q") input.type.dims[1] = spec.shape.num_q_heads;
      if (input.name == "k" || input.name == "v") input.type.dims[1] = spec.shape.num_kv_heads;
      if (input.name == "q" || input.name == "k" || input.name == "v") input.type.dims[2] = spec.tokens;
    }
    if (spec.kind == ContextKind::kSparse) {
      inputs.push_back({"sends", {Element::kI32, {spec.rounds}}});
      inputs.push_back({"receives", {Element::kI32, {spec.rounds}}});
      inputs.push_back({"bounds", {Element::kI32, {static_cast<int64_t>(spec.steps.size()) + 1}}});
    }
    return inputs;
  }

  // Along which axis an input is cut. Where every device has the same keys in the same order, their tables are the
  // same.
  int64_t AxisOf(const std::string& name) const {
    const bool is_heads = spec_.kind == ContextKind::kHeads;
    if (name == "q" || name == "k" || name == "v") return 2;
    if (name == "sink_logits" || name == "mask_of") return is_heads ? 0 : kWhole;
    if (name == "q_documents") return is_heads ? kWhole : 1;
    if (name == "kv_documents" || name == "kv_ranks") return spec_.kind == ContextKind::kSparse ? 1 : kWhole;
    if (name == ListInput(Direction::kForward, "counts") || name == ListInput(Direction::kForward, "slots")) {
      return is_heads ? kWhole : 0;
    }
    return name == "sends" || name == "receives" ? 0 : kWhole;
  }

  Value Trade(const Value& x, Builder::Axes axes) { return b_.Trade(x, axes, OneGroup(spec_.devices)); }
  Value Gather(const Value& x) { return b_.Gather(x, 2, OneGroup(spec_.devices)); }

  AttentionTensors Bring() {
    const Value q = b_.Input("q");
    const Value k = b_.Input("k");
    const Value v = b_.Input("v");
    switch (spec_.kind) {
      case ContextKind::kGather:
        return {q, Gather(k), Gather(v)};
      case ContextKind::kHeads:
        return {Trade(q, {1, 2}), Trade(k, {1, 2}), Trade(v, {1, 2})};
      case ContextKind::kSparse:
        return BringTiles(q, k, v);
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

  Value Entry(const char* input, const Value& at) {
    const Value place[] = {at};
    return b_.Reshape(b_.SliceAt(b_.Input(input), place, {1}), {});
  }

  Value Round(const Value& own, const Value& got, const Value& round, const DevicePairs& pairs) {
    const Shape& s = spec_.shape;
    const Value tile = Entry("sends", round);
    const Value own_tiles = b_.Int(spec_.tokens / spec_.tile);
    const Value length = b_.Int(spec_.tile);
    const Value from[] = {b_.Div(tile, own_tiles), b_.Int(0), b_.Mul(b_.Rem(tile, own_tiles), length), b_.Int(0)};
    const Value sent = b_.SliceAt(own, from, {1, s.num_kv_heads, spec_.tile, s.dim_qk + s.dim_v});
    const Value came = b_.Permute(sent, pairs);
    const Value slot = Entry("receives", round);
    const Value room = b_.Int(spec_.received + 1);
    const Value to[] = {b_.Div(slot, room), b_.Int(0), b_.Mul(b_.Rem(slot, room), length), b_.Int(0)};
    return b_.UpdateAt(got, came, to);
  }

  const ContextSpec& spec_;
  std::vector<NamedType> inputs_;
  Builder b_;
};

}  // namespace

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
  local.shape.kv_len = spec.kind == ContextKind::kSparse ? spec.tokens + (spec.received + 1) * spec.tile : all;
  for (const Direction direction : {Direction::kForward, Direction::kDq, Direction::kDkv}) {
    ListShape& list = local.lists[static_cast<size_t>(direction)];
    list.rows = direction == Direction::kDkv ? local.shape.kv_len / list.tile_kv : local.shape.q_len / list.tile_q;
  }
}

Result<ContextProgram> LowerContextForward(const ContextSpec& spec) { return Context(spec).Lower(); }

}  // namespace tessera::stablehlo
