// Attention by the programs of a lane of XLA's, taken in as functions, one for each mask and pass: loops over the
// plan's tiles on any plugin, or a TPU's kernels. A plan's tables are operands, with room for any batch's.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "base/math.h"
#include "base/try.h"
#include "lanes/xla/kernel_tables.h"
#include "lanes/xla/stablehlo/tiles.h"
#include "model/attention.h"

namespace tessera::model {
namespace {

using stablehlo::Element;
using stablehlo::Program;
using stablehlo::ProgramSpec;
using stablehlo::Type;
using stablehlo::Values;

// Cleanup items and stored words that a plan of a model's masks may have at most: a few for each tile that is partly
// visible, of which each row of tiles has a handful.
constexpr int64_t kItemsPerRow = 64;
constexpr int64_t kLeastItems = 4096;

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

PassProgram ToPass(Program program, std::string function) {
  PassProgram pass{.program = std::move(program), .function = std::move(function), .tables = {}};
  for (const NamedType& input : pass.program.inputs) {
    if (!kNotTables.contains(input.name)) pass.tables.push_back(input);
  }
  return pass;
}

class ProgramAttention final : public AttentionSubstitute {
 public:
  ProgramAttention(LayerAttention layers, const lanes::xla::Lowering& lowering, std::vector<MaskPrograms> masks)
      : layers_(std::move(layers)), s_(layers_.spec), lowering_(lowering), masks_(std::move(masks)) {}

  std::vector<NamedType> Inputs(bool has_backward) const override {
    std::vector<NamedType> inputs;
    ForPasses(has_backward, [&](const MaskPrograms&, const PassProgram& pass) {
      for (const NamedType& table : pass.tables) inputs.push_back({pass.Named(table.name), table.type});
    });
    return inputs;
  }

  Status Begin(Builder& b, bool has_backward) const override {
    ForPasses(has_backward,
              [&](const MaskPrograms&, const PassProgram& pass) { b.AddFunction(pass.function, pass.program.text); });
    return {};
  }

  Attended Forward(Builder& b, const AttentionInputs& in) const override {
    const MaskPrograms& mask = masks_[in.mask];
    const Values out = Call(b, mask.forward, in, {});
    const Value o = FromTiles(b, Given(b, mask.forward, out, "o"), s_.num_q_heads);
    return {b.Transpose(o, {0, 2, 1, 3}), FromTiles(b, Given(b, mask.forward, out, "lse"), s_.num_q_heads)};
  }

