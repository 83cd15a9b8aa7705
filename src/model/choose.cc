// See choose.h.
#include "model/choose.h"

#include <fmt/format.h>

#include "base/try.h"
#include "lanes/xla/xla.h"
#include "model/contracts.h"

namespace tessera::model {
namespace {

constexpr std::string_view kCpu = "cpu";

Result<LayerAttention> PrepareAll(const Engine& engine, const ModelSpec& spec, const Target& target,
                                  const AttentionOptions& options) {
  LayerAttention layers{.spec = spec, .attentions = {}, .facts = {}};
  for (const std::string& mask : DistinctMasks(spec)) {
    const Contract contract = TESSERA_TRY(ContractOf(spec, mask));
    layers.attentions.push_back(TESSERA_TRY(engine.Prepare(contract, target, options)));
    layers.facts.push_back(TESSERA_TRY(DescribeMask(contract)));
  }
  return layers;
}

AttentionOptions OptionsFor(std::string_view lane, const TrainerOptions& options) {
  AttentionOptions out{.lane = std::string(lane), .backward = true, .xla = options.xla};
  if (options.threads > 0) out.threads = options.threads;
  return out;
}

Result<Chosen> ChooseCpu(const Engine& engine, const Layout& layout, const Target& target,
                         const TrainerOptions& options, const lanes::xla::Place& place) {
  if (layout.SizeOf(kContextAxis) > 1) {
    return Fail(ErrorCode::kLaneRefused, "several devices share the tokens of a row");
  }
  if (place.topology != nullptr || place.session.client->platform() != "cpu") {
    return Fail(ErrorCode::kLaneRefused, "the program does not run on this machine's processor");
  }
  Chosen chosen{.attention = {}, .attentions = {}, .name = std::string(kCpu), .reason = {}};
  LayerAttention layers = TESSERA_TRY(PrepareAll(engine, layout.own, target, OptionsFor(kCpu, options)));
  for (const Attention& attention : layers.attentions) TESSERA_TRY(attention.CheckAccepted());
  chosen.attentions = layers.attentions;
  chosen.attention = TESSERA_TRY(MakeHostAttention(std::move(layers), place.session.client->plugin()));
  chosen.reason = "our kernels for this processor, called from inside the program";
  return chosen;
}

Result<Chosen> ChooseChunked(const Engine& engine, const Layout& layout, const Target& target,
                             const TrainerOptions& options) {
  Chosen chosen{.attention = {}, .attentions = {}, .name = std::string(kXlaChunked), .reason = {}};
  LayerAttention layers = TESSERA_TRY(PrepareAll(engine, layout.own, target, OptionsFor(kXlaChunked, options)));
  chosen.attentions = layers.attentions;
  chosen.reason = "loops over the plan's tiles inside the program, on any plugin";
  const TokenShards tokens{layout.SizeOf(kContextAxis), layout.Groups({kContextAxis})};
  if (tokens.shards > 1) {
    chosen.attention = TESSERA_TRY(MakeContextAttention(std::move(layers), target, tokens));
    chosen.reason += fmt::format("; tokens over {} devices", tokens.shards);
  } else {
    chosen.attention = TESSERA_TRY(MakeChunkedAttention(std::move(layers), target));
  }
  return chosen;
}

}  // namespace

Result<Chosen> ChooseAttention(const Engine& engine, const Layout& layout, const Target& target,
                               const AttentionRequest& request, const lanes::xla::Place& place) {
  const std::string& asked = request.name;
  const TrainerOptions& options = request.options;
  if (asked != "auto" && asked != kCpu && asked != kXlaChunked) {
    return Fail(ErrorCode::kLaneUnknown,
                fmt::format("attention: \"auto\", \"cpu\" or \"xla_chunked\" expected, got \"{}\"", asked));
  }
  std::string refusal;
  if (asked != kXlaChunked) {
    Result<Chosen> chosen = ChooseCpu(engine, layout, target, options, place);
    if (chosen) return chosen;
    if (asked == kCpu) return Fail(ErrorCode::kLaneRefused, chosen.error().message, "attention");
    refusal = chosen.error().message;
  }
  Chosen chosen = TESSERA_TRY(ChooseChunked(engine, layout, target, options));
  if (!refusal.empty()) chosen.reason += fmt::format("; not cpu: {}", refusal);
  return chosen;
}

std::vector<Substitute> SubstitutesOf(const std::string& attention, const std::string& reason) {
  const std::string plain = "no vendor library: the definition's own operations, which XLA compiles";
  std::vector<Substitute> all;
  for (const char* key : {"norm", "linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"}) {
    all.push_back({key, "none", plain});
  }
  all.push_back({"attention", attention, reason});
  all.push_back({"layernorm_mlp", "none", plain});
  return all;
}

std::vector<std::string> NotesOf(const ModelSpec& spec, const Target& target) {
  const std::string products =
      spec.dtype == DType::kF32 ? "f32 everywhere" : "products and attention in bf16, sums and parameters in f32";
  return {fmt::format("precision plan: {}; an 8-bit plan has no effect on {}", products, target.name),
          "use_te_block_layers, use_te_all_linears, tp_comm_overlap: no effect, no vendor library is used"};
}

}  // namespace tessera::model
