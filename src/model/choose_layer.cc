// What stands for the layer spec's keys: attention as choose.cc has it, the others here.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/try.h"
#include "engine/state.h"
#include "lanes/cpu/cpu.h"
#include "lanes/cpu/kernels.h"
#include "model/choose.h"

namespace tessera::model {
namespace {

namespace cpu = lanes::cpu;

constexpr std::string_view kAuto = "auto";
constexpr std::string_view kNone = "none";
constexpr std::string_view kCalled = "cpu";
constexpr std::string_view kRecomputed = "recomputed";
constexpr std::string_view kPlain = "the definition's own operations, which XLA compiles";

class LayerChooser {
 public:
  LayerChooser(const Engine& engine, const ModelSpec& spec, const Target& target, const LayerRequest& request,
               const lanes::xla::Place* place)
      : engine_(*EngineAccess::Of(engine)),
        spec_(spec),
        target_(target),
        options_(request.options),
        refusal_(request.refusal),
        place_(place) {
    chosen_.ops.threads = options_.threads > 0 ? options_.threads : target.workers;
  }

  Result<ChosenLayer> Choose() {
    TESSERA_TRY(CheckSubstitutes(options_.substitutes));
    for (size_t i = 0; i < kLayerKeys.size(); ++i) {
      const auto key = static_cast<LayerKey>(i);
      const auto asked = options_.substitutes.find(std::string(kLayerKeys[i]));
      TESSERA_TRY(ChooseFor(key, asked == options_.substitutes.end() ? kAuto : std::string_view(asked->second)));
    }
    return std::move(chosen_);
  }

 private:
  static bool IsProduct(LayerKey key) { return key != LayerKey::kNorm && key != LayerKey::kLayerNormMlp; }

  Status ChooseFor(LayerKey key, std::string_view asked) {
    const std::string_view key_name = kLayerKeys[static_cast<size_t>(key)];
    if (asked == kNone) return Tell(key, kNone, fmt::format("{}, as asked for", kPlain));
    if (key == LayerKey::kLayerNormMlp) {
      if (asked == kAuto) {
        return Tell(key, kNone, fmt::format("{}; recomputed takes less memory, and more time, when asked for", kPlain));
      }
      chosen_.ops.is_mlp_recomputed = true;
      return Tell(key, kRecomputed, "its backward makes again what its forward made of the layer's input");
    }
    if (asked == kAuto) {
      if (const std::string why = WhyNotWorthIt(key); !why.empty()) {
        return Tell(key, kNone, fmt::format("{}; not {}: {}", kPlain, kCalled, why));
      }
    }
    if (Status can = Call(key); !can) {
      if (asked != kAuto) return Fail(ErrorCode::kLaneRefused, can.error().message, std::string(key_name));
      return Tell(key, kNone, fmt::format("{}; not {}: {}", kPlain, kCalled, can.error().message));
    }
    return {};
  }

  // Where nothing was measured to be faster than XLA's own (docs/measurements.md).
  std::string WhyNotWorthIt(LayerKey key) const {
    if (target_.kind != TargetKind::kCpu) return NotForTarget();
    if (!IsProduct(key)) return "XLA fuses a norm with what is beside it, and little is to be gained";
    if (spec_.dtype != DType::kBf16) return "XLA's products in f32 are about as fast";
    const cpu::Kernel* kernel = cpu::FindKernel(DType::kBf16, Isa(), kAnyTile);
    if (kernel == nullptr || kernel->isa != "amx") return "no matrix unit for bf16 that it was measured on";
    return {};
  }
  std::string NotForTarget() const { return fmt::format("not for a {}", ToText(target_.kind)); }

  // The best that counts as this machine's, or what the engine was told.
  std::string Isa() const {
    if (engine_.options.isa != kAuto || engine_.options.machine_isa.empty()) return engine_.options.isa;
    const auto isas = MakeCpuLane({.isa = "auto", .machine_isa = engine_.options.machine_isa})->Isas();
    return isas.empty() ? engine_.options.isa : std::string(isas.front());
  }

  Status Call(LayerKey key) {
    if (target_.kind != TargetKind::kCpu) return Fail(ErrorCode::kLaneRefused, NotForTarget());
    if (!refusal_.empty()) return Fail(ErrorCode::kLaneRefused, std::string(refusal_));
    if (place_ != nullptr) {
      if (place_->topology != nullptr || place_->session.client->platform() != "cpu") {
        return Fail(ErrorCode::kLaneRefused, "no plugin of \"cpu\" runs the program");
      }
      TESSERA_TRY(pjrt::Register(place_->session.client->plugin(), pjrt::kHostPlatform, LayerFunctions()));
    }
    const cpu::Kernel* kernel = cpu::FindKernel(IsProduct(key) ? spec_.dtype : DType::kF32, Isa(), kAnyTile);
    if (kernel == nullptr) return Fail(ErrorCode::kLaneRefused, "no kernel for this machine");
    const auto table = cpu::KernelTable();
    const auto at =
        std::find_if(table.begin(), table.end(), [&](const cpu::KernelRow& row) { return row.name == kernel->name; });
    (IsProduct(key) ? chosen_.ops.product_kernel : chosen_.ops.norm_kernel) = at - table.begin();
    chosen_.ops.is_called[static_cast<size_t>(key)] = true;
    const std::string what = IsProduct(key) ? fmt::format("products of {}", ToText(spec_.dtype)) : "norms";
    return Tell(key, kCalled, fmt::format("{} with {}, called from inside the program", what, kernel->isa));
  }

  Status Tell(LayerKey key, std::string_view name, std::string reason) {
    chosen_.told[static_cast<size_t>(key)] = {std::string(kLayerKeys[static_cast<size_t>(key)]), std::string(name),
                                              std::move(reason)};
    return {};
  }

  static constexpr int64_t kAnyTile = 64;  // a multiple of every kernel's steps
  const EngineState& engine_;
  const ModelSpec& spec_;
  const Target& target_;
  const TrainerOptions& options_;
  std::string_view refusal_;
  const lanes::xla::Place* place_;
  ChosenLayer chosen_;
};

}  // namespace

Result<ChosenLayer> ChooseLayer(const Engine& engine, const ModelSpec& spec, const Target& target,
                                const LayerRequest& request, const lanes::xla::Place* place) {
  return LayerChooser(engine, spec, target, request, place).Choose();
}

Result<std::string> AskedAttention(const TrainerOptions& options) {
  const auto at = options.substitutes.find(std::string(kAttentionKey));
  if (at == options.substitutes.end() || at->second == options.attention) return options.attention;
  if (options.attention == kAuto) return at->second;
  return Fail(ErrorCode::kBadArgument,
              fmt::format("\"{}\" and \"{}\" are asked for at once", options.attention, at->second),
              std::string(kAttentionKey));
}

std::vector<Substitute> SubstitutesOf(const Chosen& attention, const ChosenLayer& layer) {
  std::vector<Substitute> all(layer.told.begin(), layer.told.end());
  all.insert(all.end() - 1, {std::string(kAttentionKey), attention.name, attention.reason});
  return all;
}

}  // namespace tessera::model
