// See choose.h.
#include "model/choose.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>

#include "base/try.h"
#include "engine/state.h"
#include "lanes/xla/xla.h"
#include "model/contracts.h"

namespace tessera::model {
namespace {

constexpr std::string_view kCpu = "cpu";
constexpr std::string_view kCuda = "cuda";

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

constexpr std::string_view kOnHost = "our kernels for this processor, called from inside the program";
constexpr std::string_view kOnGpu = "our kernels for this GPU, called from inside the program on its stream";
constexpr std::string_view kInKernels = "our TPU kernels inside the program; the plan's tables are its operands";
constexpr std::string_view kInLoops = "loops over the plan's tiles inside the program, on any plugin";

// What there is, best first for the one kind of target that it is for; the last is for any.
struct Way {
  std::string_view name;
  std::optional<TargetKind> target;
  std::string_view platform;  // that calls our functions under the next name; empty: nothing is called
  std::string_view registered;
  std::string_view reason;
};
constexpr Way kWays[] = {{kCpu, TargetKind::kCpu, "cpu", pjrt::kHostPlatform, kOnHost},
                         {kCuda, TargetKind::kGpu, "cuda", pjrt::kCudaPlatform, kOnGpu},
                         {kXlaPallas, TargetKind::kTpu, {}, {}, kInKernels},
                         {kXlaChunked, {}, {}, {}, kInLoops}};

class Chooser {
 public:
  Chooser(const Engine& engine, const Layout& layout, const Target& target, const TrainerOptions& options,
          const lanes::xla::Place* place)
      : engine_(engine), layout_(layout), target_(target), options_(options), place_(place) {}

  Result<Chosen> Try(const Way& way) const {
    if (way.target && *way.target != target_.kind) {
      return Fail(ErrorCode::kLaneRefused, fmt::format("not for a {}", ToText(target_.kind)));
    }
    if (way.name != kXlaChunked && layout_.SizeOf(kContextAxis) > 1) {
      return Fail(ErrorCode::kLaneRefused, "several devices share the tokens of a row");
    }
    if (layout_.mesh && way.target && *way.target != TargetKind::kCpu) {
      return Fail(ErrorCode::kLaneRefused, "its kernels are not laid over the devices of a mesh");
    }
    return way.platform.empty() ? InProgram(way) : Called(way);
  }

 private:
  Result<Chosen> Called(const Way& way) const {
    if (place_ != nullptr && (place_->topology != nullptr || place_->session.client->platform() != way.platform)) {
      return Fail(ErrorCode::kLaneRefused, fmt::format("no plugin of \"{}\" runs the program", way.platform));
    }
    AttentionOptions options = OptionsFor(way.name, options_);
    if (*way.target == TargetKind::kGpu) options.memory = {MemoryKind::kGpu, options_.xla.device};
    LayerAttention layers = TESSERA_TRY(PrepareAll(engine_, layout_.own, target_, options));
    for (const Attention& attention : layers.attentions) TESSERA_TRY(attention.CheckAccepted());
    if (place_ != nullptr) {
      TESSERA_TRY(pjrt::Register(place_->session.client->plugin(), way.registered, AttentionFunctions()));
    }
    Chosen chosen = Begun(way, layers);
    chosen.attention = MakeCalledAttention(std::move(layers), options.memory);
    return chosen;
  }

  Result<Chosen> InProgram(const Way& way) const {
    LayerAttention layers = TESSERA_TRY(PrepareAll(engine_, layout_.own, target_, OptionsFor(way.name, options_)));
    const LaneRow* row = FindLane(EngineAccess::Of(engine_)->table, way.name);
    for (size_t i = 0; row->refuses != nullptr && i < layers.attentions.size(); ++i) {
      const Decision decision = row->refuses(layers.attentions[i].contract(), layers.facts[i]);
      if (decision.accepted) continue;
      return Fail(ErrorCode::kLaneRefused, fmt::format("{}: {}", ReasonText(decision.reason), decision.detail));
    }
    Chosen chosen = Begun(way, layers);
    const lanes::xla::Lowering& lowering = *lanes::xla::FindLowering(way.name);
    const TokenShards tokens{.shards = layout_.SizeOf(kContextAxis),
                             .groups = layout_.Groups({kContextAxis}),
                             .cut = options_.cut,
                             .exchange = options_.exchange};
    if (tokens.shards > 1) {
      chosen.attention = TESSERA_TRY(MakeContextAttention(std::move(layers), target_, lowering, tokens));
      chosen.reason += fmt::format("; tokens over {} devices, {}", tokens.shards, chosen.attention->Context()->reason);
    } else {
      chosen.attention = TESSERA_TRY(MakeProgramAttention(std::move(layers), target_, lowering));
    }
    return chosen;
  }

  static Chosen Begun(const Way& way, const LayerAttention& layers) {
    return {.attention = {},
            .attentions = layers.attentions,
            .name = std::string(way.name),
            .reason = std::string(way.reason)};
  }

  const Engine& engine_;
  const Layout& layout_;
  const Target& target_;
  const TrainerOptions& options_;
  const lanes::xla::Place* place_;
};

}  // namespace

std::string_view PreferredAttention(const Target& target) {
  for (const Way& way : kWays) {
    if (!way.target || *way.target == target.kind) return way.name;
  }
  return kXlaChunked;
}

Result<Chosen> ChooseAttention(const Engine& engine, const Layout& layout, const Target& target,
                               const AttentionRequest& request, const lanes::xla::Place* place) {
  const Chooser chooser(engine, layout, target, request.options, place);
  const std::string_view asked = request.name == "auto" ? PreferredAttention(target) : std::string_view(request.name);
  const Way* way = std::find_if(std::begin(kWays), std::end(kWays), [&](const Way& one) { return one.name == asked; });
  if (way == std::end(kWays)) {
    return Fail(
        ErrorCode::kLaneUnknown,
        fmt::format("attention: \"auto\", \"cpu\", \"cuda\", \"xla_pallas\" or \"xla_chunked\" expected, got \"{}\"",
                    asked));
  }
  Result<Chosen> chosen = chooser.Try(*way);
  if (chosen || way->name == kXlaChunked) return chosen;
  if (request.name != "auto") return Fail(ErrorCode::kLaneRefused, chosen.error().message, "attention");
  Chosen fallback = TESSERA_TRY(chooser.Try(std::end(kWays)[-1]));
  fallback.reason += fmt::format("; not {}: {}", way->name, chosen.error().message);
  return fallback;
}

std::vector<std::string> NotesOf(const ModelSpec& spec, const Target& target) {
  const std::string products =
      spec.dtype == DType::kF32 ? "f32 everywhere" : "products and attention in bf16, sums and parameters in f32";
  std::vector<std::string> kept;
  for (const ParameterInfo& info : ParametersOf(spec)) {
    if (!MaySubstitute(info.name)) kept.push_back(info.name);
  }
  return {fmt::format("precision plan: {}; an 8-bit plan has no effect on {}", products, target.name),
          "use_te_block_layers, use_te_all_linears, tp_comm_overlap: no effect, no vendor library is used",
          fmt::format("no substitute stands for a product with {}: of this model {}",
                      fmt::join(SubstituteExclusions(), ", "), fmt::join(kept, ", "))};
}

}  // namespace tessera::model