  AttentionGradients Backward(Builder& b, const AttentionInputs& in, const Attended& attended,
                              const Value& dout) const override {
    const MaskPrograms& mask = masks_[in.mask];
    const Value delta = b.Transpose(b.Reduce(stablehlo::Reduction::kAdd, b.Mul(attended.o, dout), {3}), {0, 2, 1});
    const Value by_head = b.Convert(b.Transpose(dout, {0, 2, 1, 3}), in.qkv.type.element);
    const Values out = Call(b, mask.backward, in, {{"do", by_head}, {"lse", attended.lse}, {"delta", delta}});
    const auto given = [&](std::string_view name) { return Given(b, mask.backward, out, name); };
    const Value dq = FromTiles(b, given("dq"), s_.num_q_heads);
    const Value dk = FromTiles(b, given("dk"), s_.num_kv_heads);
    const Value dv = FromTiles(b, given("dv"), s_.num_kv_heads);
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

  Result<std::unique_ptr<BoundAttention>> Bind(const RowBatch& rows, bool has_backward) const override {
    auto bound = std::make_unique<BoundAttention>();
    std::vector<Plan> plans;
    for (size_t i = 0; i < masks_.size(); ++i) {
      PlanResult planned = TESSERA_TRY(layers_.attentions[i].Plan(BatchFor(layers_.facts[i], rows)));
      TESSERA_TRY(CheckRoom(masks_[i].spec, planned.plan.view(), lowering_.has_kernels));
      plans.push_back(std::move(planned.plan));
    }
    ForPasses(has_backward, [&](const MaskPrograms& mask, const PassProgram& pass) {
      const auto i = static_cast<size_t>(&mask - masks_.data());
      const lanes::xla::PlanTables tables = lowering_.tables(mask.spec, plans[i].view(), pass.program.inputs);
      for (const NamedType& table : pass.tables) {
        const auto bytes = std::as_bytes(std::span(tables.at(table.name)));
        bound->operands.emplace_back(bytes.begin(), bytes.end());
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
    for (const NamedType& input : pass.program.inputs) {
      const auto given =
          std::find_if(more.begin(), more.end(), [&](const auto& one) { return one.first == input.name; });
      if (given != more.end()) {
        operands.push_back(given->second);
      } else if (input.name == "q") {
        operands.push_back(Heads(b, in.qkv, 0, s_.num_q_heads));
      } else if (input.name == "k") {
        operands.push_back(Heads(b, in.qkv, s_.num_q_heads, s_.num_kv_heads));
      } else if (input.name == "v") {
        operands.push_back(Heads(b, in.qkv, s_.num_q_heads + s_.num_kv_heads, s_.num_kv_heads));
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

  // [B * H * tiles, tile, ...] to [B, H, T, ...].
  Value FromTiles(Builder& b, const Value& tiles, int64_t heads) const {
    std::vector<int64_t> dims = {s_.rows, heads, tiles.type.dims[0] * tiles.type.dims[1] / (s_.rows * heads)};
    dims.insert(dims.end(), tiles.type.dims.begin() + 2, tiles.type.dims.end());
    const std::vector<int64_t> begin(dims.size(), 0);
    std::vector<int64_t> end = dims;
    end[2] = s_.row_tokens;
    return b.Slice(b.Reshape(tiles, dims), begin, end);
  }

  LayerAttention layers_;
  const ModelSpec& s_;
  const lanes::xla::Lowering& lowering_;
  std::vector<MaskPrograms> masks_;
};

// Every row one document: what a class is does not depend on the batch.
RowBatch WholeRows(const ModelSpec& spec) {
  RowBatch rows;
  rows.rows = spec.rows;
  rows.row_tokens = spec.row_tokens;
  rows.doc_ids.assign(static_cast<size_t>(spec.rows * spec.row_tokens), 1);
  rows.valid_token_count.assign(static_cast<size_t>(spec.rows), static_cast<int32_t>(spec.row_tokens));
  return rows;
}

Result<ProgramSpec> SpecFor(const LayerAttention& layers, size_t mask, const Target& target,
                            const lanes::xla::Lowering& lowering) {
  const Attention& attention = layers.attentions[mask];
  const PlanResult planned = TESSERA_TRY(attention.Plan(BatchFor(layers.facts[mask], WholeRows(layers.spec))));
  ProgramSpec spec = stablehlo::SpecOf(attention.contract(), planned.plan.view(), target.kind);
  spec.parts = 1;  // a program runs all of them
  int64_t rows = 0;
  for (const stablehlo::ListShape& list : spec.lists) rows += list.rows;
  int64_t items = kLeastItems;
  while (items < kItemsPerRow * rows * spec.masks && items < (int64_t{1} << 20)) items *= 2;
  spec.items = std::max(spec.items, items);
  Decision fits = lanes::xla::CheckSize(spec);
  if (lowering.has_kernels) {
    spec.stored_tiles = lanes::xla::StoredCapacity(planned.plan.view());
    lanes::xla::ShareRows(spec, target.scalar_bytes);
    if (fits.accepted) fits = lanes::xla::CheckKernelPlan(spec, planned.plan.view(), target);
  }
  if (fits.accepted) return spec;
  return Fail(ErrorCode::kLaneRefused, fmt::format("{}: {}", ReasonText(fits.reason), fits.detail), "attention");
}

}  // namespace

Result<std::unique_ptr<AttentionSubstitute>> MakeProgramAttention(LayerAttention layers, const Target& target,
                                                                  const lanes::xla::Lowering& lowering) {
  std::vector<MaskPrograms> masks;
  for (size_t i = 0; i < layers.attentions.size(); ++i) {
    MaskPrograms mask;
    mask.spec = TESSERA_TRY(SpecFor(layers, i, target, lowering));
    Program forward = TESSERA_TRY(lowering.lower(mask.spec, Pass::kForward));
    Program backward = TESSERA_TRY(lowering.lower(mask.spec, Pass::kBackward));
    mask.forward = ToPass(std::move(forward), fmt::format("attention_forward_{}", i));
    mask.backward = ToPass(std::move(backward), fmt::format("attention_backward_{}", i));
    masks.push_back(std::move(mask));
  }
  return std::make_unique<ProgramAttention>(std::move(layers), lowering, std::move(masks));
}

}  // namespace tessera::model
